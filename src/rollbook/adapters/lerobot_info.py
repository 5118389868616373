"""LeRobotInfo: what meta/info.json says a dataset is, and where it says its files are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rollbook.adapters.video import checked_rate
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
"""Where files are in a dataset that does not say so itself."""
_CAMERA_TYPES = ("video", "image")


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    dtype: str
    shape: tuple[int, ...]
    channels: tuple[str, ...]
    """What each number in it is called; empty when nobody said."""

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

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(name for name, feature in self.features.items() if feature.is_camera)

    @property
    def films(self) -> tuple[str, ...]:
        """Cameras whose frames are in mp4 files; those of the others lie in the tables."""
        return tuple(name for name in self.cameras if self.features[name].dtype == "video")

    def data_file(self, **values: int) -> Path:
        return self._file("data_path", self.data_path, values)

    def video_file(self, camera: str, **values: int) -> Path:
        return self._file("video_path", self.video_path, {"video_key": camera, **values})

    def _file(self, key: str, template: str, values: Mapping[str, int | str]) -> Path:
        """A template is somebody else's: only plain fields are filled in, and what comes out stays in the dataset."""

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


def read_info(root: Path) -> LeRobotInfo:
    path = root / "meta" / "info.json"
    said = _json_object(path)
    major, version = _version(root, said)
    fields = _Fields(path, said)
    features = fields.mapping("features")
    return LeRobotInfo(
        root=root,
        version=version,
        major=major,
        fps=checked_rate(fields.need("fps")),
        robot=fields.text("robot_type", None),
        chunks_size=fields.count("chunks_size", 1000),
        data_path=fields.text("data_path", None) or _DATA_PATHS[major],
        video_path=fields.text("video_path", None) or _VIDEO_PATHS[major],
        features={name: _feature(path, name, each) for name, each in features.items()},
    )


def _json_object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise StorageError(path=str(path), detail=f"larger than {_LARGEST_JSON} bytes")
        said = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        message = f"{path.parent.parent} is not a LeRobot dataset: there is no meta/info.json in it"
        raise ConfigurationError(message=message) from error
    except OSError as error:
        raise StorageError(path=str(path), detail=f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _malformed(path, "$", f"not JSON ({error})") from error
    if not isinstance(said, dict):
        raise _malformed(path, "$", "not an object")
    return said


def _version(root: Path, said: Mapping[str, Any]) -> tuple[int, str]:
    version = said.get("codebase_version")
    found = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if found is None or int(found[1]) not in MAJORS:
        message = (
            f"{root} is a LeRobot dataset of version {version!r}; versions 2 and 3 can be read"
        )
        hint = "convert it with LeRobot's own scripts, or update rollbook"
        raise ConfigurationError(message=f"{message}: {hint}")
    return int(found[1]), found[0]


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of an object, each checked as it is taken."""

    path: Path
    said: Mapping[str, Any]

    def need(self, name: str) -> Any:
        if name not in self.said:
            raise _malformed(self.path, f"$.{name}", "missing")
        return self.said[name]

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.need(name)
        if not isinstance(value, dict):
            raise _malformed(self.path, f"$.{name}", "not an object")
        return value

    def text(self, name: str, default: str | None) -> str | None:
        value = self.said.get(name)
        if value is not None and not isinstance(value, str):
            raise _malformed(self.path, f"$.{name}", "not text")
        return default if value is None else value

    def count(self, name: str, default: int) -> int:
        value = self.said.get(name, default)
        if type(value) is not int or value < 1:
            raise _malformed(self.path, f"$.{name}", "not a whole number above 0")
        return value


def _feature(path: Path, name: str, said: Any) -> Feature:
    where = f"$.features.{name}"
    if not isinstance(said, dict) or not isinstance(said.get("dtype"), str):
        raise _malformed(path, where, "without a dtype")
    shape = said.get("shape") or []
    if not isinstance(shape, list) or not all(type(length) is int for length in shape):
        raise _malformed(path, f"{where}.shape", "not a list of whole numbers")
    return Feature(name, said["dtype"], tuple(shape), tuple(_channels(said.get("names"))))


def _channels(names: Any) -> list[str]:
    """A list, or lists by group, as in `{"motors": ["waist", …]}`."""
    if isinstance(names, dict):
        return [each for group in names.values() for each in _channels(group)]
    return [each for each in names if isinstance(each, str)] if isinstance(names, list) else []


def _malformed(path: Path, where: str, detail: str) -> MalformedJson:
    return MalformedJson(source=str(path), record_id=None, where=where, detail=detail)
