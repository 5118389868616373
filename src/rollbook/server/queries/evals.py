"""Eval runs and their results. A run is created with a row for every baseline, and results fill those rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import sqlalchemy as sa
from msgspec import UNSET

from rollbook.contracts.decision import RECOMMENDATIONS
from rollbook.contracts.evals import RESULT_STATUSES, RUN_STATUSES
from rollbook.digest import digest_of
from rollbook.errors import EpisodeInUse, IdempotencyConflict
from rollbook.scoring.labels import Labels, labels_of
from rollbook.scoring.outcomes import outcome_of
from rollbook.server.db import statements, tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import to_json
from rollbook.server.db.episode_tables import DoomedObject
from rollbook.server.db.eval_tables import (
    EpisodeUse,
    EvalResultRow,
    EvalRunDecided,
    EvalRunHead,
    EvalRunRow,
)
from rollbook.server.db.rows import AnyRow, row_as
from rollbook.server.db.value_checks import checked_choice, checked_text, checked_whole, is_storable
from rollbook.server.http.cursors import cursor_at, place_of
from rollbook.server.queries.attempts import AttemptQueries
from rollbook.server.queries.episodes import LONGEST_IDEMPOTENCY_KEY

MOST_ON_A_PAGE = 1000
UNFINISHED = ("pending", "running")
CLOSED = ("completed", "cancelled")
"""Runs that take no results any more. A failed run can be continued."""
_LARGE_ROWS_AT_ONCE = 8
_REVISIONS = ("candidate_policy_revision", "baseline_policy_revision")
H = TypeVar("H", bound=EvalRunHead)

_SEED_RESULTS = sa.text(
    "INSERT INTO eval_results "
    "(org_id, eval_run_id, position, id, baseline_episode_id, status, metrics, labels, updated_at_us) "
    "SELECT :org_id, :eval_run_id, seeded.number - 1, seeded.id, seeded.baseline, 'pending', '{}', "
    "CAST(seeded.labels AS json), CAST(:updated_at_us AS bigint) "
    "FROM unnest(CAST(:ids AS text[]), CAST(:baselines AS text[]), CAST(:labels AS text[])) "
    "WITH ORDINALITY AS seeded(id, baseline, labels, number)"
)
"""PostgreSQL receives all rows in one statement; SQLite has no network to save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRunFilter:
    """Every given field has to match."""

    candidate_policy_version: str | None = None
    baseline_policy_version: str | None = None
    status: str | None = None
    decision: str | None = None
    since_us: int | None = None
    """Created at this time or later."""
    before_us: int | None = None

    def __post_init__(self) -> None:
        if self.status is not None:
            checked_choice("search", "status", self.status, RUN_STATUSES)
        if self.decision is not None:
            checked_choice("search", "decision", self.decision, RECOMMENDATIONS)

    @property
    def given(self) -> dict[str, str | int]:
        return {
            name: value for name, value in dataclasses.asdict(self).items() if value is not None
        }

    @property
    def texts(self) -> dict[str, str]:
        """The columns that have to be equal to a text."""
        return {name: value for name, value in self.given.items() if isinstance(value, str)}


class EvalQueries(AttemptQueries):
    # ------------------------------------------------------------------------------------------ runs

    def create_eval_run(
        self,
        values: Mapping[str, Any],
        baseline_episode_ids: Sequence[str],
        idempotency: tuple[str, str] | None = None,
        labels: Mapping[str, Labels] = MappingProxyType({}),
    ) -> EvalRunRow:
        """Adds a pending result for every baseline, with its `labels`. Each baseline must exist: see
        `unknown_episodes`. `idempotency` is a key and the digest of the request. The same pair again returns the first
        run, with `replayed` set; the same key with another digest is a conflict."""
        now = self._now_us()
        key, digest = idempotency or (None, None)
        row = {
            **dict.fromkeys(("name", "baseline_policy_version")),
            **dict.fromkeys(("created_by", "gate_name", "summary", "recommend", "decision")),
            **dict.fromkeys(f"{each}_id" for each in _REVISIONS),
            **values,
            **dict.fromkeys(("episodes_completed", "episodes_failed", "revision"), 0),
            **dict.fromkeys(("retried", "altered"), 0),
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
        self._seed_results(row["id"], baseline_episode_ids, labels)
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
        return self._listed_runs(EvalRunHead, filters, cursor, limit)

    def decided_runs(
        self, filters: EvalRunFilter, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[EvalRunDecided], str | None]:
        """The same with their summaries."""
        return self._listed_runs(EvalRunDecided, filters, cursor, limit)

    def _listed_runs(
        self, cls: type[H], filters: EvalRunFilter, cursor: str | None, limit: int
    ) -> tuple[list[H], str | None]:
        checked_whole("search", "limit", limit, least=1, most=MOST_ON_A_PAGE)
        table = tables.eval_runs
        if not all(is_storable(text) for text in filters.texts.values()):
            return [], None
        listed = digest_of("rollbook.eval-runs", filters.given)
        place = sa.tuple_(table.c.created_at_us, table.c.id)
        query = sa.select(*(table.c[name] for name in _columns_of(cls)))
        query = query.where(self._of_tenant(table))
        if cursor is not None:
            query = query.where(place < sa.tuple_(*place_of(cursor, listed)))
        for name, text in filters.texts.items():
            query = query.where(table.c[name] == text)
        if filters.since_us is not None:
            query = query.where(table.c.created_at_us >= filters.since_us)
        if filters.before_us is not None:
            query = query.where(table.c.created_at_us < filters.before_us)
        query = query.order_by(table.c.created_at_us.desc(), table.c.id.desc()).limit(limit + 1)
        rows = self._connection.execute(query).all()
        found = [
            row_as(cls, row, **beside)
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

    def newest_candidates(self, limit: int = 100) -> list[str]:
        """Versions of the candidates of the newest runs, each once, the newest first."""
        table = tables.eval_runs
        query = (
            sa.select(table.c.candidate_policy_version)
            .where(self._of_tenant(table))
            .order_by(table.c.created_at_us.desc(), table.c.id.desc())
            .limit(limit)
        )
        return list(dict.fromkeys(self._connection.execute(query).scalars()))

    def change_eval_run(
        self, run_id: str, changes: Mapping[str, Any], *, revision: int | None = None
    ) -> EvalRunRow | None:
        """None when there is no such run, or when results arrived after this `revision`."""
        same = {} if revision is None else {"revision": revision}
        values = {**changes, "updated_at_us": self._now_us()}
        if not self._update(tables.eval_runs, values, id=run_id, **same):
            return None
        return self.eval_run(run_id)

    def recount_eval_run(
        self, run_id: str, status: str | None = None, *, retried: int = 0, deleted: int = 0
    ) -> EvalRunRow | None:
        """Counts the results themselves. `retried` pairs and `deleted` baselines are added to those of the run: rows
        that are deleted cannot be counted any more."""
        if not is_storable(run_id):
            return None
        asked = {"of": self.org_id, "run": run_id, "now": self._now_us(), "new_status": status}
        asked |= {"more_retried": retried, "more_deleted": deleted}
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
        query = self._results_of(run_id, status).where(table.c.position > after)
        found, more = self._page(EvalResultRow, query, table, limit)
        return found, cursor_at((found[-1].position, ""), listed) if more else None

    def eval_result_of(self, run_id: str, baseline_episode_id: str) -> EvalResultRow | None:
        """The result of one pair."""
        same: dict[str, Any] = {"eval_run_id": run_id, "baseline_episode_id": baseline_episode_id}
        row = self._first(tables.eval_results, **same)
        return None if row is None else row_as(EvalResultRow, row)

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
        return {
            row.id: outcome_of(row._mapping["metadata"]) for row in self._episode_rows(episode_ids)
        }

    def episode_labels(
        self, episode_ids: Iterable[str], names: Sequence[str]
    ) -> dict[str, dict[str, tuple[str, ...]]]:
        """Those of the named labels that each episode has. Only some rows are in memory at a time."""
        return {
            row.id: labels_of(
                names,
                row._mapping["metadata"],
                robot=row.robot,
                env_version=row.env_version,
                tags=row.tags,
            )
            for row in self._episode_rows(episode_ids)
        }

    def _episode_rows(self, episode_ids: Iterable[str]) -> Iterator[AnyRow]:
        table = tables.episodes
        wanted = (table.c.id, table.c.metadata, table.c.robot, table.c.env_version, table.c.tags)
        query = sa.select(*wanted).where(
            self._of_tenant(table), self._is_in(table.c.id, episode_ids)
        )
        yield from self._connection.execute(query.execution_options(yield_per=_LARGE_ROWS_AT_ONCE))

    def uses_of_episode(self, episode_id: str, limit: int = 100) -> list[EpisodeUse]:
        """The eval runs that it is part of, the newest first."""
        if not is_storable(episode_id):
            return []
        result, run = tables.eval_results, tables.eval_runs

        def as_part(column: sa.Column[Any], is_replay: bool) -> sa.Select[Any]:
            return sa.select(
                run.c.id.label("eval_run_id"),
                run.c.name.label("run_name"),
                result.c.baseline_episode_id,
                sa.literal(is_replay).label("is_replay"),
                run.c.created_at_us,
            ).where(
                self._of_tenant(result),
                column == episode_id,
                run.c.org_id == result.c.org_id,
                run.c.id == result.c.eval_run_id,
            )

        both = sa.union_all(
            as_part(result.c.baseline_episode_id, False),
            as_part(result.c.candidate_episode_id, True),
        )
        query = both.order_by(sa.desc("created_at_us"), sa.desc("eval_run_id")).limit(limit)
        return [row_as(EpisodeUse, row) for row in self._connection.execute(query)]

    def delete_episode(self, episode_id: str) -> list[DoomedObject] | None:
        """Deletes the results of which it was the baseline, and marks their runs as altered; a baseline of an open run
        cannot be deleted. Where it was the candidate's replay, the result stays."""
        # Creating a run locks its baselines too: after this line no new run can have it.
        if self._first(tables.episodes, lock=True, id=episode_id) is None:
            return None
        results, run = tables.eval_results, tables.eval_runs
        of_it = sa.select(run.c.id, run.c.status).where(
            self._of_tenant(results),
            results.c.baseline_episode_id == episode_id,
            run.c.org_id == results.c.org_id,
            run.c.id == results.c.eval_run_id,
        )
        statuses = {row.id: row.status for row in self._connection.execute(of_it)}
        runs = sorted(statuses)
        for run_id in runs:
            if statuses[run_id] not in CLOSED:
                raise EpisodeInUse(episode_id=episode_id, eval_run_id=run_id)
        for table in (results, tables.verification_results):
            self._update(table, {"candidate_episode_id": None}, candidate_episode_id=episode_id)
        doomed = super().delete_episode(episode_id)
        for run_id in runs if doomed is not None else ():
            self.recount_eval_run(run_id, deleted=1)
        return doomed

    # --------------------------------------------------------------------------------------- helpers

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

    def _seed_results(
        self, run_id: str, baselines: Sequence[str], labels: Mapping[str, Labels]
    ) -> None:
        common = {
            "org_id": self.org_id,
            "eval_run_id": run_id,
            "updated_at_us": self._now_us(),
        }
        ids = [new_id() for _ in baselines]
        if self._is_postgres:
            known = [to_json(labels.get(each, {})) for each in baselines]
            arrays = {"ids": ids, "baselines": list(baselines), "labels": known}
            self._connection.execute(_SEED_RESULTS, {**common, **arrays})
            return
        common |= {"status": "pending", "metrics": {}, "candidate_episode_id": None, "error": None}
        common |= {"attempts": 0, "retried": False}
        rows = [
            {
                **common,
                "position": position,
                "id": made,
                "baseline_episode_id": baseline,
                "labels": labels.get(baseline, {}),
            }
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


def _columns_of(cls: type[EvalRunHead]) -> list[str]:
    names = (each.name for each in dataclasses.fields(cls))
    return [f"{name}_id" if name in _REVISIONS else name for name in names]


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
        retried=tables.eval_runs.c.retried + sa.bindparam("more_retried", type_=sa.Integer),
        altered=tables.eval_runs.c.altered + sa.bindparam("more_deleted", type_=sa.Integer),
        revision=tables.eval_runs.c.revision + 1,
        updated_at_us=sa.bindparam("now", type_=sa.BigInteger),
        status=sa.func.coalesce(
            sa.bindparam("new_status", type_=sa.Text), tables.eval_runs.c.status
        ),
    )
    .returning(tables.eval_runs)
)
