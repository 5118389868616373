"""Rows as they leave the database: frozen and free of SQL. Times are microseconds since 1970."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import sqlalchemy as sa
from msgspec import UNSET, UnsetType

from rollbook.contracts.episode import ArtifactKind, EpisodeSource, EpisodeStatus
from rollbook.contracts.policy import PolicyRevision

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")
AnyRow: TypeAlias = "sa.Row[*tuple[Any, ...]]"


def row_as(cls: type[R], row: AnyRow, **more: object) -> R:
    """An instance of `cls` from the columns it names. `more` holds fields that are not in the row."""
    found = row._mapping
    return cls(**{name: found[name] for name in _names_of(cls) if name not in more}, **more)


def rows_as(
    cls: type[R], rows: Sequence[AnyRow], more: Callable[[AnyRow], dict[str, Any]]
) -> list[R]:
    """The same for all rows of one query: the positions of the columns are looked up once."""
    if not rows:
        return []
    names = [name for name in _names_of(cls) if name not in more(rows[0])]
    picked = itemgetter(*map(rows[0]._fields.index, names))
    return [cls(**dict(zip(names, picked(row), strict=True)), **more(row)) for row in rows]


_columns: dict[type, tuple[str, ...]] = {}
"""The field names of each row class, looked up once."""


def _names_of(cls: type[R]) -> tuple[str, ...]:
    names = _columns.get(cls)
    if names is None:
        names = _columns[cls] = tuple(each.name for each in fields(cls))
    return names


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    episode_id: str
    kind: ArtifactKind
    object_key: str
    content_type: str
    status: str
    size: int | None
    sha256: str | None
    claimed_sha256: str | None
    playable: bool | None
    detail: str | None
    requested_at_us: int
    uploaded_at_us: int | None
    etag: str | None
    """With size and time, tells checked bytes from bytes that replaced them."""
    rendition: str | None
    """For a video that browsers do not play: the state of its copy, `pending`, `ready` or `failed`."""
    rendition_key: str | None
    rendition_tries: int | None


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    org_id: str
    id: str
    name: str | None
    source: EpisodeSource
    robot: str | None
    policy_version: str | None
    policy_revision_id: str | None
    env_version: str | None
    git_sha: str | None
    seed: int | None
    fps: float | None
    duration_s: float | None
    bytes_total: int | None
    status: EpisodeStatus
    failure_time_s: float | None
    metadata: dict[str, Any]
    tags: list[str]
    created_by: str | None
    created_at_us: int
    updated_at_us: int
    finalized_at_us: int | None
    abandoned_at_us: int | None
    """When the server gave the recording up because nobody finalized it. Its owner still may."""
    archived_at_us: int | None
    archived_from: str | None
    """The status that a restored episode returns to."""
    artifacts: tuple[ArtifactRow, ...]
    replayed: bool = False
    """This episode is the answer to a repeated create."""
    policy_revision: PolicyRevision | UnsetType = UNSET
    """What `policy_revision_id` names, where the row was read to be shown."""


@dataclass(frozen=True, slots=True)
class UploadRow:
    id: str
    episode_id: str
    kind: ArtifactKind
    object_key: str
    store_id: str | None
    size: int
    part_size: int
    sha256: str | None
    created_at_us: int
    completed_at_us: int | None


@dataclass(frozen=True, slots=True)
class PartRow:
    number: int
    size: int
    etag: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class DoomedObject:
    """A blob without an episode. With a `store_id`, the multipart upload of that name has to be aborted."""

    object_key: str
    store_id: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    episodes: int
    bytes: int
    quota_episodes: int | None
    """None: the limit of the server's settings."""
    quota_bytes: int | None


@dataclass(frozen=True, slots=True)
class OrganisationRow:
    id: str
    name: str
    quota_bytes: int | None
    quota_episodes: int | None
    created_at_us: int


@dataclass(frozen=True, slots=True)
class UserRow:
    id: str
    email: str
    name: str | None
    password_hash: str | None
    created_at_us: int


@dataclass(frozen=True, slots=True)
class MemberRow:
    user_id: str
    email: str
    name: str | None
    role: str
    created_at_us: int


@dataclass(frozen=True, slots=True)
class MembershipRow:
    """One organisation of a user, and the user's role there."""

    org_id: str
    org_name: str
    role: str


@dataclass(frozen=True, slots=True)
class InvitationRow:
    org_id: str
    id: str
    email: str
    role: str
    invited_by: str | None
    created_at_us: int
    expires_at_us: int
    accepted_at_us: int | None


@dataclass(frozen=True, slots=True)
class KeyRow:
    key_id: str
    org_id: str
    prefix: str
    secret_hash: str
    label: str | None
    created_by: str | None
    created_at_us: int
    last_used_at_us: int | None
    revoked_at_us: int | None


@dataclass(frozen=True, slots=True)
class SessionRow:
    token_hash: str
    user_id: str
    org_id: str
    csrf_token: str
    created_at_us: int
    expires_at_us: int


@dataclass(frozen=True, slots=True)
class DeviceLoginRow:
    user_code: str
    status: str
    hostname: str | None
    user_agent: str | None
    ip: str | None
    user_id: str | None
    org_id: str | None
    key_id: str | None
    created_at_us: int
    expires_at_us: int


@dataclass(frozen=True, slots=True)
class AuditRow:
    id: int
    event: str
    actor: str | None
    subject: str | None
    detail: dict[str, Any]
    ip: str | None
    at_us: int
