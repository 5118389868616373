"""Eval runs and their results. A run is created with a row for every baseline, and results fill those rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from msgspec import UNSET

from rollbook.contracts.evals import RESULT_STATUSES, RUN_STATUSES
from rollbook.contracts.wire.limits import MOST_IN_AN_ANSWER
from rollbook.digest import digest_of
from rollbook.errors import IdempotencyConflict
from rollbook.scoring.outcomes import outcome_of
from rollbook.server.db import statements, tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import to_json
from rollbook.server.db.episode_tables import DoomedObject
from rollbook.server.db.eval_tables import EvalResultRow, EvalRunHead, EvalRunRow
from rollbook.server.db.octets import octets
from rollbook.server.db.rows import AnyRow, row_as
from rollbook.server.db.value_checks import checked_choice, checked_text, checked_whole, is_storable
from rollbook.server.http.cursors import cursor_at, place_of
from rollbook.server.queries.episodes import LONGEST_IDEMPOTENCY_KEY
from rollbook.server.queries.search import SearchQueries

MOST_ON_A_PAGE = 1000
UNFINISHED = ("pending", "running")
_ROWS_AT_ONCE = 64
_LARGE_ROWS_AT_ONCE = 8
_REVISIONS = ("candidate_policy_revision", "baseline_policy_revision")
_HEAD = tuple(
    f"{each.name}_id" if each.name in _REVISIONS else each.name
    for each in dataclasses.fields(EvalRunHead)
)
"""Columns that a list shows."""

_SEED_RESULTS = sa.text(
    "INSERT INTO eval_results "
    "(org_id, eval_run_id, position, id, baseline_episode_id, status, metrics, updated_at_us) "
    "SELECT :org_id, :eval_run_id, seeded.number - 1, seeded.id, seeded.baseline, 'pending', '{}', "
    "CAST(:updated_at_us AS bigint) "
    "FROM unnest(CAST(:ids AS text[]), CAST(:baselines AS text[])) WITH ORDINALITY AS seeded(id, baseline, number)"
)
"""PostgreSQL receives all rows in one statement; SQLite has no network to save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRunFilter:
    """Every given field has to match."""

    candidate_policy_version: str | None = None
    baseline_policy_version: str | None = None
    status: str | None = None

    def __post_init__(self) -> None:
        if self.status is not None:
            checked_choice("search", "status", self.status, RUN_STATUSES)

    @property
    def given(self) -> dict[str, str]:
        return {name: text for name, text in dataclasses.asdict(self).items() if text is not None}


@dataclass(frozen=True, slots=True)
class NewResult:
    baseline_episode_id: str
    status: str
    metrics: dict[str, Any]
    candidate_episode_id: str | None = None
    error: str | None = None


class EvalQueries(SearchQueries):
    # ------------------------------------------------------------------------------------------ runs

    def create_eval_run(
        self,
        values: Mapping[str, Any],
        baseline_episode_ids: Sequence[str],
        idempotency: tuple[str, str] | None = None,
    ) -> EvalRunRow:
        """Adds a pending result for every baseline. Each baseline must exist: see `unknown_episodes`. `idempotency` is
        a key and the digest of the request. The same pair again returns the first run, with `replayed` set; the same
        key with another digest is a conflict."""
        now = self._now_us()
        key, digest = idempotency or (None, None)
        row = {
            **dict.fromkeys(("name", "baseline_policy_version")),
            **dict.fromkeys(("created_by", "summary", "recommend", "decision")),
            **dict.fromkeys(f"{each}_id" for each in _REVISIONS),
            **values,
            **dict.fromkeys(("episodes_completed", "episodes_failed", "revision"), 0),
            "id": new_id(),
            "status": "pending",
            "episode_count": len(baseline_episode_ids),
            "idempotency_key": key,
            "request_digest": digest,
            "created_at_us": now,
            "updated_at_us": now,
            "completed_at_us": None,
        }
        if key is not None:
            checked_text("eval run", "idempotency key", key, LONGEST_IDEMPOTENCY_KEY)
        if not self._insert_new(tables.eval_runs, row):
            return self._first_of_key(str(key), digest)
        self._seed_results(row["id"], baseline_episode_ids)
        made = self.eval_run(row["id"])
        assert made is not None, "it was made in this transaction"
        return made

    def eval_run(self, run_id: str, *, lock: bool = False) -> EvalRunRow | None:
        row = self._first(tables.eval_runs, lock=lock, id=run_id)
        return None if row is None else self._runs_of([row])[0]

    def eval_runs(
        self, filters: EvalRunFilter, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[EvalRunHead], str | None]:
        """The newest first, and the cursor of the next page."""
        checked_whole("search", "limit", limit, least=1, most=MOST_ON_A_PAGE)
        table, given = tables.eval_runs, filters.given
        if not all(is_storable(text) for text in given.values()):
            return [], None
        listed = digest_of("rollbook.eval-runs", given)
        place = sa.tuple_(table.c.created_at_us, table.c.id)
        query = sa.select(*(table.c[name] for name in _HEAD)).where(self._of_tenant(table))
        if cursor is not None:
            query = query.where(place < sa.tuple_(*place_of(cursor, listed)))
        for name, text in given.items():
            query = query.where(table.c[name] == text)
        query = query.order_by(table.c.created_at_us.desc(), table.c.id.desc()).limit(limit + 1)
        rows = self._connection.execute(query).all()
        found = [
            row_as(EvalRunHead, row, **beside)
            for row, beside in zip(rows, self._revisions_of(rows), strict=True)
        ]
        if len(found) <= limit:
            return found, None
        last = found[limit - 1]
        return found[:limit], cursor_at((last.created_at_us, last.id), listed)

    def completed_runs(
        self, *, baseline_policy_version: str | None, candidate_prefix: str, limit: int
    ) -> list[EvalRunRow]:
        """The newest completed runs, in order from old to new, without their metadata."""
        table = tables.eval_runs
        if not is_storable(candidate_prefix) or not is_storable(baseline_policy_version or ""):
            return []
        others = (column for column in table.c if column is not table.c.metadata)
        query = sa.select(*others).where(self._of_tenant(table), table.c.status == "completed")
        query = query.where(table.c.completed_at_us.is_not(None))
        if candidate_prefix:
            # not LIKE, which in SQLite ignores case
            begins = sa.func.substr(table.c.candidate_policy_version, 1, len(candidate_prefix))
            query = query.where(begins == candidate_prefix)
        if baseline_policy_version is not None:
            query = query.where(table.c.baseline_policy_version == baseline_policy_version)
        query = query.order_by(table.c.completed_at_us.desc(), table.c.id.desc()).limit(limit)
        return self._runs_of(self._connection.execute(query).all(), metadata={})[::-1]

    def change_eval_run(
        self, run_id: str, changes: Mapping[str, Any], *, revision: int | None = None
    ) -> EvalRunRow | None:
        """None when there is no such run, or when results arrived after this `revision`."""
        same = {} if revision is None else {"revision": revision}
        values = {**changes, "updated_at_us": self._now_us()}
        if not self._update(tables.eval_runs, values, id=run_id, **same):
            return None
        return self.eval_run(run_id)

    def recount_eval_run(self, run_id: str, status: str | None = None) -> EvalRunRow | None:
        """Counts the results themselves."""
        if not is_storable(run_id):
            return None
        asked = {"of": self.org_id, "run": run_id, "now": self._now_us(), "new_status": status}
        row = self._connection.execute(_RECOUNT, asked).first()
        return None if row is None else self._runs_of([row])[0]

    def delete_eval_run(self, run_id: str) -> bool:
        """Deletes the run and its results. Episodes that were recorded for it stay, and so do scenario results."""
        forget = {"eval_run_id": None}
        self._update(tables.verification_results, forget, eval_run_id=run_id)
        return self._delete(tables.eval_runs, id=run_id) == 1

    def stale_eval_runs(self, before_us: int, limit: int = 100) -> list[str]:
        """Ids of runs that are unfinished, and untouched since `before_us`."""
        table = tables.eval_runs
        query = (
            sa.select(table.c.id)
            .where(self._of_tenant(table), table.c.status.in_(UNFINISHED))
            .where(table.c.created_at_us < before_us, table.c.updated_at_us < before_us)
            .order_by(table.c.created_at_us)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        return list(self._connection.execute(query).scalars())

    # --------------------------------------------------------------------------------------- results

    def eval_result_ids(self, run_id: str, baseline_episode_ids: Iterable[str]) -> dict[str, str]:
        """By baseline; a baseline that is not in the run, or was deleted, is missing."""
        table = tables.eval_results
        if not is_storable(run_id):
            return {}
        query = sa.select(table.c.baseline_episode_id, table.c.id).where(
            self._of_tenant(table),
            table.c.eval_run_id == run_id,
            self._is_in(table.c.baseline_episode_id, baseline_episode_ids),
        )
        return {row.baseline_episode_id: row.id for row in self._connection.execute(query)}

    def write_eval_results(self, run_id: str, results: Iterable[NewResult]) -> None:
        """Fills existing rows; of several results for one baseline, the last counts."""
        last = {each.baseline_episode_id: each for each in results}
        where = {"of": self.org_id, "run": run_id, "now": self._now_us()}
        rows = [
            {
                **where,
                "baseline": each.baseline_episode_id,
                "status": checked_choice("result", "status", each.status, RESULT_STATUSES),
                "metrics": to_json(each.metrics),
                "candidate": each.candidate_episode_id,
                "error": each.error,
            }
            for each in last.values()
        ]
        if self._is_postgres:
            columns = {name: [row[name] for row in rows] for name in _COLUMNS}
            self._connection.execute(_WRITE_RESULTS, {**where, **columns})
        elif rows:
            self._connection.execute(_WRITE_RESULT, rows)

    def eval_results(
        self,
        run_id: str,
        status: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> tuple[list[EvalResultRow], str | None]:
        """In the order of the baselines, and the cursor of the next page. A page with many metrics ends before its
        limit."""
        checked_whole("search", "limit", limit, least=1, most=MOST_ON_A_PAGE)
        if not is_storable(run_id):
            return [], None
        listed = digest_of("rollbook.eval-results", [run_id, status])
        after = -1 if cursor is None else place_of(cursor, listed)[0]
        table = tables.eval_results
        size = octets(table.c.metrics).label("metrics_bytes")
        query = self._results_of(run_id, status).where(table.c.position > after)
        some = query.add_columns(size).limit(limit + 1).execution_options(yield_per=_ROWS_AT_ONCE)
        found: list[EvalResultRow] = []
        used = 0
        with self._connection.execute(some) as rows:
            for row in rows:
                if len(found) == limit or used >= MOST_IN_AN_ANSWER:
                    return found, cursor_at((found[-1].position, ""), listed)
                found.append(row_as(EvalResultRow, row))
                used += row.metrics_bytes
        return found, None

    def all_eval_results(self, run_id: str) -> list[EvalResultRow]:
        return self._read_results(self._results_of(run_id, None)) if is_storable(run_id) else []

    # -------------------------------------------------------------------------------------- episodes

    def unknown_episodes(self, episode_ids: Sequence[str]) -> list[str]:
        """The ids that do not exist, in the order given. Existing episodes cannot be deleted until this transaction
        ends."""
        table = tables.episodes
        query = sa.select(table.c.id).where(
            self._of_tenant(table), self._is_in(table.c.id, episode_ids)
        )
        known = set(
            self._connection.execute(query.with_for_update(read=True, key_share=True)).scalars()
        )
        return [each for each in episode_ids if each not in known]

    def replays_of_other_policies(self, run_id: str, episode_ids: Iterable[str]) -> set[str]:
        """Episodes that were recorded with another policy revision than the candidate of the run."""
        table, runs = tables.episodes, tables.eval_runs
        candidate = sa.select(runs.c.candidate_policy_revision_id).where(
            self._of_tenant(runs), runs.c.id == run_id
        )
        query = sa.select(table.c.id).where(
            self._of_tenant(table),
            self._is_in(table.c.id, episode_ids),
            table.c.policy_revision_id != candidate.scalar_subquery(),
        )
        return set(self._connection.execute(query).scalars())

    def episode_outcomes(self, episode_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """What the metadata of each episode says about its outcome. Only some rows are in memory at a time."""
        table = tables.episodes
        query = sa.select(table.c.id, table.c.metadata).where(
            self._of_tenant(table), self._is_in(table.c.id, episode_ids)
        )
        some = query.execution_options(yield_per=_LARGE_ROWS_AT_ONCE)
        return {
            row.id: outcome_of(row._mapping["metadata"]) for row in self._connection.execute(some)
        }

    def delete_episode(self, episode_id: str) -> list[DoomedObject] | None:
        """Deletes the results of which it was the baseline; where it was the candidate's replay, the result stays."""
        if not is_storable(episode_id):
            return None
        results = tables.eval_results
        of_it = sa.select(results.c.eval_run_id).where(
            self._of_tenant(results), results.c.baseline_episode_id == episode_id
        )
        runs = sorted(self._connection.execute(of_it).scalars())
        for table in (results, tables.verification_results):
            self._update(table, {"candidate_episode_id": None}, candidate_episode_id=episode_id)
        doomed = super().delete_episode(episode_id)
        for run_id in runs if doomed is not None else ():
            self.recount_eval_run(run_id)
        return doomed

    # --------------------------------------------------------------------------------------- helpers

    def _is_in(self, column: sa.ColumnElement[str], texts: Iterable[str]) -> sa.ColumnElement[bool]:
        """As one parameter, however many texts there are."""
        wanted = [text for text in texts if is_storable(text)]
        if self._is_postgres:
            array = sa.bindparam(None, wanted, type_=sa.ARRAY(sa.Text))
            return column == sa.any_(array)
        listed = sa.func.json_each(to_json(wanted)).table_valued("value")
        return column.in_(sa.select(listed.c.value))

    def _first_of_key(self, key: str, digest: str | None) -> EvalRunRow:
        taken = self._first(tables.eval_runs, idempotency_key=key)
        if taken is None or taken.request_digest != digest:
            detail = "was used for a different request; send a new key with a new request"
            raise IdempotencyConflict(key=key, detail=detail)
        return dataclasses.replace(self._runs_of([taken])[0], replayed=True)

    def _runs_of(self, rows: Sequence[AnyRow], **more: object) -> list[EvalRunRow]:
        return [
            row_as(EvalRunRow, row, replayed=False, **beside, **more)
            for row, beside in zip(rows, self._revisions_of(rows), strict=True)
        ]

    def _revisions_of(self, rows: Sequence[AnyRow]) -> list[dict[str, Any]]:
        """For each row, the policy revisions that it names."""
        named = [{each: row._mapping[f"{each}_id"] for each in _REVISIONS} for row in rows]
        found = self.policy_revisions(each for names in named for each in names.values())
        return [{each: found.get(key, UNSET) for each, key in names.items()} for names in named]

    def _seed_results(self, run_id: str, baselines: Sequence[str]) -> None:
        common = {
            "org_id": self.org_id,
            "eval_run_id": run_id,
            "updated_at_us": self._now_us(),
        }
        ids = [new_id() for _ in baselines]
        if self._is_postgres:
            arrays = {"ids": ids, "baselines": list(baselines)}
            self._connection.execute(_SEED_RESULTS, {**common, **arrays})
            return
        common |= {"status": "pending", "metrics": {}, "candidate_episode_id": None, "error": None}
        rows = [
            {**common, "position": position, "id": made, "baseline_episode_id": baseline}
            for position, (made, baseline) in enumerate(zip(ids, baselines, strict=True))
        ]
        statements.insert(self._connection, tables.eval_results, rows)

    def _results_of(self, run_id: str, status: str | None) -> sa.Select[Any]:
        table = tables.eval_results
        query = sa.select(table).where(self._of_tenant(table), table.c.eval_run_id == run_id)
        if status is not None:
            checked_choice("search", "status", status, RESULT_STATUSES)
            query = query.where(table.c.status == status)
        return query.order_by(table.c.position)

    def _read_results(self, query: sa.Select[Any]) -> list[EvalResultRow]:
        return [row_as(EvalResultRow, row) for row in self._connection.execute(query)]


_COLUMNS = ("baseline", "status", "metrics", "candidate", "error")
_WRITE_RESULT = sa.text(
    "UPDATE eval_results SET status = :status, metrics = :metrics, candidate_episode_id = :candidate, "
    "error = :error, updated_at_us = :now "
    "WHERE org_id = :of AND eval_run_id = :run AND baseline_episode_id = :baseline"
)
_WRITE_RESULTS = sa.text(
    "UPDATE eval_results SET status = new.status, metrics = CAST(new.metrics AS json), "
    "candidate_episode_id = new.candidate, error = new.error, updated_at_us = CAST(:now AS bigint) "
    "FROM unnest(CAST(:baseline AS text[]), CAST(:status AS text[]), CAST(:metrics AS text[]), "
    "CAST(:candidate AS text[]), CAST(:error AS text[])) AS new(baseline, status, metrics, candidate, error) "
    "WHERE org_id = :of AND eval_run_id = :run AND baseline_episode_id = new.baseline"
)
"""PostgreSQL receives all of them at once: its plan for one row, made without statistics, may read the whole run each
time."""


def _counted(status: str) -> sa.ScalarSelect[int]:
    """Uses the same condition as the partial index, so that both databases use the index."""
    table = tables.eval_results
    theirs = sa.and_(
        table.c.org_id == sa.bindparam("of"),
        table.c.eval_run_id == sa.bindparam("run"),
        table.c.status == sa.literal_column(f"'{status}'"),
        table.c.status != sa.literal_column("'pending'"),
    )
    return sa.select(sa.func.count()).where(theirs).scalar_subquery()


_RECOUNT = (
    sa.update(tables.eval_runs)
    .where(
        tables.eval_runs.c.org_id == sa.bindparam("of"),
        tables.eval_runs.c.id == sa.bindparam("run"),
    )
    .values(
        episodes_completed=_counted("complete"),
        episodes_failed=_counted("failed"),
        revision=tables.eval_runs.c.revision + 1,
        updated_at_us=sa.bindparam("now", type_=sa.BigInteger),
        status=sa.func.coalesce(
            sa.bindparam("new_status", type_=sa.Text), tables.eval_runs.c.status
        ),
    )
    .returning(tables.eval_runs)
)
