"""Retention: which episodes a policy deletes, and which nothing may delete.

A policy never deletes an episode that is still being recorded, is a scenario, belongs to an eval run that can still
take results, or is under legal hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import sqlalchemy as sa

from rollbook.contracts.episode import EpisodeSource
from rollbook.server.db import tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.retention_tables import DueEpisode, HoldRow, RetentionRow
from rollbook.server.db.rows import row_as
from rollbook.server.db.value_checks import checked_choice, checked_text, checked_whole
from rollbook.server.queries.episode_values import checked_tags
from rollbook.server.queries.episodes import EpisodeQueries
from rollbook.server.queries.evals import CLOSED
from rollbook.server.queries.search_terms import tag_term

MOST_DAYS = 36_500
_LONGEST_REASON = 1000
_DAY_US = 86_400_000_000


class RetentionQueries(EpisodeQueries):
    # ------------------------------------------------------------------------------------- policies

    def new_retention_policy(
        self,
        older_than_days: int,
        source: str | None = None,
        tags: Sequence[str] = (),
        created_by: str | None = None,
    ) -> RetentionRow:
        """Checked, and not stored yet: a dry run needs no more."""
        if source is not None:
            checked_choice("retention policy", "source", source, get_args(EpisodeSource))
        row: dict[str, Any] = {
            "id": new_id(),
            "older_than_days": checked_whole(
                "retention policy", "older_than_days", older_than_days, least=1, most=MOST_DAYS
            ),
            "source": source,
            "tags": checked_tags(tags),
            "created_by": created_by,
            "created_at_us": self._now_us(),
        }
        return RetentionRow(**row)

    def add_retention_policy(self, policy: RetentionRow) -> None:
        row = {name: getattr(policy, name) for name in RetentionRow.__slots__}
        self._insert(tables.retention_policies, row)

    def retention_policies(self) -> list[RetentionRow]:
        """The oldest first."""
        table = tables.retention_policies
        query = sa.select(table).where(self._of_tenant(table)).order_by(table.c.id)
        return [row_as(RetentionRow, row) for row in self._connection.execute(query)]

    def delete_retention_policy(self, policy_id: str) -> bool:
        return self._delete(tables.retention_policies, id=policy_id) == 1

    # ----------------------------------------------------------------------------------------- holds

    def hold_episode(self, episode_id: str, reason: str, created_by: str) -> HoldRow | None:
        """None when there is no such episode. A second hold changes nothing: the first one is returned."""
        checked_text("legal hold", "reason", reason, _LONGEST_REASON)
        if self._first(tables.episodes, lock=True, id=episode_id) is None:
            return None
        about = {"reason": reason, "created_by": created_by, "created_at_us": self._now_us()}
        self._insert_new(tables.legal_holds, {"episode_id": episode_id, **about})
        row = self._first(tables.legal_holds, episode_id=episode_id)
        return None if row is None else row_as(HoldRow, row)

    def lift_hold(self, episode_id: str) -> bool:
        return self._delete(tables.legal_holds, episode_id=episode_id) == 1

    def holds(self) -> list[HoldRow]:
        table = tables.legal_holds
        query = sa.select(table).where(self._of_tenant(table)).order_by(table.c.created_at_us)
        return [row_as(HoldRow, row) for row in self._connection.execute(query)]

    # ------------------------------------------------------------------------------------- what is due

    def due_episodes(self, policy: RetentionRow, limit: int) -> list[DueEpisode]:
        """What the policy deletes now; the oldest first."""
        episode = tables.episodes
        query = sa.select(
            episode.c.id, episode.c.name, episode.c.created_at_us, self._bytes().label("bytes")
        )
        query = query.where(*self._matching(policy), *self._unprotected())
        query = query.order_by(episode.c.created_at_us, episode.c.id).limit(limit)
        return [row_as(DueEpisode, row) for row in self._connection.execute(query)]

    def count_due(self, policy: RetentionRow) -> tuple[int, int, int]:
        """How many episodes the policy deletes now, how many bytes they have, and how many more match it but are
        protected."""
        matching = self._matching(policy)
        total = sa.func.coalesce(sa.func.sum(self._bytes()), 0)
        due = sa.select(sa.func.count(), sa.cast(total, sa.BigInteger)).select_from(tables.episodes)
        count, size = self._connection.execute(due.where(*matching, *self._unprotected())).one()
        everything = sa.select(sa.func.count()).select_from(tables.episodes).where(*matching)
        return count, size, (self._connection.scalar(everything) or 0) - count

    def lock_due(self, policy: RetentionRow, limit: int) -> list[DueEpisode]:
        """What is due, locked until the transaction ends. The rows are looked at again under their locks: a run that
        took one as its baseline meanwhile, or a hold, protects it."""
        found = [each.id for each in self.due_episodes(policy, limit)]
        episode = tables.episodes
        these = sa.and_(self._of_tenant(episode), episode.c.id.in_(found))
        self._connection.execute(sa.select(episode.c.id).where(these).with_for_update()).all()
        wanted = set(found)
        return [each for each in self.due_episodes(policy, limit) if each.id in wanted]

    def _bytes(self) -> sa.ScalarSelect[int]:
        artifact = tables.artifacts
        return (
            sa.select(sa.cast(sa.func.coalesce(sa.func.sum(artifact.c.size), 0), sa.BigInteger))
            .where(artifact.c.org_id == tables.episodes.c.org_id)
            .where(artifact.c.episode_id == tables.episodes.c.id)
            .scalar_subquery()
        )

    def _matching(self, policy: RetentionRow) -> list[sa.ColumnElement[bool]]:
        episode, term = tables.episodes, tables.episode_terms
        before_us = self._now_us() - policy.older_than_days * _DAY_US
        wanted = [
            self._of_tenant(episode),
            episode.c.created_at_us < before_us,
            episode.c.status != "recording",
        ]
        if policy.source is not None:
            wanted.append(episode.c.source == policy.source)
        for tag in policy.tags:
            wanted.append(
                sa.exists().where(
                    term.c.org_id == episode.c.org_id,
                    term.c.term == tag_term(tag),
                    term.c.created_at_us == episode.c.created_at_us,
                    term.c.episode_id == episode.c.id,
                )
            )
        return wanted

    def _unprotected(self) -> list[sa.ColumnElement[bool]]:
        episode, scenario, hold = tables.episodes, tables.verification_scenarios, tables.legal_holds
        result, run = tables.eval_results, tables.eval_runs
        open_run = sa.and_(
            run.c.org_id == result.c.org_id,
            run.c.id == result.c.eval_run_id,
            run.c.status.not_in(CLOSED),
        )
        uses = [
            sa.exists().where(
                scenario.c.org_id == episode.c.org_id,
                scenario.c.baseline_episode_id == episode.c.id,
            ),
            sa.exists().where(hold.c.org_id == episode.c.org_id, hold.c.episode_id == episode.c.id),
            *(
                sa.exists().where(
                    result.c.org_id == episode.c.org_id, column == episode.c.id, open_run
                )
                for column in (result.c.baseline_episode_id, result.c.candidate_episode_id)
            ),
        ]
        return [~use for use in uses]
