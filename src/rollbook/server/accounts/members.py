"""Members: who belongs to an organisation, and with which role."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.accounts import (
    ChangeRole,
    MemberAnswer,
    MemberChanged,
    MemberList,
    MemberRemoved,
    Role,
)
from rollbook.server.accounts.audit import note
from rollbook.server.accounts.callers import caller_of
from rollbook.server.accounts.keys import scope_of_key
from rollbook.server.accounts.manage_keys import revoke
from rollbook.server.accounts.roles import MAY_GIVE, require, require_power_over
from rollbook.server.accounts.sign_in import BODY_LIMIT
from rollbook.server.context import Caller, context_of
from rollbook.server.http.openapi import LeanRoute, query, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import json_response, not_found, wire_time
from rollbook.server.queries import MemberRow, Scope

# ------------------------------------------------------------------------------------------ members


async def change_role_of(
    request: Request, caller: Caller, user_id: str, role: Role
) -> tuple[MemberRow, list[str]]:
    """Ends the member's sessions here: a session never gains or loses power. Keys that may do more than the new role
    end too."""
    require(caller, "change_roles")

    def change(scope: Scope) -> tuple[MemberRow, list[str]]:
        before = _member(scope, user_id)
        require_power_over(caller, before.role, role)
        after = scope.set_role(user_id, role)
        assert after is not None, "they were a member in this transaction"
        if before.role != role:
            scope.end_sessions(user_id)
        revoked = _revoke_keys_of(scope, request, caller, user_id, keep_for=role)
        note(
            scope,
            request,
            caller,
            "member.role_changed",
            f"user:{user_id}",
            before=before.role,
            after=role,
            revoked_keys=revoked,
        )
        return after, revoked

    return await context_of(request).write(caller, change)


async def remove_member_of(
    request: Request, caller: Caller, user_id: str, *, keep_keys: bool
) -> list[str]:
    """Ends the member's sessions, and revokes their keys unless `keep_keys` is set. Every member may leave."""
    if caller.key_id is not None or caller.user_id != user_id:
        require(caller, "remove_members")

    def remove(scope: Scope) -> list[str]:
        member = _member(scope, user_id)
        if user_id != caller.user_id:
            require_power_over(caller, member.role)
        scope.remove_member(user_id)
        revoked = [] if keep_keys else _revoke_keys_of(scope, request, caller, user_id)
        subject = f"user:{user_id}"
        note(
            scope,
            request,
            caller,
            "member.removed",
            subject,
            role=member.role,
            revoked_keys=revoked,
        )
        return revoked

    # a viewer may leave too
    return await context_of(request).write_for(caller.org_id, remove)


def _member(scope: Scope, user_id: str) -> MemberRow:
    member = scope.member(user_id)
    if member is None:
        raise not_found("member")
    return member


def _revoke_keys_of(
    scope: Scope, request: Request, caller: Caller, user_id: str, *, keep_for: str | None = None
) -> list[str]:
    """Revokes all keys of a member, except those that the role `keep_for` may give."""
    keys, revoked = scope.keys(), []
    for key in keys:
        may_stay = keep_for in MAY_GIVE[scope_of_key(key.prefix)]
        if key.created_by == user_id and key.revoked_at_us is None and not may_stay:
            revoke(scope, request, caller, key)
            revoked.append(key.key_id)
    return revoked


# --------------------------------------------------------------------------------------------- JSON


async def list_members(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "see_members")
    members = await context.read(caller, lambda scope: scope.members())
    return json_response(MemberList([_member_answer(each) for each in members]))


async def change_role(request: Request) -> Response:
    caller = await caller_of(request, "change_roles")
    sent = await json_body(request, _CHANGE_ROLE, BODY_LIMIT)
    user_id = request.path_params["user_id"]
    member, revoked = await change_role_of(request, caller, user_id, sent.role)
    return json_response(MemberChanged(_member_answer(member), revoked))


async def remove_member(request: Request) -> Response:
    caller, user_id = await caller_of(request, "leave"), request.path_params["user_id"]
    keep_keys = request.query_params.get("keep_keys", "false").lower() == "true"
    revoked = await remove_member_of(request, caller, user_id, keep_keys=keep_keys)
    return json_response(MemberRemoved(user_id, revoked))


def _member_answer(row: MemberRow) -> MemberAnswer:
    return MemberAnswer(row.user_id, row.email, row.name, row.role, wire_time(row.created_at_us))


# ------------------------------------------------------------------------------------------- routes

_CHANGE_ROLE = msgspec.json.Decoder(ChangeRole)

routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        "/api/members",
        list_members,
        summary="Lists the members of the organisation and their roles.",
        gives=MemberList,
        errors=(403,),
        tag="people",
    ),
    route(
        "PATCH",
        "/api/members/{user_id}",
        change_role,
        summary="Changes the role of a member. Their sessions and their keys that may do more than the new role end.",
        takes=ChangeRole,
        gives=MemberChanged,
        errors=(403, 404, 409),
        tag="people",
    ),
    route(
        "DELETE",
        "/api/members/{user_id}",
        remove_member,
        summary="Removes a member, or leaves the organisation. Their sessions and keys end at once.",
        gives=MemberRemoved,
        errors=(403, 404, 409),
        parameters=(query("keep_keys", {"type": "boolean"}, "Whether their keys keep working."),),
        tag="people",
    ),
)
