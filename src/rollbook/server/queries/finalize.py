"""Finalizes many episodes with a few statements. An error of one episode is found before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import sqlalchemy as sa

from rollbook.contracts.wire.limits import MOST_IN_AN_ANSWER
from rollbook.errors import RollbookError
from rollbook.server.db import statements, tables
from rollbook.server.db.episode_tables import ArtifactRow, DoomedObject, EpisodeRow
from rollbook.server.db.octets import octets
from rollbook.server.db.rows import AnyRow, row_as
from rollbook.server.db.value_checks import is_storable
from rollbook.server.queries.artifacts import ARTIFACT_HEAD, check_artifact
from rollbook.server.queries.batches import BatchQueries
from rollbook.server.queries.episodes import changed_terms, differing_from, final_values

Allow: TypeAlias = "Callable[[int], object]"
"""Called with the number of additional bytes; raises when the quota is exceeded."""


@dataclass(frozen=True, slots=True)
class Finalization:
    """What to write for one episode and its artifacts, completely or not at all."""

    episode_id: str
    changes: Mapping[str, Any] | None
    """As for `finalize_episode`. None: the episode stays open, and only its artifacts are written."""
    artifacts: Mapping[str, Mapping[str, Any]] | None = None
    """Columns by kind. None when the artifacts were not checked; then the quota is not checked either."""


@dataclass(slots=True)
class _Writes:
    """Collected, so that all episodes share a few statements."""

    episodes: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    artifacts: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    doomed: list[DoomedObject] = field(default_factory=list)
    terms: list[tuple[AnyRow, set[str], set[str]]] = field(default_factory=list)
    bytes: int = 0


class FinalizeQueries(BatchQueries):
    def finalize_episodes(
        self, finalizations: Sequence[Finalization], allow: Allow
    ) -> list[EpisodeRow | RollbookError | None]:
        """In the order given: the episode without its metadata, the error that prevents its finalize, or None when it
        does not exist."""
        done: list[EpisodeRow | RollbookError | None] = []
        for some in _without_repeats(finalizations):
            for portion in self._portions(some):
                done += self._finalize_each_once(portion, allow)
        return done

    def _portions(self, finalizations: Sequence[Finalization]) -> Iterator[list[Finalization]]:
        """Few enough at a time that their metadata, which is merged, stays small."""
        sizes = self._metadata_sizes([each.episode_id for each in finalizations])
        portion: list[Finalization] = []
        used = 0
        for each in finalizations:
            size = sizes.get(each.episode_id, 0)
            if portion and used + size > MOST_IN_AN_ANSWER:
                yield portion
                portion, used = [], 0
            portion.append(each)
            used += size
        yield portion

    def _metadata_sizes(self, episode_ids: Sequence[str]) -> dict[str, int]:
        table = tables.episodes
        wanted = [each for each in episode_ids if is_storable(each)]
        size = octets(table.c.metadata).label("size")
        query = sa.select(table.c.id, size).where(self._of_tenant(table), table.c.id.in_(wanted))
        return {row.id: row.size for row in self._connection.execute(query)}

    def _finalize_each_once(
        self, finalizations: Sequence[Finalization], allow: Allow
    ) -> list[EpisodeRow | RollbookError | None]:
        ids = [each.episode_id for each in finalizations if is_storable(each.episode_id)]
        artifacts = self._locked_artifacts(ids)
        episodes = self._locked_episodes(ids)
        writes = _Writes()
        done: list[EpisodeRow | RollbookError | None] = []
        for each in finalizations:
            row = episodes.get(each.episode_id)
            try:
                there = artifacts.get(each.episode_id, {})
                done.append(
                    None if row is None else self._finalize(row, there, each, allow, writes)
                )
            except RollbookError as error:
                done.append(error)
        self._write(writes)
        return done

    def _finalize(
        self,
        row: AnyRow,
        artifacts: Mapping[str, ArtifactRow],
        finalization: Finalization,
        allow: Allow,
        writes: _Writes,
    ) -> EpisodeRow:
        """Everything that can be refused is checked before the first write is collected."""
        now = self._now_us()
        final = {} if finalization.changes is None else final_values(row, finalization.changes, now)
        found = {
            kind: dict(columns)
            for kind, columns in (finalization.artifacts or {}).items()
            if columns and kind in artifacts
        }
        for columns in found.values():
            check_artifact(columns)
        more = sum(
            (columns.get("size", artifacts[kind].size) or 0) - (artifacts[kind].size or 0)
            for kind, columns in found.items()
        )
        if finalization.artifacts is not None:
            allow(writes.bytes + more)
        writes.bytes += more
        for kind, columns in found.items():
            self._note_artifact(artifacts[kind], columns, writes)
        differing = differing_from(row, final)
        if differing or found:
            differing["updated_at_us"] = now
            writes.episodes.append((differing, {"org_id": self.org_id, "id": row.id}))
            writes.terms.append((row, *changed_terms(row, differing)))
        changed = tuple(replace(each, **found.get(kind, {})) for kind, each in artifacts.items())
        will_be = {**row._mapping, **differing}
        del will_be["name_search"]
        will_be |= {"metadata": {}, "metadata_truncated": True}
        return EpisodeRow(**will_be, artifacts=changed)

    def _note_artifact(
        self, artifact: ArtifactRow, columns: dict[str, Any], writes: _Writes
    ) -> None:
        key = {"org_id": self.org_id, "episode_id": artifact.episode_id, "kind": artifact.kind}
        writes.artifacts.append((columns, key))
        rendition = artifact.rendition_key
        if rendition is not None and columns.get("rendition_key", rendition) != rendition:
            writes.doomed.append(DoomedObject(rendition))

    def _write(self, writes: _Writes) -> None:
        statements.update_many(self._connection, tables.artifacts, writes.artifacts)
        statements.update_many(self._connection, tables.episodes, writes.episodes)
        for row, gone, new in writes.terms:
            self._remove_terms(row, gone)
            self._add_terms(row.id, row.created_at_us, new)
        self._doom(writes.doomed)
        self._count(bytes_=writes.bytes)

    def _locked_episodes(self, episode_ids: Sequence[str]) -> dict[str, AnyRow]:
        """Locked in one order, so that two batches cannot deadlock."""
        table = tables.episodes
        wanted = sa.select(table).where(self._of_tenant(table), table.c.id.in_(episode_ids))
        rows = self._connection.execute(wanted.order_by(table.c.id).with_for_update())
        return {row.id: row for row in rows}

    def _locked_artifacts(self, episode_ids: Sequence[str]) -> dict[str, dict[str, ArtifactRow]]:
        """By episode and kind, without their arrays."""
        table = tables.artifacts
        its = table.c.episode_id.in_(episode_ids)
        wanted = sa.select(*ARTIFACT_HEAD).where(self._of_tenant(table), its)
        ordered = wanted.order_by(table.c.episode_id, table.c.kind).with_for_update()
        theirs: dict[str, dict[str, ArtifactRow]] = {}
        for row in self._connection.execute(ordered):
            theirs.setdefault(row.episode_id, {})[row.kind] = row_as(ArtifactRow, row, arrays=None)
        return theirs


def _without_repeats(finalizations: Sequence[Finalization]) -> Iterator[list[Finalization]]:
    """In order, split where an episode appears again: its second finalize builds on the first."""
    some: dict[str, Finalization] = {}
    for each in finalizations:
        if each.episode_id in some:
            yield list(some.values())
            some = {}
        some[each.episode_id] = each
    if some:
        yield list(some.values())
