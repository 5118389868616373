"""Policy revisions over HTTP: record one, with what it was trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.policy import revision_identity
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.wire.lineage import (
    BatchAnswer,
    BatchList,
    RecordRevision,
    RevisionAnswer,
    RevisionList,
    RevisionRecorded,
    StoreRows,
    TrainingSource,
)
from rollbook.digest import digest_of
from rollbook.errors import DigestMismatch
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import context_of
from rollbook.server.db.lineage_tables import SourceKind
from rollbook.server.db.value_checks import checked_text
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import Problem, json_response, not_found
from rollbook.server.queries import RevisionRow, Scope

_LONGEST_BATCH_ID = 200
_MOST_NAMED = 20
_MOST_RUNS = 100

_record = msgspec.json.Decoder(RecordRevision)


@dataclass(frozen=True, slots=True)
class _Source:
    kind: SourceKind
    source_id: str
    detail: dict[str, Any]
    record: dict[str, Any] | None = None


async def record_revision(request: Request) -> Response:
    context = context_of(request)
    caller = await caller_of(request, "evaluate")
    body = await json_body(request, _record, context.settings.body_limit_bytes)
    if not body.revision.revision_id.strip() or not body.revision.policy_family.strip():
        text = "revision: a revision that is recorded needs a policy_family and a revision_id"
        raise Problem(400, "invalid_value", text, where="$.revision")
    sources = list(_sources_of(body))

    def record(scope: Scope) -> RevisionRecorded:
        unknown = scope.unknown_episodes(list(dict.fromkeys(body.episode_ids)))
        if unknown:
            text = f"{len(unknown)} of the episodes are not here, so nothing was recorded; check their ids"
            raise Problem(404, "not_found", text, missing=unknown[:_MOST_NAMED])
        described = {body.revision, *_revisions_of_batches(body.batches)}
        ids = {
            # in one order, so that two requests never wait for each other's revisions
            revision_identity(each): scope.register_policy_revision(each)
            for each in sorted(described, key=revision_identity)
        }
        row_id = ids[revision_identity(body.revision)]
        added = sum(_add(scope, row_id, each) for each in sources)
        family, revision_id = revision_identity(body.revision)
        return RevisionRecorded(
            id=row_id, policy_family=family, revision_id=revision_id, added=added
        )

    return json_response(await context.write(caller, record), 200)


def _add(scope: Scope, row_id: str, source: _Source) -> bool:
    if scope.add_training_source(
        row_id, source.kind, source.source_id, source.detail, source.record
    ):
        return True
    known = scope.training_source(row_id, source.kind, source.source_id)
    if source.kind == "batch" and known is not None:
        before, now = known.detail["content_digest"], source.detail["content_digest"]
        if before != now:
            raise DigestMismatch(
                record_id=source.source_id, field="content_digest", recorded=before, computed=now
            )
    return False


def _revisions_of_batches(batches: list[TrainerBatch]) -> Iterator[Any]:
    for batch in batches:
        yield batch.policy_lineage.target_revision
        yield from batch.policy_lineage.source_revisions


def _sources_of(body: RecordRevision) -> Iterator[_Source]:
    for batch in body.batches:
        yield _of_batch(batch, body)
    for store in body.stores:
        yield _of_store(store)
    if body.episode_ids:
        ids = list(dict.fromkeys(body.episode_ids))
        detail = {"episode_ids": ids, "count": len(ids)}
        yield _Source("episodes", digest_of("rollbook.training-episodes", ids), detail)


def _of_batch(batch: TrainerBatch, body: RecordRevision) -> _Source:
    batch.verify()
    checked_text("trainer batch", "batch_id", batch.batch_id, _LONGEST_BATCH_ID)
    lineage = batch.policy_lineage
    if revision_identity(lineage.target_revision) != revision_identity(body.revision):
        text = (
            f"batch {batch.batch_id!r} trains another revision, {lineage.target_revision.revision_id!r}; "
            "send it with that one"
        )
        raise Problem(400, "invalid_value", text, where="$.batches")
    drifts = [body.revision.revision_drift_from(each) for each in lineage.source_revisions]
    known = [each for each in drifts if each is not None]
    detail = {
        "content_digest": batch.content_digest,
        "rollouts_root": batch.rollouts_root,
        "rollout_count": batch.rollout_count,
        "token_count": batch.token_count,
        "assembled_at_ms": batch.assembled_at_ms,
        "sources": [each.revision_id for each in lineage.source_revisions],
        "most_drift": max(known) if len(known) == len(drifts) and known else None,
        "proofs": len(batch.proof_references),
    }
    return _Source("batch", batch.batch_id, detail, msgspec.to_builtins(batch))


def _of_store(store: StoreRows) -> _Source:
    rows = sorted(set(store.rows))
    detail = {
        "store_digest": store.store_digest,
        "name": store.name,
        "batch_id": store.batch_id,
        "rows": rows,
        "count": len(rows),
    }
    named = [store.store_digest, store.batch_id, rows]
    return _Source("store", digest_of("rollbook.training-rows", named), detail)


async def read_revision(request: Request) -> Response:
    """By the id of the server, or by the revision id, which several families may have."""
    caller, name = await caller_of(request, "read"), request.path_params["revision_id"]

    def read(scope: Scope) -> list[RevisionAnswer]:
        return [_answer(scope, row) for row in scope.revisions_named(name)]

    found = await context_of(request).read(caller, read)
    if not found:
        raise not_found("policy revision")
    return json_response(RevisionList(found))


def _answer(scope: Scope, row: RevisionRow) -> RevisionAnswer:
    family = scope.family_of(row.revision).values()
    runs = scope.runs_of_policy(policy_revision_id=row.id, limit=_MOST_RUNS)
    return RevisionAnswer(
        id=row.id,
        revision=row.revision,
        sources=[
            TrainingSource(each.kind, each.source_id, each.detail)
            for each in scope.training_sources(row.id)
        ],
        children=sorted(
            each.revision_id
            for each in family
            if each.revision.parent_revision_id == row.revision_id
        ),
        eval_run_ids=[each.id for each in runs],
    )


async def read_batch(request: Request) -> Response:
    caller, batch_id = await caller_of(request, "read"), request.path_params["batch_id"]
    found = await context_of(request).read(caller, lambda scope: scope.batches_named(batch_id))
    if not found:
        raise not_found("trainer batch")
    batches = [BatchAnswer(row_id, msgspec.convert(batch, TrainerBatch)) for row_id, batch in found]
    return json_response(BatchList(batches))


routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        "/api/policy-revisions/{revision_id}",
        read_revision,
        summary="Reads the policy revisions with this id, with what each was trained on and the runs that judged it.",
        gives=RevisionList,
        errors=(404,),
        tag="lineage",
    ),
    route(
        "GET",
        "/api/trainer-batches/{batch_id}",
        read_batch,
        summary="Reads the trainer batches with this id, whole.",
        gives=BatchList,
        errors=(404,),
        tag="lineage",
    ),
    route(
        "POST",
        "/api/policy-revisions",
        record_revision,
        summary="Records a policy revision and what it was trained on. The same again changes nothing.",
        takes=RecordRevision,
        gives=RevisionRecorded,
        errors=(403, 404, 409),
        tag="policy revisions",
    ),
)
