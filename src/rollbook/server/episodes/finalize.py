"""Finalize: uploaded artifacts are checked first, then the episodes are finalized.

The artifacts of a whole batch are checked before anything is written, and then one transaction writes everything. An
episode that cannot be finalized does not stop the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rollbook.contracts.episode import check_typed_metadata
from rollbook.contracts.wire.episodes import FinalizeEpisode
from rollbook.errors import EpisodeArchived, RollbookError
from rollbook.server.context import Caller, ServerContext
from rollbook.server.episodes.artifacts import (
    ArtifactCheck,
    announce_renditions,
    check_artifacts_of_many,
    mismatch,
)
from rollbook.server.episodes.messages import final_columns
from rollbook.server.episodes.quotas import checked_quota
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import EpisodeRow, Finalization, Scope

Wanted: TypeAlias = "tuple[str, FinalizeEpisode]"
"""The id of an episode, and the body of its finalize request."""


class _NotChecked(Exception):
    """Undoes a finalize that found artifacts: they are checked first, outside any transaction."""


async def finalized(context: ServerContext, caller: Caller, wanted: Wanted) -> EpisodeRow:
    """Without artifacts, the most frequent case, it is one transaction."""
    episode_id, body = wanted
    if not body.artifacts:
        try:
            return await _without_artifacts(context, caller, episode_id, body)
        except _NotChecked:
            pass
    [done] = await finalized_many(context, caller, [wanted])
    if isinstance(done, Exception):
        raise done
    return done


async def _without_artifacts(
    context: ServerContext, caller: Caller, episode_id: str, body: FinalizeEpisode
) -> EpisodeRow:
    check_typed_metadata(body.metadata or {})
    changes = final_columns(body)

    def finalize(scope: Scope) -> EpisodeRow:
        episode = scope.finalize_episode(episode_id, changes)
        if episode is None:
            raise not_found("episode")
        if episode.artifacts:
            raise _NotChecked
        return episode

    episode = await context.write(caller, finalize)
    context.metrics.episode(episode.status)
    return episode


# ------------------------------------------------------------------------------------------- many


@dataclass(slots=True)
class _Case:
    """One episode of a batch and the state of its finalize."""

    episode_id: str
    body: FinalizeEpisode
    episode: EpisodeRow | None
    checks: list[ArtifactCheck] | None = None
    """None: the episode has no artifacts, or they are not checked yet."""
    problem: Exception | None = None
    done: EpisodeRow | None = None

    @property
    def needs_check(self) -> bool:
        if self.problem is not None or self.episode is None:
            return False
        return bool(self.episode.artifacts or self.body.artifacts)

    def check(self) -> None:
        try:
            check_typed_metadata(self.body.metadata or {})
            if self.episode is None:
                raise not_found("episode")
            if self.episode.status == "archived":
                raise EpisodeArchived(episode_id=self.episode_id)
        except (RollbookError, Problem) as error:
            self.problem = error

    def note_checks(self, found: list[ArtifactCheck] | Exception) -> None:
        if isinstance(found, Exception):
            self.problem = found
            return
        wrong = [each for each in found if each.disagrees is not None]
        self.checks = wrong or found
        self.problem = mismatch(wrong) if wrong else None

    def finalization(self) -> Finalization | None:
        """For artifacts that fail the check only the result of the check is written, and the episode stays open."""
        if self.problem is not None and self.checks is None:
            return None
        changes: dict[str, Any] | None = final_columns(self.body) if self.problem is None else None
        if self.checks is None:
            return Finalization(self.episode_id, changes)
        return Finalization(
            self.episode_id, changes, {each.kind: each.changes for each in self.checks}
        )

    def written(self, done: EpisodeRow | RollbookError | None) -> None:
        if self.problem is not None:
            return
        if isinstance(done, EpisodeRow):
            self.done = done
        else:
            self.problem = done or not_found("episode")  # deleted while its artifacts were checked


async def finalized_many(
    context: ServerContext, caller: Caller, wanted: Sequence[Wanted]
) -> list[EpisodeRow | Exception]:
    """In the order given: each episode, or the error that stopped it."""
    ids = list(dict.fromkeys(episode_id for episode_id, _ in wanted))
    found = await context.read(caller, lambda scope: scope.episode_heads(ids))
    known = {each.id: each for each in found}
    cases = [_Case(episode_id, body, known.get(episode_id)) for episode_id, body in wanted]
    for case in cases:
        case.check()
    await _check_artifacts(context, cases)
    await _write(context, caller, cases)
    return [_outcome(context, caller, case) for case in cases]


async def _check_artifacts(context: ServerContext, cases: Sequence[_Case]) -> None:
    checking = [case for case in cases if case.needs_check]
    asked = [
        (case.episode.artifacts if case.episode else (), case.body.artifacts or {})
        for case in checking
    ]
    for case, found in zip(checking, await check_artifacts_of_many(context, asked), strict=True):
        case.note_checks(found)


async def _write(context: ServerContext, caller: Caller, cases: Sequence[_Case]) -> None:
    writes = [(case, write_one) for case in cases if (write_one := case.finalization()) is not None]

    def write(scope: Scope) -> list[EpisodeRow | RollbookError | None]:
        def allow(more_bytes: int) -> object:
            return checked_quota(scope, context.settings, more_bytes=more_bytes)

        return scope.finalize_episodes([write_one for _, write_one in writes], allow)

    for (case, _), done in zip(writes, await context.write(caller, write), strict=True):
        case.written(done)


def _outcome(context: ServerContext, caller: Caller, case: _Case) -> EpisodeRow | Exception:
    if case.done is None:
        assert case.problem is not None
        return case.problem
    for each in case.checks or ():
        if "size" in each.changes:
            context.metrics.artifact(each.kind, each.changes["size"])
    announce_renditions(context, caller.org_id, case.checks or ())
    context.metrics.episode(case.done.status)
    return case.done
