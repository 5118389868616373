"""Evidence of a decision over HTTP: everything that it rests on, as a signed zip file; and the key to check it with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.evidence import (
    BATCHES,
    DECIDED,
    EPISODES,
    FORMAT,
    MANIFEST,
    RESULTS,
    REVISIONS,
    RUN,
    SIGNATURE,
    EvidenceArtifact,
    EvidenceEpisode,
    EvidenceManifest,
    EvidenceRevision,
    file_of,
    packed,
)
from rollbook.contracts.lineage import ROLLOUT_METADATA
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.source_file import SOURCE_FILE_KEY
from rollbook.contracts.wire.eval_runs import EvalResultAnswer, EvalRunAnswer
from rollbook.contracts.wire.evidence import EvidenceKey
from rollbook.contracts.wire.lineage import TrainingSource
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import context_of
from rollbook.server.evals.signing import evidence_key, signed
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.responses import (
    Problem,
    answer_from_row,
    json_bytes,
    json_response,
    not_found,
)
from rollbook.server.queries import (
    EpisodeRow,
    EvalResultRow,
    EvalRunRow,
    RevisionRow,
    Scope,
    TrainingSourceRow,
)


async def read_evidence(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "read")
    run_id: str = request.path_params["eval_run_id"]
    found = await context.read(caller, lambda scope: _collected(scope, run_id))
    data = await asyncio.to_thread(found.packed, caller.org_id, context.settings.secret)
    name = f'attachment; filename="evidence-{found.run.id}.zip"'
    return Response(data, 200, {"Content-Disposition": name}, "application/zip")


async def read_evidence_key(request: Request) -> Response:
    return json_response(evidence_key(context_of(request).settings.secret))


@dataclass(frozen=True, slots=True)
class _Collected:
    """Read in one transaction, so that all of it is of one moment."""

    run: EvalRunRow
    decided: dict[str, Any] | None
    results: Sequence[EvalResultRow]
    episodes: Sequence[EpisodeRow]
    origins: dict[str, dict[str, dict[str, Any]]]
    revisions: Sequence[tuple[RevisionRow, Sequence[TrainingSourceRow]]]
    batches: Sequence[dict[str, Any]]

    def packed(self, org_id: str, secret: bytes) -> bytes:
        files = {RUN: json_bytes(answer_from_row(EvalRunAnswer, self.run))}
        if self.decided is not None:
            files[DECIDED] = json_bytes(self.decided)
        files |= {
            RESULTS: _lines([answer_from_row(EvalResultAnswer, each) for each in self.results]),
            EPISODES: _lines([self._episode(each) for each in self.episodes]),
            REVISIONS: _lines([_revision(row, sources) for row, sources in self.revisions]),
            BATCHES: _lines(self.batches),
        }
        manifest = EvidenceManifest(
            format=FORMAT,
            eval_run_id=self.run.id,
            organisation=org_id,
            files={name: file_of(data) for name, data in files.items()},
        )
        described = msgspec.json.format(msgspec.json.encode(manifest))
        signature = json_bytes(signed(secret, described))
        return packed({MANIFEST: described, SIGNATURE: signature, **files})

    def _episode(self, row: EpisodeRow) -> EvidenceEpisode:
        origins = self.origins.get(row.id, {})
        return EvidenceEpisode(
            id=row.id,
            status=row.status,
            source=row.source,
            policy_version=row.policy_version,
            env_version=row.env_version,
            seed=row.seed,
            artifacts=[
                EvidenceArtifact(each.kind, each.size, each.sha256)
                for each in sorted(row.artifacts, key=lambda each: each.kind)
                if each.status == "stored"
            ],
            missing_artifacts=sorted(
                each.kind for each in row.artifacts if each.status != "stored"
            ),
            rollout=origins.get(ROLLOUT_METADATA),
            policy_revision=row.policy_revision,
            source_file=origins.get(SOURCE_FILE_KEY, msgspec.UNSET),
        )


def _lines(records: Sequence[object]) -> bytes:
    return b"".join(json_bytes(each) + b"\n" for each in records)


def _revision(row: RevisionRow, sources: Sequence[TrainingSourceRow]) -> EvidenceRevision:
    told = [TrainingSource(each.kind, each.source_id, each.detail) for each in sources]
    return EvidenceRevision(revision=row.revision, sources=told)


def _collected(scope: Scope, run_id: str) -> _Collected:
    run = scope.eval_run(run_id)
    if run is None:
        raise not_found("eval run")
    if run.status != "completed":
        text = f"this eval run is {run.status}: only a completed run has a decision to export"
        raise Problem(409, "eval_run_open", text, run_status=run.status)
    results = scope.all_eval_results(run_id)
    ids = [each.baseline_episode_id for each in results]
    ids += [each.candidate_episode_id for each in results if each.candidate_episode_id is not None]
    rows: dict[str, RevisionRow] = {}
    for named in (run.candidate_policy_revision, run.baseline_policy_revision):
        if isinstance(named, PolicyRevision):
            rows |= {each.id: each for each in scope.ancestry_of(named)}
    return _Collected(
        run,
        scope.evidence_of(run_id),
        results,
        scope.episode_heads(list(dict.fromkeys(ids))),
        scope.episode_origins(ids),
        [(row, scope.training_sources(key)) for key, row in rows.items()],
        [batch for key in rows for batch in scope.batch_records(key)],
    )


routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        "/api/eval-runs/{eval_run_id}/evidence",
        read_evidence,
        summary="Packs everything that the decision of a completed run rests on into a signed zip file.",
        gives=None,
        errors=(404, 409),
        answers={
            200: {
                "description": "The zip file; docs/reference/lineage.md describes it.",
                "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
            }
        },
        tag="lineage",
    ),
    route(
        "GET",
        "/api/evidence-key",
        read_evidence_key,
        summary="The public key with which this server signs evidence.",
        gives=EvidenceKey,
        open_to_all=True,
        tag="lineage",
    ),
)
