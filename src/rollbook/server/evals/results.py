"""Results of an eval run over HTTP: record one, or a thousand in one transaction, and read them page by page.

A result fills the row that its baseline has since the run was created. A later result replaces it; the earlier one is
kept as an attempt, and the run counts the pairs that were retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.evals import RESULT_STATUSES
from rollbook.contracts.wire.eval_runs import (
    EvalAttemptAnswer,
    EvalAttemptList,
    EvalResultAnswer,
    EvalResultList,
    OneResultPut,
    PutResult,
    PutResults,
    ResultPut,
    ResultsPut,
)
from rollbook.errors import Refusal
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import context_of
from rollbook.server.evals.metric_values import (
    checked_metrics,
    kept_error,
    lacks_baseline,
    with_baseline,
)
from rollbook.server.evals.runs import closed
from rollbook.server.http.listing import listing_of, page_parameters
from rollbook.server.http.openapi import LeanRoute, query, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import (
    Problem,
    answer_from_row,
    json_response,
    not_found,
    problem_of,
)
from rollbook.server.queries import (
    CLOSED,
    EvalAttemptRow,
    EvalResultRow,
    EvalRunRow,
    NewResult,
    Scope,
)

MOST_ON_A_PAGE = 1000
_DEFAULT_ON_A_PAGE = 100

Checked: TypeAlias = "NewResult | Problem"

_put = msgspec.json.Decoder(PutResult)
_put_many = msgspec.json.Decoder(PutResults)


async def put_result(request: Request) -> Response:
    context = context_of(request)
    caller = await caller_of(request, "evaluate")
    body = await json_body(request, _put, context.settings.body_limit_bytes)
    run_id: str = request.path_params["eval_run_id"]
    result = _checked(body)

    def put(scope: Scope) -> tuple[EvalRunRow, str]:
        run, [answer] = put_results(scope, run_id, [result])
        if isinstance(answer, Problem):
            raise answer
        return run, answer

    run, result_id = await context.write(caller, put)
    return json_response(
        ResultPut(result_id, run.status, run.episodes_completed, run.episodes_failed)
    )


async def put_result_batch(request: Request) -> Response:
    """Each result on its own: one that is refused does not stop the others, and its answer says why."""
    context = context_of(request)
    caller = await caller_of(request, "evaluate")
    body = await json_body(request, _put_many, context.settings.body_limit_bytes)
    run_id: str = request.path_params["eval_run_id"]
    results = await asyncio.to_thread(lambda: [_checked(each) for each in body.results])
    run, answers = await context.write(caller, lambda scope: put_results(scope, run_id, results))
    told = [
        _answer_of(each.baseline_episode_id, answer)
        for each, answer in zip(body.results, answers, strict=True)
    ]
    return json_response(ResultsPut(run.status, run.episodes_completed, run.episodes_failed, told))


def _checked(body: PutResult) -> Checked:
    try:
        metrics = checked_metrics(body.metrics)
    except Refusal as error:
        return problem_of(error)
    return NewResult(
        baseline_episode_id=body.baseline_episode_id,
        status=body.status,
        metrics=metrics,
        candidate_episode_id=body.candidate_episode_id,
        error=kept_error(body.error),
    )


def _answer_of(baseline: str, answer: str | Problem) -> OneResultPut:
    if isinstance(answer, Problem):
        return OneResultPut(
            baseline, error=answer.error, code=answer.code, status_code=answer.status
        )
    return OneResultPut(baseline, eval_result_id=answer)


def put_results(
    scope: Scope, run_id: str, results: Sequence[Checked]
) -> tuple[EvalRunRow, list[str | Problem]]:
    """The updated run, and for each result the id of its row or the reason why it was refused."""
    run = scope.eval_run(run_id, lock=True)
    if run is None:
        raise not_found("eval run")
    if run.status in CLOSED:
        raise closed(run)
    given = [each for each in results if isinstance(each, NewResult)]
    rows = scope.eval_result_ids(run_id, [each.baseline_episode_id for each in given])
    replays = {each.candidate_episode_id for each in given if each.candidate_episode_id is not None}
    unknown = set(scope.unknown_episodes(sorted(replays))) if replays else set()
    others: set[str] = set()
    if replays and run.candidate_policy_revision is not UNSET:
        others = scope.replays_of_other_policies(run_id, replays)
    answers: list[str | Problem] = []
    taken: list[NewResult] = []
    for each in results:
        if isinstance(each, Problem):
            answers.append(each)
        elif each.baseline_episode_id not in rows:
            answers.append(not_found("baseline episode in this run"))
        elif each.candidate_episode_id in unknown:
            answers.append(not_found("candidate episode"))
        elif each.candidate_episode_id in others:
            answers.append(_other_policy())
        else:
            taken.append(each)
            answers.append(rows[each.baseline_episode_id])
    if taken:
        if not (run.episodes_completed or run.episodes_failed):
            scope.enter_in_ledger(run_id)
        retried = scope.write_eval_results(run_id, _completed(scope, taken))
        run = scope.recount_eval_run(run_id, "running", retried=retried) or run
    return run, answers


def _other_policy() -> Problem:
    text = "candidate_episode_id: this episode has another policy_revision than the candidate of the run"
    return Problem(409, "conflicting_revision", text, field="candidate_episode_id")


def _completed(scope: Scope, results: Sequence[NewResult]) -> list[NewResult]:
    """Adds the recorded outcomes of the baselines where the runner does not know them. A crashed replay never
    knows them."""
    lacking = {each.baseline_episode_id for each in results if lacks_baseline(each.metrics)}
    recorded = scope.episode_outcomes(lacking) if lacking else {}
    return [
        replace(each, metrics=with_baseline(each.metrics, recorded[each.baseline_episode_id]))
        if each.baseline_episode_id in recorded
        else each
        for each in results
    ]


async def list_eval_results(request: Request) -> Response:
    caller = await caller_of(request, "read")
    asked = listing_of(
        request.query_params, known=("status",), limit=_DEFAULT_ON_A_PAGE, most=MOST_ON_A_PAGE
    )
    run_id: str = request.path_params["eval_run_id"]

    def find(scope: Scope) -> tuple[list[EvalResultRow], str | None]:
        if scope.eval_run(run_id) is None:
            raise not_found("eval run")
        status = asked.filters.get("status")
        return scope.eval_results(run_id, status, asked.cursor, asked.limit)

    found, following = await context_of(request).read(caller, find)
    return json_response(
        EvalResultList([answer_from_row(EvalResultAnswer, each) for each in found], following)
    )


async def list_eval_attempts(request: Request) -> Response:
    caller = await caller_of(request, "read")
    asked = listing_of(request.query_params, limit=_DEFAULT_ON_A_PAGE, most=MOST_ON_A_PAGE)
    run_id: str = request.path_params["eval_run_id"]

    def find(scope: Scope) -> tuple[list[EvalAttemptRow], str | None]:
        if scope.eval_run(run_id) is None:
            raise not_found("eval run")
        return scope.eval_attempts(run_id, asked.cursor, asked.limit)

    found, following = await context_of(request).read(caller, find)
    return json_response(
        EvalAttemptList([answer_from_row(EvalAttemptAnswer, each) for each in found], following)
    )


_RUN = "/api/ingest/eval-run/{eval_run_id}"

routes: tuple[LeanRoute, ...] = (
    route(
        "POST",
        f"{_RUN}/result",
        put_result,
        summary="Records the result of one baseline; a later result replaces it, and both are kept.",
        takes=PutResult,
        gives=ResultPut,
        errors=(403, 404, 409),
        tag="eval runs",
    ),
    route(
        "POST",
        f"{_RUN}/results",
        put_result_batch,
        summary="Records many results in one transaction; answers are in the order of the request.",
        takes=PutResults,
        gives=ResultsPut,
        errors=(403, 404, 409),
        tag="eval runs",
    ),
    route(
        "GET",
        "/api/eval-runs/{eval_run_id}/results",
        list_eval_results,
        summary="Lists the results of a run, in the order of its baselines.",
        gives=EvalResultList,
        errors=(400, 404),
        parameters=(
            query("status", {"enum": list(RESULT_STATUSES)}, "Only this status."),
            *page_parameters(MOST_ON_A_PAGE),
        ),
        tag="eval runs",
    ),
    route(
        "GET",
        "/api/eval-runs/{eval_run_id}/attempts",
        list_eval_attempts,
        summary="Lists the results that were replaced by later ones, by baseline.",
        gives=EvalAttemptList,
        errors=(400, 404),
        parameters=page_parameters(MOST_ON_A_PAGE),
        tag="eval runs",
    ),
)
