"""Webhooks over HTTP: who is called when an eval run ends. For owners and admins; a log shows every attempt."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.webhooks import (
    Attempt,
    CreateWebhook,
    DeliveryAnswer,
    DeliveryList,
    DeliveryQueued,
    WebhookAnswer,
    WebhookCreated,
    WebhookDeleted,
    WebhookList,
)
from rollbook.server.accounts.audit import note
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import Caller, ServerContext, context_of
from rollbook.server.db.columns import new_id
from rollbook.server.db.value_checks import checked_text
from rollbook.server.http.listing import listing_of, page_parameters
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import (
    Problem,
    answer_from_row,
    json_response,
    not_found,
    wire_time,
)
from rollbook.server.queries import DeliveryRow, Scope, WebhookRow
from rollbook.server.webhooks.addresses import AddressRefused, checked_url
from rollbook.server.webhooks.events import TEST_EVENT, body_of
from rollbook.server.webhooks.secrets import hash_of, new_salt, secret_of

MOST_WEBHOOKS = 20
MOST_ON_A_PAGE = 200
_DEFAULT_ON_A_PAGE = 50
_BODY_LIMIT = 64 << 10


_create = msgspec.json.Decoder(CreateWebhook)


# ------------------------------------------------------------------------------------------ changes


async def add_webhook(
    request: Request, caller: Caller, body: CreateWebhook
) -> tuple[WebhookRow, str]:
    """The webhook and its secret, which is stored nowhere."""
    context = context_of(request)
    _check_url(context, body.url)
    if body.description is not None:
        checked_text("webhook", "description", body.description)
    webhook_id, salt = new_id(), new_salt()
    secret = secret_of(context.settings.secret, webhook_id, salt)
    values: dict[str, Any] = {
        "id": webhook_id,
        "url": body.url,
        "events": list(dict.fromkeys(body.events)),
        "description": body.description,
        "salt": salt,
        "secret_hash": hash_of(secret),
        "created_by": caller.name,
    }

    def create(scope: Scope) -> WebhookRow:
        if len(scope.webhooks()) >= MOST_WEBHOOKS:
            text = f"this organisation has {MOST_WEBHOOKS} webhooks; delete those that nobody needs"
            raise Problem(409, "too_many_webhooks", text)
        made = scope.create_webhook(values)
        note(scope, request, caller, "webhook.created", webhook_id, url=made.url)
        return made

    return await context.write(caller, create), secret


def _check_url(context: ServerContext, url: str) -> None:
    try:
        checked_url(url, to_private=context.settings.webhooks_to_private)
    except AddressRefused as error:
        raise Problem(400, "invalid_value", f"url: {error}", where="$.url") from error


async def drop_webhook(request: Request, caller: Caller, webhook_id: str) -> None:
    """Also its log. Pending deliveries are dropped."""

    def delete(scope: Scope) -> None:
        if not scope.delete_webhook(webhook_id):
            raise not_found("webhook")
        note(scope, request, caller, "webhook.deleted", webhook_id)

    await context_of(request).write(caller, delete)


async def pause_webhook_of(
    request: Request, caller: Caller, webhook_id: str, *, paused: bool
) -> WebhookRow:
    def change(scope: Scope) -> WebhookRow:
        changed = scope.pause_webhook(webhook_id, paused=paused)
        if changed is None:
            raise not_found("webhook")
        event = "webhook.paused" if paused else "webhook.resumed"
        note(scope, request, caller, event, webhook_id)
        return changed

    return await context_of(request).write(caller, change)


async def queue_test(request: Request, caller: Caller, webhook_id: str) -> DeliveryRow:
    """A test event is signed, retried and logged like every other event."""
    context = context_of(request)

    def queue(scope: Scope) -> DeliveryRow:
        data = {"webhook_id": webhook_id, "asked_by": caller.name}
        queued = scope.enqueue(
            webhook_id,
            TEST_EVENT,
            lambda delivery: body_of(delivery, TEST_EVENT, scope.org_id, data),
        )
        if queued is None:
            raise not_found("webhook")
        return queued

    queued = await context.write(caller, queue)
    context.deliveries_wanted.put_nowait(caller.org_id)
    return queued


# --------------------------------------------------------------------------------------------- JSON


async def create_webhook(request: Request) -> Response:
    caller = await caller_of(request, "manage_webhooks")
    made, secret = await add_webhook(
        request, caller, await json_body(request, _create, _BODY_LIMIT)
    )
    created = answer_from_row(WebhookCreated, made, secret=secret)
    return json_response(created, 201, {"Cache-Control": "no-store"})


async def list_webhooks(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "manage_webhooks")
    found = await context.read(caller, lambda scope: scope.webhooks())
    return json_response(WebhookList([answer_from_row(WebhookAnswer, each) for each in found]))


async def delete_webhook(request: Request) -> Response:
    caller = await caller_of(request, "manage_webhooks")
    webhook_id: str = request.path_params["webhook_id"]
    await drop_webhook(request, caller, webhook_id)
    return json_response(WebhookDeleted(webhook_id))


async def pause_webhook(request: Request) -> Response:
    return await _pause(request, paused=True)


async def resume_webhook(request: Request) -> Response:
    return await _pause(request, paused=False)


async def _pause(request: Request, *, paused: bool) -> Response:
    caller = await caller_of(request, "manage_webhooks")
    webhook_id: str = request.path_params["webhook_id"]
    changed = await pause_webhook_of(request, caller, webhook_id, paused=paused)
    return json_response(answer_from_row(WebhookAnswer, changed))


async def list_deliveries(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "manage_webhooks")
    asked = listing_of(request.query_params, limit=_DEFAULT_ON_A_PAGE, most=MOST_ON_A_PAGE)
    webhook_id: str = request.path_params["webhook_id"]

    def find(scope: Scope) -> tuple[list[DeliveryRow], str | None]:
        if scope.webhook(webhook_id) is None:
            raise not_found("webhook")
        return scope.deliveries(webhook_id, asked.cursor, asked.limit)

    found, following = await context.read(caller, find)
    return json_response(DeliveryList([_delivery(each) for each in found], following))


async def send_test_event(request: Request) -> Response:
    caller = await caller_of(request, "manage_webhooks")
    webhook_id: str = request.path_params["webhook_id"]
    queued = await queue_test(request, caller, webhook_id)
    return json_response(DeliveryQueued(queued.id, webhook_id), 202)


def _delivery(row: DeliveryRow) -> DeliveryAnswer:
    attempts = [
        Attempt(wire_time(each["at_us"]), each["status_code"], each["error"], each["took_ms"])
        for each in row.tries
    ]
    more: dict[str, Any] = {} if row.status == "pending" else {"next_attempt_at": None}
    return answer_from_row(DeliveryAnswer, row, attempts=attempts, **more)


_HOOK = "/api/webhooks/{webhook_id}"

routes: tuple[LeanRoute, ...] = (
    route(
        "POST",
        "/api/webhooks",
        create_webhook,
        summary="Creates a webhook; its secret is shown once.",
        takes=CreateWebhook,
        gives=WebhookCreated,
        status=201,
        errors=(403, 409),
        tag="webhooks",
    ),
    route(
        "GET",
        "/api/webhooks",
        list_webhooks,
        summary="Lists the webhooks of the organisation, oldest first.",
        gives=WebhookList,
        errors=(403,),
        tag="webhooks",
    ),
    route(
        "DELETE",
        _HOOK,
        delete_webhook,
        summary="Deletes a webhook and its log. Pending deliveries are dropped.",
        gives=WebhookDeleted,
        errors=(403, 404),
        tag="webhooks",
    ),
    route(
        "POST",
        f"{_HOOK}/pause",
        pause_webhook,
        summary="Pauses a webhook: it gets no new events. Deliveries that are under way go on.",
        gives=WebhookAnswer,
        errors=(403, 404),
        tag="webhooks",
    ),
    route(
        "POST",
        f"{_HOOK}/resume",
        resume_webhook,
        summary="Ends the pause of a webhook. Events of the pause are not sent afterwards.",
        gives=WebhookAnswer,
        errors=(403, 404),
        tag="webhooks",
    ),
    route(
        "GET",
        f"{_HOOK}/deliveries",
        list_deliveries,
        summary="Lists the deliveries of a webhook, newest first, with every attempt.",
        gives=DeliveryList,
        errors=(400, 403, 404),
        parameters=page_parameters(MOST_ON_A_PAGE),
        tag="webhooks",
    ),
    route(
        "POST",
        f"{_HOOK}/test",
        send_test_event,
        summary="Sends a `webhook.test` event.",
        gives=DeliveryQueued,
        status=202,
        errors=(403, 404),
        tag="webhooks",
    ),
)
