"""What pages with a timeline show of a recording: its video or image arrays, its outcome, the marks on its timeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from starlette.requests import Request

from rollbook.portal.formats import ends
from rollbook.portal.prefix import local_url
from rollbook.scoring.outcomes import outcome_of
from rollbook.server.queries import ArtifactRow, EpisodeRow
from rollbook.server.recordings.layout import picture_shape


def title_of(episode: EpisodeRow) -> str:
    return episode.name or f"Episode {ends(episode.id)}"


# -------------------------------------------------------------------------------------------- pictures


@dataclass(frozen=True, slots=True)
class Pictures:
    """The moving picture of a recording. `state`: `video` plays now, `pending` is being made playable, `refused` cannot
    be played, `images` are arrays, `none` was recorded."""

    state: Literal["video", "pending", "refused", "images", "none"]
    text: str = ""
    """What to read in place of the picture."""


def pictures_of(episode: EpisodeRow) -> Pictures:
    video = artifact_of(episode, "video")
    if video is None:
        return _images_of(episode)
    if video.status == "requested":
        return Pictures("refused", "A video was announced, and its bytes never arrived.")
    if video.status != "stored":
        return Pictures("refused", f"The video is not the one that was announced: {video.detail}.")
    if video.playable or video.rendition == "ready":
        return Pictures("video")
    if video.rendition == "pending":
        text = "Browsers cannot play this video. A copy that they can play is being made."
        return Pictures("pending", text)
    return Pictures("refused", f"Browsers cannot play this video: {video.detail}.")


def _images_of(episode: EpisodeRow) -> Pictures:
    """Only of arrays that the frames are drawn of: a script would look in vain for others."""
    arrays = [each for row in episode.artifacts for each in row.arrays or ()]
    has_images = any(
        picture_shape(each["key"], each["dtype"], each["shape"]) is not None for each in arrays
    )
    return Pictures("images", "Frames are drawn by a script.") if has_images else Pictures("none")


def artifact_of(episode: EpisodeRow, kind: str) -> ArtifactRow | None:
    return next((each for each in episode.artifacts if each.kind == kind), None)


# --------------------------------------------------------------------------------------------- outcome


@dataclass(frozen=True, slots=True)
class Outcome:
    success: bool | None
    reward: float | None
    collisions: float | None
    time_to_goal_s: float | None

    @property
    def is_known(self) -> bool:
        return any(value is not None for value in asdict(self).values())


def recorded_outcome(episode: EpisodeRow) -> Outcome:
    found: dict[str, Any] = outcome_of(episode.metadata)
    return Outcome(
        found.get("success"),
        found.get("reward_total"),
        found.get("collision_count"),
        found.get("time_to_goal_s"),
    )


# -------------------------------------------------------------------------------------------- timeline


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on the timeline: where the episode failed, or where a finding is."""

    at: float
    until: float | None = None
    channel: str | None = None
    failure: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A recording on a timeline. `kind`: `plain`, or `baseline`, `candidate` and `difference` on the page of a pair."""

    path: str
    name: str
    kind: str = "plain"


@dataclass(frozen=True, slots=True)
class TimelineData:
    """What the script of a page with a timeline reads."""

    sources: str
    marks: str
    duration_s: float
    fps: float | None


def timeline_data(
    request: Request,
    sources: Sequence[Source],
    *,
    marks: Sequence[Mark] = (),
    duration_s: float | None = None,
    fps: float | None = None,
) -> TimelineData:
    asked = [
        {"url": local_url(request, each.path), "name": each.name, "kind": each.kind}
        for each in sources
    ]
    listed = [asdict(each) for each in marks]
    return TimelineData(json.dumps(asked), json.dumps(listed), duration_s or 0.0, fps)


def failure_marks(episode: EpisodeRow) -> list[Mark]:
    at = episode.failure_time_s
    return [] if at is None else [Mark(at, failure=True)]
