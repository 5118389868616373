"""manifest.json: what a store contains, how it was made, and size and checksum of every file. It is written last."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from rollbook.digest import digest_of, sha256
from rollbook.errors import ChecksumMismatch, ConfigurationError, StorageError
from rollbook.moment import now_ms

ROLLOUT_MANIFEST_FILENAME = "manifest.json"
ROLLOUT_MANIFEST_VERSION = "rollout-store-manifest-v1"
ROLLOUT_SHARD_OWNER_FILENAME = "_owner.json"
ROLLOUT_SHARD_SUCCESS_FILENAME = "_SUCCESS.json"
SHARD_SIDECARS = frozenset({ROLLOUT_SHARD_OWNER_FILENAME, ROLLOUT_SHARD_SUCCESS_FILENAME})
"""Files that a campaign writes into the folder of a finished shard. They are about the store, and no part of it."""
STORE_KIND = "standalone_rollout_zarr_shard"
_CONTENT_DOMAIN = "rollbook.rollout_store_content.v1"
_PACKAGES = ("rollbook", "numpy", "zarr", "msgspec", "xxhash")

FileSums = Mapping[str, tuple[int, str]]
"""Path in the store → size and checksum."""


@dataclass(frozen=True, slots=True)
class RolloutStoreInvocation:
    """How the run that made a store was started."""

    mode: Literal["programmatic", "cli"] = "programmatic"
    argv: tuple[str, ...] = ()
    config_path: str | None = None
    raw_toml_text: str | None = None
    raw_toml_sha256: str | None = None

    @classmethod
    def programmatic(cls) -> RolloutStoreInvocation:
        return cls()

    @classmethod
    def from_cli(
        cls, *, argv: tuple[str, ...] | list[str], config_path: Path
    ) -> RolloutStoreInvocation:
        """Keep the text of the config file, because the file may be edited later."""
        path = Path(config_path).resolve()
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(message=f"{path} cannot be read: {error}") from error
        digest = sha256(text.encode()).hexdigest()
        return cls("cli", tuple(argv), str(path), text, digest)

    def to_jsonable(self) -> dict[str, Any]:
        return {**asdict(self), "argv": list(self.argv)}


@dataclass(frozen=True, slots=True)
class RolloutStoreManifestContext:
    """Facts about a run that are not in its records."""

    writer_config: Mapping[str, Any] | None = None
    invocation: RolloutStoreInvocation = field(default_factory=RolloutStoreInvocation)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    shard: Mapping[str, Any] | None = None

    @classmethod
    def programmatic(
        cls, *, writer_config: Mapping[str, Any] | None = None
    ) -> RolloutStoreManifestContext:
        return cls(writer_config=writer_config, runtime=collect_runtime_provenance())

    @classmethod
    def from_cli(
        cls,
        *,
        writer_config: Mapping[str, Any] | None,
        argv: tuple[str, ...] | list[str],
        config_path: Path,
    ) -> RolloutStoreManifestContext:
        return cls(
            writer_config=writer_config,
            invocation=RolloutStoreInvocation.from_cli(argv=argv, config_path=config_path),
            runtime=collect_runtime_provenance(),
        )

    def to_jsonable(self) -> dict[str, Any]:
        return {
            "writer_config": None if self.writer_config is None else dict(self.writer_config),
            "invocation": self.invocation.to_jsonable(),
            "runtime": dict(self.runtime),
            "shard": None if self.shard is None else dict(self.shard),
        }


def collect_runtime_provenance(folder: Path | None = None) -> dict[str, Any]:
    """Versions and the state of the code. Environment variables are left out: they may hold secrets."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": _git_state(folder or Path.cwd()),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_state(folder: Path) -> dict[str, Any]:
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"available": False}
    changes = (_git(folder, "status", "--porcelain") or "").splitlines()
    return {
        "available": True,
        "commit": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": bool(changes),
        "dirty_path_count": len(changes),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    # without the lock that `status` takes to refresh its index: a killed run would leave the repository locked
    command = ["git", "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def utc_timestamp() -> str:
    return _timestamp(datetime.now(UTC))


def created_timestamp() -> str:
    """The time that a manifest states; SOURCE_DATE_EPOCH replaces it."""
    return _timestamp(datetime.fromtimestamp(now_ms() // 1000, UTC))


def _timestamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def json_bytes(payload: Mapping[str, Any], what: str) -> bytes:
    """Canonical JSON: sorted keys, indented, ASCII, no NaN."""
    try:
        text = json.dumps(payload, indent=2, sort_keys=True, ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            message=f"{what} cannot be written as standard JSON: {error}"
        ) from error
    return text.encode() + b"\n"


def manifest_sha256(payload: Mapping[str, Any]) -> str:
    return sha256(json_bytes(payload, "the manifest")).hexdigest()


def content_sha256(files: FileSums) -> str:
    """Address of the content. It depends on the files only, not on when or by whom they were written."""
    return digest_of(_CONTENT_DOMAIN, [[path, *files[path]] for path in sorted(files)])


def group_metadata(attrs: Mapping[str, Any]) -> bytes:
    """The zarr.json of a group: of a table, or of the store itself."""
    return json_bytes(
        {"zarr_format": 3, "node_type": "group", "attributes": dict(attrs)}, "attributes"
    )


def refuse_outside_paths(place: str, paths: Iterable[str]) -> None:
    """Paths of a manifest become local paths, so none may leave the folder of the store."""
    for path in paths:
        if "\\" in path or "\0" in path or set(path.split("/")) & {"", ".", ".."}:
            detail = f"manifest.json lists a file outside of the store: {path!r}"
            raise StorageError(path=place, detail=detail)


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """A manifest that matches the root attributes of its store."""

    store_dir: Path
    payload: Mapping[str, Any]
    root_attrs: Mapping[str, Any]
    """The attributes of the root group, including `manifest_sha256`."""

    @property
    def files(self) -> FileSums:
        return {path: (size, digest) for path, (size, digest) in self.payload["files"].items()}


def stated_source(manifest: Mapping[str, Any]) -> str | None:
    """The place of the source store, as the config of the writer states it."""
    found: Any = manifest
    for key in ("generation", "writer_config", "source", "store_dir"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) and found else None


def read_manifest(store_dir: Path) -> StoreManifest:
    """Read the manifest. Refuses a folder that is not a store, is not complete, or has the manifest of another."""
    root_bytes, root = _read_json(store_dir, "zarr.json", "it is not a rollout store")
    attrs = root.get("attributes")
    if not isinstance(attrs, dict) or "manifest_sha256" not in attrs:
        raise StorageError(
            path=str(store_dir), detail="it is not a rollout store: no manifest is named in it"
        )
    data, payload = _read_json(store_dir, ROLLOUT_MANIFEST_FILENAME, "it is not complete")
    if sha256(data).hexdigest() != attrs["manifest_sha256"]:
        raise ChecksumMismatch(
            path=str(store_dir), detail="manifest.json is not the one the store was finished with"
        )
    described = payload.get("root_attrs")
    if not isinstance(described, dict) or not isinstance(payload.get("files"), dict):
        raise StorageError(
            path=str(store_dir), detail="manifest.json names no root attributes or no files"
        )
    expected = group_metadata({**described, "manifest_sha256": attrs["manifest_sha256"]})
    if root_bytes != expected:
        raise ChecksumMismatch(
            path=str(store_dir),
            detail="the root attributes are not those the store was finished with",
        )
    return StoreManifest(store_dir, payload, attrs)


def _read_json(store_dir: Path, name: str, otherwise: str) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a file and its JSON object."""
    try:
        data = (store_dir / name).read_bytes()
        payload = json.loads(data)
    except FileNotFoundError as error:
        raise StorageError(
            path=str(store_dir), detail=f"{otherwise}: there is no {name}"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(path=str(store_dir), detail=f"{name} cannot be read: {error}") from error
    if not isinstance(payload, dict):
        raise StorageError(path=str(store_dir), detail=f"{name} is not a JSON object")
    return data, payload
