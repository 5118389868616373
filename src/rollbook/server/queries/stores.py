"""Rollout stores that the organisation registered."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from rollbook.server.db import tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.rows import row_as
from rollbook.server.db.store_tables import StoreRow
from rollbook.server.db.value_checks import checked_text
from rollbook.server.queries.scope import TenantScope


class StoreQueries(TenantScope):
    def add_store(
        self, name: str, place: str, added_by: str, seen: Mapping[str, Any]
    ) -> StoreRow | None:
        """`seen`: the columns that say what was read. None when a store of this place is registered already."""
        row = {
            "id": new_id(),
            "name": checked_text("store", "name", name),
            "place": checked_text("store", "place", place),
            "added_by": added_by,
            "added_at_us": self._now_us(),
            "unreadable_at_us": None,
            "problem": None,
            "verification": None,
            **seen,
        }
        return StoreRow(**row) if self._insert_new(tables.stores, row) else None

    def stores(self) -> list[StoreRow]:
        """By name."""
        table = tables.stores
        query = sa.select(table).where(self._of_tenant(table)).order_by(table.c.name, table.c.id)
        return [row_as(StoreRow, row) for row in self._connection.execute(query)]

    def store(self, store_id: str) -> StoreRow | None:
        row = self._first(tables.stores, id=store_id)
        return None if row is None else row_as(StoreRow, row)

    def store_at(self, place: str) -> StoreRow | None:
        row = self._first(tables.stores, place=place)
        return None if row is None else row_as(StoreRow, row)

    def count_stores(self) -> int:
        table = tables.stores
        query = sa.select(sa.func.count()).select_from(table).where(self._of_tenant(table))
        return int(self._connection.execute(query).scalar_one())

    def stores_with_content(self, digests: Collection[str]) -> dict[str, StoreRow]:
        """Content digest → the store that holds it, of those last read with one of these digests."""
        table = tables.stores
        query = sa.select(table).where(
            self._of_tenant(table), table.c.content_sha256.in_(sorted(digests))
        )
        found = self._connection.execute(query.order_by(table.c.added_at_us.desc()))
        return {row.content_sha256: row_as(StoreRow, row) for row in found}

    def note_store(self, store_id: str, values: Mapping[str, Any]) -> bool:
        """What was seen of a store, or the result of a verification."""
        return self._update(tables.stores, dict(values), id=store_id) == 1

    def remove_store(self, store_id: str) -> bool:
        """The files stay where they are."""
        return self._delete(tables.stores, id=store_id) == 1
