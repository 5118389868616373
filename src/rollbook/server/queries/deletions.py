"""What would be deleted together with episodes, and what stands against it. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from rollbook.server.db import tables
from rollbook.server.queries.attempts import AttemptQueries
from rollbook.server.queries.evals import CLOSED


@dataclass(frozen=True, slots=True)
class UsedBy:
    """An eval run that has the episode as a baseline."""

    run_id: str
    name: str | None
    is_open: bool
    """It still takes results, so none of its baselines can be deleted."""


@dataclass(frozen=True, slots=True)
class Deletion:
    episode_id: str
    name: str | None
    bytes: int
    scenario_id: str | None
    """It is deleted with the episode."""
    scenario_name: str | None
    on_hold: bool
    runs: tuple[UsedBy, ...]

    @property
    def is_refused(self) -> bool:
        return self.on_hold or any(run.is_open for run in self.runs)


class DeletionQueries(AttemptQueries):
    def deletions(self, episode_ids: Sequence[str]) -> list[Deletion]:
        """In the order given; ids that do not exist are left out."""
        episode, scenario = tables.episodes, tables.verification_scenarios
        hold, artifact = tables.legal_holds, tables.artifacts
        size = (
            sa.select(sa.func.coalesce(sa.func.sum(artifact.c.size), 0))
            .where(self._of_tenant(artifact), artifact.c.episode_id == episode.c.id)
            .correlate(episode)
            .scalar_subquery()
        )
        its_scenario = sa.and_(
            scenario.c.org_id == episode.c.org_id, scenario.c.baseline_episode_id == episode.c.id
        )
        its_hold = sa.and_(hold.c.org_id == episode.c.org_id, hold.c.episode_id == episode.c.id)
        query = (
            sa.select(
                episode.c.id,
                episode.c.name,
                sa.cast(size, sa.BigInteger).label("bytes"),
                scenario.c.id.label("scenario_id"),
                scenario.c.name.label("scenario_name"),
                hold.c.episode_id.label("held"),
            )
            .select_from(episode.outerjoin(scenario, its_scenario).outerjoin(hold, its_hold))
            .where(self._of_tenant(episode), self._is_in(episode.c.id, episode_ids))
        )
        runs = self._runs_that_use(episode_ids)
        found = {
            row.id: Deletion(
                row.id,
                row.name,
                row.bytes,
                row.scenario_id,
                row.scenario_name,
                row.held is not None,
                tuple(runs.get(row.id, ())),
            )
            for row in self._connection.execute(query)
        }
        return [found[each] for each in dict.fromkeys(episode_ids) if each in found]

    def _runs_that_use(self, episode_ids: Sequence[str]) -> dict[str, list[UsedBy]]:
        result, run = tables.eval_results, tables.eval_runs
        query = (
            sa.select(result.c.baseline_episode_id, run.c.id, run.c.name, run.c.status)
            .where(
                self._of_tenant(result),
                self._is_in(result.c.baseline_episode_id, episode_ids),
                run.c.org_id == result.c.org_id,
                run.c.id == result.c.eval_run_id,
            )
            .order_by(run.c.created_at_us, run.c.id)
        )
        using: dict[str, list[UsedBy]] = {}
        for episode_id, run_id, name, status in self._connection.execute(query):
            using.setdefault(episode_id, []).append(UsedBy(run_id, name, status not in CLOSED))
        return using
