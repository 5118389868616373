"""Policy revisions of a tenant. The first description of a revision defines it; later ones may add facts, and a
description that contradicts an earlier one is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import sqlalchemy as sa

from rollbook.contracts.policy import PolicyRevision, merged, revision_conflict
from rollbook.contracts.wire.limits import LONGEST_INDEXED, LONGEST_POLICY_FAMILY
from rollbook.server.db import tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.value_checks import checked_object, checked_text
from rollbook.server.queries.scope import TenantScope


class PolicyQueries(TenantScope):
    def register_policy_revision(self, revision: PolicyRevision) -> str:
        """The id of its row, which is made or completed."""
        record = "policy_revision"
        checked_text(record, "policy_family", revision.policy_family, LONGEST_POLICY_FAMILY)
        checked_text(record, "revision_id", revision.revision_id, LONGEST_INDEXED)
        described = checked_object(record, record, msgspec.to_builtins(revision))
        identity: dict[str, Any] = {
            "policy_family": revision.policy_family,
            "revision_id": revision.revision_id,
        }
        row = self._first(tables.policy_revisions, **identity)
        if row is None:
            now = self._now_us()
            made = {"id": new_id(), **identity, "revision": described}
            new = {**made, "created_at_us": now, "updated_at_us": now}
            if self._insert_new(tables.policy_revisions, new):
                return str(made["id"])
        if row is None or row.revision != described:
            row = self._first(tables.policy_revisions, lock=True, **identity)
            assert row is not None, "somebody else has just made it, and nobody deletes revisions"
            known = msgspec.convert(row.revision, PolicyRevision)
            conflict = revision_conflict(record, None, known, revision)
            if conflict is not None:
                raise conflict
            whole = merged(known, revision)
            if whole != known:
                changes = {
                    "revision": msgspec.to_builtins(whole),
                    "updated_at_us": self._now_us(),
                }
                self._update(tables.policy_revisions, changes, id=row.id)
        return str(row.id)

    def policy_revisions(self, ids: Iterable[str | None]) -> dict[str, PolicyRevision]:
        """By the id of the row. Costs nothing when no id is given."""
        wanted = {each for each in ids if each is not None}
        if not wanted:
            return {}
        table = tables.policy_revisions
        query = sa.select(table.c.id, table.c.revision).where(
            self._of_tenant(table), table.c.id.in_(sorted(wanted))
        )
        return {
            row.id: msgspec.convert(row.revision, PolicyRevision)
            for row in self._connection.execute(query)
        }
