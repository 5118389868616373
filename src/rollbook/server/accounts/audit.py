"""The audit log: the route for admins, and helpers that write events."""

from __future__ import annotations

import asyncio

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.accounts import AuditEvent, AuditLog
from rollbook.errors import RollbookError
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import Caller, ServerContext, context_of
from rollbook.server.db.engine import Tenant
from rollbook.server.http.limits import address_of
from rollbook.server.http.openapi import LeanRoute, query, route
from rollbook.server.http.responses import Problem, json_response, wire_time
from rollbook.server.queries import AuditRow, Scope, organisations_of_user

MOST_LISTED = 1000
_DEFAULT_LISTED = 100
_MOST_DIGITS = 18
_under_way: set[asyncio.Task[None]] = set()


async def list_audit_log(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "see_audit_log")
    limit = _whole(request, "limit", _DEFAULT_LISTED)
    if not 1 <= limit <= MOST_LISTED:
        text = f"limit: expected a whole number from 1 to {MOST_LISTED}"
        raise Problem(400, "invalid_value", text, where="limit")
    before = place_in_log(request)
    event, about = request.query_params.get("event"), request.query_params.get("about")
    rows = await context.read(
        caller, lambda scope: scope.audit_events(limit, before, event=event, about=about)
    )
    following = rows[-1].id if len(rows) == limit else None
    return json_response(AuditLog([_event(row) for row in rows], following))


def place_in_log(request: Request) -> int | None:
    """Where the page that is asked for begins. None: with the newest."""
    return _whole(request, "before", 0) or None


def _event(row: AuditRow) -> AuditEvent:
    at = wire_time(row.at_us)
    return AuditEvent(row.id, row.event, row.actor, row.subject, row.detail, row.ip, at)


def _whole(request: Request, name: str, otherwise: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise Problem(400, "invalid_value", f"{name}: expected a whole number", where=name)
    return int(text)


def note(
    scope: Scope, request: Request, caller: Caller, event: str, subject: str, /, **detail: object
) -> None:
    """Written in the transaction of the change, so the log and the data always agree."""
    scope.audit(event, actor=caller.name, subject=subject, detail=detail, ip=address_of(request))


def note_failed_sign_in(context: ServerContext, user_id: str, ip: str) -> None:
    """Notes a failed sign-in in every organisation of the user, after the response. The response must not take longer
    when the account exists."""
    task = asyncio.get_running_loop().create_task(_note_failed_sign_in(context, user_id, ip))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)


async def _note_failed_sign_in(context: ServerContext, user_id: str, ip: str) -> None:
    def organisations(connection: sa.Connection) -> list[str]:
        return [each.org_id for each in organisations_of_user(connection, user_id)]

    try:
        for org_id in await context.db.read(Tenant(user_id=user_id), organisations):
            await context.write_for(
                org_id,
                lambda scope: scope.audit("sign_in.failed", subject=f"user:{user_id}", ip=ip),
            )
    except RollbookError as error:
        context.log.warning("failed_sign_in_not_noted", user_id=user_id, error=str(error))


routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        "/api/audit",
        list_audit_log,
        summary="Lists what was done in the organisation, newest first; for owners and admins.",
        gives=AuditLog,
        errors=(400, 403),
        parameters=(
            query("limit", {"type": "integer", "minimum": 1, "maximum": MOST_LISTED}, "How many."),
            query(
                "before", {"type": "integer", "minimum": 0}, "`next_before` of the previous page."
            ),
            query("event", {"type": "string"}, "Only this event, or a group such as `key`."),
            query("about", {"type": "string"}, "Only what this actor did, or what was done to it."),
        ),
        tag="people",
    ),
)
