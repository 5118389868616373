"""Episode search: filters, pages from the newest on, and never a scan of the whole table.

Every equality filter has an index that ends in the order of the list, so a page is read from it directly. With several
filters, the one with the fewest episodes leads, and the others are checked for each of its episodes. When even that one
has many, the lists of all filters are merged.

No query depends on statistics: its form decides which index is used, so the first search after a large import is as
fast as any other. So is the eleventh on a connection, for which PostgreSQL keeps a plan that ignores the values.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import sqlalchemy as sa
from msgspec import UNSET
from sqlalchemy.sql.operators import custom_op

from rollbook.contracts.episode import EPISODE_SOURCES, EPISODE_STATUSES
from rollbook.contracts.wire.limits import MOST_IN_AN_ANSWER, MOST_LISTED_METADATA
from rollbook.digest import digest_of
from rollbook.errors import InvalidValue
from rollbook.server.db import tables
from rollbook.server.db.episode_tables import ArtifactRow, EpisodeRow
from rollbook.server.db.rows import AnyRow, row_as, rows_as
from rollbook.server.db.value_checks import checked_choice, checked_whole, is_storable
from rollbook.server.queries.artifacts import ARTIFACT_HEAD, KINDS
from rollbook.server.queries.episodes import (
    LISTED_AT_ONCE,
    LISTED_EPISODE,
    EpisodeQueries,
    listed_metadata,
)
from rollbook.server.queries.search_terms import Scalar, tag_term, value_terms

MOST_ON_A_PAGE = 1000
_ENOUGH_TO_MERGE = {"sqlite": 1000, "postgresql": 10_000}
"""Lists are merged when each has so many episodes. Both were measured with 1e5 episodes; SQLite merges sooner."""
_COLUMNS = ("policy_version", "env_version", "git_sha", "seed", "robot", "source", "status")
_LONGEST_CURSOR = 512
_MOST_TERMS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """Every given field has to match. Archived episodes are left out unless they are asked for."""

    policy_version: str | None = None
    env_version: str | None = None
    git_sha: str | None = None
    seed: int | None = None
    robot: str | None = None
    source: str | None = None
    status: str | None = None
    name: str | None = None
    """Part of the name, ignoring case."""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    """Values by their path, `task.name`. A text also matches the JSON value it spells: a number, true, false, null."""
    created_after_us: int | None = None
    """Includes this moment."""
    created_before_us: int | None = None
    """Excludes this moment."""
    with_archived: bool = False

    def __post_init__(self) -> None:
        if self.status is not None:
            checked_choice("search", "status", self.status, EPISODE_STATUSES)
        if self.source is not None:
            checked_choice("search", "source", self.source, EPISODE_SOURCES)
        for moment in ("created_after_us", "created_before_us"):
            if getattr(self, moment) is not None:
                checked_whole("search", moment, getattr(self, moment))
        if len(self.tags) + len(self.metadata) > _MOST_TERMS:
            expected = f"at most {_MOST_TERMS} tags and metadata values"
            raise InvalidValue(record="search", field="filter", value="more", expected=expected)

    @property
    def fingerprint(self) -> str:
        """Differs for every filter, so that a cursor cannot be used with another filter."""
        plain = dataclasses.asdict(self)
        plain["seed"] = str(self.seed)
        plain["metadata"] = to_sorted_json(self.metadata)
        return digest_of("rollbook.episode-filter", plain)[:16]

    @property
    def can_match(self) -> bool:
        """No stored text can equal a text that cannot be stored."""
        texts = [*self.tags, *self.metadata, *self.metadata.values(), self.name]
        texts += [getattr(self, column) for column in _COLUMNS]
        return all(is_storable(text) for text in texts if isinstance(text, str))


def to_sorted_json(values: Mapping[str, Scalar]) -> str:
    return json.dumps(dict(values), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Page:
    episodes: list[EpisodeRow]
    next_cursor: str | None
    """None on the last page. A page can be shorter than its limit and not the last: its metadata has a limit too."""


@dataclass(frozen=True, slots=True)
class Place:
    """The position of an episode in the list."""

    created_at_us: int
    id: str


@dataclass(frozen=True, slots=True)
class Start:
    """Where a walk through the list begins, and which way it goes."""

    after: Place | None = None
    oldest_first: bool = False

    def order(
        self, created: sa.ColumnElement[int], episode_id: sa.ColumnElement[str]
    ) -> tuple[sa.ColumnElement[Any], ...]:
        if self.oldest_first:
            return created.asc(), episode_id.asc()
        return created.desc(), episode_id.desc()


@dataclass(frozen=True, slots=True)
class _Lead:
    """An equality whose index can be walked: a column and its value, or terms of which one has to match."""

    column: str | None = None
    value: object = None
    terms: tuple[str, ...] = ()

    @property
    def readings(self) -> list[_Lead]:
        """Each has a list of its own, which is in order."""
        return [_Lead(terms=(term,)) for term in self.terms] or [self]


class SearchQueries(EpisodeQueries):
    def episodes(
        self, filters: EpisodeFilter | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page:
        wanted = filters or EpisodeFilter()
        checked_whole("search", "limit", limit, least=1, most=MOST_ON_A_PAGE)
        after = None if cursor is None else _place_of(cursor, wanted)
        places = self._places(wanted, Start(after), limit + 1)
        found, shown = self._rows_at(places[:limit])
        more = _cursor_at(places[shown - 1], wanted) if len(places) > shown else None
        return Page(found, more)

    def _places(self, wanted: EpisodeFilter, start: Start, limit: int) -> list[Place]:
        if not wanted.can_match:
            return []
        if self._is_postgres:
            self._connection.execute(_WALK)
        leads = _leads(wanted)
        lead = leads[0] if leads else None
        if len(leads) > 1 or (leads and wanted.name):
            leads, counts = self._counted(leads, wanted)
            fewest = min(counts)
            if not fewest:
                return []
            if fewest >= self._enough_to_merge:
                return self._merged(wanted, leads, start, limit)
            lead = leads[counts.index(fewest)]
        others = [each for each in leads if each is not lead]
        if lead is None or not lead.terms:
            return self._run(self._from_episodes(wanted, lead, others, start), limit)
        # a value with two readings has two lists; both are in order, so they are merged
        lists = [
            self._run(self._from_terms(wanted, term, others, start), limit) for term in lead.terms
        ]
        backwards = not start.oldest_first
        merged = heapq.merge(*lists, key=lambda at: (at.created_at_us, at.id), reverse=backwards)
        return list(dict.fromkeys(merged))[:limit]

    def _rows_at(self, places: list[Place]) -> tuple[list[EpisodeRow], int]:
        """The episodes, and how many of the places they stand for: the page ends early where it has enough metadata."""
        found: list[EpisodeRow] = []
        shown = used = 0
        while shown < len(places) and used < MOST_IN_AN_ANSWER:
            # where the first ones have little metadata, the rest is read by one statement
            few = not shown or used > MOST_IN_AN_ANSWER // 8
            some = places[shown : shown + LISTED_AT_ONCE] if few else places[shown:]
            rows, size = self._some_rows(some)
            found += rows
            used += size
            shown += len(some)
        return found, shown

    def _some_rows(self, places: list[Place]) -> tuple[list[EpisodeRow], int]:
        """With the bytes of their metadata."""
        order = [place.id for place in places]
        rows = self._heads_of(order, MOST_LISTED_METADATA)
        theirs: dict[str, tuple[ArtifactRow, ...]] = dict.fromkeys(order, ())
        for each in self._rows_of_ids(_ARTIFACTS, _ARTIFACTS_ON_POSTGRES, order):
            theirs[each.episode_id] += (row_as(ArtifactRow, each, arrays=None),)
        revisions = self.policy_revisions(row.policy_revision_id for row in rows)

        def beside(row: AnyRow) -> dict[str, Any]:
            return {
                "artifacts": theirs[row.id],
                "replayed": False,
                "policy_revision": revisions.get(row.policy_revision_id, UNSET),
                **listed_metadata(row),
            }

        return rows_as(EpisodeRow, rows, beside), sum(row.metadata_bytes for row in rows)

    def _heads_of(self, ids: Sequence[str], most_metadata: int) -> list[AnyRow]:
        """The rows of these episodes, in the order given. Metadata of more bytes is null."""
        order = {each: number for number, each in enumerate(ids)}
        rows = self._rows_of_ids(_ROWS, _ROWS_ON_POSTGRES, ids, most_metadata=most_metadata)
        return sorted(rows, key=lambda row: order[row.id])

    def _rows_of_ids(
        self,
        statement: sa.Select[Any],
        on_postgres: sa.Select[Any],
        ids: Iterable[str],
        **bound: int,
    ) -> list[AnyRow]:
        """The rows of many episodes, by one statement that stays the same for any number."""
        chosen = on_postgres if self._is_postgres else statement
        asked = {"org_id": self.org_id, "ids": json.dumps([*ids]), **bound}
        return list(self._connection.execute(chosen, asked))

    def _run(self, query: _Places, limit: int) -> list[Place]:
        rows: Iterable[AnyRow] = self._connection.execute(query.limit(limit))
        return [Place(*row) for row in rows]

    def _from_episodes(
        self,
        wanted: EpisodeFilter,
        lead: _Lead | None,
        others: list[_Lead],
        start: Start,
    ) -> sa.Select[Any]:
        table = tables.episodes
        conditions = [self._of_tenant(table), *_page_range(table, table.c.id, wanted, start)]
        if lead is not None and lead.column is not None:
            conditions.append(table.c[lead.column] == lead.value)
        conditions += self._of_columns(wanted, others)
        conditions += [self._has_term(table.c.id, table, each) for each in others if each.terms]
        query = sa.select(table.c.created_at_us, table.c.id).where(*conditions)
        return query.order_by(*start.order(table.c.created_at_us, table.c.id))

    def _from_terms(
        self, wanted: EpisodeFilter, term: str, others: list[_Lead], start: Start
    ) -> sa.Select[Any]:
        listed, episode = tables.episode_terms, tables.episodes
        it = sa.and_(self._of_tenant(episode), episode.c.id == listed.c.episode_id)
        conditions = [
            self._of_tenant(listed),
            listed.c.term == term,
            *_page_range(listed, listed.c.episode_id, wanted, start),
            # before the episode itself, because another term is found in the same index
            *(self._has_term(listed.c.episode_id, listed, each) for each in others if each.terms),
            self._looked_up(
                sa.select(episode.c.id)
                .where(it, *self._of_columns(wanted, others))
                .correlate(listed)
            ),
        ]
        query = sa.select(listed.c.created_at_us, listed.c.episode_id).where(*conditions)
        return query.order_by(*start.order(listed.c.created_at_us, listed.c.episode_id))

    def _merged(
        self, wanted: EpisodeFilter, leads: list[_Lead], start: Start, limit: int
    ) -> list[Place]:
        """Episodes in all lists. Each list is in order, so they are merged until the page is full."""
        table = tables.episodes
        lists = [self._list_of(lead, wanted, start) for lead in leads]
        rest = self._of_columns(wanted, [])
        # terms do not say who recorded the episode
        narrowed = bool(rest) or self._recorded_by is not None
        if narrowed and (wanted.name or not self._is_postgres):
            lists.append(_list(table, table.c.id, [self._of_tenant(table), *rest], wanted, start))
            narrowed = False
        if not self._is_postgres:
            both = sa.intersect(*lists)
            return self._run(both.order_by(*start.order(*both.selected_columns)), limit)
        # PostgreSQL plans a query with an order on its own, so each list is read from its own index
        first, *others = (
            each.order_by(*start.order(*each.selected_columns)).subquery() for each in lists
        )
        query = sa.select(*first.c).order_by(*start.order(*first.c))
        for other in others:
            same = (mine == its for mine, its in zip(first.c, other.c, strict=True))
            query = query.join(other, sa.and_(*same))
        if narrowed:
            # most episodes are not archived, so those found are looked up instead of a list of all others
            found = query.subquery()
            it = sa.and_(self._of_tenant(table), table.c.id == found.c.place_id)
            shown = self._looked_up(sa.select(table.c.id).where(it, *rest).correlate(found))
            query = sa.select(*found.c).where(shown).order_by(*start.order(*found.c))
        self._connection.execute(_ONLY_MERGE)
        places = self._run(query, limit)
        self._connection.execute(_ANY_JOIN)
        return places

    def _list_of(self, lead: _Lead, wanted: EpisodeFilter, start: Start) -> sa.Select[Any]:
        if lead.column is not None:
            table = tables.episodes
            conditions = [self._of_tenant(table), table.c[lead.column] == lead.value]
            return _list(table, table.c.id, conditions, wanted, start)
        table = tables.episode_terms
        conditions = [self._of_tenant(table), table.c.term.in_(lead.terms)]
        found = _list(table, table.c.episode_id, conditions, wanted, start)
        # an episode can have both readings of a value, under two keys with the same path
        return found.distinct() if len(lead.terms) > 1 else found

    def _of_columns(
        self, wanted: EpisodeFilter, others: list[_Lead]
    ) -> list[sa.ColumnElement[bool]]:
        """Conditions on the row of an episode that the leading filter found."""
        table = tables.episodes
        conditions = [
            self._equal_without_index(table.c[each.column], each.value)
            for each in others
            if each.column is not None
        ]
        if wanted.status is None and not wanted.with_archived:
            conditions.append(table.c.status != "archived")
        if wanted.name:
            position = sa.func.strpos if self._is_postgres else sa.func.instr
            conditions.append(position(table.c.name_search, wanted.name.casefold()) > 0)
        return conditions

    def _has_term(
        self, episode_id: sa.ColumnElement[str], outer: sa.Table, lead: _Lead
    ) -> sa.ColumnElement[bool]:
        inner = tables.episode_terms.alias()
        return self._looked_up(
            sa.select(inner.c.episode_id)
            .where(
                inner.c.org_id == self.org_id,
                inner.c.term.in_(lead.terms),
                inner.c.created_at_us == outer.c.created_at_us,
                inner.c.episode_id == episode_id,
            )
            .correlate(outer)
        )

    def _looked_up(self, query: sa.Select[Any]) -> sa.ColumnElement[bool]:
        """A condition that is checked for each episode of the leading list. Without the offset PostgreSQL takes it for
        a join, and may read the other list first, however long it is."""
        return (query.offset(sa.literal_column("0")) if self._is_postgres else query).exists()

    def _counted(self, leads: list[_Lead], wanted: EpisodeFilter) -> tuple[list[_Lead], list[int]]:
        """The leads without readings that no episode has, and the number of episodes of each, counted up to a limit."""
        each = [self._count_up_to_bound(one, wanted) for lead in leads for one in lead.readings]
        found = iter(self._connection.execute(sa.select(*each)).one())
        kept, counts = [], []
        for lead in leads:
            theirs = {one: next(found) for one in lead.readings}
            there = tuple(term for one, count in theirs.items() if count for term in one.terms)
            kept.append(replace(lead, terms=there) if there else lead)
            counts.append(sum(theirs.values()))
        return kept, counts

    @property
    def _enough_to_merge(self) -> int:
        return _ENOUGH_TO_MERGE[self._connection.dialect.name]

    def _count_up_to_bound(self, lead: _Lead, wanted: EpisodeFilter) -> sa.ScalarSelect[int]:
        some = self._list_of(lead, wanted, Start()).limit(self._enough_to_merge)
        return sa.select(sa.func.count()).select_from(some.subquery()).scalar_subquery()

    def _equal_without_index(
        self, column: sa.ColumnElement[Any], value: object
    ) -> sa.ColumnElement[bool]:
        """An equality written so that no index is used for it: the index of the leading filter is the one to walk."""
        if self._is_postgres:
            return column.is_not_distinct_from(value)
        return sa.UnaryExpression(column, operator=custom_op("+"), type_=column.type) == value


_Columns: TypeAlias = "tuple[sa.ColumnElement[Any], ...]"
_Places: TypeAlias = "sa.Select[Any] | sa.CompoundSelect[Any]"


def _settings(**values: str) -> sa.Select[Any]:
    """Settings of PostgreSQL until the transaction ends."""
    literal = sa.literal_column
    return sa.select(
        *(
            sa.func.set_config(literal(f"'{name}'"), literal(f"'{value}'"), sa.true())
            for name, value in values.items()
        )
    )


_WALK = _settings(
    enable_sort="off",
    enable_seqscan="off",
    enable_bitmapscan="off",
    max_parallel_workers_per_gather="0",
    jit="off",
)
"""Makes PostgreSQL walk an index in the order of the list until the page is full. Without statistics, or with filters
that depend on each other, it would sometimes read and sort everything."""
# for lists of one row, as PostgreSQL expects them to be, it would compare every entry with every other
_ONLY_MERGE = _settings(enable_nestloop="off", enable_hashjoin="off")
_ANY_JOIN = _settings(enable_nestloop="on", enable_hashjoin="on")


def _select_ids(column: sa.Column[str], columns: _Columns) -> sa.Select[Any]:
    table = column.table
    ids = sa.func.json_each(sa.bindparam("ids", type_=sa.Text)).table_valued("value")
    query = sa.select(*columns).where(
        table.c.org_id == sa.bindparam("org_id"), column.in_(sa.select(ids.c.value))
    )
    return query.order_by(*table.primary_key.columns)


def _select_ids_on_postgres(column: sa.Column[str], columns: _Columns, most: int) -> sa.Select[Any]:
    """Each id is looked up on its own: for many ids PostgreSQL may decide to read all rows of the tenant."""
    table = column.table
    ids = sa.cast(sa.bindparam("ids", type_=sa.Text), sa.JSON)
    each = sa.func.json_array_elements_text(ids)
    wanted = each.table_valued("id").render_derived(name="wanted")
    its = (
        sa.select(*columns)
        .where(table.c.org_id == sa.bindparam("org_id"), column == wanted.c.id)
        .order_by(*table.primary_key.columns)
        .limit(sa.literal_column(str(most)))
        .lateral("its")
    )
    return sa.select(its).select_from(sa.join(wanted, its, sa.true()))


_EPISODE, _OF_EPISODE = tables.episodes.c.id, tables.artifacts.c.episode_id
_ROWS = _select_ids(_EPISODE, LISTED_EPISODE)
_ARTIFACTS = _select_ids(_OF_EPISODE, ARTIFACT_HEAD)
_ROWS_ON_POSTGRES = _select_ids_on_postgres(_EPISODE, LISTED_EPISODE, 1)
_ARTIFACTS_ON_POSTGRES = _select_ids_on_postgres(_OF_EPISODE, ARTIFACT_HEAD, len(KINDS))


def _list(
    table: sa.Table,
    id_column: sa.ColumnElement[str],
    conditions: list[sa.ColumnElement[bool]],
    wanted: EpisodeFilter,
    start: Start,
) -> sa.Select[Any]:
    within = _page_range(table, id_column, wanted, start)
    created = table.c.created_at_us.label("created_at_us")
    return sa.select(created, id_column.label("place_id")).where(*conditions, *within)


def _leads(wanted: EpisodeFilter) -> list[_Lead]:
    leads = [
        _Lead(column=column, value=getattr(wanted, column))
        for column in _COLUMNS
        if getattr(wanted, column) is not None
    ]
    leads += [_Lead(terms=(tag_term(tag),)) for tag in wanted.tags]
    leads += [_Lead(terms=value_terms(path, value)) for path, value in wanted.metadata.items()]
    return leads


def _page_range(
    table: sa.Table, id_column: sa.ColumnElement[str], wanted: EpisodeFilter, start: Start
) -> list[sa.ColumnElement[bool]]:
    """The requested part of the list: its time range, and what follows the place where the walk begins."""
    created = table.c.created_at_us
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.created_after_us is not None:
        conditions.append(created >= wanted.created_after_us)
    if wanted.created_before_us is not None:
        conditions.append(created < wanted.created_before_us)
    if start.after is not None:
        here, last = (
            sa.tuple_(created, id_column),
            sa.tuple_(start.after.created_at_us, start.after.id),
        )
        conditions.append(here > last if start.oldest_first else here < last)
    return conditions


# ------------------------------------------------------------------------------------------ cursors


def _cursor_at(place: Place, wanted: EpisodeFilter) -> str:
    text = json.dumps([place.created_at_us, place.id, wanted.fingerprint])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _place_of(cursor: str, wanted: EpisodeFilter) -> Place:
    """A cursor is only a position in the tenant's own list; a malformed one is refused, so that it is not taken for the
    end."""
    try:
        if len(cursor) > _LONGEST_CURSOR:
            raise ValueError("too long")
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        created_at_us, episode_id, fingerprint = json.loads(text)
        checked_whole("search", "cursor", created_at_us)
        if not isinstance(episode_id, str) or not is_storable(episode_id):
            raise ValueError("not an id")
        if fingerprint != wanted.fingerprint:
            raise ValueError("of another search")
    except (ValueError, TypeError, RecursionError, binascii.Error) as error:
        expected = "the next_cursor of a page of this same search"
        raise InvalidValue(
            record="search", field="cursor", value="another text", expected=expected
        ) from error
    return Place(created_at_us, episode_id)
