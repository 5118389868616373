"""Analyses of episodes, and what the detectors ask the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from rollbook.server.db import tables
from rollbook.server.db.analysis_table import AnalysisRow, ReplayResult, ScenarioResult
from rollbook.server.db.rows import row_as
from rollbook.server.queries.scope import TenantScope

_MOST_RESULTS = 5


class AnalysisQueries(TenantScope):
    def analysis(self, episode_id: str) -> AnalysisRow | None:
        row = self._first(tables.episode_analyses, episode_id=episode_id)
        return None if row is None else row_as(AnalysisRow, row)

    def keep_analysis(
        self,
        episode_id: str,
        *,
        analyzer_version: str,
        basis: str,
        findings: Sequence[dict[str, Any]],
        left_out: Sequence[str],
    ) -> AnalysisRow | None:
        """Replaces the one that was there. None when the episode is gone."""
        values: dict[str, Any] = {
            "analyzer_version": analyzer_version,
            "basis": basis,
            "findings": list(findings),
            "left_out": list(left_out),
            "made_at_us": self._now_us(),
        }
        if self._first(tables.episodes, lock=True, id=episode_id) is None:
            return None
        if not self._insert_new(tables.episode_analyses, {"episode_id": episode_id, **values}):
            self._update(tables.episode_analyses, values, episode_id=episode_id)
        return AnalysisRow(**values)

    def results_of_replay(self, episode_id: str) -> list[ReplayResult]:
        """The newest results that were measured with this episode as the replay."""
        result, run = tables.eval_results, tables.eval_runs
        query = (
            sa.select(result.c.eval_run_id, run.c.name.label("run_name"), result.c.metrics)
            .join(run, sa.and_(run.c.org_id == result.c.org_id, run.c.id == result.c.eval_run_id))
            .where(self._of_tenant(result), result.c.candidate_episode_id == episode_id)
            .order_by(result.c.updated_at_us.desc())
            .limit(_MOST_RESULTS)
        )
        return [row_as(ReplayResult, row) for row in self._connection.execute(query)]

    def scenarios_failed_by(self, episode_id: str) -> list[ScenarioResult]:
        """Active scenarios of which this episode is a replay that did not pass; the newest results."""
        result, scenario = tables.verification_results, tables.verification_scenarios
        of_result = sa.and_(
            scenario.c.org_id == result.c.org_id, scenario.c.id == result.c.scenario_id
        )
        query = (
            sa.select(
                scenario.c.id.label("scenario_id"),
                scenario.c.name,
                scenario.c.severity,
                result.c.error,
            )
            .join(scenario, of_result)
            .where(
                self._of_tenant(result),
                result.c.candidate_episode_id == episode_id,
                result.c.status != "pass",
                scenario.c.active,
            )
            .order_by(result.c.created_at_us.desc())
            .limit(_MOST_RESULTS)
        )
        return [row_as(ScenarioResult, row) for row in self._connection.execute(query)]
