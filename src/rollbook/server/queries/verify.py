"""Scenarios that a candidate has to pass before it ships, and the results of each candidate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import sqlalchemy as sa

from rollbook.contracts.evals import EVIDENCE_KEY, SEVERITIES, VERIFY_STATUSES, EvalResult
from rollbook.contracts.gate import Gate, gate_from
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.contracts.wire.limits import LONGEST_INDEXED, LONGEST_SCENARIO_NAME
from rollbook.digest import digest_of
from rollbook.scoring.scenario_pass import shows_success
from rollbook.server.db import tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.episode_tables import DoomedObject
from rollbook.server.db.eval_tables import ScenarioRow, Standing, VerificationRow
from rollbook.server.db.rows import AnyRow, row_as
from rollbook.server.db.statements import upsert
from rollbook.server.db.value_checks import checked_choice, checked_text, checked_whole, is_storable
from rollbook.server.http.cursors import cursor_at, place_of
from rollbook.server.queries.evals import EvalQueries
from rollbook.server.queries.people import PeopleQueries

MOST_ON_A_PAGE = 1000
_Listed = TypeVar("_Listed", ScenarioRow, VerificationRow)
_SAME_RUN = ("org_id", "scenario_id", "eval_run_id")
_TAKEN_OVER = (
    "candidate_policy_version",
    "status",
    "metrics",
    "error",
    "candidate_episode_id",
    "mirrored",
    "measured",
    "created_at_us",
)


class VerifyQueries(EvalQueries, PeopleQueries):
    # ------------------------------------------------------------------------------------- scenarios

    def promote_episode(
        self, episode_id: str, values: Mapping[str, Any]
    ) -> tuple[ScenarioRow, bool] | None:
        """The scenario of an episode, and whether it is new or active again. None when there is no such episode."""
        if self._first(tables.episodes, lock=True, id=episode_id) is None:
            return None
        there = self._first(
            tables.verification_scenarios, lock=True, baseline_episode_id=episode_id
        )
        if there is not None and there.active:
            return row_as(ScenarioRow, there), False
        given = {name: value for name, value in _checked(values).items() if value is not None}
        if there is not None:
            changed = self.change_scenario(there.id, {**given, "active": True})
            return None if changed is None else (changed, True)
        now = self._now_us()
        row = {
            **dict.fromkeys(("name", "description", "created_by")),
            "severity": "warning",
            **given,
            "id": new_id(),
            "baseline_episode_id": episode_id,
            "active": True,
            "created_at_us": now,
            "updated_at_us": now,
        }
        self._insert(tables.verification_scenarios, row)
        return ScenarioRow(**row), True

    def scenario(self, scenario_id: str) -> ScenarioRow | None:
        row = self._first(tables.verification_scenarios, id=scenario_id)
        return None if row is None else row_as(ScenarioRow, row)

    def scenario_of_episode(self, episode_id: str) -> ScenarioRow | None:
        row = self._first(tables.verification_scenarios, baseline_episode_id=episode_id)
        return None if row is None else row_as(ScenarioRow, row)

    def is_scenario(self, episode_id: str) -> bool:
        return self.scenario_of_episode(episode_id) is not None

    def scenarios(
        self, active: bool | None = None, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[ScenarioRow], str | None]:
        """The newest first, and the cursor of the next page."""
        checked_whole("search", "limit", limit, least=1, most=MOST_ON_A_PAGE)
        table = tables.verification_scenarios
        listed = digest_of("rollbook.scenarios", active)
        query = sa.select(table).where(self._of_tenant(table))
        if active is not None:
            query = query.where(table.c.active == active)
        return self._newest_first(ScenarioRow, query, table, listed, (cursor, limit))

    def change_scenario(self, scenario_id: str, changes: Mapping[str, Any]) -> ScenarioRow | None:
        values = {**_checked(changes), "updated_at_us": self._now_us()}
        if not self._update(tables.verification_scenarios, values, id=scenario_id):
            return None
        return self.scenario(scenario_id)

    def delete_scenario(self, scenario_id: str) -> bool:
        """Deletes the scenario and all its results."""
        return self._delete(tables.verification_scenarios, id=scenario_id) == 1

    def active_scenarios(self) -> int:
        table = tables.verification_scenarios
        query = sa.select(sa.func.count()).where(self._of_tenant(table), table.c.active)
        return self._connection.execute(query).scalar_one()

    def critical_baselines(
        self, run_id: str, *, unchanged_since_us: int | None = None
    ) -> dict[str, str]:
        """Baselines of a run that are active critical scenarios, and the ids of those scenarios. With a time, only
        those that were so at that time: a later promotion says nothing about a decision before it."""
        table = tables.verification_scenarios
        critical = sa.select(table.c.baseline_episode_id, table.c.id).where(
            *self._in_run(run_id), table.c.severity == "critical"
        )
        if unchanged_since_us is not None:
            critical = critical.where(table.c.updated_at_us <= unchanged_since_us)
        return {row.baseline_episode_id: row.id for row in self._connection.execute(critical)}

    # --------------------------------------------------------------------------------------- results

    def standings(self, candidate_policy_version: str) -> list[Standing]:
        """Every active scenario, the oldest first, with the newest result of this candidate that counts. A pass that
        was not measured does not count for a critical scenario: it is the standing where there is no other."""
        scenario, result = tables.verification_scenarios, tables.verification_results
        wanted = candidate_policy_version if is_storable(candidate_policy_version) else ""
        counts = sa.or_(
            result.c.measured, result.c.status != "pass", scenario.c.severity != "critical"
        )
        newest = (result.c.created_at_us.desc(), result.c.id.desc())
        age = sa.func.row_number().over(
            partition_by=result.c.scenario_id, order_by=(sa.case((counts, 0), else_=1), *newest)
        )
        ranked = (
            sa.select(
                result.c.scenario_id,
                result.c.status,
                result.c.error,
                result.c.candidate_episode_id,
                result.c.eval_run_id,
                result.c.created_at_us.label("decided_at_us"),
                counts.label("counts"),
                age.label("age"),
            )
            .where(self._of_tenant(result), result.c.candidate_policy_version == wanted)
            .where(self._of_tenant(scenario), scenario.c.id == result.c.scenario_id)
            .subquery()
        )
        first = sa.and_(ranked.c.scenario_id == scenario.c.id, ranked.c.age == 1)
        query = (
            sa.select(scenario, *(column for column in ranked.c if column.name != "scenario_id"))
            .select_from(scenario.outerjoin(ranked, first))
            .where(self._of_tenant(scenario), scenario.c.active)
            .order_by(scenario.c.created_at_us, scenario.c.id)
        )
        return [_standing(row) for row in self._connection.execute(query)]

    def newest_verifications(self, scenario_ids: Iterable[str]) -> dict[str, VerificationRow]:
        """By scenario: its newest result of any candidate."""
        table = tables.verification_results
        newest = (table.c.created_at_us.desc(), table.c.id.desc())
        age = sa.func.row_number().over(partition_by=table.c.scenario_id, order_by=newest)
        wanted = self._is_in(table.c.scenario_id, scenario_ids)
        ranked = sa.select(table, age.label("age")).where(self._of_tenant(table), wanted).subquery()
        rows = self._connection.execute(sa.select(ranked).where(ranked.c.age == 1))
        return {row.scenario_id: row_as(VerificationRow, row) for row in rows}

    def verifications(
        self, scenario_id: str, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[VerificationRow], str | None]:
        """The results of a scenario, the newest first, and the cursor of the next page."""
        checked_whole("search", "limit", limit, least=1, most=MOST_ON_A_PAGE)
        if not is_storable(scenario_id):
            return [], None
        table = tables.verification_results
        query = sa.select(table).where(self._of_tenant(table), table.c.scenario_id == scenario_id)
        listed = digest_of("rollbook.verifications", scenario_id)
        return self._newest_first(VerificationRow, query, table, listed, (cursor, limit))

    def record_verification(
        self, scenario_id: str, candidate_policy_version: str, values: Mapping[str, Any]
    ) -> tuple[str, bool] | None:
        """The id of the result, and whether it is a pass that was measured: the result of the eval run says so, and
        not the sender. A scenario has one result per eval run: a later one replaces it. None when there is no such
        scenario."""
        if self._first(tables.verification_scenarios, lock=True, id=scenario_id) is None:
            return None
        checked_text(
            "result", "candidate_policy_version", candidate_policy_version, LONGEST_INDEXED
        )
        checked_choice("result", "status", values["status"], VERIFY_STATUSES)
        row = {
            **dict.fromkeys(("error", "candidate_episode_id", "eval_run_id")),
            **values,
            "org_id": self.org_id,
            "id": new_id(),
            "scenario_id": scenario_id,
            "candidate_policy_version": candidate_policy_version,
            "mirrored": False,
            "created_at_us": self._now_us(),
        }
        run = self.eval_run(row["eval_run_id"]) if row["eval_run_id"] is not None else None
        row["measured"] = False
        if run is not None and row["status"] == "pass":
            of_it = tables.verification_scenarios.c.id == scenario_id
            found = self._connection.execute(self._scenario_results(run.id).where(of_it)).first()
            row["measured"] = found is not None and _is_shown(found, gate_from(run.gate))
        returning = self._over_the_same_run().returning(tables.verification_results.c.id)
        return self._connection.execute(returning, row).scalar_one(), row["measured"]

    def mirror_results(self, run_id: str, candidate_policy_version: str) -> int:
        """Copies the results of a run to active scenarios, unless somebody recorded another result for that run.
        Returns the number of scenarios. A complete result that may be a copy of its baseline is skipped: the scenario
        stays as it was. A pass that somebody recorded is measured only if the last result of the run shows it."""
        run = self.eval_run(run_id)
        if run is None:
            return 0
        gate, now = gate_from(run.gate), self._now_us()
        found = self._connection.execute(self._scenario_results(run_id)).all()
        shown = {row.scenario_id: _is_shown(row, gate) for row in found}
        rows = [
            {
                "org_id": self.org_id,
                "id": new_id(),
                "scenario_id": row.scenario_id,
                "candidate_policy_version": candidate_policy_version,
                "status": verdict(row.status == "failed", row.metrics),
                "metrics": row.metrics,
                "error": row.error,
                "candidate_episode_id": row.candidate_episode_id,
                "eval_run_id": run_id,
                "mirrored": True,
                "measured": shown[row.scenario_id],
                "created_at_us": now,
            }
            for row in found
            if row.status == "failed" or not may_be_a_copy(row.metrics)
        ]
        table = tables.verification_results
        if rows:
            self._connection.execute(self._over_the_same_run(table.c.mirrored), rows)
        not_shown = [scenario_id for scenario_id, is_shown in shown.items() if not is_shown]
        if not_shown:
            this_run = sa.and_(self._of_tenant(table), table.c.eval_run_id == run_id)
            of_them = self._is_in(table.c.scenario_id, not_shown)
            self._connection.execute(
                sa.update(table).where(this_run, of_them).values(measured=False)
            )
        return len(rows)

    def delete_episode(self, episode_id: str) -> list[DoomedObject] | None:
        """A scenario is deleted with its episode. The audit log records it, because the scenario may have blocked a
        candidate."""
        there = self._first(tables.verification_scenarios, baseline_episode_id=episode_id)
        doomed = super().delete_episode(episode_id)
        if there is not None and doomed is not None:
            detail = {"severity": there.severity, "why": "its baseline episode was deleted"}
            self.audit("scenario.deleted", subject=there.id, detail=detail)
        return doomed

    # --------------------------------------------------------------------------------------- helpers

    def _newest_first(
        self,
        cls: type[_Listed],
        query: sa.Select[Any],
        table: sa.Table,
        listed: str,
        page: tuple[str | None, int],
    ) -> tuple[list[_Listed], str | None]:
        cursor, limit = page
        place = sa.tuple_(table.c.created_at_us, table.c.id)
        if cursor is not None:
            query = query.where(place < sa.tuple_(*place_of(cursor, listed)))
        query = query.order_by(table.c.created_at_us.desc(), table.c.id.desc()).limit(limit + 1)
        found = [row_as(cls, row) for row in self._connection.execute(query)]
        if len(found) <= limit:
            return found, None
        last = found[limit - 1]
        return found[:limit], cursor_at((last.created_at_us, last.id), listed)

    def _in_run(self, run_id: str) -> tuple[sa.ColumnElement[bool], ...]:
        """Active scenarios joined with their results in a run."""
        scenario, result = tables.verification_scenarios, tables.eval_results
        return (
            self._of_tenant(scenario),
            scenario.c.active,
            self._of_tenant(result),
            result.c.eval_run_id == (run_id if is_storable(run_id) else ""),
            result.c.baseline_episode_id == scenario.c.baseline_episode_id,
        )

    def _scenario_results(self, run_id: str) -> sa.Select[Any]:
        scenario, result = tables.verification_scenarios, tables.eval_results
        return sa.select(scenario.c.id.label("scenario_id"), result).where(
            *self._in_run(run_id), result.c.status != "pending"
        )

    def _over_the_same_run(self, where: sa.ColumnElement[bool] | None = None) -> Any:
        table = tables.verification_results
        statement = upsert(self._connection.dialect.name, table)
        new = {name: statement.excluded[name] for name in _TAKEN_OVER}
        return statement.on_conflict_do_update(index_elements=_SAME_RUN, set_=new, where=where)


def _is_shown(row: AnyRow, gate: Gate) -> bool:
    """Whether this result of a run shows that the candidate passes a critical scenario."""
    if row.retried and not gate.accept_retried:
        return False
    result = EvalResult(
        row.baseline_episode_id, row.candidate_episode_id, row.status, row.metrics, row.error
    )
    return shows_success(result, gate)


def verdict(failed: bool, metrics: Mapping[str, Any]) -> str:
    """The verdict of a replay: only a candidate that is known to succeed passes. Whether the pass was measured is
    another question, which `shows_success` answers."""
    if failed:
        return "error"
    stated = metrics.get(EVIDENCE_KEY)
    kind = stated.get("success") if isinstance(stated, Mapping) else None
    measured = kind not in ("open_loop", "not_measured")
    return "pass" if measured and metrics.get("success_candidate") is True else "fail"


def may_be_a_copy(metrics: Mapping[str, Any]) -> bool:
    """A client that states no evidence copies the baseline's outcomes where its policy says nothing. Unless one outcome
    differs, it is unknown whether the candidate succeeded."""
    if isinstance(metrics.get(EVIDENCE_KEY), Mapping):
        return False
    return all(
        metrics.get(f"{name}_candidate") in (None, metrics.get(f"{name}_baseline"))
        for name in OUTCOMES
    )


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    if values.get("severity") is not None:
        checked_choice("scenario", "severity", values["severity"], SEVERITIES)
    if values.get("name") is not None:
        checked_text("scenario", "name", values["name"], LONGEST_SCENARIO_NAME)
    if values.get("description") is not None:
        checked_text("scenario", "description", values["description"])
    return dict(values)


def _standing(row: AnyRow) -> Standing:
    found = row._mapping
    counts = found["counts"] is None or bool(found["counts"])
    return Standing(
        scenario=row_as(ScenarioRow, row),
        status=found["status"] if counts else None,
        unmeasured_pass=not counts,
        error=found["error"],
        candidate_episode_id=found["candidate_episode_id"],
        eval_run_id=found["eval_run_id"],
        decided_at_us=found["decided_at_us"],
    )
