"""Webhooks: who is called when an eval run ends, with the log of every delivery and a test event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.webhooks import EVENTS, CreateWebhook
from rollbook.portal.page import (
    ConfirmPage,
    form_message,
    page_route,
    page_session,
    redirect,
    render,
    signed_in_form,
)
from rollbook.portal.settings.tabs import WEBHOOKS, SettingsPage, Tab, tabs_of
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import context_of
from rollbook.server.http.listing import listing_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import DeliveryRow, Scope, WebhookRow
from rollbook.server.webhooks.routes import (
    add_webhook,
    drop_webhook,
    pause_webhook_of,
    queue_test,
)

_ON_A_PAGE = 50


@dataclass(frozen=True, kw_only=True)
class WebhooksPage(SettingsPage):
    template: ClassVar[str] = "settings_webhooks.html"
    title: str = "Webhooks"
    tab: Tab = WEBHOOKS
    webhooks: list[WebhookRow]
    events: tuple[str, ...] = EVENTS
    secret: str | None = None
    """Of the webhook that was just made. Shown once."""
    url_sent: str = ""
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class WebhookPage(SettingsPage):
    template: ClassVar[str] = "settings_webhook.html"
    title: str = "Webhook"
    tab: Tab = WEBHOOKS
    webhook: WebhookRow
    deliveries: list[DeliveryRow]
    cursor: str | None
    """Of the next page."""
    is_first: bool


async def webhooks_page(request: Request) -> Response:
    return await _render_webhooks(request, await page_session(request, "manage_webhooks"))


async def _render_webhooks(
    request: Request,
    session: Session,
    *,
    secret: str | None = None,
    url_sent: str = "",
    description: str = "",
    problem: Problem | None = None,
) -> Response:
    found = await context_of(request).read(session.caller, lambda scope: scope.webhooks())
    page = WebhooksPage(
        session=session,
        tabs=tabs_of(session),
        webhooks=found,
        secret=secret,
        url_sent=url_sent,
        description=description,
        problem=None if problem is None else problem.error,
    )
    return render(request, page, 200 if problem is None else problem.status)


async def create_by_form(request: Request) -> Response:
    session, sent = await signed_in_form(request, "manage_webhooks")
    fields = dict(sent)
    address, description = fields.get("url", "").strip(), fields.get("description", "").strip()
    events = [value for name, value in sent if name == "events"]
    try:
        if not events:
            raise Problem(400, "invalid_value", "choose at least one event")
        asked = {"url": address, "events": events, "description": description or None}
        _, secret = await add_webhook(request, session.caller, form_message(CreateWebhook, asked))
    except Problem as problem:
        return await _render_webhooks(
            request, session, url_sent=address, description=description, problem=problem
        )
    return await _render_webhooks(request, session, secret=secret, url_sent=address)


async def webhook_page(request: Request) -> Response:
    session = await page_session(request, "manage_webhooks")
    asked = listing_of(request.query_params, limit=_ON_A_PAGE, most=_ON_A_PAGE)
    webhook_id: str = request.path_params["webhook_id"]

    def read(scope: Scope) -> tuple[WebhookRow, list[DeliveryRow], str | None]:
        return _webhook(scope, webhook_id), *scope.deliveries(webhook_id, asked.cursor, asked.limit)

    webhook, deliveries, following = await context_of(request).read(session.caller, read)
    page = WebhookPage(
        session=session,
        tabs=tabs_of(session),
        webhook=webhook,
        deliveries=deliveries,
        cursor=following,
        is_first=asked.cursor is None,
    )
    return render(request, page)


def _webhook(scope: Scope, webhook_id: str) -> WebhookRow:
    found = scope.webhook(webhook_id)
    if found is None:
        raise not_found("webhook")
    return found


async def test_by_form(request: Request) -> Response:
    session, _ = await signed_in_form(request, "manage_webhooks")
    webhook_id: str = request.path_params["webhook_id"]
    await queue_test(request, session.caller, webhook_id)
    return redirect(request, f"{WEBHOOKS.path}/{webhook_id}")


async def pause_by_form(request: Request) -> Response:
    """`paused` of the form says which way."""
    session, sent = await signed_in_form(request, "manage_webhooks")
    webhook_id: str = request.path_params["webhook_id"]
    paused = dict(sent).get("paused", "yes") == "yes"
    await pause_webhook_of(request, session.caller, webhook_id, paused=paused)
    return redirect(request, WEBHOOKS.path)


async def ask_before_deleting(request: Request) -> Response:
    session = await page_session(request, "manage_webhooks")
    webhook_id: str = request.path_params["webhook_id"]
    webhook = await context_of(request).read(
        session.caller, lambda scope: _webhook(scope, webhook_id)
    )
    page = ConfirmPage(
        session=session,
        title="Delete a webhook",
        heading=f"Delete the webhook to {webhook.url}?",
        consequences=(
            "It is not called any more. Its log goes with it.",
            "Deliveries that are still waiting are dropped.",
        ),
        action=f"{WEBHOOKS.path}/{webhook_id}/delete",
        button="Delete webhook",
        cancel=WEBHOOKS.path,
    )
    return render(request, page)


async def delete_by_form(request: Request) -> Response:
    session, _ = await signed_in_form(request, "manage_webhooks")
    await drop_webhook(request, session.caller, request.path_params["webhook_id"])
    return redirect(request, WEBHOOKS.path)


_WEBHOOK = f"{WEBHOOKS.path}/{{webhook_id}}"

routes: tuple[LeanRoute, ...] = (
    page_route("GET", WEBHOOKS.path, webhooks_page),
    page_route("POST", WEBHOOKS.path, create_by_form),
    page_route("GET", _WEBHOOK, webhook_page),
    page_route("POST", f"{_WEBHOOK}/test", test_by_form),
    page_route("POST", f"{_WEBHOOK}/pause", pause_by_form),
    page_route("GET", f"{_WEBHOOK}/delete", ask_before_deleting),
    page_route("POST", f"{_WEBHOOK}/delete", delete_by_form),
)
