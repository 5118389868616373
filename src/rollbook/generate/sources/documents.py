"""The documents of a source store: manifest, index and scenes. Each is compared with its digest when it is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from rollbook.digest import digest_of
from rollbook.errors import ChecksumMismatch, NotASourceStore, StorageError, UnsupportedVersion
from rollbook.files import AnyPath
from rollbook.generate.sources.layout import (
    MANIFEST_FILE,
    MESH_COLUMNS,
    SAFE_ID,
    SCHEMA_ID,
    SCHEMA_VERSION,
    TABLES,
    Column,
    mesh_path,
)

_MANIFEST_DOMAIN = "rollbook.source_manifest.v1"
_CONFIG_DOMAIN = "rollbook.source_config.v1"
_CONTENT_DOMAIN = "rollbook.source_content.v1"

T = TypeVar("T")

# ids become parts of paths, so the ids in a store's documents are checked
Sha256: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
SafeId: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"^{SAFE_ID}\Z")]
ShardId: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^shard-[0-9]{6,12}\Z")]
Split: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^(train|val|test)\Z")]


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of index.jsonl: a row, its place, and the digests of its content."""

    sample_index: int
    sample_key: str
    scene_id: SafeId
    snippet_id: SafeId
    split: Split
    shard_id: ShardId
    row: int
    """Position in its shard."""
    actor_sha256: Sha256
    oracle_sha256: Sha256
    row_sha256: Sha256


class SceneGeometryFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of oracle/scenes.jsonl."""

    scene_id: SafeId
    mesh_sha256: Sha256
    vertices: int
    faces: int
    bounds: list[list[float]]
    recipe: dict[str, Any] | None
    """Generator and config of a procedural scene; None for an imported scene."""


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    shard_id: ShardId
    first_sample_index: int
    rows: int


class SceneEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    scene_id: SafeId
    split: Split
    rows: int
    mesh_sha256: Sha256
    notes: dict[str, str]
    """Facts about the origin of the scene that matter to its users, for example simulated points."""


class SourceManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """manifest.json. It holds no time and no path, so equal content gives equal bytes."""

    schema_id: str
    schema_version: str
    created_by: str
    kind: str
    """`procedural`, `import`, or another name that the caller of the writer gives."""
    config: dict[str, Any]
    config_sha256: str
    counts: dict[str, int]
    rows_per_shard: Annotated[int, msgspec.Meta(ge=1)]
    shards: list[ShardEntry]
    scenes: list[SceneEntry]
    split_manifest_hash: str
    content_sha256: str
    """Digest of keys, splits and row digests in order. It does not depend on the division into shards."""
    files: dict[str, str]
    """SHA-256 of the bytes of the other documents."""
    manifest_digest: str = ""

    def arrays(self) -> dict[str, Column]:
        """The path of every array that the store must have, with its column."""
        found: dict[str, Column] = {}
        for shard in self.shards:
            for table in TABLES:
                found |= table.paths(shard.shard_id)
        for sha256 in {scene.mesh_sha256 for scene in self.scenes}:
            found |= {mesh_path(sha256, column.name): column for column in MESH_COLUMNS}
        return found

    def computed_digest(self) -> str:
        payload = msgspec.to_builtins(self)
        del payload["manifest_digest"]
        return digest_of(_MANIFEST_DOMAIN, payload)


def config_sha256(config: Mapping[str, Any]) -> str:
    return digest_of(_CONFIG_DOMAIN, config)


def content_sha256(entries: Iterable[SourceEntry]) -> str:
    rows = [[each.sample_key, each.split, each.row_sha256] for each in entries]
    return digest_of(_CONTENT_DOMAIN, rows)


# ---------------------------------------------------------------------------------------- reading


def read_manifest(folder: Path) -> SourceManifest:
    """Refuses a folder that is not a source store, has another version, or has a changed manifest."""
    if not (folder / MANIFEST_FILE).is_file():
        detail = f"there is no {MANIFEST_FILE} in it" if folder.exists() else "it does not exist"
        raise NotASourceStore(path=str(folder), detail=detail)
    return decoded_manifest(read_document(folder, MANIFEST_FILE), folder)


def decoded_manifest(data: bytes, place: AnyPath) -> SourceManifest:
    """The manifest of the store at a path or URL, from its bytes."""
    try:
        parsed = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotASourceStore(path=str(place), detail=f"{MANIFEST_FILE}: {error}") from error
    schema_id = parsed.get("schema_id") if isinstance(parsed, dict) else None
    if schema_id != SCHEMA_ID:
        detail = f"its schema is {schema_id!r}, expected {SCHEMA_ID!r}"
        raise NotASourceStore(path=str(place), detail=detail)
    if parsed.get("schema_version") != SCHEMA_VERSION:
        raise UnsupportedVersion.of(place, parsed.get("schema_version"), SCHEMA_VERSION)
    manifest = decoded(SourceManifest, data, place, MANIFEST_FILE)
    if manifest.computed_digest() != manifest.manifest_digest:
        detail = f"{MANIFEST_FILE} is not the one the store was finished with"
        raise ChecksumMismatch(path=str(place), detail=detail)
    return manifest


def sealed_bytes(folder: Path, manifest: SourceManifest, name: str) -> bytes:
    """The bytes of a document, compared with the digest in the manifest."""
    data = read_document(folder, name)
    check_document(manifest, name, data, folder)
    return data


def check_document(manifest: SourceManifest, name: str, data: bytes, place: AnyPath) -> None:
    if hashlib.sha256(data).hexdigest() != manifest.files.get(name):
        detail = f"{name} is not the one the store was finished with"
        raise ChecksumMismatch(path=str(place), detail=detail)


def read_document(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        detail = f"{name} cannot be read ({error.strerror or error})"
        raise StorageError(path=str(folder), detail=detail) from error


def decoded(kind: type[T], data: bytes, place: AnyPath, name: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotASourceStore(path=str(place), detail=f"{name}: {error}") from error


def decoded_lines(kind: type[T], data: bytes, place: AnyPath, name: str) -> list[T]:
    try:
        return msgspec.json.Decoder(kind).decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotASourceStore(path=str(place), detail=f"{name}: {error}") from error
