"""Browsing episodes: a page of the list in any order, forwards and backwards, and what a filter can be set to.

From the newest or the oldest on, a page is read from an index. Sorted by length or by name, all matching episodes are
read first, so this is only done when there are few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import sqlalchemy as sa

from rollbook.contracts.episode import EpisodeStatus
from rollbook.digest import digest_of
from rollbook.scoring.outcomes import outcome_of
from rollbook.server.db import tables
from rollbook.server.db.rows import AnyRow
from rollbook.server.db.value_checks import is_storable
from rollbook.server.http.cursors import cursor_at, place_of
from rollbook.server.queries.attempts import AttemptQueries
from rollbook.server.queries.search import EpisodeFilter, Place, Start

EpisodeOrder: TypeAlias = Literal["newest", "oldest", "longest", "shortest", "a-z", "z-a"]
ORDERS: tuple[EpisodeOrder, ...] = get_args(EpisodeOrder)
MOST_COUNTED = 1000
"""Matching episodes are counted up to here, and sorted by length or name up to here."""
MOST_OFFERED = 50
_LONGEST_OFFERED = 80
_LATEST = 300
_MOST_METADATA = 16 << 10
_BY_TIME = ("newest", "oldest")


@dataclass(frozen=True, slots=True)
class ListedEpisode:
    """The columns of a list."""

    id: str
    name: str | None
    status: EpisodeStatus
    source: str
    robot: str | None
    policy_version: str | None
    env_version: str | None
    duration_s: float | None
    reward: float | None
    """None where none was recorded, or the metadata is too large for a list."""
    tags: tuple[str, ...]
    created_at_us: int


@dataclass(frozen=True, slots=True)
class EpisodePage:
    episodes: list[ListedEpisode]
    before: str | None
    """The cursor of the page before this one. None on the first page."""
    after: str | None
    matching: int
    """Episodes that match, counted up to one more than `MOST_COUNTED`."""
    order: EpisodeOrder
    """Newest first where too many match to sort them as asked."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Values that episodes have: the first ones of each column, and the tags of the newest episodes."""

    policy_version: list[str]
    env_version: list[str]
    robot: list[str]
    tag: list[str]


@dataclass(frozen=True, slots=True)
class Holdings:
    eval_runs: int
    stores: int


class BrowseQueries(AttemptQueries):
    def browse_episodes(
        self,
        filters: EpisodeFilter,
        order: EpisodeOrder = "newest",
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> EpisodePage:
        """`after` and `before` are cursors of another page of the same list; at most one of them is given."""
        every = self._places(filters, Start(), MOST_COUNTED + 1)
        if order not in _BY_TIME and len(every) > MOST_COUNTED:
            order, after, before = "newest", None, None
        listed = digest_of("rollbook.episode-list", [filters.fingerprint, order])
        if order in _BY_TIME:
            known = every if len(every) <= MOST_COUNTED else None
            walked = self._walked(filters, known, order == "oldest", (after, before), listed, limit)
        else:
            walked = _slice(self._sorted(every, order), (after, before), listed, limit)
        rows = self._heads_of([each.id for each in walked.places], _MOST_METADATA)
        return EpisodePage(
            [_listed(row) for row in rows], walked.before, walked.after, len(every), order
        )

    def newest_episodes(self, limit: int) -> list[ListedEpisode]:
        places = self._places(EpisodeFilter(), Start(), limit)
        return [
            _listed(row) for row in self._heads_of([each.id for each in places], _MOST_METADATA)
        ]

    def holdings(self) -> Holdings:
        """How much there is, by one statement."""

        def counted(table: sa.Table) -> sa.ScalarSelect[int]:
            query = sa.select(sa.func.count()).select_from(table).where(self._of_tenant(table))
            return query.scalar_subquery()

        runs, stores = counted(tables.eval_runs), counted(tables.stores)
        return Holdings(*self._connection.execute(sa.select(runs, stores)).one())

    def listed_episodes(self, episode_ids: Sequence[str]) -> list[ListedEpisode]:
        """In the order given; ids that do not exist are left out."""
        wanted = [each for each in dict.fromkeys(episode_ids) if is_storable(each)]
        return [_listed(row) for row in self._heads_of(wanted, _MOST_METADATA)]

    def offered_values(self) -> Offered:
        columns = ("policy_version", "env_version", "robot")
        table = tables.episodes
        each = [self._distinct(table.c[name]) for name in columns]
        found: dict[str, list[str]] = {name: [] for name in columns}
        for name, value in self._connection.execute(sa.union_all(*each)):
            if len(value) <= _LONGEST_OFFERED:
                found[name].append(value)
        latest = (
            sa.select(table.c.tags)
            .where(self._of_tenant(table))
            .order_by(table.c.created_at_us.desc(), table.c.id.desc())
            .limit(_LATEST)
        )
        tags = {tag for row in self._connection.execute(latest) for tag in row.tags}
        return Offered(**found, tag=sorted(tags)[:MOST_OFFERED])

    def _distinct(self, column: sa.Column[Any]) -> sa.Select[Any]:
        """Jumps from each value to the next one in the index of the column, instead of reading every entry."""
        table = column.table
        of_tenant = table.c.org_id == self.org_id
        first = sa.select(sa.func.min(column).label("value")).where(of_tenant)
        values = first.cte(f"values_of_{column.name}", recursive=True)
        following = sa.select(sa.func.min(column)).where(of_tenant, column > values.c.value)
        values = values.union_all(
            sa.select(following.scalar_subquery()).where(values.c.value.is_not(None))
        )
        some = (
            sa.select(sa.literal(column.name), values.c.value)
            .where(values.c.value.is_not(None))
            .limit(MOST_OFFERED)
            .subquery()
        )
        return sa.select(some)

    def _walked(
        self,
        filters: EpisodeFilter,
        every: list[Place] | None,
        oldest_first: bool,
        cursors: tuple[str | None, str | None],
        listed: str,
        limit: int,
    ) -> _Slice:
        """`every`: all matching places, the newest first, where they were read already."""
        after, before = cursors
        cursor = after if before is None else before
        place = None if cursor is None else Place(*place_of(cursor, listed))
        start = Start(place, oldest_first != (before is not None))
        found = (
            self._places(filters, start, limit + 1) if every is None else _from_start(every, start)
        )
        shown, more = found[:limit], len(found) > limit
        if before is not None:
            shown.reverse()

        def at(place: Place) -> str:
            return cursor_at((place.created_at_us, place.id), listed)

        follows, precedes = (more, after is not None) if before is None else (True, more)
        return _Slice(
            shown,
            at(shown[0]) if precedes and shown else None,
            at(shown[-1]) if follows and shown else None,
        )

    def _sorted(self, places: Sequence[Place], order: EpisodeOrder) -> list[Place]:
        """Those without the value that is sorted by come last, either way."""
        table = tables.episodes
        column = table.c.name_search if order in ("a-z", "z-a") else table.c.duration_s
        query = sa.select(table.c.id, column).where(
            self._of_tenant(table), self._is_in(table.c.id, [each.id for each in places])
        )
        value_of = {row[0]: row[1] for row in self._connection.execute(query)}
        known = [each for each in places if value_of.get(each.id) is not None]
        known.sort(
            key=lambda place: (value_of[place.id], place.id), reverse=order in ("z-a", "longest")
        )
        return known + [each for each in places if value_of.get(each.id) is None]


@dataclass(frozen=True, slots=True)
class _Slice:
    places: list[Place]
    before: str | None
    after: str | None


def _from_start(places: list[Place], start: Start) -> list[Place]:
    """What a walk from there finds. The places are given from the newest on."""

    def key(place: Place) -> tuple[int, str]:
        return place.created_at_us, place.id

    if start.oldest_first:
        return [each for each in places[::-1] if not start.after or key(each) > key(start.after)]
    return [each for each in places if not start.after or key(each) < key(start.after)]


def _slice(
    places: Sequence[Place], cursors: tuple[str | None, str | None], listed: str, limit: int
) -> _Slice:
    """A page of a list that is here as a whole. A cursor names the episode beside the page, and where it stood in case
    that it was deleted."""
    after, before = cursors
    ids = [each.id for each in places]

    def position(cursor: str, *, behind: bool) -> int:
        number, episode_id = place_of(cursor, listed)
        if episode_id in ids:
            return ids.index(episode_id) + behind
        return max(0, min(number, len(ids)))

    if before is not None:
        end = position(before, behind=False)
        begin = max(0, end - limit)
    else:
        begin = 0 if after is None else position(after, behind=True)
        end = begin + limit
    shown = list(places[begin:end])
    return _Slice(
        shown,
        cursor_at((begin, shown[0].id), listed) if begin > 0 and shown else None,
        cursor_at((begin + len(shown) - 1, shown[-1].id), listed) if end < len(ids) else None,
    )


def _listed(row: AnyRow) -> ListedEpisode:
    outcome = outcome_of(row.metadata or {})
    reward = outcome["reward_total"]
    return ListedEpisode(
        id=row.id,
        name=row.name,
        status=row.status,
        source=row.source,
        robot=row.robot,
        policy_version=row.policy_version,
        env_version=row.env_version,
        duration_s=row.duration_s,
        reward=None if reward is None else float(reward),
        tags=tuple(row.tags),
        created_at_us=row.created_at_us,
    )
