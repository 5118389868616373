"""LeRobotDataset: the contents of a dataset, without rows and frames; and one of its episodes as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rollbook.adapters.encoded import AnyPath, EncodedEpisode, files_in
from rollbook.adapters.lerobot_columns import ColumnSlot, EpisodeColumns, column_slot, read_columns
from rollbook.adapters.lerobot_episodes import EpisodeEntry, read_episodes, read_tasks
from rollbook.adapters.lerobot_frames import CameraFrames
from rollbook.adapters.lerobot_info import LeRobotInfo, read_info
from rollbook.client.tiles import Tile
from rollbook.contracts.episode import FILE_NAMES, LONGEST_NAME, LONGEST_ROBOT
from rollbook.contracts.npz import write_npz
from rollbook.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class LeRobotDataset:
    """Every function of rollbook.adapters.lerobot takes it in place of the path."""

    info: LeRobotInfo
    episodes: Mapping[int, EpisodeEntry]
    tasks: Mapping[int, str]

    @property
    def name(self) -> str:
        """Name of the folder. In a cache of the Hugging Face Hub, where folders are named by commit, the repository."""
        folder = self.info.root.resolve()
        if folder.parent.name != "snapshots":
            return folder.name
        return folder.parent.parent.name.removeprefix("datasets--").replace("--", "/")

    @property
    def columns(self) -> dict[str, ColumnSlot]:
        """For every feature, the artifact that its values go to."""
        return {name: column_slot(self.info, name) for name in self.info.features}

    @property
    def total_frames(self) -> int:
        return sum(entry.length for entry in self.episodes.values())

    def episode(self, index: int) -> EpisodeEntry:
        if index not in self.episodes:
            held = f"{min(self.episodes)} to {max(self.episodes)}" if self.episodes else "none"
            message = f"{self.info.root} has no episode {index}; it has {held}"
            raise ConfigurationError(message=message)
        return self.episodes[index]


AnyDataset: TypeAlias = "AnyPath | LeRobotDataset"


def scan_dataset(dataset: AnyDataset) -> LeRobotDataset:
    """Read the description of the dataset."""
    if isinstance(dataset, LeRobotDataset):
        return dataset
    info = read_info(Path(dataset).expanduser())
    return LeRobotDataset(info, read_episodes(info), read_tasks(info))


# ------------------------------------------------------------------------------------- one episode


def encoded_episode(
    dataset: LeRobotDataset, entry: EpisodeEntry, cameras: tuple[str, ...], folder: Path
) -> EncodedEpisode:
    columns = read_columns(dataset.info, entry)
    layout: list[Tile] = []
    if cameras:
        frames = CameraFrames(dataset.info, entry, cameras)
        layout = frames.encode(folder / FILE_NAMES["video"])
        for camera, count in frames.frames_left_out().items():
            reason = f"{count} frames of its video are behind the last of {entry.length} rows"
            columns.skipped[camera] = reason
    for slot in ("sensors", "actions"):
        if streams := columns.streams(slot):
            write_npz(folder / FILE_NAMES[slot], streams)
    suffix = f" #{entry.index}"
    robot = dataset.info.robot
    return EncodedEpisode(
        files=files_in(folder),
        name=dataset.name[: LONGEST_NAME - len(suffix)] + suffix,
        source="real",
        fps=dataset.info.fps,
        duration_s=entry.length / dataset.info.fps,
        metadata=_metadata(dataset, entry, columns, layout),
        robot=None if robot is None else robot[:LONGEST_ROBOT],
    )


def _metadata(
    dataset: LeRobotDataset, entry: EpisodeEntry, columns: EpisodeColumns, layout: list[Tile]
) -> dict[str, Any]:
    tasks = entry.tasks or tuple(
        dataset.tasks[each] for each in columns.task_indices if each in dataset.tasks
    )
    features = dataset.info.features
    metadata: dict[str, Any] = {
        "adapter": "lerobot",
        "steps": entry.length,
        "declared": {"rows": entry.length},
        "read": {"rows": len(columns.t_ns)},
        "tasks": list(tasks),
        "skipped": [{"name": c, "reason": r} for c, r in columns.skipped.items()],
        "lerobot_repo_id": dataset.name,
        "lerobot_codebase_version": dataset.info.version,
        "lerobot_episode_index": entry.index,
        "lerobot_episode_length": entry.length,
        "lerobot_tasks": list(tasks),
        "lerobot_episode_outcome": columns.last_values(),
        "outcome": columns.outcome(),
        "channels": {
            name: list(features[name].channels)
            for slot in columns.slots.values()
            for name in slot
            if name in features and features[name].channels
        },
        "skipped_columns": [{"column": c, "reason": r} for c, r in columns.skipped.items()],
        "video_cameras": [asdict(tile) for tile in layout],
    }
    if columns.timestamps_from_fps:
        metadata["timestamps_assumed"] = True
    return metadata
