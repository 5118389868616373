"""Lineage of policies: revisions, what they were trained on, the episodes they recorded and the runs that judged
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from rollbook.contracts.lineage import ROLLOUT_METADATA
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.source_file import SOURCE_FILE_KEY
from rollbook.digest import digest_of
from rollbook.server.db import tables
from rollbook.server.db.eval_tables import EvalRunDecided
from rollbook.server.db.lineage_tables import (
    RecordedEpisodes,
    RevisionRow,
    SourceKind,
    TrainingSourceRow,
)
from rollbook.server.db.rows import AnyRow, row_as
from rollbook.server.db.value_checks import checked_whole, is_storable
from rollbook.server.http.cursors import cursor_at, place_of
from rollbook.server.queries.evals import EvalQueries

MOST_ON_A_PAGE = 1000
_MOST_OF_A_FAMILY = 500
_LISTED = ("kind", "source_id", "detail", "created_at_us")


class LineageQueries(EvalQueries):
    # ------------------------------------------------------------------------------------- revisions

    def revision_rows(
        self, family: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[RevisionRow], str | None]:
        """The newest first, and the cursor of the next page."""
        checked_whole("search", "limit", limit, least=1, most=MOST_ON_A_PAGE)
        if not is_storable(family or ""):
            return [], None
        table, listed = tables.policy_revisions, digest_of("rollbook.revisions", family)
        place = sa.tuple_(table.c.created_at_us, table.c.id)
        query = sa.select(table).where(self._of_tenant(table))
        if family is not None:
            query = query.where(table.c.policy_family == family)
        if cursor is not None:
            query = query.where(place < sa.tuple_(*place_of(cursor, listed)))
        query = query.order_by(table.c.created_at_us.desc(), table.c.id.desc()).limit(limit + 1)
        found = [_revision(row) for row in self._connection.execute(query)]
        if len(found) <= limit:
            return found, None
        last = found[limit - 1]
        return found[:limit], cursor_at((last.created_at_us, last.id), listed)

    def revisions_named(self, name: str, limit: int = 50) -> list[RevisionRow]:
        """By the id of the row, or by its revision id, which is unique within a family only."""
        if not is_storable(name):
            return []
        table = tables.policy_revisions
        named = sa.or_(table.c.id == name, table.c.revision_id == name)
        query = sa.select(table).where(self._of_tenant(table), named)
        query = query.order_by(table.c.policy_family).limit(limit)
        return [_revision(row) for row in self._connection.execute(query)]

    def family_of(self, revision: PolicyRevision) -> dict[str, RevisionRow]:
        """The newest revisions of its family and its parent, by revision id."""
        found = {
            row.revision_id: row
            for row in self.revision_rows(revision.policy_family, limit=_MOST_OF_A_FAMILY)[0]
        }
        parent = revision.parent_revision_id
        if parent is not None and parent not in found:
            identity: dict[str, Any] = {
                "policy_family": revision.policy_family,
                "revision_id": parent,
            }
            row = self._first(tables.policy_revisions, **identity)
            if row is not None:
                found[parent] = _revision(row)
        return found

    # ------------------------------------------------------------------------------ what it came from

    def add_training_source(
        self,
        policy_revision_id: str,
        kind: SourceKind,
        source_id: str,
        detail: Mapping[str, Any],
        record: Mapping[str, Any] | None = None,
    ) -> bool:
        """False when it is known already, and when there is no such revision."""
        if self._first(tables.policy_revisions, id=policy_revision_id) is None:
            return False
        return self._insert_new(
            tables.training_sources,
            {
                "policy_revision_id": policy_revision_id,
                "kind": kind,
                "source_id": source_id,
                "detail": dict(detail),
                "record": None if record is None else dict(record),
                "created_at_us": self._now_us(),
            },
        )

    def training_source(
        self, policy_revision_id: str, kind: SourceKind, source_id: str
    ) -> TrainingSourceRow | None:
        same: dict[str, Any] = {
            "policy_revision_id": policy_revision_id,
            "kind": kind,
            "source_id": source_id,
        }
        row = self._first(tables.training_sources, **same)
        return None if row is None else row_as(TrainingSourceRow, row)

    def training_sources(self, policy_revision_id: str) -> list[TrainingSourceRow]:
        """In the order in which they were recorded."""
        table = tables.training_sources
        query = (
            sa.select(*(table.c[name] for name in _LISTED))
            .where(self._of_tenant(table), table.c.policy_revision_id == policy_revision_id)
            .order_by(table.c.created_at_us, table.c.kind, table.c.source_id)
        )
        return [row_as(TrainingSourceRow, row) for row in self._connection.execute(query)]

    def batch_records(self, policy_revision_id: str) -> list[dict[str, Any]]:
        """The whole batches, as they were sent."""
        table = tables.training_sources
        query = sa.select(table.c.record).where(
            self._of_tenant(table),
            table.c.policy_revision_id == policy_revision_id,
            table.c.kind == "batch",
        )
        return list(self._connection.execute(query.order_by(table.c.source_id)).scalars())

    def ancestry_of(self, revision: PolicyRevision) -> list[RevisionRow]:
        """The revision and its ancestors, as far as they are recorded, nearest first."""
        found: list[RevisionRow] = []
        seen: set[str] = set()
        at: str | None = revision.revision_id
        while at is not None and at not in seen:
            seen.add(at)
            identity: dict[str, Any] = {"policy_family": revision.policy_family, "revision_id": at}
            row = self._first(tables.policy_revisions, **identity)
            if row is None:
                break
            found.append(_revision(row))
            at = found[-1].revision.parent_revision_id
        return found

    def batches_named(self, batch_id: str, limit: int = 20) -> list[tuple[str, dict[str, Any]]]:
        """The row ids of the revisions that batches with this id trained, and the whole batches."""
        if not is_storable(batch_id):
            return []
        table = tables.training_sources
        query = sa.select(table.c.policy_revision_id, table.c.record).where(
            self._of_tenant(table), table.c.kind == "batch", table.c.source_id == batch_id
        )
        rows = self._connection.execute(query.order_by(table.c.policy_revision_id).limit(limit))
        return [(row.policy_revision_id, row.record) for row in rows]

    # ------------------------------------------------------------------------ what a decision rests on

    def keep_evidence(self, run_id: str, record: Mapping[str, Any]) -> bool:
        """Replaces what was kept of an earlier summary of the run. False when there is no such run."""
        if self._first(tables.eval_runs, id=run_id) is None:
            return False
        values = {"record": dict(record), "created_at_us": self._now_us()}
        if self._update(tables.eval_evidence, values, eval_run_id=run_id):
            return True
        return self._insert_new(tables.eval_evidence, {"eval_run_id": run_id, **values})

    def evidence_of(self, run_id: str) -> dict[str, Any] | None:
        row = self._first(tables.eval_evidence, eval_run_id=run_id)
        return None if row is None else dict(row.record)

    def episode_origins(self, episode_ids: Iterable[str]) -> dict[str, dict[str, dict[str, Any]]]:
        """The rollouts of stores that episodes were logged from, and the files that they were imported from, under the
        keys of their metadata. Only some rows are in memory at a time."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for row in self._episode_rows(episode_ids):
            metadata = row._mapping["metadata"]
            told = {key: metadata.get(key) for key in (ROLLOUT_METADATA, SOURCE_FILE_KEY)}
            found[row.id] = {key: value for key, value in told.items() if isinstance(value, dict)}
        return found

    # --------------------------------------------------------------------------- what it did since

    def episodes_of_policy(
        self, *, policy_revision_id: str | None = None, policy_version: str | None = None
    ) -> RecordedEpisodes:
        table = tables.episodes
        query = sa.select(
            sa.func.count().label("count"),
            sa.func.min(table.c.created_at_us).label("first_us"),
            sa.func.max(table.c.created_at_us).label("last_us"),
        ).where(self._of_tenant(table))
        if policy_revision_id is not None:
            query = query.where(table.c.policy_revision_id == policy_revision_id)
        else:
            query = query.where(table.c.policy_version == _text(policy_version))
        return row_as(RecordedEpisodes, self._connection.execute(query).one())

    def runs_of_policy(
        self,
        *,
        policy_revision_id: str | None = None,
        policy_version: str | None = None,
        limit: int,
    ) -> list[EvalRunDecided]:
        """Runs that judge the policy, the newest first."""
        table = tables.eval_runs
        if policy_revision_id is not None:
            judged = table.c.candidate_policy_revision_id == policy_revision_id
        else:
            judged = table.c.candidate_policy_version == _text(policy_version)
        others = (each for each in table.c if each not in (table.c.metadata, table.c.gate))
        query = sa.select(*others).where(self._of_tenant(table), judged)
        query = query.order_by(table.c.created_at_us.desc(), table.c.id.desc()).limit(limit)
        rows = self._connection.execute(query).all()
        return [
            row_as(EvalRunDecided, row, **beside)
            for row, beside in zip(rows, self._revisions_of(rows), strict=True)
        ]


def _text(text: str | None) -> str:
    """No stored version is empty, so the empty text finds nothing."""
    return text if text is not None and is_storable(text) else ""


def _revision(row: AnyRow) -> RevisionRow:
    return row_as(RevisionRow, row, revision=msgspec.convert(row.revision, PolicyRevision))
