"""One episode: how to repeat it, what it looked like, what it measured, what went wrong, and its files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.errors import BlobError
from rollbook.portal.page import Page, page_route, page_session, render
from rollbook.portal.pages.findings import FindingsCard, findings_card
from rollbook.portal.pages.metadata import Node, TypedEntry, metadata_tree, typed_entries
from rollbook.portal.pages.timeline import (
    Outcome,
    Pictures,
    Source,
    TimelineData,
    artifact_of,
    failure_marks,
    pictures_of,
    recorded_outcome,
    timeline_data,
    title_of,
)
from rollbook.portal.prefix import local_url
from rollbook.report.words import capital
from rollbook.server.accounts.roles import may
from rollbook.server.context import Caller, ServerContext, context_of
from rollbook.server.episodes.artifacts import playable_key, served_blob
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import EpisodeRow, EpisodeUse, ScenarioRow, Scope
from rollbook.server.stores.rollout_links import RolloutLink, rollout_of_episode
from rollbook.server.video.frame_times import frame_times

_EPISODE = "/portal/episodes/{episode_id}"
_MOST_USES = 100
_SHOWN_USES = 8


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """What the database knows about one episode."""

    episode: EpisodeRow
    uses: list[EpisodeUse]
    scenario: ScenarioRow | None
    rollout: RolloutLink | None
    """The rollout of a registered store that the episode was logged from."""


@dataclass(frozen=True, slots=True)
class Trace:
    trace_id: str
    span_id: str | None


@dataclass(frozen=True, kw_only=True)
class EpisodePage(Page):
    template: ClassVar[str] = "episode.html"
    section: ClassVar[str] = "episodes"
    modules: ClassVar[tuple[str, ...]] = ("episode.js",)
    episode: EpisodeRow
    baseline_in: list[EpisodeUse]
    """The newest of them."""
    baseline_count: str
    replay_in: list[EpisodeUse]
    scenario: ScenarioRow | None
    rollout: RolloutLink | None
    pictures: Pictures
    outcome: Outcome
    findings_card: FindingsCard
    timeline: TimelineData
    repeat_command: str
    file_names: Mapping[ArtifactKind, str]
    trace: Trace | None
    typed: list[TypedEntry]
    tree: Node
    may_organise: bool
    may_promote: bool
    has_recording: bool = True
    """There is something to draw or to play."""


@dataclass(frozen=True, kw_only=True)
class BareEpisodePage(EpisodePage):
    """Of an episode without files: no script looks for a timeline."""

    modules: ClassVar[tuple[str, ...]] = ()
    has_recording: bool = False


async def episode_page(request: Request) -> Response:
    session = await page_session(request)
    context, caller = context_of(request), session.caller
    facts = await _facts(context, caller, request.path_params["episode_id"])
    episode = facts.episode
    card = await findings_card(request, caller, episode)
    baseline_in = [each for each in facts.uses if not each.is_replay]
    is_bare = all(each.status != "stored" for each in episode.artifacts)
    page = (BareEpisodePage if is_bare else EpisodePage)(
        session=session,
        title=title_of(episode),
        episode=episode,
        baseline_in=baseline_in[:_SHOWN_USES],
        baseline_count=f"{len(baseline_in)}{'+' if len(facts.uses) == _MOST_USES else ''}",
        replay_in=[each for each in facts.uses if each.is_replay][:_SHOWN_USES],
        scenario=facts.scenario,
        rollout=facts.rollout,
        pictures=pictures_of(episode),
        outcome=recorded_outcome(episode),
        findings_card=card,
        timeline=timeline_data(
            request,
            [Source(f"/portal/episodes/{episode.id}/tracks", title_of(episode))],
            marks=[*failure_marks(episode), *card.marks()],
            duration_s=episode.duration_s,
            fps=episode.fps,
        ),
        repeat_command=_repeat_command(episode),
        file_names=FILE_NAMES,
        trace=_trace(episode.metadata.get("otel")),
        typed=typed_entries(episode.metadata),
        tree=metadata_tree(episode.metadata),
        may_organise=may(caller, "organise"),
        may_promote=may(caller, "evaluate"),
    )
    return render(request, page)


async def _facts(context: ServerContext, caller: Caller, episode_id: str) -> EpisodeFacts:
    def find(scope: Scope) -> EpisodeFacts | None:
        episode = scope.episode(episode_id)
        if episode is None:
            return None
        uses = scope.uses_of_episode(episode_id, _MOST_USES)
        rollout = rollout_of_episode(scope, episode.metadata)
        return EpisodeFacts(episode, uses, scope.scenario_of_episode(episode_id), rollout)

    facts = await context.read(caller, find)
    if facts is None:
        raise not_found("episode")
    return facts


def _repeat_command(episode: EpisodeRow) -> str:
    """The harness gives the environment the seed of the episode."""
    lines = [] if episode.git_sha is None else [f"git checkout {shlex.quote(episode.git_sha)}"]
    run = ["rollbook replay run", f"--baseline-episodes {episode.id}"]
    if episode.policy_version is not None:
        run.append(f"--candidate-version {shlex.quote(episode.policy_version)}")
    run += ["--policy MODULE:POLICY", "--environment MODULE:MAKE_ENV"]
    return "\n".join([*lines, " \\\n  ".join(run)])


def _trace(otel: Any) -> Trace | None:
    if not isinstance(otel, dict):
        return None
    trace_id = _text(otel.get("trace_id"))
    return None if trace_id is None else Trace(trace_id, _text(otel.get("span_id")))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# ---------------------------------------------------------------------------------------------- video


async def video_facts(request: Request) -> Response:
    """Where the player finds a video that it can play, and when each frame of it is shown. A page asks again while a
    copy is being made."""
    session = await page_session(request)
    context, caller = context_of(request), session.caller
    episode_id: str = request.path_params["episode_id"]
    episode = await context.read(caller, lambda scope: scope.episode(episode_id))
    video = None if episode is None else artifact_of(episode, "video")
    if episode is None or video is None or video.status != "stored":
        raise not_found("video")
    try:
        await served_blob(context, caller, video)
        key = await playable_key(context, caller, video)
    except Problem as problem:
        state = "pending" if problem.code == "rendition_pending" else "refused"
        return _json({"state": state, "why": f"{capital(problem.error)}."})
    try:
        times = await frame_times(context.blobs, key)
    except BlobError as error:
        return _json({"state": "refused", "why": f"{capital(str(error))}."})
    source = f"/api/episodes/{episode.id}/artifact/video?rendition=playable"
    return _json(
        {
            "state": "ready",
            "src": local_url(request, source),
            "fps": times.fps if times else episode.fps,
            "frames": times.frames if times else None,
            "times": times.times if times else None,
        }
    )


def _json(content: dict[str, Any]) -> Response:
    return JSONResponse(content, headers={"Cache-Control": "no-store"})


routes: tuple[LeanRoute, ...] = (
    page_route("GET", _EPISODE, episode_page),
    page_route("GET", f"{_EPISODE}/video", video_facts),
)
