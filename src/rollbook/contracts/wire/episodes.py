"""One episode: create, finalize, tag, read, list and delete."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from rollbook.contracts.episode import (
    LONGEST_NAME,
    LONGEST_ROBOT,
    ArtifactKind,
    EpisodeSource,
    EpisodeStatus,
    FinalStatus,
)
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.wire.limits import LONGEST_INDEXED, LONGEST_TAG, LONGEST_TEXT, MOST_TAGS
from rollbook.contracts.wire.uploads import Kinds, Sha256, Size, UploadUrl
from rollbook.notebook import card, table

Name: TypeAlias = Annotated[str, Meta(max_length=LONGEST_NAME)]
Robot: TypeAlias = Annotated[str, Meta(max_length=LONGEST_ROBOT)]
Version: TypeAlias = Annotated[str, Meta(max_length=LONGEST_INDEXED)]
Tag: TypeAlias = Annotated[str, Meta(max_length=LONGEST_TAG)]
Tags: TypeAlias = Annotated[list[Tag], Meta(max_length=MOST_TAGS)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0)]
E = TypeVar("E")

_MOST_ARRAYS = 6
"""Arrays of a file that an episode lists in a notebook."""


class Otel(Struct, frozen=True):
    """The span that an episode was recorded in."""

    trace_id: Annotated[str, Meta(pattern="^[0-9a-fA-F]{32}$", max_length=32)]
    span_id: Annotated[str, Meta(pattern="^[0-9a-fA-F]{16}$", max_length=16)]
    traceparent: Annotated[str, Meta(max_length=100)]


class CreateEpisode(Struct, frozen=True, kw_only=True):
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
    policy_revision: PolicyRevision | None = None
    """Which policy, exactly. Without `policy_version`, its `revision_id` becomes the version."""
    request_uploads: Kinds | None = None
    """The artifacts that follow; the answer has an upload URL for each."""
    otel: Otel | None = None


class EpisodeCreated(Struct, frozen=True):
    episode_id: str
    status: EpisodeStatus
    storage: Literal["r2", "unconfigured"]
    upload_urls: list[UploadUrl]
    policy_revision_kept: Literal[True] | UnsetType = UNSET
    """Present when the request has a `policy_revision`. A server that does not know revisions ignores them."""


class Claim(Struct, frozen=True, kw_only=True):
    """Size and digest that the sender announces for an artifact. The stored bytes must match."""

    sha256: Sha256 | None = None
    size: Size | None = None


class Failure(Struct, frozen=True, kw_only=True):
    time_s: Seconds | None = None
    reason: Annotated[str, Meta(max_length=LONGEST_TEXT)] | None = None


class FinalizeEpisode(Struct, frozen=True, kw_only=True):
    status: FinalStatus
    duration_s: Seconds | None = None
    fps: Seconds | None = None
    bytes_total: Size | None = None
    failure_time_s: Seconds | None = None
    failure: Failure | None = None
    """Another form of `failure_time_s`, with a reason."""
    metadata: dict[str, Any] | None = None
    tags: Tags | None = None
    artifacts: dict[ArtifactKind, Claim] | None = None


class EpisodeFinalized(Struct, frozen=True):
    episode_id: str
    status: EpisodeStatus
    updated_at: str


class StoredArray(Struct, frozen=True):
    """One array of a stored NPZ file."""

    key: str
    dtype: str
    """As NumPy writes it, such as `float32`, `<U12` or `datetime64[ns]`."""
    shape: list[int]
    rows: int | None
    """The first length of the shape; null for a single value."""


class ArtifactAnswer(Struct, frozen=True, kw_only=True):
    kind: ArtifactKind
    size: int | None
    sha256: str | None
    content_type: str
    playable: bool | None
    """Whether a browser can play this video. Null for an artifact that is not a video."""
    readable: bool | None = None
    """Whether these sensors or actions are an NPZ file whose arrays can be read. Null for a video, and for a file that
    was stored before servers inspected it."""
    detail: str | None
    """Why it cannot be played or read."""
    uploaded_at: str | None
    rendition: Literal["pending", "ready", "failed"] | None
    """State of the playable copy of a video that browsers cannot play; `?rendition=playable` downloads the copy once it
    is ready. Null when no copy is needed."""
    arrays: list[StoredArray] | UnsetType = UNSET
    """The arrays of a readable file, at most 256. Only in the answer for one episode, not in lists."""


class EpisodeAnswer(Struct, frozen=True):
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
    """Artifacts whose bytes are stored and checked."""
    missing_artifacts: list[ArtifactKind]
    """Artifacts that were announced, and whose bytes are absent or are not the announced ones."""
    created_by: str | None
    created_at: str
    updated_at: str
    finalized_at: str | None
    archived_at: str | None
    policy_revision: PolicyRevision | UnsetType = UNSET
    """Absent when the episode was recorded without one."""
    metadata_truncated: Literal[True] | UnsetType = UNSET
    """Present in a list or lookup that leaves large metadata out: `metadata` is empty then, and the answer for the
    single episode has all of it."""


class ArtifactRecord(Struct, frozen=True, kw_only=True):
    """`ArtifactAnswer` as the SDK reads it."""

    kind: str
    size: int | None = None
    sha256: str | None = None
    content_type: str | None = None
    playable: bool | None = None
    """For a video: whether a browser can play it."""
    readable: bool | None = None
    """For sensors and actions: whether `sensors()` and `actions()` can read it. None: the server did not inspect it."""
    detail: str | None = None
    """Why it cannot be played or read."""
    arrays: list[StoredArray] = []
    """The arrays of a readable file. Empty in a list of episodes: read one episode to see them."""


class EpisodeRecord(Struct, frozen=True, kw_only=True):
    """`EpisodeAnswer` as the SDK reads it. Servers may send fewer fields, or more; a field that is not sent is None."""

    id: str
    status: str
    name: str | None = None
    source: str | None = None
    robot: str | None = None
    policy_version: str | None = None
    env_version: str | None = None
    git_sha: str | None = None
    seed: int | None = None
    fps: float | None = None
    duration_s: float | None = None
    failure_time_s: float | None = None
    bytes_total: int | None = None
    metadata: dict[str, Any] = {}
    tags: list[str] = []
    artifacts: list[ArtifactRecord] = []
    missing_artifacts: list[str] = []
    """Artifacts that were announced, and whose bytes never arrived or are not the announced ones."""
    created_at: str | None = None
    updated_at: str | None = None
    policy_revision: PolicyRevision | UnsetType = UNSET
    """Unset, which is false, when the episode was recorded without one."""
    metadata_truncated: bool = False
    """The list left the metadata out because it is large; read the single episode to get it."""

    def artifact(self, kind: ArtifactKind) -> ArtifactRecord | None:
        return next((each for each in self.artifacts if each.kind == kind), None)

    def _repr_html_(self) -> str:
        """In a notebook."""
        length = None if self.duration_s is None else f"{self.duration_s:.1f} s"
        failed = None if self.failure_time_s is None else f"{self.failure_time_s:.1f} s"
        facts = [
            ("id", self.id),
            ("status", self.status),
            ("robot", self.robot),
            ("policy", self.policy_version),
            ("environment", self.env_version),
            ("duration", length),
            ("failed at", failed),
            ("tags", ", ".join(self.tags) or None),
            ("missing", ", ".join(self.missing_artifacts) or None),
            ("recorded", self.created_at),
        ]
        rows = [
            (each.kind, each.size, each.sha256, each.detail or _contents(each))
            for each in self.artifacts
        ]
        listed = table(("artifact", "bytes", "SHA-256", "contents"), rows)
        return card(f"Episode {self.name or self.id}", facts, listed)


def _contents(artifact: ArtifactRecord) -> str:
    """The arrays that are known of a file; a video, and a file in a list of episodes, has none."""
    return ", ".join(f"{each.key} {each.shape}" for each in artifact.arrays[:_MOST_ARRAYS])


class EpisodePage(Struct, Generic[E], frozen=True):
    """The SDK reads `EpisodePage[EpisodeRecord]`: a record leaves out what the SDK does not show."""

    episodes: list[E]
    next_cursor: str | None


class EpisodeList(EpisodePage[EpisodeAnswer], frozen=True):
    """The page that the server writes."""


class ChangeTags(Struct, frozen=True, kw_only=True):
    add: Tags = []
    remove: Tags = []


class EpisodeDeleted(Struct, frozen=True):
    id: str
    deleted: Literal[True] = True
