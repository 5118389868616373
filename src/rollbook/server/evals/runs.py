"""Eval runs over HTTP: create, finalize, cancel, read, find and delete.

A run is created whole: if one of its baselines does not exist, the run is not created. Its summary is computed from the
results in the database, and stored only together with those results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from rollbook import __version__
from rollbook.contracts.evals import MOST_BASELINES, RUN_STATUSES, EvalResult
from rollbook.contracts.evidence import (
    DecidedFrom,
    result_digest,
    results_digest,
    summary_digest,
)
from rollbook.contracts.gate import Gate, gate_from
from rollbook.contracts.policy import revision_identity
from rollbook.contracts.wire.eval_runs import (
    CreateEvalRun,
    EpisodeUseAnswer,
    EpisodeUses,
    EvalResultAnswer,
    EvalRunAnswer,
    EvalRunCreated,
    EvalRunDeleted,
    EvalRunFinalized,
    EvalRunList,
    EvalRunListed,
    FinalizeEvalRun,
)
from rollbook.contracts.wire.limits import LONGEST_INDEXED
from rollbook.digest import digest_of
from rollbook.errors import ConflictingRevision, InvalidText
from rollbook.scoring.labels import Labels, label_names
from rollbook.server.accounts.callers import caller_of
from rollbook.server.accounts.roles import require_own
from rollbook.server.context import Caller, ServerContext, context_of
from rollbook.server.db.value_checks import checked_object, checked_text
from rollbook.server.evals.locked_gates import applicable_gate, checked_gate, refuse_weaker
from rollbook.server.http.listing import listing_of, page_parameters
from rollbook.server.http.openapi import LeanRoute, header, query, route
from rollbook.server.http.requests import decoded, json_body, json_text
from rollbook.server.http.responses import Problem, answer_from_row, json_response, not_found
from rollbook.server.queries import (
    EpisodeUse,
    EvalResultRow,
    EvalRunFilter,
    EvalRunRow,
    Scope,
)
from rollbook.server.webhooks.events import announce_run

MOST_ON_A_PAGE = 200
_DEFAULT_ON_A_PAGE = 50
_MOST_TRIES = 5
_MOST_NAMED = 20
_FILTERS = ("candidate_policy_version", "baseline_policy_version", "status")

_create = msgspec.json.Decoder(CreateEvalRun)
_finalize = msgspec.json.Decoder(FinalizeEvalRun)


# ------------------------------------------------------------------------------------------ create


async def create_eval_run(request: Request) -> Response:
    context = context_of(request)
    caller = await caller_of(request, "evaluate")
    text = await json_text(request, context.settings.body_limit_bytes)
    body = decoded(text, _create)
    baselines = list(dict.fromkeys(body.baseline_episode_ids))
    if len(baselines) > MOST_BASELINES:
        expected = f"at most {MOST_BASELINES} episodes; make several runs of them"
        raise _invalid_value("baseline_episode_ids", f"expected {expected}")
    given_gate = None if body.gate is None else checked_gate(body.gate)
    # the default is stored too, and so are the labels: they must not change during a run
    gate, gate_name, labels = await context.read(
        caller, lambda scope: _gate_and_labels(scope, given_gate, body.gate_name, baselines)
    )
    values = {**_values(body, gate, caller), "gate_name": gate_name}
    key = request.headers.get("idempotency-key")
    idempotency = None if key is None else (key, digest_of("rollbook.create-eval-run", text))
    named = (
        ("candidate_policy_revision", body.candidate_policy_revision),
        ("baseline_policy_revision", body.baseline_policy_revision),
    )
    given = [(name, revision) for name, revision in named if revision is not None]

    def create(scope: Scope) -> EvalRunRow:
        unknown = scope.unknown_episodes(baselines)
        if unknown:
            raise _no_such_baselines(unknown)
        revisions = {}
        # in one order, so that two runs never wait for each other's revisions
        for name, revision in sorted(given, key=lambda each: revision_identity(each[1])):
            try:
                revisions[f"{name}_id"] = scope.register_policy_revision(revision)
            except (ConflictingRevision, InvalidText) as error:
                error.record = name  # the sender has to know which one of two
                raise
        return scope.create_eval_run({**values, **revisions}, baselines, idempotency, labels)

    run = await context.write(caller, create)
    kept: Literal[True] | UnsetType = True if given else UNSET
    made = EvalRunCreated(
        run.id,
        run.status,
        run.episode_count,
        run.gate_digest,
        kept,
        run.gate,
        UNSET if run.gate_name is None else run.gate_name,
    )
    return json_response(made, 201, {"Idempotency-Replayed": "true"} if run.replayed else {})


def _values(body: CreateEvalRun, gate: Gate, caller: Caller) -> dict[str, Any]:
    texts = {
        name: None if value is None else checked_text("eval run", name, value, LONGEST_INDEXED)
        for name, value in (
            ("candidate_policy_version", body.candidate_policy_version),
            ("baseline_policy_version", body.baseline_policy_version),
            ("name", body.name),
        )
    }
    return {
        **texts,
        "runner_kind": body.runner_kind,
        "metadata": checked_object("eval run", "metadata", body.metadata or {}),
        "gate": gate.as_dict(),
        "gate_digest": gate.digest,
        "created_by": caller.name,
    }


def _gate_of_run(
    scope: Scope, given: Gate | None, name: str | None, baselines: Sequence[str]
) -> tuple[Gate, str | None]:
    """The gate that judges, and the name of the locked gate that it is, or is stricter than."""
    locked = applicable_gate(scope, name)
    if locked is None:
        return given or _default_gate(scope, baselines), None
    if given is None:
        return gate_from(locked.gate), locked.name
    refuse_weaker(given, locked)
    return given, locked.name


def _gate_and_labels(
    scope: Scope, given: Gate | None, name: str | None, baselines: Sequence[str]
) -> tuple[Gate, str | None, dict[str, dict[str, tuple[str, ...]]]]:
    gate, gate_name = _gate_of_run(scope, given, name, baselines)
    return gate, gate_name, scope.episode_labels(baselines, label_names(gate))


def _default_gate(scope: Scope, baselines: Sequence[str]) -> Gate:
    recorded = scope.episode_outcomes(baselines).values()
    return Gate.for_baselines(
        {name for each in recorded for name, value in each.items() if value is not None}
    )


def _no_such_baselines(unknown: Sequence[str]) -> Problem:
    """All or nothing: a comparison that silently leaves episodes out would be another comparison."""
    text = (
        f"{len(unknown)} of the baseline episodes are not here, so no run was made; "
        "check their ids, and that your key is of the organisation they belong to"
    )
    return Problem(404, "not_found", text, missing=list(unknown[:_MOST_NAMED]))


def _invalid_value(name: str, text: str) -> Problem:
    return Problem(400, "invalid_value", f"{name}: {text}", where=f"$.{name}")


# ---------------------------------------------------------------------------------------- finalize


async def finalize_eval_run(request: Request) -> Response:
    """A repeated finalize computes the summary again, except when baselines were deleted after the first one: whoever
    deletes a lost pair must not get another decision. Results that arrive meanwhile are included."""
    context = context_of(request)
    caller = await caller_of(request, "evaluate")
    body = await json_body(request, _finalize, context.settings.body_limit_bytes)
    run_id: str = request.path_params["eval_run_id"]

    for _ in range(_MOST_TRIES):
        state = await context.read(caller, lambda scope: _run_state(scope, run_id))
        summary = await asyncio.to_thread(state.summary)
        decided = await asyncio.to_thread(state.decided_from, summary)
        revision = state.run.revision

        def finish(scope: Scope) -> tuple[EvalRunRow | None, bool]:
            done, told = _finish(scope, context, run_id, body, (summary, revision))  # noqa: B023
            if done is not None and decided is not None:  # noqa: B023
                scope.keep_evidence(run_id, decided)  # noqa: B023
            return done, told

        done, told = await context.write(caller, finish)
        if told:
            context.deliveries_wanted.put_nowait(caller.org_id)
        if done is not None:
            return json_response(EvalRunFinalized(done.id, done.status, summary))
    text = "results are still arriving; finalize the run when its runners are done"
    raise Problem(409, "results_arriving", text)


@dataclass(frozen=True)
class _RunState:
    """Everything that the summary of a run is made of."""

    run: EvalRunRow
    results: Sequence[EvalResultRow]
    critical: Mapping[str, str]
    labels: Mapping[str, Labels]
    earlier_runs: int

    def summary(self) -> dict[str, Any]:
        run = self.run
        if run.status == "completed" and run.altered and run.summary is not None:
            return run.summary
        from rollbook.scoring import rollup  # loads scipy, which most processes never need

        return rollup(
            as_results(self.results),
            gate_from(run.gate),
            total=run.episode_count,
            deleted=run.altered,
            critical=self.critical,
            labels=self.labels,
            retried=run.retried,
            earlier_runs=self.earlier_runs,
            gate_name=run.gate_name,
        ).to_wire()

    def decided_from(self, summary: dict[str, Any]) -> dict[str, Any] | None:
        """To be kept with the summary; None where the summary is the one that is stored already."""
        run = self.run
        if summary is run.summary:
            return None
        digests = [result_digest(answer_from_row(EvalResultAnswer, each)) for each in self.results]
        decided = DecidedFrom(
            total=run.episode_count,
            deleted=run.altered,
            retried=run.retried,
            earlier_runs=self.earlier_runs,
            critical=dict(self.critical),
            gate_name=run.gate_name,
            gate_digest=run.gate_digest,
            summary_digest=summary_digest(summary),
            result_digests=digests,
            results_digest=results_digest(digests),
            rollbook=__version__,
        )
        kept: dict[str, Any] = msgspec.to_builtins(decided)
        return kept


def as_results(rows: Sequence[EvalResultRow]) -> list[EvalResult]:
    """As scoring and reports take them."""
    return [
        EvalResult(
            baseline_episode_id=each.baseline_episode_id,
            candidate_episode_id=each.candidate_episode_id,
            status=each.status,  # type: ignore[arg-type]
            metrics=each.metrics,
            error=each.error,
        )
        for each in rows
    ]


def _run_state(scope: Scope, run_id: str) -> _RunState:
    run = _open_run(scope, run_id)
    results = scope.all_eval_results(run_id)
    labels = {
        each.baseline_episode_id: {name: tuple(values) for name, values in each.labels.items()}
        for each in results
        if each.labels is not None
    }
    # runs of older releases have no labels
    unknown = [each.baseline_episode_id for each in results if each.labels is None]
    if unknown:
        labels |= scope.episode_labels(unknown, label_names(gate_from(run.gate)))
    critical, earlier = scope.critical_baselines(run_id), scope.earlier_runs(run_id)
    return _RunState(run, results, critical, labels, earlier)


def _finish(
    scope: Scope,
    context: ServerContext,
    run_id: str,
    body: FinalizeEvalRun,
    computed: tuple[dict[str, Any], int],
) -> tuple[EvalRunRow | None, bool]:
    """The updated run, or None when results arrived after `computed`; and whether a webhook has to be called."""
    summary, revision = computed
    run = _open_run(scope, run_id, lock=True)
    if run.status == "completed" != body.status:
        raise closed(run)  # otherwise it would accept results after somebody acted on its decision
    metadata = run.metadata
    if body.metadata:
        metadata = checked_object("eval run", "metadata", {**metadata, **body.metadata})
    completed_at_us = run.completed_at_us or context.clock()
    changes = {
        "status": body.status,
        "metadata": metadata,
        "summary": summary,
        "recommend": summary["recommend"],
        "decision": summary["decision"]["recommend"],
        "completed_at_us": completed_at_us if body.status == "completed" else None,
    }
    done = scope.change_eval_run(run_id, changes, revision=revision)
    if done is None:
        return None, False
    if done.status == "completed":
        scope.mirror_results(run_id, done.candidate_policy_version)
    return done, run.status != done.status and announce_run(scope, context.settings, done)


def _open_run(scope: Scope, run_id: str, *, lock: bool = False) -> EvalRunRow:
    run = scope.eval_run(run_id, lock=lock)
    if run is None:
        raise not_found("eval run")
    if run.status == "cancelled":
        raise closed(run)
    return run


def closed(run: EvalRunRow) -> Problem:
    text = f"this eval run is {run.status} and takes no more; make a new run"
    return Problem(409, "eval_run_closed", text, run_status=run.status)


# ------------------------------------------------------------------------------- cancel and delete


async def cancel_eval_run(request: Request) -> Response:
    """Repeating it is not an error. Recorded results stay readable."""
    context, caller = context_of(request), await caller_of(request, "evaluate")
    run_id: str = request.path_params["eval_run_id"]

    def cancel(scope: Scope) -> tuple[EvalRunRow, bool]:
        run = scope.eval_run(run_id, lock=True)
        if run is None:
            raise not_found("eval run")
        if run.status == "completed":
            raise closed(run)
        if run.status == "cancelled":
            return run, False
        done = scope.change_eval_run(run_id, {"status": "cancelled"})
        assert done is not None, "it is locked"
        scope.audit("eval_run.cancelled", actor=caller.name, subject=run_id)
        return done, announce_run(scope, context.settings, done)

    run, told = await context.write(caller, cancel)
    if told:
        context.deliveries_wanted.put_nowait(caller.org_id)
    return json_response(answer_from_row(EvalRunAnswer, run))


async def delete_eval_run(request: Request) -> Response:
    caller = await caller_of(request, "delete_own")
    run_id: str = request.path_params["eval_run_id"]

    def delete(scope: Scope) -> None:
        run = scope.eval_run(run_id)
        if run is None:
            raise not_found("eval run")
        require_own(caller, run.created_by, "eval run")
        scope.delete_eval_run(run_id)
        scope.audit("eval_run.deleted", actor=caller.name, subject=run_id)

    await context_of(request).write(caller, delete)
    return json_response(EvalRunDeleted(run_id))


# ------------------------------------------------------------------------------------ read and find


async def read_eval_run(request: Request) -> Response:
    run_id: str = request.path_params["eval_run_id"]
    caller = await caller_of(request, "read")
    run = await context_of(request).read(caller, lambda scope: scope.eval_run(run_id))
    if run is None:
        raise not_found("eval run")
    return json_response(answer_from_row(EvalRunAnswer, run))


async def list_eval_runs(request: Request) -> Response:
    caller = await caller_of(request, "read")
    asked = listing_of(
        request.query_params, known=_FILTERS, limit=_DEFAULT_ON_A_PAGE, most=MOST_ON_A_PAGE
    )
    candidate, baseline, status = (asked.filters.get(name) for name in _FILTERS)
    wanted = EvalRunFilter(
        candidate_policy_version=candidate, baseline_policy_version=baseline, status=status
    )
    found, following = await context_of(request).read(
        caller, lambda scope: scope.eval_runs(wanted, asked.cursor, asked.limit)
    )
    return json_response(
        EvalRunList([answer_from_row(EvalRunListed, each) for each in found], following)
    )


_INGEST, _RUN = "/api/ingest/eval-run", "/api/eval-runs/{eval_run_id}"
_STRING = {"type": "string"}


async def read_uses(request: Request) -> Response:
    episode_id: str = request.path_params["episode_id"]
    caller = await caller_of(request, "read")

    def read(scope: Scope) -> list[EpisodeUse] | None:
        there = scope.episode(episode_id) is not None
        return scope.uses_of_episode(episode_id) if there else None

    found = await context_of(request).read(caller, read)
    if found is None:
        raise not_found("episode")
    return json_response(EpisodeUses([answer_from_row(EpisodeUseAnswer, each) for each in found]))


routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        "/api/episodes/{episode_id}/eval-runs",
        read_uses,
        summary="Lists the eval runs in which an episode is a baseline or a replay, newest first.",
        gives=EpisodeUses,
        errors=(404,),
        tag="lineage",
    ),
    route(
        "POST",
        _INGEST,
        create_eval_run,
        summary="Creates an eval run of one candidate against recorded episodes, which must all exist.",
        takes=CreateEvalRun,
        gives=EvalRunCreated,
        status=201,
        errors=(403, 404, 409),
        parameters=(
            header(
                "Idempotency-Key",
                {"type": "string", "maxLength": 255},
                "The same key with the same body returns the first run; with another body it is a 409.",
            ),
        ),
        tag="eval runs",
    ),
    route(
        "POST",
        f"{_INGEST}/{{eval_run_id}}/finalize",
        finalize_eval_run,
        summary="Closes a run, computes its summary and decision, updates scenarios and notifies webhooks.",
        takes=FinalizeEvalRun,
        gives=EvalRunFinalized,
        errors=(403, 404, 409),
        tag="eval runs",
    ),
    route(
        "GET",
        "/api/eval-runs",
        list_eval_runs,
        summary="Lists the eval runs that match every filter, newest first.",
        gives=EvalRunList,
        errors=(400,),
        parameters=(
            query("candidate_policy_version", _STRING, "Only runs of this candidate."),
            query("baseline_policy_version", _STRING, "Only runs against this baseline."),
            query("status", {"enum": list(RUN_STATUSES)}, "Only this status."),
            *page_parameters(MOST_ON_A_PAGE),
        ),
        tag="eval runs",
    ),
    route(
        "GET",
        _RUN,
        read_eval_run,
        summary="Reads one eval run, with its gate and its summary.",
        gives=EvalRunAnswer,
        errors=(404,),
        tag="eval runs",
    ),
    route(
        "POST",
        f"{_RUN}/cancel",
        cancel_eval_run,
        summary="Cancels a run. It takes no further results; its results stay readable.",
        gives=EvalRunAnswer,
        errors=(403, 404, 409),
        tag="eval runs",
    ),
    route(
        "DELETE",
        _RUN,
        delete_eval_run,
        summary="Deletes a run and its results. Episodes and scenario results stay.",
        gives=EvalRunDeleted,
        errors=(403, 404),
        tag="eval runs",
    ),
)
