"""Endings: episodes that are finalized, with what was uploaded for them looked at first.

Of a whole batch the artifacts are looked at before anything is written, and then one transaction writes all of it. An
episode that cannot be finalized holds no other one back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rollbook.contracts.episode import check_typed_metadata
from rollbook.contracts.wire.episodes import FinalizeEpisode
from rollbook.errors import EpisodeArchived, RollbookError
from rollbook.server.context import Caller, ServerContext, check_may_write
from rollbook.server.episodes.artifacts import Finding, look_at_many, mismatch, tell_renditions
from rollbook.server.episodes.messages import final_columns
from rollbook.server.episodes.quotas import checked_quota
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import Ending, EpisodeRow, Scope

Wanted: TypeAlias = "tuple[str, FinalizeEpisode]"
"""An episode's id, and what is said about it."""


class _NotLookedAt(Exception):
    """Undoes a finalize that came upon artifacts: they are looked at first, outside of any transaction."""


async def finalized(context: ServerContext, caller: Caller, wanted: Wanted) -> EpisodeRow:
    """Without artifacts, which is what robots do all day, it is one transaction and nothing else."""
    episode_id, body = wanted
    if not body.artifacts:
        try:
            return await _without_artifacts(context, caller, episode_id, body)
        except _NotLookedAt:
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
            raise _NotLookedAt
        return episode

    episode = await context.write(caller, finalize)
    context.metrics.episode(episode.status)
    return episode


# ------------------------------------------------------------------------------------------- many


@dataclass(slots=True)
class _Case:
    """One of many, on its way."""

    episode_id: str
    body: FinalizeEpisode
    episode: EpisodeRow | None
    findings: list[Finding] | None = None
    """None: there is nothing to look at, or nobody has."""
    problem: Exception | None = None
    done: EpisodeRow | None = None

    @property
    def needs_a_look(self) -> bool:
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

    def looked_at(self, found: list[Finding] | Exception) -> None:
        if isinstance(found, Exception):
            self.problem = found
            return
        wrong = [each for each in found if each.disagrees is not None]
        self.findings = wrong or found
        self.problem = mismatch(wrong) if wrong else None

    def ending(self) -> Ending | None:
        """Of bytes that are not what they should be, that is written, and the episode goes on."""
        if self.problem is not None and self.findings is None:
            return None
        changes: dict[str, Any] | None = final_columns(self.body) if self.problem is None else None
        if self.findings is None:
            return Ending(self.episode_id, changes)
        return Ending(self.episode_id, changes, {each.kind: each.changes for each in self.findings})

    def written(self, done: EpisodeRow | RollbookError | None) -> None:
        if self.problem is not None:
            return
        if isinstance(done, EpisodeRow):
            self.done = done
        else:
            self.problem = done or not_found(
                "episode"
            )  # deleted while its artifacts were looked at


async def finalized_many(
    context: ServerContext, caller: Caller, wanted: Sequence[Wanted]
) -> list[EpisodeRow | Exception]:
    """In the order given, each with its episode or with what is wrong."""
    check_may_write(caller)
    ids = list(dict.fromkeys(episode_id for episode_id, _ in wanted))
    found = await context.read(caller, lambda scope: scope.episodes_of(ids))
    known = {each.id: each for each in found}
    cases = [_Case(episode_id, body, known.get(episode_id)) for episode_id, body in wanted]
    for case in cases:
        case.check()
    await _look(context, cases)
    await _write(context, caller, cases)
    return [_told(context, caller, case) for case in cases]


async def _look(context: ServerContext, cases: Sequence[_Case]) -> None:
    looking = [case for case in cases if case.needs_a_look]
    asked = [
        (case.episode.artifacts if case.episode else (), case.body.artifacts or {})
        for case in looking
    ]
    for case, found in zip(looking, await look_at_many(context, asked), strict=True):
        case.looked_at(found)


async def _write(context: ServerContext, caller: Caller, cases: Sequence[_Case]) -> None:
    endings = [(case, ending) for case in cases if (ending := case.ending()) is not None]

    def write(scope: Scope) -> list[EpisodeRow | RollbookError | None]:
        def allow(more_bytes: int) -> object:
            return checked_quota(scope, context.settings, more_bytes=more_bytes)

        return scope.finalize_episodes([ending for _, ending in endings], allow)

    for (case, _), done in zip(endings, await context.write(caller, write), strict=True):
        case.written(done)


def _told(context: ServerContext, caller: Caller, case: _Case) -> EpisodeRow | Exception:
    if case.done is None:
        assert case.problem is not None
        return case.problem
    for each in case.findings or ():
        if "size" in each.changes:
            context.metrics.artifact(each.kind, each.changes["size"])
    tell_renditions(context, caller.org_id, case.findings or ())
    context.metrics.episode(case.done.status)
    return case.done
