"""Locked gates: what each asks in words, a form that locks one, and unlocking after a question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.gate import Gate, gate_from
from rollbook.portal.page import (
    ConfirmPage,
    page_route,
    page_session,
    redirect,
    render,
    signed_in_form,
)
from rollbook.portal.settings.tabs import GATES, SettingsPage, Tab, tabs_of
from rollbook.report.words import gate_asks
from rollbook.server.accounts.roles import may
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import context_of
from rollbook.server.evals.locked_gates import (
    DEFAULT_NAME,
    lock_gate_of,
    no_such_gate,
    unlock_gate_of,
)
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem
from rollbook.server.queries import LockedGateRow

_GATE = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class ShownGate:
    row: LockedGateRow
    asks: list[str]
    written: str
    """The whole gate as JSON."""


@dataclass(frozen=True, kw_only=True)
class GatesPage(SettingsPage):
    template: ClassVar[str] = "settings_gates.html"
    title: str = "Locked gates"
    tab: Tab = GATES
    gates: list[ShownGate]
    may_manage: bool
    default_name: str = DEFAULT_NAME
    default_asks: list[str]
    name: str = ""
    written: str = ""
    """What stands in the form: the default gate, or what was sent and refused."""


async def gates_page(request: Request) -> Response:
    return await _render_gates(request, await page_session(request))


async def _render_gates(
    request: Request,
    session: Session,
    *,
    name: str = DEFAULT_NAME,
    written: str | None = None,
    problem: Problem | None = None,
) -> Response:
    found = await context_of(request).read(session.caller, lambda scope: scope.locked_gates())
    page = GatesPage(
        session=session,
        tabs=tabs_of(session),
        gates=[
            ShownGate(each, list(gate_asks(gate_from(each.gate))), _written(each.gate))
            for each in found
        ],
        may_manage=may(session.caller, "manage_gates"),
        default_asks=list(gate_asks(Gate())),
        name=name,
        written=_written(Gate().as_dict()) if written is None else written,
        problem=None if problem is None else problem.error,
    )
    return render(request, page, 200 if problem is None else problem.status)


def _written(gate: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(gate), indent=2).decode()


async def lock_by_form(request: Request) -> Response:
    session, sent = await signed_in_form(request, "manage_gates")
    fields = dict(sent)
    name, written = fields.get("name", "").strip(), fields.get("gate", "").strip()
    try:
        await lock_gate_of(request, session.caller, name, _decoded(written))
    except Problem as problem:
        return await _render_gates(request, session, name=name, written=written, problem=problem)
    return redirect(request, GATES.path)


def _decoded(written: str) -> dict[str, Any]:
    if not written:
        return {}
    try:
        return _GATE.decode(written)
    except (msgspec.DecodeError, RecursionError) as error:
        text = f"the gate is not a JSON object: {error}"
        raise Problem(400, "malformed_json", text) from error


async def ask_before_unlocking(request: Request) -> Response:
    session = await page_session(request, "manage_gates")
    name: str = request.path_params["gate_name"]
    row = await context_of(request).read(session.caller, lambda scope: scope.locked_gate(name))
    if row is None:
        raise no_such_gate()
    page = ConfirmPage(
        session=session,
        title="Unlock a gate",
        heading=f"Unlock the gate {row.name}?",
        consequences=(
            "From then on a run may be judged by a weaker gate.",
            "Runs that were created with this gate keep it.",
        ),
        action=f"{GATES.path}/{row.name}/unlock",
        button="Unlock gate",
        cancel=GATES.path,
    )
    return render(request, page)


async def unlock_by_form(request: Request) -> Response:
    session, _ = await signed_in_form(request, "manage_gates")
    await unlock_gate_of(request, session.caller, request.path_params["gate_name"])
    return redirect(request, GATES.path)


_UNLOCK = f"{GATES.path}/{{gate_name}}/unlock"

routes: tuple[LeanRoute, ...] = (
    page_route("GET", GATES.path, gates_page),
    page_route("POST", GATES.path, lock_by_form),
    page_route("GET", _UNLOCK, ask_before_unlocking),
    page_route("POST", _UNLOCK, unlock_by_form),
)
