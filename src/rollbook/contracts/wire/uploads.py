"""Upload URLs of artifacts, and resumable uploads in parts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.wire.limits import MOST_PARTS

Kinds: TypeAlias = Annotated[list[ArtifactKind], Meta(max_length=16)]
Sha256: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
Size: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
PartNumber: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_PARTS)]

_EXPIRES_SOON_S = 30


class UploadUrl(Struct, frozen=True):
    kind: ArtifactKind
    url: str
    """Signed: whoever has it can upload, so `repr` does not show it."""
    expires_at: str
    public_url: str | None = None

    @property
    def expires_soon(self) -> bool:
        """Whether less than 30 s are left by the clock of this machine. False if `expires_at` is not a time."""
        try:
            ends = datetime.fromisoformat(self.expires_at)
        except ValueError:
            return False
        ends = ends if ends.tzinfo else ends.replace(tzinfo=UTC)
        return (ends - datetime.now(UTC)).total_seconds() < _EXPIRES_SOON_S

    def __repr__(self) -> str:
        return f"UploadUrl(kind={self.kind!r}, expires_at={self.expires_at!r}, public_url={self.public_url!r})"


class RequestUrls(Struct, frozen=True):
    request_uploads: Kinds | None = None
    """None: every artifact whose bytes have not arrived."""


class UrlsMinted(Struct, frozen=True):
    episode_id: str
    storage: Literal["r2", "unconfigured"]
    upload_urls: list[UploadUrl]


class StartUpload(Struct, frozen=True, kw_only=True):
    kind: ArtifactKind
    size: Annotated[int, Meta(ge=1, le=2**62)]
    sha256: Sha256 | None = None
    part_size: Annotated[int, Meta(ge=1, le=5 << 30)] | None = None


class PartUrl(Struct, frozen=True):
    number: int
    url: str


class PartDone(Struct, frozen=True):
    number: int
    size: int


class UploadState(Struct, frozen=True):
    upload_id: str
    kind: ArtifactKind
    size: int
    part_size: int
    part_count: int
    parts: list[PartUrl]
    """URLs of parts that have not arrived. A very long list is cut; ask again when these parts are sent."""
    done: list[PartDone]
    expires_at: str
    completed: bool


class CompletedPart(Struct, frozen=True, kw_only=True):
    number: PartNumber
    sha256: Sha256 | None = None


class CompleteUpload(Struct, frozen=True, kw_only=True):
    parts: Annotated[list[CompletedPart], Meta(max_length=MOST_PARTS)] | None = None
    """None: every part that arrived."""
    sha256: Sha256 | None = None


class UploadCompleted(Struct, frozen=True):
    upload_id: str
    kind: ArtifactKind
    size: int
    sha256: str


class UploadAborted(Struct, frozen=True):
    upload_id: str
    aborted: Literal[True] = True
