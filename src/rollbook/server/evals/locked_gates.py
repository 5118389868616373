"""Locked gates over HTTP: an admin locks a gate by name, and no run of the organisation is judged by a weaker one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.gate import Gate, gate_from
from rollbook.contracts.gate_strength import weaker_fields
from rollbook.contracts.wire.gates import GateUnlocked, LockedGateAnswer, LockedGateList, LockGate
from rollbook.errors import ConfigurationError
from rollbook.server.accounts.audit import note
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import Caller, context_of
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import Problem, answer_from_row, json_response
from rollbook.server.queries import LockedGateRow, Scope

DEFAULT_NAME = "default"
"""The gate of a run that names none."""
MOST_GATES = 50
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_BODY_LIMIT = 64 << 10
_lock = msgspec.json.Decoder(LockGate)


# ---------------------------------------------------------------------------------- the gate of a run


def checked_gate(given: Mapping[str, Any]) -> Gate:
    try:
        return gate_from(given)
    except ConfigurationError as error:
        raise Problem(400, "invalid_value", str(error), where="$.gate") from error


def applicable_gate(scope: Scope, name: str | None) -> LockedGateRow | None:
    """The named one; without a name the one called `default`, or the only one. None where nothing is locked."""
    if name is not None:
        row = scope.locked_gate(name)
        if row is None:
            known = ", ".join(each.name for each in scope.locked_gates()) or "none"
            text = f"gate_name: there is no locked gate {name[:100]!r}; locked gates: {known}"
            raise Problem(400, "unknown_gate", text, where="$.gate_name")
        return row
    locked = {each.name: each for each in scope.locked_gates()}
    if DEFAULT_NAME in locked:
        return locked[DEFAULT_NAME]
    if len(locked) > 1:
        text = f"your organisation has several locked gates; say which one as gate_name: {', '.join(locked)}"
        raise Problem(400, "gate_name_missing", text, where="$.gate_name")
    return next(iter(locked.values()), None)


def refuse_weaker(gate: Gate, locked: LockedGateRow) -> None:
    weaker = weaker_fields(gate, gate_from(locked.gate))
    if weaker:
        text = (
            f"the gate is weaker than the locked gate {locked.name!r} of your organisation in {', '.join(weaker)}; "
            "change these fields, or send no gate to be judged by the locked one"
        )
        raise Problem(
            400, "weaker_gate", text, where="$.gate", fields=weaker, gate_name=locked.name
        )


# ------------------------------------------------------------------------------------ lock and unlock


async def lock_gate_of(
    request: Request, caller: Caller, name: str, given: Mapping[str, Any]
) -> LockedGateRow:
    """Locks a gate, or replaces the one of that name. Runs that exist keep the gate that they were created with."""
    if _NAME.fullmatch(name) is None:
        text = "gate_name: expected at most 100 letters, digits, dots, dashes and underscores"
        raise Problem(400, "invalid_value", text, where="gate_name")
    gate = checked_gate(given)

    def lock(scope: Scope) -> LockedGateRow:
        before = scope.locked_gate(name)
        if before is None and len(scope.locked_gates()) >= MOST_GATES:
            text = (
                f"this organisation has {MOST_GATES} locked gates; unlock those that nobody needs"
            )
            raise Problem(409, "too_many_gates", text)
        row = scope.lock_gate(name, gate.as_dict(), gate.digest, caller.name)
        replaced = None if before is None else before.gate_digest
        note(
            scope, request, caller, "gate.locked", name, gate_digest=gate.digest, replaced=replaced
        )
        return row

    return await context_of(request).write(caller, lock)


async def unlock_gate_of(request: Request, caller: Caller, name: str) -> None:
    def unlock(scope: Scope) -> None:
        if not scope.unlock_gate(name):
            raise no_such_gate()
        note(scope, request, caller, "gate.unlocked", name)

    await context_of(request).write(caller, unlock)


def no_such_gate() -> Problem:
    text = "there is no such locked gate; check its name, and that your key is of the organisation it belongs to"
    return Problem(404, "not_found", text)


# ------------------------------------------------------------------------------------------- routes


async def list_locked_gates(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "read")
    found = await context.read(caller, lambda scope: scope.locked_gates())
    return json_response(
        LockedGateList([answer_from_row(LockedGateAnswer, each) for each in found])
    )


async def read_locked_gate(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "read")
    name: str = request.path_params["gate_name"]
    row = await context.read(caller, lambda scope: scope.locked_gate(name))
    if row is None:
        raise no_such_gate()
    return json_response(answer_from_row(LockedGateAnswer, row))


async def lock_gate(request: Request) -> Response:
    caller = await caller_of(request, "manage_gates")
    body = await json_body(request, _lock, _BODY_LIMIT)
    row = await lock_gate_of(request, caller, request.path_params["gate_name"], body.gate)
    return json_response(answer_from_row(LockedGateAnswer, row))


async def unlock_gate(request: Request) -> Response:
    caller = await caller_of(request, "manage_gates")
    name: str = request.path_params["gate_name"]
    await unlock_gate_of(request, caller, name)
    return json_response(GateUnlocked(name))


_GATES, _GATE = "/api/gates", "/api/gates/{gate_name}"

routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        _GATES,
        list_locked_gates,
        summary="Lists the locked gates of the organisation, by name.",
        gives=LockedGateList,
        errors=(403,),
        tag="gates",
    ),
    route(
        "GET",
        _GATE,
        read_locked_gate,
        summary="Reads one locked gate.",
        gives=LockedGateAnswer,
        errors=(403, 404),
        tag="gates",
    ),
    route(
        "PUT",
        _GATE,
        lock_gate,
        summary="Locks a gate by name: no new run is judged by a weaker one. For owners and admins.",
        takes=LockGate,
        gives=LockedGateAnswer,
        errors=(403, 409),
        tag="gates",
    ),
    route(
        "DELETE",
        _GATE,
        unlock_gate,
        summary="Unlocks a gate. Runs that were created with it keep it.",
        gives=GateUnlocked,
        errors=(403, 404),
        tag="gates",
    ),
)
