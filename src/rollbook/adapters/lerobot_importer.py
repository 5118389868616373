"""LeRobotImporter: a LeRobot dataset of version 2 or 3 as a recording that the import engine reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollbook.adapters.encoded import EncodedEpisode
from rollbook.adapters.extras import library
from rollbook.adapters.lerobot_columns import column_slot
from rollbook.adapters.lerobot_dataset import LeRobotDataset, encoded_episode, scan_dataset
from rollbook.adapters.lerobot_episodes import EpisodeEntry
from rollbook.adapters.lerobot_frames import chosen_cameras
from rollbook.adapters.recording import EpisodeInRecording, RecordedStream, Recording, Skipped
from rollbook.digest import Plain
from rollbook.errors import CountMismatch, RollbookError, UnknownFormat

FORMAT = "lerobot"
_INFO = Path("meta", "info.json")
_META = ("info.json", "episodes.jsonl", "tasks.jsonl", "tasks.parquet")


def looks_like(path: Path) -> str | None:
    if not (path / _INFO).is_file():
        return None
    with open(path / _INFO, "rb") as file:
        start = file.read(1 << 16)
    return "meta/info.json has a codebase_version" if b'"codebase_version"' in start else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotImporter:
    cameras: tuple[str, ...] | None = field(
        default=None, metadata={"help": "Only this camera in the video. Default: all cameras."}
    )
    """None takes all cameras; an empty tuple leaves the video out."""

    @property
    def format(self) -> str:
        return FORMAT

    def options(self) -> dict[str, Plain]:
        return {"cameras": None if self.cameras is None else list(self.cameras)}

    def scan(self, path: Path) -> Recording:
        if not (path / _INFO).is_file():
            raise UnknownFormat(path=str(path), detail="there is no meta/info.json in it")
        dataset = scan_dataset(path)
        cameras = chosen_cameras(dataset.info, self.cameras)
        _check_totals(dataset)
        return Recording(
            format=FORMAT,
            path=path,
            name=dataset.name,
            episodes=tuple(_episode(dataset, each) for each in dataset.episodes.values()),
            streams=tuple(_streams(dataset, cameras)),
            skipped=tuple(_skipped(dataset, cameras)),
            losses=tuple(_losses(dataset, cameras)),
            files=tuple(_files(dataset, list(dataset.episodes.values()))),
            about={
                "codebase_version": dataset.info.version,
                "fps": dataset.info.fps,
                "robot": dataset.info.robot,
                "tasks": list(dataset.tasks.values()),
            },
            detail=dataset,
        )

    def encode(self, recording: Recording, index: int, folder: Path) -> EncodedEpisode:
        dataset: LeRobotDataset = recording.detail
        cameras = chosen_cameras(dataset.info, self.cameras)
        encoded = encoded_episode(dataset, dataset.episode(index), cameras, folder)
        metadata = {**encoded.metadata, "losses": list(recording.losses)}
        return replace(encoded, metadata=metadata)


def _check_totals(dataset: LeRobotDataset) -> None:
    """The totals of info.json are those of the list of episodes."""
    info = dataset.info
    for what, declared, read in (
        ("episodes", info.declared_episodes, len(dataset.episodes)),
        ("frames", info.declared_frames, dataset.total_frames),
    ):
        if declared is not None and declared != read:
            raise CountMismatch(
                path=str(info.root / _INFO),
                what=what,
                declared=declared,
                read=read,
                detail=f"total_{what} is not what the list of episodes adds up to",
            )


def _episode(dataset: LeRobotDataset, entry: EpisodeEntry) -> EpisodeInRecording:
    return EpisodeInRecording(
        index=entry.index,
        key=f"episode_{entry.index}",
        rows=entry.length,
        duration_s=entry.length / dataset.info.fps,
        files=tuple(_files(dataset, [entry])),
    )


def _files(dataset: LeRobotDataset, entries: list[EpisodeEntry]) -> list[Path]:
    """The tables and videos of the episodes, and the description that gives them meaning. Statistics are not read."""
    meta = dataset.info.root / "meta"
    paths = [meta / name for name in _META if (meta / name).is_file()]
    paths += sorted((meta / "episodes").glob("**/*.parquet"))
    for entry in entries:
        paths += [entry.data, *(video.path for video in entry.videos.values())]
    return list(dict.fromkeys(paths))


# ----------------------------------------------------------------------------------------- contents


def _streams(dataset: LeRobotDataset, cameras: tuple[str, ...]) -> Iterator[RecordedStream]:
    rows = dataset.total_frames
    table = _first_schema(dataset)
    for name, feature in dataset.info.features.items():
        slot = column_slot(dataset.info, name)
        if slot == "internal" or (slot == "video" and name not in cameras):
            continue
        if slot != "video" and table is not None and name not in table.names:
            continue
        kind = f"{feature.dtype}[{','.join(map(str, feature.shape))}]"
        yield RecordedStream(name=name, slot=slot, type=kind, rows=rows)
    for name in [] if table is None else table.names:
        slot = column_slot(dataset.info, name)
        if name not in dataset.info.features and slot in ("sensors", "actions"):
            kind = str(table.field(name).type)
            yield RecordedStream(name=name, slot=slot, type=kind, rows=rows)


def _skipped(dataset: LeRobotDataset, cameras: tuple[str, ...]) -> Iterator[Skipped]:
    for name in dataset.info.cameras:
        if name not in cameras:
            yield Skipped(name, "this camera was not chosen")
    table = _first_schema(dataset)
    if table is not None:
        for name in dataset.info.features:
            if name not in table.names and name not in dataset.info.video_cameras:
                yield Skipped(name, "info.json names it, but the tables have no such column")
    yield from _rows_of_no_episode(dataset)


def _rows_of_no_episode(dataset: LeRobotDataset) -> Iterator[Skipped]:
    """Rows of shared tables that the list of episodes does not mention. Only the ends of the files are read."""
    if dataset.info.major == 2:
        return
    lengths: Counter[Path] = Counter()
    for entry in dataset.episodes.values():
        lengths[entry.data] += entry.length
    for path, expected in lengths.items():
        footer = _footer(path)
        if footer is not None and footer.num_rows > expected:
            rest = footer.num_rows - expected
            name = path.relative_to(dataset.info.root).as_posix()
            yield Skipped(name, f"{rest} of its {footer.num_rows} rows belong to no episode")


def _losses(dataset: LeRobotDataset, cameras: tuple[str, ...]) -> Iterator[str]:
    if len(cameras) > 1:
        yield f"{len(cameras)} cameras are shown side by side in one video, which is encoded again."
    elif cameras and (dataset.info.major == 3 or cameras[0] not in dataset.info.video_cameras):
        yield f"The video of {cameras[0]} is encoded again, unless a file holds this episode alone."
    table = _first_schema(dataset)
    if table is not None and "timestamp" not in table.names:
        yield "Rows have no times: they are taken to be one frame apart."


def _first_schema(dataset: LeRobotDataset) -> Any:
    """Columns of the first table; None where it cannot be read, which importing its episodes reports."""
    first = next(iter(dataset.episodes.values()), None)
    footer = None if first is None else _footer(first.data)
    return None if footer is None else footer.schema.to_arrow_schema()


def _footer(path: Path) -> Any:
    try:
        return library("pyarrow.parquet").read_metadata(path)
    except RollbookError:
        raise
    except (OSError, library("pyarrow").ArrowException):
        return None
