"""Progress of an eval run that is under way: how far it is and how long it may take. There is no verdict before the
end."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.evals import RunStatus
from rollbook.portal.formats import seconds
from rollbook.portal.page import page_route, page_session
from rollbook.report.words import count
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import json_response, not_found
from rollbook.server.queries import EvalRunHead

UNDER_WAY: tuple[RunStatus, ...] = ("pending", "running")
_QUIET_S = 300.0
"""A run without a result for so long may have lost its runner."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that the page of a run asks for again and again."""

    status: RunStatus
    done: int
    failed: int
    total: int
    text: str
    pace: str
    ended: bool


def progress_of(run: EvalRunHead, now_us: int) -> Progress:
    done = run.episodes_completed + run.episodes_failed
    failed = f", {run.episodes_failed:,} failed" if run.episodes_failed else ""
    return Progress(
        status=run.status,
        done=done,
        failed=run.episodes_failed,
        total=run.episode_count,
        text=f"{done:,} of {count(run.episode_count, 'pair')} measured{failed}.",
        pace=_pace(run, done, now_us),
        ended=run.status not in UNDER_WAY,
    )


def _pace(run: EvalRunHead, done: int, now_us: int) -> str:
    if not done:
        return f"Waiting for the first result since {seconds((now_us - run.created_at_us) / 1e6)}."
    quiet = (now_us - run.updated_at_us) / 1e6
    left = run.episode_count - done
    if left <= 0:
        return "Every pair has a result; the runner has to complete the run."
    if quiet > _QUIET_S:
        said = f"The last result came {seconds(quiet)} ago."
        return (
            f"{said} If its runner has ended, continue with: rollbook replay run --resume {run.id}"
        )
    taken = max((run.updated_at_us - run.created_at_us) / 1e6, 1e-3)
    rate = done / taken
    pace = f"{60 * rate:.3g} pairs a minute" if rate < 10 else f"{rate:.3g} pairs a second"
    return f"{pace}; about {seconds(max(left / rate - quiet, 0.0))} left."


async def eval_progress(request: Request) -> Response:
    session = await page_session(request)
    context, run_id = context_of(request), request.path_params["eval_run_id"]
    run = await context.read(session.caller, lambda scope: scope.eval_run(run_id))
    if run is None:
        raise not_found("eval run")
    return json_response(progress_of(run, context.clock()), headers={"Cache-Control": "no-store"})


routes: tuple[LeanRoute, ...] = (
    page_route("GET", "/portal/evals/{eval_run_id}/progress", eval_progress),
)
