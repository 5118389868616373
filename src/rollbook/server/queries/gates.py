"""Locked gates: rules of an organisation that no author of a run may weaken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from rollbook.server.db import tables
from rollbook.server.db.ledger_tables import LockedGateRow
from rollbook.server.db.rows import row_as
from rollbook.server.queries.scope import TenantScope


class GateQueries(TenantScope):
    def locked_gates(self) -> list[LockedGateRow]:
        """By name."""
        table = tables.locked_gates
        query = sa.select(table).where(self._of_tenant(table)).order_by(table.c.name)
        return [row_as(LockedGateRow, row) for row in self._connection.execute(query)]

    def locked_gate(self, name: str) -> LockedGateRow | None:
        row = self._first(tables.locked_gates, name=name)
        return None if row is None else row_as(LockedGateRow, row)

    def lock_gate(
        self, name: str, gate: Mapping[str, Any], digest: str, locked_by: str
    ) -> LockedGateRow:
        """Adds it, or replaces the one of that name."""
        values = {
            "gate": dict(gate),
            "gate_digest": digest,
            "locked_by": locked_by,
            "locked_at_us": self._now_us(),
        }
        if not self._insert_new(tables.locked_gates, {"name": name, **values}):
            self._update(tables.locked_gates, values, name=name)
        row = self.locked_gate(name)
        assert row is not None, "it was written in this transaction"
        return row

    def unlock_gate(self, name: str) -> bool:
        return self._delete(tables.locked_gates, name=name) == 1
