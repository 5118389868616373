"""Finding anything by its id, the beginning of its id, or its name, in a few statements.

Ids and digests are read from their index. Names of episodes are read from the index that the list uses; there are few
runs, scenarios, revisions and stores, so their names are compared one by one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa

from rollbook.server.db import tables
from rollbook.server.db.value_checks import is_storable
from rollbook.server.queries.search import EpisodeFilter, SearchQueries, Start

FoundKind: TypeAlias = Literal[
    "episode",
    "run",
    "scenario",
    "revision",
    "store",
    "rollout",
    "batch",
    "policy",
    "environment",
    "robot",
]
MOST_FOUND = 12
"""Of each kind."""
LEAST_OF_AN_ID = 6
_ID = re.compile(
    rf"(?P<begin>[0-9a-f][0-9a-f-]{{{LEAST_OF_AN_ID - 1},63}})(?:…(?P<end>[0-9a-f]{{0,12}}))?"
)
"""Also as lists write it, without its middle: `01890000…ffff`."""
_AFTER_HEX = "z"
"""Sorts after every character of an id or a digest, in every collation."""
_LONGEST = 200
_LINEAGE_TERM = 'metadata.rollout.lineage_digest="'
_VALUES: dict[FoundKind, str] = {
    "policy": "policy_version",
    "environment": "env_version",
    "robot": "robot",
}


@dataclass(frozen=True, slots=True)
class Found:
    kind: FoundKind
    id: str
    """Of a rollout, the id of the episode that was logged from it. Of a batch, the id of the revision that was trained
    on it. Of a policy, environment or robot, its name."""
    name: str | None
    detail: str | None


class FindQueries(SearchQueries):
    def find(self, text: str) -> list[Found]:
        """What has this id; or else everything whose id begins with it; or else what has it in its name."""
        wanted = text.strip()
        if not wanted or len(wanted) > _LONGEST or not is_storable(wanted):
            return []
        named = _ID.fullmatch(wanted.lower())
        if named is not None:
            hits = self._run_all(self._by_id(named["begin"], named["end"] or ""))
            exact = [each for each in hits if each.id == wanted.lower()]
            if hits:
                return exact or hits
        return [*self._run_all(self._by_name(wanted)), *self._episodes_named(wanted)]

    def _run_all(self, queries: list[sa.Select[Any]]) -> list[Found]:
        return [Found(*row) for row in self._connection.execute(sa.union_all(*queries))]

    def _by_id(self, prefix: str, end: str) -> list[sa.Select[Any]]:
        run, store, revision = tables.eval_runs, tables.stores, tables.policy_revisions
        episode, scenario, term = (
            tables.episodes,
            tables.verification_scenarios,
            tables.episode_terms,
        )
        lineage = f"{_LINEAGE_TERM}{prefix}"
        return [
            self._some(
                "episode", episode, _between(episode.c.id, prefix, end), episode.c.policy_version
            ),
            self._some("run", run, _between(run.c.id, prefix, end), run.c.candidate_policy_version),
            self._some(
                "scenario", scenario, _between(scenario.c.id, prefix, end), scenario.c.severity
            ),
            self._some("store", store, _between(store.c.id, prefix, end), store.c.place),
            self._some(
                "store", store, _between(store.c.content_sha256, prefix, end), store.c.place
            ),
            self._some(
                "revision",
                revision,
                _between(revision.c.id, prefix, end),
                revision.c.policy_family,
                name=revision.c.revision_id,
            ),
            self._some(
                "rollout",
                term,
                _between(term.c.term, lineage, end),
                term.c.term,
                id_=term.c.episode_id,
            ),
        ]

    def _by_name(self, text: str) -> list[sa.Select[Any]]:
        run, store, revision = tables.eval_runs, tables.stores, tables.policy_revisions
        episode, scenario = tables.episodes, tables.verification_scenarios
        same = [
            self._some(
                kind,
                episode,
                [episode.c[column] == text],
                None,
                id_=episode.c[column],
                name=episode.c[column],
                limit=1,
            )
            for kind, column in _VALUES.items()
        ]
        source = tables.training_sources
        is_batch = [source.c.kind == "batch", self._contains([source.c.source_id], text)]
        in_run = [run.c.name, run.c.candidate_policy_version]
        in_revision = [revision.c.revision_id, revision.c.policy_family]
        return [
            *same,
            self._some("run", run, [self._contains(in_run, text)], run.c.candidate_policy_version),
            self._some(
                "scenario", scenario, [self._contains([scenario.c.name], text)], scenario.c.severity
            ),
            self._some("store", store, [self._contains([store.c.name], text)], store.c.place),
            self._some(
                "revision",
                revision,
                [self._contains(in_revision, text)],
                revision.c.policy_family,
                name=revision.c.revision_id,
            ),
            self._some(
                "batch",
                source,
                is_batch,
                None,
                id_=source.c.policy_revision_id,
                name=source.c.source_id,
            ),
        ]

    def _episodes_named(self, text: str) -> list[Found]:
        named = EpisodeFilter(name=text, with_archived=True)
        places = self._places(named, Start(), MOST_FOUND)
        rows = self._heads_of([each.id for each in places], most_metadata=0)
        return [Found("episode", row.id, row.name, row.policy_version) for row in rows]

    def _contains(self, columns: list[sa.Column[Any]], text: str) -> sa.ColumnElement[bool]:
        position = sa.func.strpos if self._is_postgres else sa.func.instr
        wanted = text.casefold()
        return sa.or_(*(position(sa.func.lower(column), wanted) > 0 for column in columns))

    def _some(
        self,
        kind: FoundKind,
        table: sa.Table,
        conditions: list[sa.ColumnElement[bool]],
        detail: sa.Column[Any] | None,
        *,
        id_: sa.Column[Any] | None = None,
        name: sa.Column[Any] | None = None,
        limit: int = MOST_FOUND,
    ) -> sa.Select[Any]:
        """A part of a union. The columns `id` and `name` of the table, unless others are given."""
        nothing = sa.cast(sa.null(), sa.Text)
        of_name = table.c.get("name") if name is None else name
        columns = (
            sa.literal(kind).label("kind"),
            (table.c.id if id_ is None else id_).label("id"),
            (nothing if of_name is None else of_name).label("name"),
            (nothing if detail is None else detail).label("detail"),
        )
        part = sa.select(*columns).where(self._of_tenant(table), *conditions).limit(limit)
        return sa.select(part.subquery())


def _between(column: sa.Column[Any], prefix: str, end: str) -> list[sa.ColumnElement[bool]]:
    """A range that an index can be searched for, and the exact comparison: collations differ."""
    ends = [column.endswith(end)] if end else []
    return [
        column >= prefix,
        column < prefix + _AFTER_HEX,
        sa.func.substr(column, 1, len(prefix)) == prefix,
        *ends,
    ]
