"""Webhooks, and the queue of their deliveries, which is also the log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import sqlalchemy as sa

from rollbook.digest import digest_of
from rollbook.server.db import tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.eval_tables import DeliveryRow, WebhookRow
from rollbook.server.db.rows import row_as
from rollbook.server.db.value_checks import checked_whole, is_storable
from rollbook.server.http.cursors import cursor_at, place_of
from rollbook.server.queries.scope import TenantScope

MOST_ON_A_PAGE = 200


class WebhookQueries(TenantScope):
    def create_webhook(self, values: Mapping[str, Any]) -> WebhookRow:
        empty = dict.fromkeys(("description", "created_by", "paused_at_us"))
        row: dict[str, Any] = {**empty, **values, "created_at_us": self._now_us()}
        self._insert(tables.webhooks, row)
        return WebhookRow(**row)

    def webhook(self, webhook_id: str) -> WebhookRow | None:
        row = self._first(tables.webhooks, id=webhook_id)
        return None if row is None else row_as(WebhookRow, row)

    def webhooks(self) -> list[WebhookRow]:
        table = tables.webhooks
        query = sa.select(table).where(self._of_tenant(table))
        found = self._connection.execute(query.order_by(table.c.created_at_us, table.c.id))
        return [row_as(WebhookRow, row) for row in found]

    def pause_webhook(self, webhook_id: str, *, paused: bool) -> WebhookRow | None:
        """Pausing again keeps the first time. None when there is no such webhook."""
        before = self.webhook(webhook_id)
        if before is not None and (before.paused_at_us is not None) != paused:
            at_us = self._now_us() if paused else None
            self._update(tables.webhooks, {"paused_at_us": at_us}, id=webhook_id)
        return self.webhook(webhook_id)

    def delete_webhook(self, webhook_id: str) -> bool:
        """Deletes the webhook and its log; pending deliveries are dropped."""
        return self._delete(tables.webhooks, id=webhook_id) == 1

    def delete_webhooks_of(self, makers: Collection[str]) -> list[str]:
        """Deletes the webhooks that these callers made, and returns their ids."""
        table = tables.webhooks
        statement = sa.delete(table).where(self._of_tenant(table), table.c.created_by.in_(makers))
        return list(self._connection.execute(statement.returning(table.c.id)).scalars())

    # ----------------------------------------------------------------------------------------- queue

    def announce(self, event: str, body_of: Callable[[str], str]) -> int:
        """Queues an event for every webhook that listens for it and is not paused; `body_of` receives the id of the
        delivery. Runs in the transaction of the event, so neither exists without the other."""
        listening = [
            each.id
            for each in self.webhooks()
            if event in each.events and each.paused_at_us is None
        ]
        return len([self.enqueue(each, event, body_of) for each in listening])

    def enqueue(
        self, webhook_id: str, event: str, body_of: Callable[[str], str]
    ) -> DeliveryRow | None:
        """For one webhook, whatever it listens for; None when there is none."""
        if self._first(tables.webhooks, lock=True, id=webhook_id) is None:
            return None
        delivery_id, now = new_id(), self._now_us()
        row: dict[str, Any] = {
            "id": delivery_id,
            "webhook_id": webhook_id,
            "event": event,
            "body": body_of(delivery_id),
            "status": "pending",
            "attempts": 0,
            "tries": [],
            "created_at_us": now,
            "next_attempt_at_us": now,
            "finished_at_us": None,
        }
        self._insert(tables.webhook_deliveries, row)
        return DeliveryRow(**row)

    def take_deliveries(self, lease_us: int, limit: int) -> list[DeliveryRow]:
        """Deliveries that are due, the longest first. Nobody else gets them before the lease ends."""
        table, now = tables.webhook_deliveries, self._now_us()
        due = (
            sa.select(table.c.id)
            .where(self._of_tenant(table), table.c.status == "pending")
            .where(table.c.next_attempt_at_us <= now)
            .order_by(table.c.next_attempt_at_us)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        taken = list(self._connection.execute(due).scalars())
        statement = (
            sa.update(table)
            .where(self._of_tenant(table), table.c.id.in_(taken))
            .values(attempts=table.c.attempts + 1, next_attempt_at_us=now + lease_us)
            .returning(table)
        )
        return [row_as(DeliveryRow, row) for row in self._connection.execute(statement)]

    def note_attempt(
        self,
        delivery: DeliveryRow,
        outcome: Mapping[str, Any],
        *,
        status: str,
        next_attempt_at_us: int,
    ) -> bool:
        """Stores the result of an attempt. False when its lease ended and another process has made an attempt."""
        changes: dict[str, Any] = {
            "status": status,
            "tries": [*delivery.tries, dict(outcome)],
            "next_attempt_at_us": next_attempt_at_us,
            "finished_at_us": None if status == "pending" else self._now_us(),
        }
        same = {"id": delivery.id, "attempts": delivery.attempts, "status": "pending"}
        return self._update(tables.webhook_deliveries, changes, **same) == 1

    def next_delivery_at_us(self) -> int | None:
        """When the next delivery is due; None when nothing waits."""
        table = tables.webhook_deliveries
        query = sa.select(sa.func.min(table.c.next_attempt_at_us)).where(
            self._of_tenant(table), table.c.status == "pending"
        )
        at_us: int | None = self._connection.execute(query).scalar_one()
        return at_us

    # ------------------------------------------------------------------------------------------- log

    def deliveries(
        self, webhook_id: str, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[DeliveryRow], str | None]:
        """The newest first, and the cursor of the next page."""
        checked_whole("search", "limit", limit, least=1, most=MOST_ON_A_PAGE)
        table = tables.webhook_deliveries
        if not is_storable(webhook_id):
            return [], None
        listed = digest_of("rollbook.deliveries", webhook_id)
        query = sa.select(table).where(self._of_tenant(table), table.c.webhook_id == webhook_id)
        if cursor is not None:
            place = sa.tuple_(table.c.created_at_us, table.c.id)
            query = query.where(place < sa.tuple_(*place_of(cursor, listed)))
        query = query.order_by(table.c.created_at_us.desc(), table.c.id.desc()).limit(limit + 1)
        found = [row_as(DeliveryRow, row) for row in self._connection.execute(query)]
        if len(found) <= limit:
            return found, None
        last = found[limit - 1]
        return found[:limit], cursor_at((last.created_at_us, last.id), listed)

    def forget_deliveries(self, before_us: int) -> int:
        """Deliveries that ended before this time."""
        table = tables.webhook_deliveries
        statement = sa.delete(table).where(
            self._of_tenant(table), table.c.status != "pending", table.c.finished_at_us < before_us
        )
        return self._connection.execute(statement).rowcount
