"""Attempts at a pair: what a new result replaces is kept, and a run knows how many of its pairs were retried.

Sending the same result again is no attempt. A pair is retried when its earlier result says something about the
candidate: everything but a failure of the infrastructure does. Otherwise a candidate that wins by chance could be
replayed until it has won.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from rollbook.contracts.evals import EVIDENCE_KEY, INFRASTRUCTURE, RESULT_STATUSES
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.contracts.wire.limits import MOST_IN_AN_ANSWER
from rollbook.digest import digest_of
from rollbook.server.db import statements, tables
from rollbook.server.db.engine import to_json
from rollbook.server.db.eval_tables import EvalAttemptRow
from rollbook.server.db.octets import octets
from rollbook.server.db.rows import R, row_as
from rollbook.server.db.value_checks import checked_choice, checked_whole, is_storable
from rollbook.server.http.cursors import cursor_at, place_of
from rollbook.server.queries.search import SearchQueries

MOST_ON_A_PAGE = 1000
_ROWS_AT_ONCE = 64
_JUDGED = (
    *(f"{name}_{side}" for name in OUTCOMES for side in ("baseline", "candidate")),
    EVIDENCE_KEY,
)
_JUDGED_REPRO = (
    *("env_changed", "verified", "env_match", "deterministic", "seed"),
    *("situation", "first_observation"),
)
"""Keys of the metrics, and of `repro` in them, that a decision reads. A result in which they are the same says the
same."""


@dataclass(frozen=True, slots=True)
class NewResult:
    baseline_episode_id: str
    status: str
    metrics: dict[str, Any]
    candidate_episode_id: str | None = None
    error: str | None = None


@dataclass(slots=True)
class _Pair:
    """One baseline: its newest result, and what that result replaces."""

    newest: NewResult
    more: int = 1
    """Attempts that are new."""
    retried: bool = False
    replaced: list[NewResult] = field(default_factory=list)
    """Results of the same request, in their order."""
    replaces_stored: bool = False
    attempts: int = 0
    """Attempts that are stored."""
    was_retried: bool = False

    def replace(self, earlier: NewResult, new: NewResult) -> None:
        if not _is_resent(earlier, new):
            self.more += 1
            self.retried |= _is_retry(earlier, new)


class AttemptQueries(SearchQueries):
    def write_eval_results(self, run_id: str, results: Iterable[NewResult]) -> int:
        """Fills existing rows and keeps what they held. Of several results for one baseline the last counts, and the
        others are attempts too. Returns the number of pairs that were not retried before and are now."""
        given: dict[str, list[NewResult]] = {}
        for each in results:
            checked_choice("result", "status", each.status, RESULT_STATUSES)
            given.setdefault(each.baseline_episode_id, []).append(each)
        pairs = {baseline: _pair_of(in_order) for baseline, in_order in given.items()}
        self._compare_with_stored(run_id, pairs, given)
        self._keep_attempts(run_id, pairs)
        self._write_newest(run_id, pairs.values())
        return sum(each.retried and not each.was_retried for each in pairs.values())

    def eval_attempts(
        self, run_id: str, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[EvalAttemptRow], str | None]:
        """Results that were replaced, by baseline and in their order, and the cursor of the next page. A page with many
        metrics ends before its limit."""
        checked_whole("search", "limit", limit, least=1, most=MOST_ON_A_PAGE)
        if not is_storable(run_id):
            return [], None
        table = tables.eval_attempts
        listed = digest_of("rollbook.eval-attempts", run_id)
        query = sa.select(table).where(self._of_tenant(table), table.c.eval_run_id == run_id)
        place = sa.tuple_(table.c.baseline_episode_id, table.c.number)
        if cursor is not None:
            query = query.where(place > sa.tuple_(*reversed(place_of(cursor, listed))))
        found, more = self._page(EvalAttemptRow, query.order_by(*place), table, limit)
        if not more:
            return found, None
        return found, cursor_at((found[-1].number, found[-1].baseline_episode_id), listed)

    def attempts_of_pair(self, run_id: str, baseline_episode_id: str) -> list[EvalAttemptRow]:
        """Results of one pair that were replaced, in their order."""
        if not (is_storable(run_id) and is_storable(baseline_episode_id)):
            return []
        table = tables.eval_attempts
        query = sa.select(table).where(
            self._of_tenant(table),
            table.c.eval_run_id == run_id,
            table.c.baseline_episode_id == baseline_episode_id,
        )
        rows = self._connection.execute(query.order_by(table.c.number).limit(MOST_ON_A_PAGE))
        return [row_as(EvalAttemptRow, row) for row in rows]

    # --------------------------------------------------------------------------------------- helpers

    def _compare_with_stored(
        self, run_id: str, pairs: Mapping[str, _Pair], given: Mapping[str, Sequence[NewResult]]
    ) -> None:
        """Only baselines that have a result are read, some at a time: in most requests there are none."""
        table = tables.eval_results
        query = sa.select(
            *(table.c.baseline_episode_id, table.c.status, table.c.metrics, table.c.error),
            *(table.c.attempts, table.c.retried),
        ).where(
            self._of_tenant(table),
            table.c.eval_run_id == run_id,
            self._is_in(table.c.baseline_episode_id, pairs),
            table.c.attempts > 0,
        )
        some = query.execution_options(yield_per=_ROWS_AT_ONCE)
        with self._connection.execute(some) as rows:
            for row in rows:
                pair = pairs[row.baseline_episode_id]
                new = given[row.baseline_episode_id][0]
                stored = NewResult(
                    row.baseline_episode_id, row.status, row.metrics, error=row.error
                )
                pair.more -= 1
                pair.replace(stored, new)
                pair.replaces_stored = not _is_resent(stored, new)
                pair.attempts, pair.was_retried = row.attempts, row.retried

    def _keep_attempts(self, run_id: str, pairs: Mapping[str, _Pair]) -> None:
        replaced = [baseline for baseline, each in pairs.items() if each.replaces_stored]
        table, stored = tables.eval_attempts, tables.eval_results
        if replaced:
            columns = {
                **{name: stored.c[name] for name in ("org_id", "eval_run_id")},
                **{name: stored.c[name] for name in ("baseline_episode_id", "status")},
                **{name: stored.c[name] for name in ("metrics", "error")},
                "number": stored.c.attempts,
                "recorded_at_us": stored.c.updated_at_us,
            }
            query = sa.select(*columns.values()).where(
                self._of_tenant(stored),
                stored.c.eval_run_id == run_id,
                self._is_in(stored.c.baseline_episode_id, replaced),
            )
            self._connection.execute(sa.insert(table).from_select([*columns], query))
        rows = [
            {
                "org_id": self.org_id,
                "eval_run_id": run_id,
                "baseline_episode_id": baseline,
                "number": number,
                "status": each.status,
                "metrics": each.metrics,
                "error": each.error,
                "recorded_at_us": self._now_us(),
            }
            for baseline, pair in pairs.items()
            for number, each in enumerate(
                pair.replaced, pair.attempts + pair.more - len(pair.replaced)
            )
        ]
        statements.insert(self._connection, table, rows)

    def _write_newest(self, run_id: str, pairs: Iterable[_Pair]) -> None:
        where = {"of": self.org_id, "run": run_id, "now": self._now_us()}
        rows = [
            {
                **where,
                "baseline": each.newest.baseline_episode_id,
                "status": each.newest.status,
                "metrics": to_json(each.newest.metrics),
                "candidate": each.newest.candidate_episode_id,
                "error": each.newest.error,
                "more": each.more,
                "retried": each.retried,
            }
            for each in pairs
        ]
        if self._is_postgres:
            columns = {name: [row[name] for row in rows] for name in _COLUMNS}
            self._connection.execute(_WRITE_RESULTS, {**where, **columns})
        elif rows:
            self._connection.execute(_WRITE_RESULT, rows)

    def _page(
        self, cls: type[R], query: sa.Select[Any], table: sa.Table, limit: int
    ) -> tuple[list[R], bool]:
        """The first rows of a query, and whether there are more. A page with many metrics ends before its limit."""
        size = octets(table.c.metrics).label("metrics_bytes")
        some = query.add_columns(size).limit(limit + 1)
        found: list[R] = []
        used = 0
        with self._connection.execute(some.execution_options(yield_per=_ROWS_AT_ONCE)) as rows:
            for row in rows:
                if len(found) == limit or used >= MOST_IN_AN_ANSWER:
                    return found, True
                found.append(row_as(cls, row))
                used += row.metrics_bytes
        return found, False

    def _is_in(self, column: sa.ColumnElement[str], texts: Iterable[str]) -> sa.ColumnElement[bool]:
        """As one parameter, however many texts there are."""
        wanted = [text for text in texts if is_storable(text)]
        if self._is_postgres:
            array = sa.bindparam(None, wanted, type_=sa.ARRAY(sa.Text))
            return column == sa.any_(array)
        listed = sa.func.json_each(to_json(wanted)).table_valued("value")
        return column.in_(sa.select(listed.c.value))


def _pair_of(in_order: Sequence[NewResult]) -> _Pair:
    """The results of one request for one baseline."""
    pair = _Pair(in_order[-1])
    for earlier, new in pairwise(in_order):
        if not _is_resent(earlier, new):
            pair.replaced.append(earlier)
        pair.replace(earlier, new)
    return pair


def _is_resent(earlier: NewResult, new: NewResult) -> bool:
    return (earlier.status, earlier.metrics, earlier.error) == (new.status, new.metrics, new.error)


def _is_retry(earlier: NewResult, new: NewResult) -> bool:
    """Whether the earlier result, which is another one, says something about the candidate that the new one does
    not."""
    if earlier.status == "failed":
        return not (earlier.error or "").startswith(INFRASTRUCTURE)
    return new.status != "complete" or _judged(earlier.metrics) != _judged(new.metrics)


def _judged(metrics: Mapping[str, Any]) -> list[Any]:
    repro = metrics.get("repro")
    of_repro = [repro.get(key) for key in _JUDGED_REPRO] if isinstance(repro, Mapping) else [repro]
    return [metrics.get(key) for key in _JUDGED] + of_repro


_COLUMNS = ("baseline", "status", "metrics", "candidate", "error", "more", "retried")
_WRITE_RESULT = sa.text(
    "UPDATE eval_results SET status = :status, metrics = :metrics, candidate_episode_id = :candidate, "
    "error = :error, attempts = attempts + :more, retried = (retried OR :retried), updated_at_us = :now "
    "WHERE org_id = :of AND eval_run_id = :run AND baseline_episode_id = :baseline"
)
_WRITE_RESULTS = sa.text(
    "UPDATE eval_results SET status = new.status, metrics = CAST(new.metrics AS json), "
    "candidate_episode_id = new.candidate, error = new.error, attempts = attempts + new.more, "
    "retried = (eval_results.retried OR new.retried), updated_at_us = CAST(:now AS bigint) "
    "FROM unnest(CAST(:baseline AS text[]), CAST(:status AS text[]), CAST(:metrics AS text[]), "
    "CAST(:candidate AS text[]), CAST(:error AS text[]), CAST(:more AS int[]), CAST(:retried AS boolean[])) "
    "AS new(baseline, status, metrics, candidate, error, more, retried) "
    "WHERE org_id = :of AND eval_run_id = :run AND baseline_episode_id = new.baseline"
)
"""PostgreSQL receives all of them at once: its plan for one row, made without statistics, may read the whole run each
time."""
