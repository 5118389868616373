"""Artifacts of episodes, multipart uploads, blobs that wait for deletion, and usage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from rollbook.contracts.wire.limits import LONGEST_INDEXED, LONGEST_TEXT, MOST_PARTS
from rollbook.errors import InvalidValue
from rollbook.server.db import statements, tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.episode_tables import ArtifactRow, DoomedObject, PartRow, UploadRow, Usage
from rollbook.server.db.rows import row_as
from rollbook.server.db.statements import upsert
from rollbook.server.db.value_checks import checked_choice, checked_text, checked_whole, is_storable
from rollbook.server.queries.scope import TenantScope

KINDS = ("video", "sensors", "actions")
ARTIFACT_STATUSES = ("requested", "stored", "refused")
"""`requested`: not checked yet. `stored`: bytes checked. `refused`: bytes differ from what was announced."""
RENDITIONS = ("pending", "ready", "failed")
_CHANGEABLE = (
    "status",
    "content_type",
    "size",
    "sha256",
    "claimed_sha256",
    "playable",
    "readable",
    "detail",
    "arrays",
    "requested_at_us",
    "uploaded_at_us",
    "etag",
    "rendition",
    "rendition_key",
    "rendition_tries",
)


ARTIFACT_HEAD = tuple(column for column in tables.artifacts.c if column.name != "arrays")
"""The columns for lists: the arrays of many artifacts would be many bytes."""


class ArtifactQueries(TenantScope):
    _usage: Usage | None = None
    """The usage in this transaction, until it changes."""

    def artifact(self, episode_id: str, kind: str) -> ArtifactRow | None:
        row = self._first(tables.artifacts, episode_id=episode_id, kind=kind)
        return None if row is None else row_as(ArtifactRow, row)

    def request_artifact(
        self, episode_id: str, kind: str, object_key: str, content_type: str
    ) -> ArtifactRow | None:
        """The existing artifact, or a new one to be uploaded. None when there is no such episode."""
        if self._first(tables.episodes, lock=True, id=episode_id) is None:
            return None
        there = self.artifact(episode_id, kind)
        if there is not None:
            return there
        return self._insert_artifacts(episode_id, [(kind, object_key, content_type)])[0]

    def set_artifact(self, episode_id: str, kind: str, **changes: Any) -> ArtifactRow | None:
        """A new size counts against the quota. The episode counts as touched, so upkeep does not give it up."""
        row = self._first(tables.artifacts, lock=True, episode_id=episode_id, kind=kind)
        if row is None:
            return None
        check_artifact(changes)
        if changes:
            self._update(tables.artifacts, changes, episode_id=episode_id, kind=kind)
            if changes.get("rendition_key", row.rendition_key) != row.rendition_key:
                self._doom([DoomedObject(row.rendition_key)] if row.rendition_key else [])
            self._update(tables.episodes, {"updated_at_us": self._now_us()}, id=episode_id)
        self._count(bytes_=(changes.get("size", row.size) or 0) - (row.size or 0))
        return self.artifact(episode_id, kind)

    def known_objects(self, object_keys: Iterable[str]) -> set[str]:
        """Keys that an artifact or an upload under way needs; any other blob is an orphan."""
        wanted = list(object_keys)
        found: set[str] = set()
        for table, column in (
            (tables.artifacts, tables.artifacts.c.object_key),
            (tables.artifacts, tables.artifacts.c.rendition_key),
            (tables.uploads, tables.uploads.c.object_key),
        ):
            query = sa.select(column).where(self._of_tenant(table), column.in_(wanted))
            found.update(self._connection.execute(query).scalars())
        return found

    def stored_artifacts(
        self, limit: int, after: tuple[str, str] | None = None
    ) -> list[ArtifactRow]:
        """Artifacts whose bytes were checked, by episode and kind; the next ones after such a pair."""
        table = tables.artifacts
        place = sa.tuple_(table.c.episode_id, table.c.kind)
        query = (
            sa.select(table)
            .where(self._of_tenant(table), table.c.status == "stored")
            .order_by(table.c.episode_id, table.c.kind)
            .limit(limit)
        )
        if after is not None:
            query = query.where(place > sa.tuple_(*after))
        return [row_as(ArtifactRow, row) for row in self._connection.execute(query)]

    def sampled_artifacts(self, count: int) -> list[ArtifactRow]:
        """A random sample of the artifacts whose bytes were checked."""
        table = tables.artifacts
        stored = sa.select(table).where(self._of_tenant(table), table.c.status == "stored")
        found = self._connection.execute(stored.order_by(sa.func.random()).limit(count))
        return [row_as(ArtifactRow, row) for row in found]

    # ------------------------------------------------------------------------------------ renditions

    def begin_rendition(self, most_tries: int) -> ArtifactRow | None:
        """The rendition that waits longest, with this try counted: a video that crashes the server is tried only a few
        times. None when nothing waits."""
        table = tables.artifacts
        query = (
            sa.select(table)
            .where(self._of_tenant(table), table.c.rendition == "pending")
            .order_by(table.c.requested_at_us)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        while (row := self._connection.execute(query).first()) is not None:
            artifact = row_as(ArtifactRow, row)
            tries = artifact.rendition_tries or 0
            if tries < most_tries:
                self._set_rendition(artifact, {"rendition_tries": tries + 1})
                return artifact
            detail = f"{artifact.detail}; transcoding it was tried {tries} times and never ended"
            self._set_rendition(artifact, {"rendition": "failed", "detail": detail})
        return None

    def end_rendition(self, artifact: ArtifactRow, status: str, detail: str | None) -> bool:
        """Whether its blob is needed: not when the episode was deleted or its bytes were replaced meanwhile."""
        checked_choice("artifact", "rendition", status, RENDITIONS)
        self._set_rendition(artifact, {"rendition": status, "detail": detail})
        now = self.artifact(artifact.episode_id, artifact.kind)
        return now is not None and (now.rendition, now.rendition_key) == (
            "ready",
            artifact.rendition_key,
        )

    def renew_rendition(self, artifact: ArtifactRow) -> None:
        """Makes the rendition wait again, with all its tries."""
        again = {"rendition": "pending", "rendition_tries": None}
        where = {"kind": artifact.kind, "rendition_key": artifact.rendition_key}
        self._update(tables.artifacts, again, episode_id=artifact.episode_id, **where)

    def _set_rendition(self, artifact: ArtifactRow, changes: dict[str, Any]) -> None:
        """Only while it is the rendition of these bytes and waits."""
        self._update(
            tables.artifacts,
            changes,
            episode_id=artifact.episode_id,
            kind=artifact.kind,
            rendition_key=artifact.rendition_key,
            rendition="pending",
        )

    # ------------------------------------------------------------------------------------- multipart

    def create_upload(
        self,
        episode_id: str,
        kind: str,
        *,
        size: int,
        part_size: int,
        store_id: str | None = None,
        sha256: str | None = None,
    ) -> UploadRow | None:
        """For an artifact that was requested before; None when there is none."""
        artifact = self.artifact(episode_id, kind)
        if artifact is None:
            return None
        row: dict[str, Any] = {
            "id": new_id(),
            "episode_id": episode_id,
            "kind": kind,
            "object_key": artifact.object_key,
            "store_id": store_id,
            "size": checked_whole("upload", "size", size),
            "part_size": checked_whole("upload", "part_size", part_size, least=1),
            "sha256": sha256,
            "created_at_us": self._now_us(),
            "completed_at_us": None,
        }
        self._insert(tables.uploads, row)
        return UploadRow(**row)

    def upload(self, upload_id: str) -> UploadRow | None:
        row = self._first(tables.uploads, id=upload_id)
        if row is None or self._first(tables.episodes, id=row.episode_id) is None:
            return None
        return row_as(UploadRow, row)

    def put_part(
        self, upload_id: str, number: int, size: int, etag: str, sha256: str | None = None
    ) -> bool:
        """The last part sent under a number counts. False when there is no such upload, or it is complete."""
        row = self._first(tables.uploads, lock=True, id=upload_id)
        if row is None or row.completed_at_us is not None:
            return False
        checked_whole("part", "number", number, least=1, most=MOST_PARTS)
        part = {"size": checked_whole("part", "size", size), "etag": etag, "sha256": sha256}
        statement = upsert(self._connection.dialect.name, tables.upload_parts).values(
            org_id=self.org_id, upload_id=upload_id, number=number, **part
        )
        same = ["org_id", "upload_id", "number"]
        self._connection.execute(statement.on_conflict_do_update(index_elements=same, set_=part))
        self._update(tables.episodes, {"updated_at_us": self._now_us()}, id=row.episode_id)
        return True

    def parts(self, upload_id: str) -> list[PartRow]:
        table = tables.upload_parts
        if not is_storable(upload_id):
            return []
        query = sa.select(table).where(self._of_tenant(table), table.c.upload_id == upload_id)
        found = self._connection.execute(query.order_by(table.c.number))
        return [row_as(PartRow, row) for row in found]

    def complete_upload(self, upload_id: str) -> UploadRow | None:
        """Works once: None when there is no such upload, or it is already complete."""
        table = tables.uploads
        if not is_storable(upload_id):
            return None
        statement = (
            sa.update(table)
            .where(
                self._of_tenant(table), table.c.id == upload_id, table.c.completed_at_us.is_(None)
            )
            .values(completed_at_us=self._now_us())
            .returning(table)
        )
        row = self._connection.execute(statement).first()
        return None if row is None else row_as(UploadRow, row)

    def abort_upload(self, upload_id: str) -> list[DoomedObject] | None:
        """Notes its parts for deletion from the blob store."""
        row = self._first(tables.uploads, lock=True, id=upload_id)
        if row is None:
            return None
        doomed = self._doom([DoomedObject(row.object_key, row.store_id)] if row.store_id else [])
        self._delete(tables.uploads, id=upload_id)
        return doomed

    def stale_uploads(self, before_us: int, limit: int = 100) -> list[UploadRow]:
        """Uploads that began before this time and were never completed."""
        table = tables.uploads
        query = (
            sa.select(table)
            .where(self._of_tenant(table), table.c.completed_at_us.is_(None))
            .where(table.c.created_at_us < before_us)
            .order_by(table.c.created_at_us)
            .limit(limit)
        )
        return [row_as(UploadRow, row) for row in self._connection.execute(query)]

    # ----------------------------------------------------------------------------------- to delete

    def doomed_objects(self, limit: int = 1000) -> list[DoomedObject]:
        table = tables.doomed_objects
        query = sa.select(table).where(self._of_tenant(table)).order_by(table.c.doomed_at_us)
        found = self._connection.execute(query.limit(limit))
        return [row_as(DoomedObject, row) for row in found]

    def forget_objects(self, gone: Iterable[DoomedObject]) -> None:
        for each in gone:
            self._delete(tables.doomed_objects, object_key=each.object_key, store_id=each.store_id)

    def put_off_objects(self, kept: Iterable[DoomedObject]) -> None:
        """Moves them to the end of `doomed_objects`."""
        now = {"doomed_at_us": self._now_us()}
        for each in kept:
            where = {"object_key": each.object_key, "store_id": each.store_id}
            self._update(tables.doomed_objects, now, **where)

    # ---------------------------------------------------------------------------------------- quota

    def quota_usage(self) -> Usage:
        if self._usage is None:
            row = self._connection.execute(_USAGE, {"org_id": self.org_id}).first()
            self._usage = Usage(0, 0, None, None) if row is None else row_as(Usage, row)
        return self._usage

    def recount_usage(self) -> Usage:
        """Counts the rows themselves, which is slow and always right."""
        episodes = sa.select(sa.func.count()).where(self._of_tenant(tables.episodes))
        size = sa.func.coalesce(sa.func.sum(tables.artifacts.c.size), 0)
        total = sa.select(sa.cast(size, sa.BigInteger)).where(self._of_tenant(tables.artifacts))
        counted = {"episodes": episodes.scalar_subquery(), "bytes": total.scalar_subquery()}
        statement = sa.update(tables.usage).where(self._of_tenant(tables.usage)).values(**counted)
        self._connection.execute(statement)
        self._usage = None
        return self.quota_usage()

    # --------------------------------------------------------------------------------------- helpers

    def _insert_artifacts(
        self, episode_id: str, requested: Sequence[tuple[str, str, str]]
    ) -> tuple[ArtifactRow, ...]:
        """In the order in which they are read back."""
        rows = self._new_artifacts(episode_id, requested)
        statements.insert(self._connection, tables.artifacts, rows)
        return tuple(map(as_artifact, rows))

    def _new_artifacts(
        self, episode_id: str, requested: Sequence[tuple[str, str, str]]
    ) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for kind, object_key, content_type in sorted(requested):
            row: dict[str, Any] = dict.fromkeys(tables.artifacts.c.keys())
            row.update(episode_id=episode_id, kind=kind, object_key=object_key, status="requested")
            row.update(
                org_id=self.org_id, content_type=content_type, requested_at_us=self._now_us()
            )
            checked_choice("artifact", "kind", kind, KINDS)
            checked_text("artifact", "object_key", object_key, LONGEST_INDEXED)
            checked_text("artifact", "content_type", content_type)
            rows.append(row)
        return rows

    def _artifacts_of(self, episode_id: str) -> tuple[ArtifactRow, ...]:
        asked = {"org_id": self.org_id, "episode_ids": [episode_id]}
        found = self._connection.execute(_ARTIFACTS_OF, asked)
        return tuple(row_as(ArtifactRow, row) for row in found)

    def _artifacts_of_many(self, episode_ids: Sequence[str]) -> dict[str, tuple[ArtifactRow, ...]]:
        """By episode, without their arrays."""
        theirs: dict[str, tuple[ArtifactRow, ...]] = dict.fromkeys(episode_ids, ())
        asked = {"org_id": self.org_id, "episode_ids": list(theirs)}
        for row in self._connection.execute(_HEADS_OF, asked):
            theirs[row.episode_id] += (row_as(ArtifactRow, row, arrays=None),)
        return theirs

    def _doom_blobs_of(self, episode_id: str) -> list[DoomedObject]:
        """Notes the blobs for deletion and stops counting them; their rows are deleted with the episode."""
        artifacts = self._artifacts_of(episode_id)
        self._count(bytes_=-sum(artifact.size or 0 for artifact in artifacts))
        doomed = [
            DoomedObject(key)
            for artifact in artifacts
            for key in (artifact.object_key, artifact.rendition_key)
            if key is not None
        ]
        query = sa.select(tables.uploads).where(
            self._of_tenant(tables.uploads),
            tables.uploads.c.episode_id == episode_id,
            tables.uploads.c.completed_at_us.is_(None),
        )
        for row in self._connection.execute(query):
            if row.store_id:
                doomed.append(DoomedObject(row.object_key, row.store_id))
        return self._doom(doomed)

    def _doom(self, objects: list[DoomedObject]) -> list[DoomedObject]:
        for each in objects:
            row = {"object_key": each.object_key, "store_id": each.store_id}
            self._insert_new(tables.doomed_objects, {**row, "doomed_at_us": self._now_us()})
        return objects

    def _count(self, *, episodes: int = 0, bytes_: int = 0) -> None:
        if episodes or bytes_:
            more = {"of": self.org_id, "more_episodes": episodes, "more_bytes": bytes_}
            self._connection.execute(_COUNT, more)
            self._usage = None


def as_artifact(row: Mapping[str, Any]) -> ArtifactRow:
    """An ArtifactRow from the columns it was written with."""
    return ArtifactRow(**{name: value for name, value in row.items() if name != "org_id"})


_COUNT = (
    sa.update(tables.usage)
    .where(tables.usage.c.org_id == sa.bindparam("of"))
    .values(
        episodes=tables.usage.c.episodes + sa.bindparam("more_episodes", type_=sa.BigInteger),
        bytes=tables.usage.c.bytes + sa.bindparam("more_bytes", type_=sa.BigInteger),
    )
)
_USAGE = (
    sa.select(
        tables.usage.c.episodes,
        tables.usage.c.bytes,
        tables.organisations.c.quota_episodes,
        tables.organisations.c.quota_bytes,
    )
    .join(tables.organisations, tables.organisations.c.id == tables.usage.c.org_id)
    .where(tables.usage.c.org_id == sa.bindparam("org_id"))
)


def _select_artifacts(columns: tuple[sa.ColumnElement[Any], ...]) -> sa.Select[Any]:
    table = tables.artifacts
    its = table.c.episode_id.in_(sa.bindparam("episode_ids", expanding=True))
    query = sa.select(*columns).where(table.c.org_id == sa.bindparam("org_id"), its)
    return query.order_by(table.c.kind)


_ARTIFACTS_OF = _select_artifacts(tuple(tables.artifacts.c))
_HEADS_OF = _select_artifacts(ARTIFACT_HEAD)


_WHOLE = ("size", "requested_at_us", "uploaded_at_us", "rendition_tries")


def check_artifact(changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if name not in _CHANGEABLE:
            expected = "one of " + ", ".join(_CHANGEABLE)
            raise InvalidValue(record="artifact", field="field", value=name, expected=expected)
        if name == "status":
            checked_choice("artifact", name, value, ARTIFACT_STATUSES)
        elif name == "rendition" and value is not None:
            checked_choice("artifact", name, value, RENDITIONS)
        elif value is not None and name in _WHOLE:
            checked_whole("artifact", name, value)
        elif value is not None and name not in ("playable", "readable", "arrays"):
            checked_text("artifact", name, value, LONGEST_TEXT)
