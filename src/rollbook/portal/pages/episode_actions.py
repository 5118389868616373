"""What can be done to episodes that were chosen in the list: baselines, side by side, tag, archive, restore, delete.

Every action is one form with many ids. An episode for which it fails does not stop the others: the list then says which
failed, and why. Tagging and deleting ask first, on a page of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from rollbook.errors import InvalidValue, RollbookError
from rollbook.portal.page import Page, page_route, redirect, render, signed_in_form
from rollbook.portal.pages.episode_query import PATH, EpisodeQuery
from rollbook.portal.pages.episodes import Notice, render_list
from rollbook.server.accounts.roles import Action
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import Caller, ServerContext, context_of
from rollbook.server.episodes import changes
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found, problem_of
from rollbook.server.queries import Deletion, ListedEpisode, Scope

MOST_CHOSEN = 200
FILE_NAME = "picked.txt"
CONFIRMATION = "delete"
_AT_ONCE = 50
"""Episodes that one transaction changes."""
_GONE = "there is no such episode any more"
_MOST_SIDE_BY_SIDE = 4


@dataclass(frozen=True, slots=True)
class Chosen:
    session: Session
    ids: tuple[str, ...]
    episodes: list[ListedEpisode]
    """Those of the ids that exist. There is at least one."""
    fields: dict[str, str]
    back: EpisodeQuery
    """The list that they were chosen in."""

    @property
    def missing(self) -> list[tuple[str, str]]:
        known = {each.id for each in self.episodes}
        return [(each, _GONE) for each in self.ids if each not in known]


@dataclass(frozen=True, kw_only=True)
class ChosenPage(Page):
    section: ClassVar[str] = "episodes"
    session: Session
    ids: list[str]
    """What the next form sends again."""
    back: EpisodeQuery


@dataclass(frozen=True, kw_only=True)
class BaselinesPage(ChosenPage):
    template: ClassVar[str] = "baselines.html"
    title: str = "Use as baselines"
    episodes: list[ListedEpisode]
    unfinished: int
    """How many of them are not finished recordings."""
    file_name: str = FILE_NAME


@dataclass(frozen=True, kw_only=True)
class TagPage(ChosenPage):
    template: ClassVar[str] = "tag_episodes.html"
    title: str = "Tag episodes"
    tags: list[str]
    """Tags that some of them have."""


@dataclass(frozen=True, kw_only=True)
class DeletePage(ChosenPage):
    template: ClassVar[str] = "delete_episodes.html"
    title: str = "Delete episodes"
    deletions: list[Deletion]
    refused: list[Deletion]
    confirmation: str = CONFIRMATION


async def _chosen(request: Request, action: Action = "read") -> Chosen:
    session, sent = await signed_in_form(request, action)
    ids = tuple(dict.fromkeys(text for name, text in sent if name == "episode"))
    if not ids:
        raise Problem(400, "nothing_chosen", "no episode is selected; go back and select some")
    if len(ids) > MOST_CHOSEN:
        text = f"at most {MOST_CHOSEN} episodes can be changed at a time, not {len(ids)}"
        raise Problem(400, "too_many", text)
    found = await context_of(request).read(session.caller, lambda scope: scope.listed_episodes(ids))
    if not found:
        raise not_found("episode")
    fields = dict(sent)
    return Chosen(session, ids, found, fields, _back(fields.get("back", "")))


def _back(text: str) -> EpisodeQuery:
    try:
        return EpisodeQuery.of_text(text)
    except (Problem, InvalidValue):
        return EpisodeQuery()


# ---------------------------------------------------------------------------------- nothing changes


async def use_as_baselines(request: Request) -> Response:
    """The command line and its file. It is a form because many ids do not fit into an address."""
    chosen = await _chosen(request)
    ids = [each.id for each in chosen.episodes]
    if "file" in chosen.fields:
        headers = {"Content-Disposition": f'attachment; filename="{FILE_NAME}"'}
        return Response("".join(f"{each}\n" for each in ids), 200, headers, "text/plain")
    unfinished = sum(each.status == "recording" for each in chosen.episodes)
    page = BaselinesPage(
        session=chosen.session,
        ids=ids,
        back=chosen.back,
        episodes=chosen.episodes,
        unfinished=unfinished,
    )
    return render(request, page)


async def side_by_side(request: Request) -> Response:
    chosen = await _chosen(request)
    some = [("episode", each.id) for each in chosen.episodes[:_MOST_SIDE_BY_SIDE]]
    return redirect(request, f"/portal/side-by-side?{urlencode(some)}")


# ------------------------------------------------------------------------------------------ changes


async def archive(request: Request) -> Response:
    chosen = await _chosen(request, "organise")
    done, failed = await _changed(context_of(request), chosen, changes.archive)
    notice = Notice(f"{_episodes(len(done))} archived.", failed, "restore", done)
    return await render_list(request, chosen.session, chosen.back, notice=notice)


async def restore(request: Request) -> Response:
    chosen = await _chosen(request, "organise")
    done, failed = await _changed(context_of(request), chosen, changes.restore)
    notice = Notice(f"{_episodes(len(done))} restored.", failed, "archive", done)
    return await render_list(request, chosen.session, chosen.back, notice=notice)


async def tag(request: Request) -> Response:
    chosen = await _chosen(request, "organise")
    add, remove = (_tags(chosen.fields.get(name, "")) for name in ("add", "remove"))
    if not add and not remove:
        there = sorted({tag for each in chosen.episodes for tag in each.tags})
        page = TagPage(session=chosen.session, ids=list(chosen.ids), back=chosen.back, tags=there)
        return render(request, page)
    change = partial(changes.change_tags_of, add=add, remove=remove)
    done, failed = await _changed(context_of(request), chosen, change)
    notice = Notice(f"Tags of {_episodes(len(done))} changed.", failed)
    return await render_list(request, chosen.session, chosen.back, notice=notice)


async def delete(request: Request) -> Response:
    context, chosen = context_of(request), await _chosen(request, "delete_own")
    caller = chosen.session.caller
    if chosen.fields.get("confirm", "").strip() != CONFIRMATION:
        asked = "confirm" in chosen.fields
        found = await context.read(caller, lambda scope: scope.deletions(chosen.ids))
        refused = [each for each in found if each.is_refused]
        going = [each for each in found if not each.is_refused]
        page = DeletePage(
            session=chosen.session,
            ids=[each.episode_id for each in going],
            back=chosen.back,
            deletions=going,
            refused=refused,
            problem=f"Nothing was deleted: type {CONFIRMATION} to confirm." if asked else None,
        )
        return render(request, page)
    done, failed = [], chosen.missing
    for each in chosen.episodes:
        why = await _deleted(context, caller, each.id)
        if why is None:
            done.append(each.id)
        else:
            failed.append((each.id, why))
    notice = Notice(f"{_episodes(len(done))} deleted.", tuple(failed))
    return await render_list(request, chosen.session, chosen.back, notice=notice)


async def _deleted(context: ServerContext, caller: Caller, episode_id: str) -> str | None:
    """Why it was not deleted. Each is a transaction of its own: what is refused must leave nothing behind."""
    try:
        return None if await changes.delete(context, caller, episode_id) else _GONE
    except (Problem, RollbookError) as error:
        return problem_of(error).error


async def _changed(
    context: ServerContext, chosen: Chosen, change: changes.Change
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The ids that were changed, and those that were not with the reason."""
    caller = chosen.session.caller
    done: list[str] = []
    failed = chosen.missing
    ids = [each.id for each in chosen.episodes]

    def work(scope: Scope, some: list[str]) -> list[tuple[str, str | None]]:
        return [(each, _tried(change, scope, caller, each)) for each in some]

    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        for episode_id, why in await context.write(caller, partial(work, some=some)):
            if why is None:
                done.append(episode_id)
            else:
                failed.append((episode_id, why))
    return tuple(done), tuple(failed)


def _tried(change: changes.Change, scope: Scope, caller: Caller, episode_id: str) -> str | None:
    try:
        return None if change(scope, caller, episode_id) is not None else _GONE
    except (Problem, RollbookError) as error:
        problem = problem_of(error)
        if problem.status >= 500:
            raise
        return problem.error


def _tags(text: str) -> list[str]:
    """Separated by commas."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _episodes(count: int) -> str:
    return "1 episode" if count == 1 else f"{count} episodes"


routes: tuple[LeanRoute, ...] = (
    page_route("POST", f"{PATH}/baselines", use_as_baselines),
    page_route("POST", f"{PATH}/side-by-side", side_by_side),
    page_route("POST", f"{PATH}/tag", tag),
    page_route("POST", f"{PATH}/archive", archive),
    page_route("POST", f"{PATH}/restore", restore),
    page_route("POST", f"{PATH}/delete", delete),
)
