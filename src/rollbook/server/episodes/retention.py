"""Retention over HTTP: policies that delete old episodes, a dry run, legal holds, and what an organisation stores.

Upkeep applies the policies. Only owners, admins and admin keys manage them; whoever runs the server sets quotas.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.retention import (
    CreateRetentionPolicy,
    DueEpisodeAnswer,
    HoldAnswer,
    HoldEpisode,
    HoldLifted,
    HoldList,
    RetentionPolicyAnswer,
    RetentionPolicyDeleted,
    RetentionPolicyList,
    RetentionPreview,
    UsageAnswer,
)
from rollbook.server.accounts.audit import note
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import Caller, ServerContext, context_of
from rollbook.server.episodes.artifacts import remove_blobs
from rollbook.server.episodes.quotas import quota_of
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import Problem, answer_from_row, json_response, not_found
from rollbook.server.queries import DoomedObject, HoldRow, RetentionRow, Scope

MOST_POLICIES = 50
MOST_SHOWN = 1000
_AT_ONCE = 100
_BODY_LIMIT = 64 << 10
_create = msgspec.json.Decoder(CreateRetentionPolicy)
_hold = msgspec.json.Decoder(HoldEpisode)


# ------------------------------------------------------------------------------------------ upkeep


async def apply_retention(context: ServerContext, org_id: str) -> int:
    """Deletes what the policies of the organisation say. Returns how many episodes."""
    count = 0
    for policy in await context.read_for(org_id, lambda scope: scope.retention_policies()):
        while True:
            deleted, doomed = await context.write_for(
                org_id,
                lambda scope: delete_due(scope, policy),  # noqa: B023
            )
            for _ in range(deleted):
                context.metrics.episode("deleted")
            await remove_blobs(context, org_id, doomed)
            count += deleted
            if deleted < _AT_ONCE:
                break
    return count


def delete_due(scope: Scope, policy: RetentionRow) -> tuple[int, list[DoomedObject]]:
    """Some of what is due, each noted in the audit log."""
    due = scope.lock_due(policy, _AT_ONCE)
    doomed: list[DoomedObject] = []
    for each in due:
        doomed += scope.delete_episode(each.id) or []
        detail = {"older_than_days": policy.older_than_days, "bytes": each.bytes}
        actor = f"retention:{policy.id}"
        scope.audit("episode.deleted", actor=actor, subject=each.id, detail=detail)
    return len(due), doomed


def preview(scope: Scope, policy: RetentionRow) -> RetentionPreview:
    count, size, protected = scope.count_due(policy)
    shown = scope.due_episodes(policy, MOST_SHOWN)
    answers = [answer_from_row(DueEpisodeAnswer, each) for each in shown]
    return RetentionPreview(count, size, protected, answers)


# ------------------------------------------------------------------------------------------ policies


async def list_retention_policies(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "manage_retention")
    found = await context.read(caller, lambda scope: scope.retention_policies())
    answers = [answer_from_row(RetentionPolicyAnswer, each) for each in found]
    return json_response(RetentionPolicyList(answers))


async def create_retention_policy(request: Request) -> Response:
    caller = await caller_of(request, "manage_retention")
    made = await add_policy(request, caller, await json_body(request, _create, _BODY_LIMIT))
    return json_response(answer_from_row(RetentionPolicyAnswer, made), 201)


async def add_policy(request: Request, caller: Caller, body: CreateRetentionPolicy) -> RetentionRow:
    def create(scope: Scope) -> RetentionRow:
        if len(scope.retention_policies()) >= MOST_POLICIES:
            text = f"this organisation has {MOST_POLICIES} retention policies; delete those that nobody needs"
            raise Problem(409, "too_many_policies", text)
        policy = policy_of(scope, body, caller.name)
        scope.add_retention_policy(policy)
        said = msgspec.structs.asdict(body)
        note(scope, request, caller, "retention.created", policy.id, **said)
        return policy

    return await context_of(request).write(caller, create)


def policy_of(scope: Scope, body: CreateRetentionPolicy, by: str | None = None) -> RetentionRow:
    """Checked, and not stored."""
    return scope.new_retention_policy(body.older_than_days, body.source, body.tags, by)


async def delete_retention_policy(request: Request) -> Response:
    caller = await caller_of(request, "manage_retention")
    policy_id: str = request.path_params["policy_id"]
    await drop_policy(request, caller, policy_id)
    return json_response(RetentionPolicyDeleted(policy_id))


async def drop_policy(request: Request, caller: Caller, policy_id: str) -> None:
    def delete(scope: Scope) -> None:
        if not scope.delete_retention_policy(policy_id):
            raise not_found("retention policy")
        note(scope, request, caller, "retention.deleted", policy_id)

    await context_of(request).write(caller, delete)


async def preview_retention(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "manage_retention")
    body = await json_body(request, _create, _BODY_LIMIT)
    found = await context.read(caller, lambda scope: preview(scope, policy_of(scope, body)))
    return json_response(found)


# --------------------------------------------------------------------------------------------- holds


async def hold_episode(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "manage_retention")
    body = await json_body(request, _hold, _BODY_LIMIT)
    episode_id: str = request.path_params["episode_id"]

    def hold(scope: Scope) -> HoldRow:
        held = scope.hold_episode(episode_id, body.reason, caller.name)
        if held is None:
            raise not_found("episode")
        note(scope, request, caller, "hold.set", episode_id, reason=body.reason)
        return held

    return json_response(answer_from_row(HoldAnswer, await context.write(caller, hold)))


async def lift_hold(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "manage_retention")
    episode_id: str = request.path_params["episode_id"]

    def lift(scope: Scope) -> None:
        if not scope.lift_hold(episode_id):
            raise not_found("legal hold")
        note(scope, request, caller, "hold.lifted", episode_id)

    await context.write(caller, lift)
    return json_response(HoldLifted(episode_id))


async def list_holds(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "manage_retention")
    found = await context.read(caller, lambda scope: scope.holds())
    return json_response(HoldList([answer_from_row(HoldAnswer, each) for each in found]))


async def read_usage(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "read")
    usage = await context.read(caller, lambda scope: scope.quota_usage())
    episodes, size = quota_of(usage, context.settings)
    return json_response(UsageAnswer(usage.episodes, usage.bytes, episodes, size))


_POLICIES, _HOLD = "/api/retention", "/api/episodes/{episode_id}/hold"

routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        _POLICIES,
        list_retention_policies,
        summary="Lists the retention policies, oldest first; for owners and admins.",
        gives=RetentionPolicyList,
        errors=(403,),
        tag="retention",
    ),
    route(
        "POST",
        _POLICIES,
        create_retention_policy,
        summary="Creates a policy: upkeep deletes the episodes that match it.",
        takes=CreateRetentionPolicy,
        gives=RetentionPolicyAnswer,
        status=201,
        errors=(403, 409),
        tag="retention",
    ),
    route(
        "POST",
        f"{_POLICIES}/preview",
        preview_retention,
        summary="Shows what a policy would delete now. Nothing is deleted.",
        takes=CreateRetentionPolicy,
        gives=RetentionPreview,
        errors=(403,),
        tag="retention",
    ),
    route(
        "DELETE",
        f"{_POLICIES}/{{policy_id}}",
        delete_retention_policy,
        summary="Deletes a policy. Episodes stay.",
        gives=RetentionPolicyDeleted,
        errors=(403, 404),
        tag="retention",
    ),
    route(
        "POST",
        _HOLD,
        hold_episode,
        summary="Puts an episode under legal hold: nobody can delete it.",
        takes=HoldEpisode,
        gives=HoldAnswer,
        errors=(403, 404),
        tag="retention",
    ),
    route(
        "DELETE",
        _HOLD,
        lift_hold,
        summary="Lifts a legal hold.",
        gives=HoldLifted,
        errors=(403, 404),
        tag="retention",
    ),
    route(
        "GET",
        "/api/holds",
        list_holds,
        summary="Lists the episodes under legal hold.",
        gives=HoldList,
        errors=(403,),
        tag="retention",
    ),
    route(
        "GET",
        "/api/usage",
        read_usage,
        summary="What the organisation stores, and how much it may store.",
        gives=UsageAnswer,
        errors=(403,),
        tag="retention",
    ),
)
