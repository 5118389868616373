"""Changes of a recorded episode, each with its entry in the audit log: archive, restore, tag and delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from rollbook.errors import EpisodeArchived
from rollbook.server.accounts.roles import require, require_own
from rollbook.server.context import Caller, ServerContext
from rollbook.server.episodes.artifacts import remove_blobs
from rollbook.server.queries import DoomedObject, EpisodeRow, Scope

Change: TypeAlias = "Callable[[Scope, Caller, str], EpisodeRow | None]"
"""Changes one episode, in the transaction of the scope. None when there is no such episode. It raises before it writes
anything, so that others can be changed in the same transaction."""


def archive(scope: Scope, caller: Caller, episode_id: str) -> EpisodeRow | None:
    return _noted(scope, caller, "episode.archived", scope.archive_episode(episode_id))


def restore(scope: Scope, caller: Caller, episode_id: str) -> EpisodeRow | None:
    return _noted(scope, caller, "episode.restored", scope.restore_episode(episode_id))


def change_tags_of(
    scope: Scope, caller: Caller, episode_id: str, *, add: Sequence[str], remove: Sequence[str]
) -> EpisodeRow | None:
    episode = scope.episode(episode_id)
    if episode is None:
        return None
    if episode.status == "archived":
        raise EpisodeArchived(episode_id=episode_id)
    kept = [tag for tag in episode.tags if tag not in remove]
    tagged = scope.tag_episode(episode_id, [*kept, *add])
    return _noted(scope, caller, "episode.tagged", tagged)


def _noted(
    scope: Scope, caller: Caller, event: str, episode: EpisodeRow | None
) -> EpisodeRow | None:
    if episode is not None:
        scope.audit(event, actor=caller.name, subject=episode.id)
    return episode


async def delete(context: ServerContext, caller: Caller, episode_id: str) -> bool:
    """Deletes the rows in one transaction, and then the blobs, or notes those to be deleted later. False when there is
    no such episode."""

    def delete_rows(scope: Scope) -> list[DoomedObject] | None:
        episode = scope.episode(episode_id)
        if episode is None:
            return None
        require_own(caller, episode.created_by, "episode")
        if scope.is_scenario(episode_id):  # which would go too
            require(caller, "change_scenarios")
        doomed = scope.delete_episode(episode_id)
        if doomed is not None:
            scope.audit("episode.deleted", actor=caller.name, subject=episode_id)
        return doomed

    doomed = await context.write(caller, delete_rows)
    if doomed is None:
        return False
    context.metrics.episode("deleted")
    await remove_blobs(context, caller.org_id, doomed)
    return True
