"""The ledger: how often baselines were used before, and which were never used.

A run is entered when its first result arrives. The order of these entries decides which run is the first one on its
baselines: whoever creates many runs in advance gains nothing by it. Entries stay when runs and episodes are deleted.
"""

from __future__ import annotations

import random

import sqlalchemy as sa

from rollbook.digest import digest_of
from rollbook.server.db import tables
from rollbook.server.db.value_checks import is_storable
from rollbook.server.queries.evals import EvalQueries
from rollbook.server.queries.search import EpisodeFilter, Start

_MOST_CANDIDATES = 1_000_000
_COUNT_EARLIER = "SELECT count(*) FROM ledger_runs WHERE org_id = :of AND position < :position AND baseline_set IN (%s)"
_EARLIER = sa.text(
    _COUNT_EARLIER
    % "SELECT shared.baseline_set FROM ledger_baselines AS own CROSS JOIN ledger_baselines AS shared "
    "WHERE own.org_id = :of AND own.baseline_set = :own_set "
    "AND shared.org_id = :of AND shared.episode_id = own.episode_id"
)
_EARLIER_ON_POSTGRES = sa.text(
    _COUNT_EARLIER % "SELECT shared.baseline_set FROM "
    "(SELECT episode_id FROM ledger_baselines WHERE org_id = :of AND baseline_set = :own_set OFFSET 0) AS own "
    "CROSS JOIN LATERAL (SELECT baseline_set FROM ledger_baselines "
    "WHERE org_id = :of AND episode_id = own.episode_id OFFSET 0) AS shared"
)
"""In this form both databases begin with the baselines of the run. Otherwise they may read the whole ledger."""


class LedgerQueries(EvalQueries):
    def enter_in_ledger(self, run_id: str) -> None:
        """Enter a run with all of its baselines. A run that was entered before stays where it is."""
        runs, baselines, results = (
            tables.ledger_runs,
            tables.ledger_baselines,
            tables.eval_results,
        )
        if not is_storable(run_id):
            return
        theirs = sa.and_(self._of_tenant(results), results.c.eval_run_id == run_id)
        ids = self._connection.execute(sa.select(results.c.baseline_episode_id).where(theirs))
        used = sorted(ids.scalars())
        if not used:
            return
        if self._is_postgres:  # positions have to be in the order in which the entries can be seen
            key = f"ledger of {self.org_id}"
            self._connection.execute(
                sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(key, 0)))
            )
        name = digest_of("rollbook.baseline-set", used)
        is_new = self._first(runs, baseline_set=name) is None
        last = sa.select(sa.func.max(runs.c.position)).where(self._of_tenant(runs))
        entered = self._insert_new(
            runs,
            {
                "eval_run_id": run_id,
                "position": (self._connection.scalar(last) or 0) + 1,
                "baseline_set": name,
                "entered_at_us": self._now_us(),
            },
        )
        if entered and is_new:
            columns = ["org_id", "baseline_set", "episode_id"]
            of_run = sa.select(
                results.c.org_id, sa.literal(name, sa.Text), results.c.baseline_episode_id
            ).where(theirs)
            self._connection.execute(sa.insert(baselines).from_select(columns, of_run))

    def earlier_runs(self, run_id: str) -> int:
        """How many other runs used some of the same baselines before this one."""
        entry = self._first(tables.ledger_runs, eval_run_id=run_id)
        if entry is None:
            return 0
        asked = {"of": self.org_id, "position": entry.position, "own_set": entry.baseline_set}
        query = _EARLIER_ON_POSTGRES if self._is_postgres else _EARLIER
        return int(self._connection.execute(query, asked).scalar_one())

    def fresh_baselines(
        self, filters: EpisodeFilter, count: int, seed: int
    ) -> tuple[list[str], int]:
        """`count` finished recordings that no run has used, drawn at random, and how many there are to draw from. The
        same seed draws the same ones as long as nothing was recorded or used. Fewer are returned where there are
        fewer."""
        if not filters.can_match:
            return [], 0
        episode, result, baseline = tables.episodes, tables.eval_results, tables.ledger_baselines
        found = [place.id for place in self._places(filters, Start(), _MOST_CANDIDATES)]
        is_used = [
            sa.exists().where(column.table.c.org_id == episode.c.org_id, column == episode.c.id)
            for column in (result.c.baseline_episode_id, baseline.c.episode_id)
        ]
        query = sa.select(episode.c.id).where(
            self._of_tenant(episode),
            self._is_in(episode.c.id, found),
            episode.c.status == "ready",
            sa.func.coalesce(episode.c.source, "") != "replay",
            *(~used for used in is_used),
        )
        fresh = sorted(self._connection.execute(query).scalars())
        drawn = random.Random(seed).sample(fresh, min(count, len(fresh)))
        return drawn, len(fresh)
