"""RldsDataset: the splits and shards of a dataset, from dataset_info.json, and the records in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.adapters.rlds.features import FEATURES_FILE, Features, read_features
from rollbook.adapters.rlds.tfrecord import Record, Shard, read_shard
from rollbook.adapters.steps.json_file import count_in, read_object
from rollbook.errors import (
    ConfigurationError,
    CountMismatch,
    DamagedRecording,
    UnknownFormat,
    UnsupportedVersion,
)

INFO_FILE = "dataset_info.json"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_MOST_SHARDS = 100_000


@dataclass(frozen=True, slots=True)
class Episode:
    index: int
    key: str
    split: str
    record: Record
    declared: int | None
    """Records that its shard declares."""
    found: int
    """Records that its shard holds."""


@dataclass(frozen=True, slots=True)
class RldsDataset:
    folder: Path
    name: str
    version: str
    features: Features
    episodes: tuple[Episode, ...]
    damage: tuple[str, ...]
    """Shards that are cut off, one sentence each."""
    files: tuple[Path, ...]
    stray: tuple[Path, ...]
    """Shards in the folder that no chosen split names."""
    counted: bool
    """Whether the dataset declares how many records its shards hold."""


def read_dataset(folder: Path, splits: Sequence[str] | None) -> RldsDataset:
    if not (folder / FEATURES_FILE).is_file() or not (folder / INFO_FILE).is_file():
        raise UnknownFormat(path=str(folder), detail=_missing(folder))
    path = folder / INFO_FILE
    info = read_object(path)
    form = str(info.get("fileFormat", "tfrecord"))
    if form != "tfrecord":
        detail = f"its files are of the format {form[:40]!r}; only tfrecord is read"
        raise UnsupportedVersion(path=str(path), detail=detail)
    name = str(info.get("name") or folder.resolve().parent.name)
    chosen = list(_chosen(path, info, splits))
    episodes: list[Episode] = []
    damage: list[str] = []
    shards: list[Path] = []
    for split in chosen:
        number = 0
        for shard_path, declared in _shards(path, name, split):
            shard = read_shard(_existing(shard_path, split, path))
            shards.append(shard_path)
            _check_records(shard, declared, damage)
            for record in shard.records:
                key = f"{split['name']}_{number}"
                found = len(shard.records)
                episode = Episode(len(episodes), key, split["name"], record, declared, found)
                episodes.append(episode)
                number += 1
    here = sorted(folder.glob("*.tfrecord*"))
    return RldsDataset(
        folder=folder,
        name=name,
        version=str(info.get("version", "")),
        features=read_features(folder),
        episodes=tuple(episodes),
        damage=tuple(damage),
        files=(path, folder / FEATURES_FILE, *shards),
        stray=tuple(each for each in here if each not in shards),
        counted=all("shardLengths" in split for split in chosen),
    )


def _missing(folder: Path) -> str:
    if not folder.is_dir():
        return "it is not a folder"
    below = sorted(folder.glob(f"*/{FEATURES_FILE}"))
    hint = f"; {below[0].parent} has one" if below else ""
    return f"there is no {FEATURES_FILE} with a {INFO_FILE} in it{hint}"


def _chosen(
    path: Path, info: dict[str, Any], splits: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    stated = info.get("splits")
    right = isinstance(stated, list) and all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in stated
    )
    if not right or not stated:
        raise DamagedRecording(path=str(path), detail="it does not list its splits")
    known = {each["name"]: each for each in stated}
    for name in splits or ():
        if name not in known:
            message = f"{path.parent} has no split {name!r}; it has: {', '.join(known)}"
            raise ConfigurationError(message=message)
    yield from (known[name] for name in (known if splits is None else dict.fromkeys(splits)))


def _shards(path: Path, name: str, split: dict[str, Any]) -> Iterator[tuple[Path, int | None]]:
    """The shards of a split, each with the number of its records."""
    lengths = split.get("shardLengths")
    if lengths is None:
        total = count_in(split, "numShards", str(path))
        given: list[int | None] = [None] * min(total or 1, _MOST_SHARDS)
    elif isinstance(lengths, list) and len(lengths) <= _MOST_SHARDS:
        given = [count_in({"shardLengths": each}, "shardLengths", str(path)) for each in lengths]
    else:
        raise DamagedRecording(path=str(path), detail="shardLengths is not a list of numbers")
    template = split.get("filepathTemplate") or _TEMPLATE
    for number, length in enumerate(given):
        values = {
            "DATASET": name,
            "SPLIT": split["name"],
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": f"{number:05d}",
            "NUM_SHARDS": f"{len(given):05d}",
            "SHARD_X_OF_Y": f"{number:05d}-of-{len(given):05d}",
        }
        file = str(template)
        for word, value in values.items():
            file = file.replace(f"{{{word}}}", value)
        if Path(file).name != file or not file.isprintable():
            detail = f"a shard is called {file[:80]!r}, which is not the name of a file"
            raise DamagedRecording(path=str(path), detail=detail)
        yield path.parent / file, length


def _existing(shard: Path, split: dict[str, Any], path: Path) -> Path:
    if not shard.is_file():
        count = len(split.get("shardLengths") or [None])
        there = len(list(path.parent.glob(f"*-{split['name']}.tfrecord*")))
        raise CountMismatch(
            path=str(path),
            what=f"shards of the split {split['name']}",
            declared=count,
            read=there,
            detail=f"there is no {shard.name}",
        )
    return shard


def _check_records(shard: Shard, declared: int | None, damage: list[str]) -> None:
    """A file that ends in a record is imported up to there. Any other difference is an error."""
    found = len(shard.records)
    if shard.cut is not None and (declared is None or found < declared):
        lost = "" if declared is None else f"; {declared - found} of {declared} episodes are lost"
        damage.append(f"{shard.path.name}: {shard.cut}{lost}")
    elif declared is not None and found != declared:
        raise CountMismatch(
            path=str(shard.path),
            what="episodes",
            declared=declared,
            read=found,
            detail=f"{INFO_FILE} says how many there have to be",
        )
    elif shard.cut is not None:
        raise DamagedRecording(path=str(shard.path), detail=shard.cut)
