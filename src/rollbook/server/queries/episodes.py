"""Episodes: created once, finalized once, archived, restored, deleted."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import sqlalchemy as sa
from msgspec import UNSET

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.wire.limits import MOST_IN_AN_ANSWER, MOST_LISTED_METADATA
from rollbook.errors import EpisodeArchived, EpisodeOnHold, IdempotencyConflict
from rollbook.server.db import statements, tables
from rollbook.server.db.engine import to_json
from rollbook.server.db.episode_tables import ArtifactRow, DoomedObject, EpisodeRow, Usage
from rollbook.server.db.octets import octets
from rollbook.server.db.rows import AnyRow, row_as
from rollbook.server.db.value_checks import checked_text
from rollbook.server.queries.artifacts import ArtifactQueries
from rollbook.server.queries.episode_values import (
    checked_episode,
    checked_final,
    checked_tags,
    failure_time_within,
    merged_metadata,
)
from rollbook.server.queries.policies import PolicyQueries
from rollbook.server.queries.search_terms import terms_of

LONGEST_IDEMPOTENCY_KEY = 255
_TERMS_AT_ONCE = 100

RequestedArtifact: TypeAlias = "tuple[str, str, str]"
"""Kind, object key, content type."""


_METADATA = tables.episodes.c.metadata
_OTHERS = tuple(column for column in tables.episodes.c if column is not _METADATA)
_IS_SMALL = octets(_METADATA) <= sa.bindparam("most_metadata", type_=sa.BigInteger)
LISTED_EPISODE: tuple[sa.ColumnElement[Any], ...] = (
    *_OTHERS,
    sa.case((_IS_SMALL, _METADATA)).label("metadata"),
    sa.case((_IS_SMALL, octets(_METADATA)), else_=0).label("metadata_bytes"),
)
"""The columns of an answer about many: metadata of more than `most_metadata` bytes is null, and is not loaded."""
EPISODE_HEAD: tuple[sa.ColumnElement[Any], ...] = _OTHERS
LISTED_AT_ONCE = MOST_IN_AN_ANSWER // MOST_LISTED_METADATA
"""Episodes that one statement reads, so that their metadata fits into one answer."""
EMPTY_METADATA = len("{}")


class EpisodeQueries(ArtifactQueries, PolicyQueries):
    def create_episode(
        self,
        values: Mapping[str, Any],
        artifacts: Sequence[RequestedArtifact] = (),
        idempotency: tuple[str, str] | None = None,
    ) -> EpisodeRow:
        """`idempotency` is a key and the digest of the request. The same pair again returns the first episode, with
        `replayed` set; the same key with another digest is a conflict."""
        row = self._new_row(values)
        if idempotency is not None:
            first = self._claim(*idempotency, episode_id=row["id"])
            if first is not None:
                return first
        self._insert_episode(row, terms_of(row["metadata"], row["tags"]))
        requested = self._insert_artifacts(row["id"], artifacts)
        del row["name_search"]
        return EpisodeRow(
            org_id=self.org_id,
            **row,
            finalized_at_us=None,
            abandoned_at_us=None,
            archived_at_us=None,
            archived_from=None,
            artifacts=requested,
        )

    def episode(self, episode_id: str) -> EpisodeRow | None:
        row = self._first(tables.episodes, id=episode_id)
        return None if row is None else self._whole(row)

    def finalize_episode(self, episode_id: str, changes: Mapping[str, Any]) -> EpisodeRow | None:
        """Ends a recording, or adds to one that has ended. The first final status stays, unless upkeep had set it.
        Metadata is merged by name; for other fields the last value counts."""
        row = self._first(tables.episodes, lock=True, id=episode_id)
        if row is None:
            return None
        return self._change(row, final_values(row, changes, self._now_us()))

    def tag_episode(self, episode_id: str, tags: Iterable[str]) -> EpisodeRow | None:
        """Replaces all tags."""
        row = self._first(tables.episodes, lock=True, id=episode_id)
        return None if row is None else self._change(row, {"tags": checked_tags(tags)})

    def archive_episode(self, episode_id: str) -> EpisodeRow | None:
        """Hides the episode from lists and refuses changes; nothing is lost. Archiving again does nothing."""
        row = self._first(tables.episodes, lock=True, id=episode_id)
        if row is None:
            return None
        if row.status == "archived":
            return self._change(row, {})
        archived = {"status": "archived", "archived_from": row.status}
        return self._change(row, {**archived, "archived_at_us": self._now_us()})

    def restore_episode(self, episode_id: str) -> EpisodeRow | None:
        row = self._first(tables.episodes, lock=True, id=episode_id)
        if row is None:
            return None
        restored = {"status": row.archived_from, "archived_from": None, "archived_at_us": None}
        return self._change(row, restored if row.status == "archived" else {})

    def delete_episode(self, episode_id: str) -> list[DoomedObject] | None:
        """The blobs that must be deleted too. They stay noted until `forget_objects` is called."""
        row = self._first(tables.episodes, lock=True, id=episode_id)
        if row is None:
            return None
        if self._first(tables.legal_holds, episode_id=episode_id) is not None:
            raise EpisodeOnHold(episode_id=episode_id)
        doomed = self._doom_blobs_of(episode_id)
        self._remove_terms(row, terms_of(row._mapping["metadata"], row.tags))
        self._delete(tables.episodes, id=episode_id)
        self._count(episodes=-1)
        return doomed

    # -------------------------------------------------------------------------- upkeep by the server

    def abandoned_episodes(self, before_us: int, limit: int = 100) -> list[str]:
        """Still recording, and untouched since `before_us`; the oldest first."""
        table = tables.episodes
        query = (
            sa.select(table.c.id)
            .where(self._of_tenant(table), table.c.status == "recording")
            .where(table.c.created_at_us < before_us, table.c.updated_at_us < before_us)
            .order_by(table.c.created_at_us)
            .limit(limit)
        )
        return list(self._connection.execute(query).scalars())

    def abandon_episode(self, episode_id: str, before_us: int) -> bool:
        """Marks the recording as failed because nobody continued it. False when somebody did."""
        now = self._now_us()
        table = tables.episodes
        statement = (
            sa.update(table)
            .where(self._of_tenant(table), table.c.id == episode_id, table.c.status == "recording")
            .where(table.c.updated_at_us < before_us)
            .values(status="failed", abandoned_at_us=now, updated_at_us=now)
        )
        return self._connection.execute(statement).rowcount == 1

    def forget_idempotency_keys(self, before_us: int) -> int:
        table = tables.idempotency_keys
        statement = sa.delete(table).where(
            self._of_tenant(table), table.c.created_at_us < before_us
        )
        return self._connection.execute(statement).rowcount

    # --------------------------------------------------------------------------------------- helpers

    def _claim(self, key: str, digest: str, *, episode_id: str) -> EpisodeRow | None:
        """None when the key is new; it then belongs to `episode_id`. Else the episode that has the key."""
        checked_text("episode", "idempotency key", key, LONGEST_IDEMPOTENCY_KEY)
        claim = {"key": key, "request_digest": digest, "episode_id": episode_id}
        if self._insert_new(tables.idempotency_keys, {**claim, "created_at_us": self._now_us()}):
            return None
        taken = self._first(tables.idempotency_keys, key=key)
        if taken is None or taken.request_digest != digest:
            detail = "was used for a different request; send a new key with a new request"
            raise IdempotencyConflict(key=key, detail=detail)
        first = self.episode(taken.episode_id)
        if first is None:
            detail = "its episode was deleted, or another API key recorded it; send a new key to record it again"
            raise IdempotencyConflict(key=key, detail=detail)
        return dataclasses.replace(first, replayed=True)

    def _new_row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """`policy_revision` in the values, a PolicyRevision or None, becomes the id of its row."""
        given = dict(values)
        revision: PolicyRevision | None = given.pop("policy_revision", None)
        row = checked_episode(given)
        now = self._now_us()
        return {
            **row,
            "policy_revision_id": revision and self.register_policy_revision(revision),
            "created_at_us": now,
            "updated_at_us": now,
        }

    def _change(self, row: AnyRow, changes: dict[str, Any]) -> EpisodeRow:
        """Writes the columns that differ, and updates the search terms. A repeated request writes nothing."""
        will_be: dict[str, Any] = {**row._mapping, **changes}
        shown = self.policy_revisions([row.policy_revision_id])
        will_be["policy_revision"] = shown.get(row.policy_revision_id, UNSET)
        differing = differing_from(row, changes)
        del will_be["name_search"]
        if not differing:
            return EpisodeRow(**will_be, artifacts=self._artifacts_of(row.id))
        will_be["updated_at_us"] = differing["updated_at_us"] = self._now_us()
        gone, new = changed_terms(row, differing)
        self._remove_terms(row, gone)
        return EpisodeRow(**will_be, artifacts=self._update_episode(row, differing, new))

    def _insert_episode(self, row: dict[str, Any], terms: Iterable[str]) -> None:
        """Inserts the episode with its terms and counts it. PostgreSQL receives one statement; SQLite has no network to
        save."""
        row = {"org_id": self.org_id, **row}
        if self._is_postgres:
            place = _term_place(self.org_id, row["id"], row["created_at_us"])
            given = {**_new(row), "new_terms": sorted(terms), **place}
            usage = self._connection.execute(_insert_on_postgres(tuple(row)), given).first()
            self._usage = None if usage is None else row_as(Usage, usage)
        else:
            statements.insert(self._connection, tables.episodes, row)
            self._add_terms(row["id"], row["created_at_us"], terms)
            self._count(episodes=1)

    def _update_episode(
        self, row: AnyRow, changes: dict[str, Any], terms: Iterable[str]
    ) -> tuple[ArtifactRow, ...]:
        """Updates the episode and adds new terms. Returns the artifacts; the lock on the row keeps them as they are."""
        if not self._is_postgres:
            self._update(tables.episodes, changes, id=row.id)
            self._add_terms(row.id, row.created_at_us, terms)
            return self._artifacts_of(row.id)
        place = _term_place(self.org_id, row.id, row.created_at_us)
        given = {**_new(changes), "new_terms": sorted(terms), **place}
        found = self._connection.execute(_update_on_postgres(tuple(changes)), given)
        return tuple(row_as(ArtifactRow, artifact) for artifact in found)

    def _add_terms(self, episode_id: str, created_at_us: int, terms: Iterable[str]) -> None:
        where = {"org_id": self.org_id, "created_at_us": created_at_us, "episode_id": episode_id}
        rows = [{**where, "term": term} for term in sorted(terms)]
        statements.insert(self._connection, tables.episode_terms, rows)

    def _remove_terms(self, row: AnyRow, terms: Collection[str]) -> None:
        if not terms:
            return
        table = tables.episode_terms
        here = sa.and_(
            self._of_tenant(table),
            table.c.created_at_us == row.created_at_us,
            table.c.episode_id == row.id,
        )
        gone = sorted(terms)
        for start in range(0, len(gone), _TERMS_AT_ONCE):
            some = table.c.term.in_(gone[start : start + _TERMS_AT_ONCE])
            self._connection.execute(sa.delete(table).where(here, some))

    def _whole(self, row: AnyRow) -> EpisodeRow:
        revision = self.policy_revisions([row.policy_revision_id]).get(
            row.policy_revision_id, UNSET
        )
        artifacts = self._artifacts_of(row.id)
        return row_as(
            EpisodeRow,
            row,
            artifacts=artifacts,
            replayed=False,
            policy_revision=revision,
            metadata_truncated=UNSET,
        )

    def _listed(self, rows: Sequence[AnyRow]) -> list[EpisodeRow]:
        """In the order given, with one query for all artifacts. Their arrays are left out, and so is the metadata of
        rows that come without it."""
        theirs = self._artifacts_of_many([row.id for row in rows])
        revisions = self.policy_revisions(row.policy_revision_id for row in rows)
        return [
            row_as(
                EpisodeRow,
                row,
                artifacts=theirs[row.id],
                replayed=False,
                policy_revision=revisions.get(row.policy_revision_id, UNSET),
                **listed_metadata(row),
            )
            for row in rows
        ]


def listed_metadata(row: AnyRow) -> dict[str, Any]:
    kept = getattr(row, "metadata", None)
    truncated = True if kept is None else UNSET
    return {"metadata": kept or {}, "metadata_truncated": truncated}


def final_values(row: AnyRow, changes: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    """The columns after a finalize with `changes`."""
    if row.status == "archived":
        raise EpisodeArchived(episode_id=row.id)
    given = checked_final(changes)
    if row.finalized_at_us is not None:
        given["status"] = row.status
    return {
        **given,
        "metadata": merged_metadata(row._mapping["metadata"], given.get("metadata", {})),
        "failure_time_s": failure_time_within(
            given.get("failure_time_s", row.failure_time_s),
            given.get("duration_s", row.duration_s),
            given["status"],
        ),
        "finalized_at_us": row.finalized_at_us or now_us,
        "abandoned_at_us": None,
    }


def differing_from(row: AnyRow, changes: Mapping[str, Any]) -> dict[str, Any]:
    was = row._mapping
    return {name: value for name, value in changes.items() if not _same(value, was[name])}


def changed_terms(row: AnyRow, differing: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """The terms to remove and the terms to add; most changes touch none."""
    if "metadata" not in differing and "tags" not in differing:
        return set(), set()
    was = row._mapping
    old = terms_of(was["metadata"], was["tags"])
    new = terms_of(differing.get("metadata", was["metadata"]), differing.get("tags", was["tags"]))
    return old - new, new - old


def _same(one: object, other: object) -> bool:
    """Also tells apart what Python calls equal and JSON does not: 1, 1.0 and true."""
    if one is other:
        return True
    if isinstance(one, dict | list):
        return to_json(one) == to_json(other)
    return one == other


# --------------------------------------------------------------------------- one message to PostgreSQL


@lru_cache
def _insert_on_postgres(columns: tuple[str, ...]) -> sa.Select[Any]:
    """Inserts an episode and its terms, counts it for its organisation, and returns the new usage."""
    owner, kept = tables.organisations, tables.usage
    made = sa.insert(tables.episodes).values(_bound(columns)).inline()
    counted = (
        sa.update(kept)
        .where(kept.c.org_id == sa.bindparam("term_org"))
        .values(episodes=kept.c.episodes + 1)
        .returning(kept.c.org_id, kept.c.episodes, kept.c.bytes)
        .cte("counted")
    )
    usage = sa.select(
        counted.c.episodes, counted.c.bytes, owner.c.quota_episodes, owner.c.quota_bytes
    ).join(owner, owner.c.id == counted.c.org_id)
    return usage.add_cte(made.cte("made"), _insert_terms())


@lru_cache
def _update_on_postgres(columns: tuple[str, ...]) -> sa.Select[Any]:
    """Updates an episode, adds its new terms, and returns its artifacts."""
    episode, artifact = tables.episodes, tables.artifacts
    of_tenant = sa.bindparam("term_org", type_=sa.Text)
    it = sa.bindparam("term_episode", type_=sa.Text)
    changed = (
        sa.update(episode)
        .where(episode.c.org_id == of_tenant, episode.c.id == it)
        .values(_bound(columns))
    )
    artifacts = (
        sa.select(artifact)
        .where(artifact.c.org_id == of_tenant, artifact.c.episode_id == it)
        .order_by(artifact.c.kind)
    )
    return artifacts.add_cte(changed.cte("changed"), _insert_terms())


def _insert_terms() -> sa.CTE:
    term = sa.func.unnest(sa.bindparam("new_terms", type_=sa.ARRAY(sa.Text))).column_valued("term")
    rows = sa.select(
        sa.bindparam("term_org", type_=sa.Text),
        term,
        sa.bindparam("term_created_at_us", type_=sa.BigInteger),
        sa.bindparam("term_episode", type_=sa.Text),
    )
    columns = ["org_id", "term", "created_at_us", "episode_id"]
    return sa.insert(tables.episode_terms).from_select(columns, rows).inline().cte("listed")


def _term_place(org_id: str, episode_id: str, created_at_us: int) -> dict[str, Any]:
    return {
        "term_org": org_id,
        "term_created_at_us": created_at_us,
        "term_episode": episode_id,
    }


def _new(values: Mapping[str, Any]) -> dict[str, Any]:
    """Not the names of the columns: SQLAlchemy would use such parameters for every table of the statement."""
    return {f"new_{name}": value for name, value in values.items()}


def _bound(columns: tuple[str, ...]) -> dict[str, sa.BindParameter[Any]]:
    return {
        name: sa.bindparam(f"new_{name}", type_=tables.episodes.c[name].type) for name in columns
    }
