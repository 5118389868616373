"""What crosses HTTP about episodes: the bodies we take and the answers we give, each a shape that OpenAPI shows.

A name that a body has and we do not know is passed over, so that a newer client can talk to an older server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct

from rollbook.contracts.episode import (
    LONGEST_NAME,
    LONGEST_ROBOT,
    ArtifactKind,
    EpisodeSource,
    EpisodeStatus,
    FinalStatus,
)
from rollbook.server.db.rows import ArtifactRow, EpisodeRow, UploadRow
from rollbook.server.db.value_checks import LONGEST_INDEXED
from rollbook.server.http.responses import wire_time
from rollbook.server.queries.episode_values import LONGEST_TAG, MOST_TAGS

MOST_IN_A_BATCH = 1000
MOST_PARTS = 10_000

Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
Robot = Annotated[str, Meta(max_length=LONGEST_ROBOT)]
Version = Annotated[str, Meta(max_length=LONGEST_INDEXED)]
Tag = Annotated[str, Meta(max_length=LONGEST_TAG)]
Tags = Annotated[list[Tag], Meta(max_length=MOST_TAGS)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
Size = Annotated[int, Meta(ge=0, le=2**62)]
Seconds = Annotated[float, Meta(ge=0)]
Kinds = Annotated[list[ArtifactKind], Meta(max_length=16)]
PartNumber = Annotated[int, Meta(ge=1, le=MOST_PARTS)]


# ------------------------------------------------------------------------------------ what we take


class Otel(Struct):
    """The span that an episode was recorded in."""

    trace_id: Annotated[str, Meta(pattern="^[0-9a-fA-F]{32}$", max_length=32)]
    span_id: Annotated[str, Meta(pattern="^[0-9a-fA-F]{16}$", max_length=16)]
    traceparent: Annotated[str, Meta(max_length=100)]


class CreateEpisode(Struct, kw_only=True):
    name: Name | None = None
    source: EpisodeSource | None = None
    robot: Robot | None = None
    policy_version: Version | None = None
    env_version: Version | None = None
    git_sha: Version | None = None
    seed: int | None = None
    fps: Seconds | None = None
    metadata: dict[str, Any] | None = None
    tags: Tags | None = None
    request_uploads: Kinds | None = None
    otel: Otel | None = None

    def values(self) -> dict[str, Any]:
        """The columns of the new episode. Trace context is kept in the metadata."""
        metadata = self.metadata
        if self.otel is not None:
            metadata = {**(metadata or {}), "otel": msgspec.to_builtins(self.otel)}
        return {
            "name": self.name,
            "source": self.source,
            "robot": self.robot,
            "policy_version": self.policy_version,
            "env_version": self.env_version,
            "git_sha": self.git_sha,
            "seed": self.seed,
            "fps": self.fps,
            "metadata": metadata,
            "tags": self.tags,
        }


class Claim(Struct, kw_only=True):
    """What the sender says about an artifact; what is stored has to agree."""

    sha256: Sha256 | None = None
    size: Size | None = None


class Failure(Struct, kw_only=True):
    time_s: Seconds | None = None
    reason: Annotated[str, Meta(max_length=10_000)] | None = None


class FinalizeEpisode(Struct, kw_only=True):
    status: FinalStatus
    duration_s: Seconds | None = None
    fps: Seconds | None = None
    bytes_total: Size | None = None
    failure_time_s: Seconds | None = None
    failure: Failure | None = None
    """The other way to say when and why."""
    metadata: dict[str, Any] | None = None
    tags: Tags | None = None
    artifacts: dict[ArtifactKind, Claim] | None = None

    def changes(self) -> dict[str, Any]:
        metadata, failure_time_s = self.metadata, self.failure_time_s
        if self.failure is not None:
            failure_time_s = self.failure.time_s if failure_time_s is None else failure_time_s
            if self.failure.reason is not None:
                metadata = {"failure_reason": self.failure.reason, **(metadata or {})}
        return {
            "status": self.status,
            "duration_s": self.duration_s,
            "fps": self.fps,
            "bytes_total": self.bytes_total,
            "failure_time_s": failure_time_s,
            "metadata": metadata,
            "tags": self.tags,
        }


class FinalizeOneOfMany(FinalizeEpisode, kw_only=True):
    episode_id: str


class FinalizeEpisodes(Struct):
    episodes: Annotated[list[FinalizeOneOfMany], Meta(max_length=MOST_IN_A_BATCH)]


class RequestUrls(Struct):
    request_uploads: Kinds | None = None
    """None: every slot whose bytes have not arrived."""


class StartUpload(Struct, kw_only=True):
    kind: ArtifactKind
    size: Annotated[int, Meta(ge=1, le=2**62)]
    sha256: Sha256 | None = None
    part_size: Annotated[int, Meta(ge=1, le=5 << 30)] | None = None


class CompletedPart(Struct, kw_only=True):
    number: PartNumber
    sha256: Sha256 | None = None


class CompleteUpload(Struct, kw_only=True):
    parts: Annotated[list[CompletedPart], Meta(max_length=MOST_PARTS)] | None = None
    """None: every part that arrived."""
    sha256: Sha256 | None = None


class ChangeTags(Struct, kw_only=True):
    add: Tags = []
    remove: Tags = []


# ------------------------------------------------------------------------------------ what we give


class ErrorAnswer(Struct):
    error: str
    """What happened and what to do about it."""
    code: str
    """Stable, for programs."""


class UploadUrl(Struct):
    kind: ArtifactKind
    url: str
    expires_at: str
    public_url: str | None = None


class EpisodeCreated(Struct):
    episode_id: str
    status: EpisodeStatus
    storage: Literal["r2", "unconfigured"]
    upload_urls: list[UploadUrl]


class UrlsMinted(Struct):
    episode_id: str
    storage: Literal["r2", "unconfigured"]
    upload_urls: list[UploadUrl]


class EpisodeFinalized(Struct):
    episode_id: str
    status: EpisodeStatus
    updated_at: str


class OneFinalized(Struct, omit_defaults=True):
    """With an `error` it is not finalized, and `status_code` is what a call of its own would have been answered."""

    episode_id: str
    status: EpisodeStatus | None = None
    updated_at: str | None = None
    error: str | None = None
    code: str | None = None
    status_code: int | None = None


class ManyFinalized(Struct):
    results: list[OneFinalized]


class ArtifactAnswer(Struct):
    kind: ArtifactKind
    size: int | None
    sha256: str | None
    content_type: str
    playable: bool | None
    """Of a video: whether a browser can show it. Null for what is none."""
    detail: str | None
    uploaded_at: str | None
    rendition: Literal["pending", "ready", "failed"] | None
    """Of a video that browsers do not play: the copy that they do, which `?rendition=playable` gives once it is ready.
    Null where none is to be made."""


class EpisodeAnswer(Struct):
    id: str
    name: str | None
    source: EpisodeSource
    robot: str | None
    policy_version: str | None
    env_version: str | None
    git_sha: str | None
    seed: int | None
    fps: float | None
    duration_s: float | None
    status: EpisodeStatus
    failure_time_s: float | None
    bytes_total: int | None
    metadata: dict[str, Any]
    tags: list[str]
    artifacts: list[ArtifactAnswer]
    """Those whose bytes are here and were checked."""
    missing_artifacts: list[ArtifactKind]
    """Asked for, and not here or not what they should be."""
    created_by: str | None
    created_at: str
    updated_at: str
    finalized_at: str | None
    archived_at: str | None


class EpisodeList(Struct):
    episodes: list[EpisodeAnswer]
    next_cursor: str | None


class EpisodeDeleted(Struct):
    id: str
    deleted: Literal[True] = True


class PartUrl(Struct):
    number: int
    url: str


class PartDone(Struct):
    number: int
    size: int


class UploadState(Struct):
    upload_id: str
    kind: ArtifactKind
    size: int
    part_size: int
    part_count: int
    parts: list[PartUrl]
    """Where to send what has not arrived; of a very long list the first ones, and later ones when these are done."""
    done: list[PartDone]
    expires_at: str
    completed: bool


class UploadCompleted(Struct):
    upload_id: str
    kind: ArtifactKind
    size: int
    sha256: str


class UploadAborted(Struct):
    upload_id: str
    aborted: Literal[True] = True


def kind_of(row: ArtifactRow | UploadRow) -> ArtifactKind:
    return cast(ArtifactKind, row.kind)


def status_of(row: EpisodeRow) -> EpisodeStatus:
    return cast(EpisodeStatus, row.status)


def finalized_answer(row: EpisodeRow) -> EpisodeFinalized:
    return EpisodeFinalized(row.id, status_of(row), wire_time(row.updated_at_us))


def episode_answer(row: EpisodeRow) -> EpisodeAnswer:
    return EpisodeAnswer(
        id=row.id,
        name=row.name,
        source=cast(EpisodeSource, row.source),
        robot=row.robot,
        policy_version=row.policy_version,
        env_version=row.env_version,
        git_sha=row.git_sha,
        seed=row.seed,
        fps=row.fps,
        duration_s=row.duration_s,
        status=status_of(row),
        failure_time_s=row.failure_time_s,
        bytes_total=row.bytes_total,
        metadata=row.metadata,
        tags=row.tags,
        artifacts=_stored(row.artifacts),
        missing_artifacts=[kind_of(each) for each in row.artifacts if each.status != "stored"],
        created_by=row.created_by,
        created_at=wire_time(row.created_at_us),
        updated_at=wire_time(row.updated_at_us),
        finalized_at=_time(row.finalized_at_us),
        archived_at=_time(row.archived_at_us),
    )


def _stored(artifacts: Iterable[ArtifactRow]) -> list[ArtifactAnswer]:
    return [
        ArtifactAnswer(
            kind=kind_of(each),
            size=each.size,
            sha256=each.sha256,
            content_type=each.content_type,
            playable=each.playable,
            detail=each.detail,
            uploaded_at=_time(each.uploaded_at_us),
            rendition=cast(Any, each.rendition),
        )
        for each in artifacts
        if each.status == "stored"
    ]


def _time(at_us: int | None) -> str | None:
    return None if at_us is None else wire_time(at_us)
