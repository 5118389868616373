"""The gate: does a candidate pass every critical scenario?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.limits import LONGEST_INDEXED
from rollbook.contracts.wire.scenarios import GateAnswer
from rollbook.portal.page import Page, page_route, page_session, render
from rollbook.server.context import context_of
from rollbook.server.evals.verify import gate_answer, why_it_blocks
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem
from rollbook.server.queries import Scope, Standing

_MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class GateRow:
    standing: Standing
    blocks: bool
    words: str
    """Why it blocks, or how it stands."""


@dataclass(frozen=True, kw_only=True)
class GatePage(Page):
    template: ClassVar[str] = "gate.html"
    section: ClassVar[str] = "scenarios"
    title: str = "Gate"
    candidate: str
    quoted: str
    """The same for a shell."""
    candidates: Sequence[str]
    """Versions of the newest runs, to choose from."""
    answer: GateAnswer | None
    """None while no candidate is named."""
    rows: Sequence[GateRow]
    """What blocks first, then the other critical scenarios, then all others."""
    left_out: int


def _row(standing: Standing) -> GateRow:
    is_critical = standing.scenario.severity == "critical"
    blocks = is_critical and standing.status != "pass"
    if blocks:
        return GateRow(standing, True, why_it_blocks(standing))
    words = {
        "pass": "passes",
        "fail": "fails, and does not block",
        "error": "could not be replayed, and does not block",
    }
    return GateRow(standing, False, words.get(standing.status or "", "was not replayed"))


async def show_gate(request: Request) -> Response:
    session = await page_session(request)
    candidate = request.query_params.get("candidate", "").strip()
    if len(candidate) > LONGEST_INDEXED:
        text = f"candidate: a version has at most {LONGEST_INDEXED} characters"
        raise Problem(400, "invalid_value", text)

    def read(scope: Scope) -> tuple[list[Standing], list[str]]:
        return scope.standings(candidate) if candidate else [], scope.newest_candidates()

    standings, candidates = await context_of(request).read(session.caller, read)
    order = {"critical": 1, "warning": 2}
    rows = sorted(
        map(_row, standings),
        key=lambda row: 0 if row.blocks else order.get(row.standing.scenario.severity, 3),
    )
    page = GatePage(
        session=session,
        title=f"Gate of {candidate}" if candidate else "Gate",
        candidate=candidate,
        quoted=shlex.quote(candidate),
        candidates=candidates,
        answer=gate_answer(candidate, standings) if candidate else None,
        rows=rows[:_MOST_SHOWN],
        left_out=max(len(rows) - _MOST_SHOWN, 0),
    )
    return render(request, page)


routes: tuple[LeanRoute, ...] = (page_route("GET", "/portal/gate", show_gate),)
