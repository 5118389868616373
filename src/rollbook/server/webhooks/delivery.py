"""Deliveries: sends what waits in the queue, and sends again until the receiver accepts it or all attempts are used.

Every process of the server does this. A process that takes a delivery holds it for one lease; when the process dies,
the delivery is due again. So each delivery arrives at least once, and a receiver recognises it by its id.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

from rollbook import __version__
from rollbook.errors import RollbookError
from rollbook.server.context import ServerContext
from rollbook.server.db.engine import NOBODY
from rollbook.server.logs import frames_of
from rollbook.server.queries import DeliveryRow, Scope, WebhookRow, organisation_ids
from rollbook.server.webhooks.addresses import (
    AddressRefused,
    Resolve,
    addresses_of,
    checked_url,
    resolve,
)
from rollbook.server.webhooks.secrets import SIGNATURE_HEADER, hash_of, secret_of, signature

if TYPE_CHECKING:
    import httpx

_AT_ONCE = 32
_AT_ONCE_FOR_ONE = 4
"""Per organisation, so that receivers that hang do not delay other organisations."""
_LEASE_TIMEOUTS = 4
_SLOWER_EACH_TIME = 4
_LONGEST_WAIT_S = 6 * 3600.0
_MOST_ADDRESSES = 3
_LONGEST_ERROR = 200


async def keep_delivering(context: ServerContext) -> None:
    """Runs until it is cancelled; a delivery under way is due again when its lease ends."""
    sender = Sender(context)
    wanted = context.deliveries_wanted
    every_s = context.settings.webhook_poll_s
    try:
        while every_s > 0:
            try:
                await sender.visit_all()
                until = time.monotonic() + every_s
                while (left_s := until - time.monotonic()) > 0:
                    await sender.start_due(await asyncio.wait_for(wanted.get(), left_s))
            except TimeoutError:
                pass
            except Exception as error:  # noqa: BLE001 - it must not end because of one bad turn
                context.log.error("deliveries_failed", error=repr(error), frames=frames_of(error))
                await asyncio.sleep(min(every_s, 5.0))
    finally:
        await sender.close()


class Sender:
    def __init__(self, context: ServerContext, resolve: Resolve = resolve) -> None:
        self._context = context
        self._resolve = resolve
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._turned_away: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """One per organisation, or every look at a waiting queue would lead to one more look."""
        self._http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        if self._http is not None:
            await self._http.aclose()

    async def visit_all(self) -> None:
        """Finds deliveries that another process left, and those to try again."""
        for org_id in await self._context.db.read(NOBODY, organisation_ids):
            await self.start_due(org_id)

    async def start_due(self, org_id: str) -> None:
        """Takes deliveries that are due, while there is room. The end of a delivery makes room and calls this again."""
        theirs = sum(each == org_id for each in self._under_way.values())
        room = min(_AT_ONCE - len(self._under_way), _AT_ONCE_FOR_ONE - theirs)
        if room <= 0:
            self._turned_away.add(org_id)
            return
        at_us = await self._context.read_for(org_id, lambda scope: scope.next_delivery_at_us())
        if at_us is None:
            return
        if at_us > self._context.clock():
            self._ask_again(org_id, at_us)
            return
        lease_us = int(_LEASE_TIMEOUTS * self._context.settings.webhook_timeout_s * 1e6)
        taken = await self._context.write_for(
            org_id, lambda scope: scope.take_deliveries(lease_us, room)
        )
        for delivery in taken:
            task = asyncio.create_task(self._deliver(org_id, delivery))
            self._under_way[task] = org_id
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        org_id = self._under_way.pop(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._context.log.error("delivery_failed", error=repr(error), frames=frames_of(error))
        for each in {org_id, *self._turned_away}:
            self._context.deliveries_wanted.put_nowait(each)
        self._turned_away.clear()

    def _ask_again(self, org_id: str, at_us: int) -> None:
        """Wakes up when it is due, unless the next look at all organisations comes first."""
        if (earlier := self._timers.pop(org_id, None)) is not None:
            earlier.cancel()
        wait_s = (at_us - self._context.clock()) / 1e6
        if wait_s < self._context.settings.webhook_poll_s:
            wanted = self._context.deliveries_wanted
            self._timers[org_id] = asyncio.get_running_loop().call_later(
                max(wait_s, 0.01), wanted.put_nowait, org_id
            )

    # ------------------------------------------------------------------------------------ one delivery

    async def _deliver(self, org_id: str, delivery: DeliveryRow) -> None:
        context = self._context
        webhook = await context.read_for(org_id, lambda scope: scope.webhook(delivery.webhook_id))
        if webhook is None:
            return
        began, at_us = time.monotonic(), context.clock()
        status_code, error = await self._attempt(webhook, delivery)
        delivered = status_code is not None and 200 <= status_code < 300
        outcome = {
            "at_us": at_us,
            "status_code": status_code,
            "error": error,
            "took_ms": int((time.monotonic() - began) * 1000),
        }
        status, next_us = self._next_state(delivery, delivered)
        context.metrics.webhook("retried" if status == "pending" else status)

        def note(scope: Scope) -> None:
            scope.note_attempt(delivery, outcome, status=status, next_attempt_at_us=next_us)

        try:
            await context.write_for(org_id, note)
        except RollbookError as fault:
            context.log.warning("delivery_not_noted", delivery_id=delivery.id, error=str(fault))

    def _next_state(self, delivery: DeliveryRow, delivered: bool) -> tuple[str, int]:
        settings, now = self._context.settings, self._context.clock()
        if delivered:
            return "delivered", now
        if delivery.attempts >= settings.webhook_attempts:
            return "failed", now
        wait_s = settings.webhook_retry_s * _SLOWER_EACH_TIME ** (delivery.attempts - 1)
        wait_s = min(wait_s, _LONGEST_WAIT_S) * random.uniform(
            1.0, 1.2
        )  # not all at the same moment
        return "pending", now + int(wait_s * 1e6)

    async def _attempt(
        self, webhook: WebhookRow, delivery: DeliveryRow
    ) -> tuple[int | None, str | None]:
        """The status code of the answer, or why there is none. The body of the answer is ignored."""
        import httpx

        settings = self._context.settings
        secret = secret_of(settings.secret, webhook.id, webhook.salt)
        if hash_of(secret) != webhook.secret_hash:
            return (
                None,
                "the server's own secret is another one now; delete this webhook and make it again",
            )
        try:
            async with asyncio.timeout(settings.webhook_timeout_s):
                return await self._post(webhook.url, secret, delivery), None
        except AddressRefused as refused:
            return None, f"its URL {refused}"[:_LONGEST_ERROR]
        except TimeoutError:
            return None, f"no answer within {settings.webhook_timeout_s:g} seconds"
        except httpx.HTTPError as error:
            return None, f"no answer: {type(error).__name__}"
        except Exception as error:  # noqa: BLE001 - a URL of a tenant must not stop the queue
            self._context.log.warning("delivery_broke", delivery_id=delivery.id, error=repr(error))
            return None, f"no answer: {type(error).__name__}"

    async def _post(self, url: str, secret: str, delivery: DeliveryRow) -> int:
        import httpx

        to_private = self._context.settings.webhooks_to_private
        split = checked_url(url, to_private=to_private)
        assert split.hostname is not None, "it was checked"
        port = split.port or (443 if split.scheme == "https" else 80)
        addresses = await addresses_of(
            split.hostname, port, to_private=to_private, resolve=self._resolve
        )
        body = delivery.body.encode()
        headers = self._headers(delivery, secret, body)
        named = httpx.URL(url)
        headers["Host"] = named.netloc.decode()
        for at, address in enumerate(addresses[:_MOST_ADDRESSES], 1):
            try:
                async with self._client().stream(
                    "POST",
                    named.copy_with(host=address),
                    content=body,
                    headers=headers,
                    extensions={"sni_hostname": split.hostname},
                ) as answer:
                    code: int = answer.status_code
                    return code
            except httpx.ConnectError:
                if at == min(len(addresses), _MOST_ADDRESSES):
                    raise
        raise AssertionError("the last address answers or raises")

    def _headers(self, delivery: DeliveryRow, secret: str, body: bytes) -> dict[str, str]:
        now_s = self._context.clock() // 1_000_000
        return {
            "Content-Type": "application/json",
            "User-Agent": f"rollbook/{__version__}",
            "Rollbook-Event": delivery.event,
            "Rollbook-Delivery": delivery.id,
            "Rollbook-Attempt": str(delivery.attempts),
            SIGNATURE_HEADER: signature(secret, now_s, body),
        }

    def _client(self) -> Any:
        """Made at first use, because it loads certificates. No proxy and no redirects: both lead to other addresses."""
        import httpx

        if self._http is None:
            self._http = httpx.AsyncClient(
                verify=httpx.create_ssl_context(),  # SSL_CERT_FILE adds a certificate authority
                follow_redirects=False,
                trust_env=False,
                timeout=self._context.settings.webhook_timeout_s,
                limits=httpx.Limits(max_keepalive_connections=0),
            )
        return self._http
