"""LeRobotInfo: the description of a dataset in meta/info.json, and the paths of its files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

import msgspec

from rollbook.client.video import checked_rate
from rollbook.errors import ConfigurationError, MalformedJson, StorageError

MAJORS = (2, 3)
_LARGEST_JSON = 64 << 20
_VERSION = re.compile(r"v?(\d{1,3})(\.\d{1,3}){0,2}")
_FIELD = re.compile(r"\{([a-z_]+)(?::(\d{0,2}d))?\}")
_DATA_PATHS = {
    2: "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    3: "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
_VIDEO_PATHS = {
    2: "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    3: "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}
"""Paths in a dataset that does not declare its own."""
_CAMERA_TYPES = ("video", "image")
_MISSING = re.compile(r"missing required field `(\w+)`")
_Fields = TypeVar("_Fields", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    dtype: str
    shape: tuple[int, ...]
    channels: tuple[str, ...]
    """Names of its numbers; empty where the dataset does not give them."""

    @property
    def is_camera(self) -> bool:
        return self.dtype in _CAMERA_TYPES


@dataclass(frozen=True, slots=True)
class LeRobotInfo:
    root: Path
    version: str
    major: int
    fps: float
    robot: str | None
    chunks_size: int
    data_path: str
    video_path: str
    features: Mapping[str, Feature]
    declared_episodes: int | None = None
    declared_frames: int | None = None
    """Totals that info.json states; None where it does not."""

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(name for name, feature in self.features.items() if feature.is_camera)

    @property
    def video_cameras(self) -> tuple[str, ...]:
        """Cameras whose frames are in mp4 files. The pictures of the others are in the tables."""
        return tuple(name for name in self.cameras if self.features[name].dtype == "video")

    def data_file(self, **values: int) -> Path:
        return self._file("data_path", self.data_path, values)

    def video_file(self, camera: str, **values: int) -> Path:
        return self._file("video_path", self.video_path, {"video_key": camera, **values})

    def _file(self, key: str, template: str, values: Mapping[str, int | str]) -> Path:
        """Templates are not trusted: only plain fields are filled in, and the path has to stay inside the dataset."""

        def filled(found: re.Match[str]) -> str:
            name, form = found[1], found[2]
            if name not in values:
                known = ", ".join(values)
                raise self._refused(key, f"{found[0]} is not one of the known fields ({known})")
            value = values[name]
            return format(value, form or "d") if isinstance(value, int) else value

        if re.search(r"[{}]", _FIELD.sub("", template)):
            raise self._refused(key, f"{template!r} has fields of another form than {{name:03d}}")
        relative = _FIELD.sub(filled, template)
        parts = PurePosixPath(relative).parts
        if not parts or parts[0] == "/" or ".." in parts or "\\" in relative or "\0" in relative:
            raise self._refused(key, f"{relative!r} leads out of the dataset")
        return self.root.joinpath(*parts)

    def _refused(self, key: str, detail: str) -> ConfigurationError:
        return ConfigurationError(message=f"{self.root}: {key} in meta/info.json: {detail}")


class _FeatureFields(msgspec.Struct):
    dtype: str
    shape: list[int] | None = None
    names: Any = None


class _InfoFields(msgspec.Struct):
    fps: Any
    features: dict[str, Any]
    robot_type: str | None = None
    chunks_size: Annotated[int, msgspec.Meta(ge=1)] = 1000
    data_path: str | None = None
    video_path: str | None = None
    total_episodes: int | None = None
    total_frames: int | None = None


def read_info(root: Path) -> LeRobotInfo:
    path = root / "meta" / "info.json"
    stated = _json_object(path)
    major, version = _version(root, stated)
    fields = _converted(path, "$", stated, _InfoFields)
    return LeRobotInfo(
        root=root,
        version=version,
        major=major,
        fps=checked_rate(fields.fps),
        robot=fields.robot_type,
        chunks_size=fields.chunks_size,
        data_path=fields.data_path or _DATA_PATHS[major],
        video_path=fields.video_path or _VIDEO_PATHS[major],
        features={name: _feature(path, name, each) for name, each in fields.features.items()},
        declared_episodes=fields.total_episodes,
        declared_frames=fields.total_frames,
    )


def _json_object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise StorageError(path=str(path), detail=f"larger than {_LARGEST_JSON} bytes")
        stated = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        message = f"{path.parent.parent} is not a LeRobot dataset: there is no meta/info.json in it"
        raise ConfigurationError(message=message) from error
    except OSError as error:
        raise StorageError(path=str(path), detail=f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise malformed(path, "$", f"not JSON ({error})") from error
    if not isinstance(stated, dict):
        raise malformed(path, "$", "not an object")
    return stated


def _version(root: Path, stated: Mapping[str, Any]) -> tuple[int, str]:
    version = stated.get("codebase_version")
    found = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if found is None or int(found[1]) not in MAJORS:
        raise ConfigurationError(
            message=f"{root} is a LeRobot dataset of version {version!r}; versions 2 and 3 can be read: "
            "convert it with LeRobot's own scripts, or update rollbook"
        )
    return int(found[1]), found[0]


def _converted(path: Path, where: str, value: object, fields: type[_Fields]) -> _Fields:
    try:
        return msgspec.convert(value, fields)
    except msgspec.ValidationError as error:
        detail, _, place = str(error).partition(" - at ")
        missing = _MISSING.search(detail)
        name = f".{missing[1]}" if missing else place.strip("`").removeprefix("$")
        raise malformed(path, where + name, detail) from error


def _feature(path: Path, name: str, stated: object) -> Feature:
    fields = _converted(path, f"$.features.{name}", stated, _FeatureFields)
    return Feature(name, fields.dtype, tuple(fields.shape or ()), tuple(_channels(fields.names)))


def _channels(names: Any) -> list[str]:
    """From a list, or from lists by group, as in `{"motors": ["waist", …]}`."""
    if isinstance(names, dict):
        return [each for group in names.values() for each in _channels(group)]
    return [each for each in names if isinstance(each, str)] if isinstance(names, list) else []


def malformed(path: Path, where: str, detail: str) -> MalformedJson:
    return MalformedJson(source=str(path), record_id=None, where=where, detail=detail)
