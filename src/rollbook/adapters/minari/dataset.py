"""MinariDataset: the description of a dataset, in data/metadata.json, and its episodes without their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.adapters.minari.arrow_storage import ArrowStorage
from rollbook.adapters.minari.environment import RecordedEnvironment
from rollbook.adapters.minari.hdf5_storage import FILE, Hdf5Storage
from rollbook.adapters.minari.spaces import SpaceLeaf, UnreadableLeaf, space_leaves
from rollbook.adapters.minari.storage import Storage, StoredEpisode
from rollbook.adapters.steps.json_file import count_in, parse_object, read_object
from rollbook.errors import CountMismatch, DamagedRecording, UnknownFormat, UnsupportedVersion

METADATA = "metadata.json"


@dataclass(frozen=True, slots=True)
class MinariDataset:
    folder: Path
    """With the files: `data` in the folder of the dataset."""
    name: str
    version: str | None
    """Of the Minari that wrote it."""
    storage: Storage
    episodes: tuple[StoredEpisode, ...]
    observation: tuple[SpaceLeaf, ...]
    action: tuple[SpaceLeaf, ...]
    unreadable: tuple[UnreadableLeaf, ...]
    spaces: Mapping[str, Any]
    """`observation` and `action`, as JSON."""
    encoded: bool
    """Whether pictures are stored as JPEG."""
    environment: RecordedEnvironment | None
    about: Mapping[str, Any]


def data_folder(path: Path) -> Path | None:
    """Where the files of a dataset lie, if the path is one."""
    return next((each for each in (path / "data", path) if (each / METADATA).is_file()), None)


def read_dataset(path: Path) -> MinariDataset:
    folder = data_folder(path)
    if folder is None:
        hint = ""
        if (path / FILE).is_file() or (path / "data" / FILE).is_file():
            hint = "; Minari before version 0.5 wrote none: `minari` itself can convert it"
        detail = f"there is no {METADATA} in it or in data/{hint}"
        raise UnknownFormat(path=str(path), detail=detail)
    place = str(folder / METADATA)
    stated = read_object(folder / METADATA)
    if "data_format" not in stated:
        raise UnknownFormat(path=place, detail="it has no data_format: it is not of Minari")
    spaces = {name: _space(stated, f"{name}_space", place) for name in ("observation", "action")}
    leaves = {name: space_leaves(name, each, place) for name, each in spaces.items()}
    storage = _storage(folder, str(stated["data_format"]), place)
    episodes = tuple(storage.episodes())
    _check_totals(stated, episodes, place)
    return MinariDataset(
        folder=folder,
        name=str(stated.get("dataset_id") or path.resolve().name),
        version=_text(stated.get("minari_version")),
        storage=storage,
        episodes=episodes,
        observation=tuple(each for each in leaves["observation"] if isinstance(each, SpaceLeaf)),
        action=tuple(each for each in leaves["action"] if isinstance(each, SpaceLeaf)),
        unreadable=tuple(
            each
            for all_of in leaves.values()
            for each in all_of
            if isinstance(each, UnreadableLeaf)
        ),
        spaces=spaces,
        encoded=bool(stated.get("jpeg_encoding", True)),
        environment=RecordedEnvironment.of(stated.get("env_spec"), place),
        about={
            key: stated[key]
            for key in ("data_format", "minari_version", "algorithm_name", "author", "description")
            if isinstance(stated.get(key), str | list)
        },
    )


def _space(stated: Mapping[str, Any], key: str, place: str) -> Any:
    """A missing space would have to be asked from the environment, which is never made for an import."""
    text = stated.get(key)
    if not isinstance(text, str):
        raise DamagedRecording(path=place, detail=f"it has no {key}")
    return parse_object(text, f"{place} ({key})")


def _storage(folder: Path, data_format: str, place: str) -> Storage:
    if data_format == "hdf5":
        if not (folder / FILE).is_file():
            raise DamagedRecording(path=str(folder), detail=f"there is no {FILE} in it")
        return Hdf5Storage(folder)
    if data_format in ("arrow", "parquet"):
        return ArrowStorage(folder, suffix=data_format)
    detail = f"its data_format is {data_format[:40]!r}; hdf5, arrow and parquet are read"
    raise UnsupportedVersion(path=place, detail=detail)


def _check_totals(stated: dict[str, Any], episodes: tuple[StoredEpisode, ...], place: str) -> None:
    steps = [each.steps for each in episodes if each.steps is not None]
    read = {"total_episodes": len(episodes)}
    if len(steps) == len(episodes):
        read["total_steps"] = sum(steps)
    for key, found in read.items():
        declared = count_in(stated, key, place)
        if declared is not None and declared != found:
            raise CountMismatch(
                path=place,
                what=key.removeprefix("total_"),
                declared=declared,
                read=found,
                detail=f"{key} is not what the episodes add up to",
            )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
