"""LeRobot: import a dataset of version 2 or 3 from a local folder. Neither torch nor LeRobot is needed.

    from rollbook.adapters import lerobot
    lerobot.upload_dataset("~/datasets/pusht", policy_version="teleop")

A column becomes an array of the same name and type. A column that cannot become one is left out, and `skipped_columns`
in the metadata names it with the reason. Several cameras are shown side by side in one video; `video_cameras` gives the
position of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from rollbook.adapters.encoded import (
    AnyPath,
    BatchResult,
    Destination,
    EncodedEpisode,
    EpisodeAbout,
    OnProgress,
    RecordedRun,
    artifact_folder,
    files_in,
    prepared_folder,
    run_many,
)
from rollbook.adapters.lerobot_columns import ColumnSlot, EpisodeColumns, column_slot, read_columns
from rollbook.adapters.lerobot_episodes import EpisodeEntry, read_episodes, read_tasks
from rollbook.adapters.lerobot_frames import CameraFrames, chosen_cameras
from rollbook.adapters.lerobot_info import LeRobotInfo, read_info
from rollbook.client.tiles import Tile
from rollbook.contracts.episode import FILE_NAMES, LONGEST_NAME, LONGEST_ROBOT
from rollbook.contracts.npz import write_npz
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.client import Client


@dataclass(frozen=True, slots=True)
class LeRobotDataset:
    """The contents of a dataset, without rows and frames. Every function takes it in place of the path."""

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


def encode_episode(
    dataset: AnyDataset,
    episode_index: int,
    output_dir: AnyPath,
    *,
    cameras: Sequence[str] | None = None,
) -> EncodedEpisode:
    """Write sensors.npz, actions.npz and video.mp4. A file without contents is not written.

    `cameras` names the cameras in the video. None takes all of them; an empty list leaves the video out.
    """
    scanned = scan_dataset(dataset)
    entry = scanned.episode(episode_index)
    chosen = chosen_cameras(scanned.info, cameras)
    return _encoded(scanned, entry, chosen, prepared_folder(output_dir))


def upload_episode(
    dataset: AnyDataset,
    episode_index: int,
    *,
    cameras: Sequence[str] | None = None,
    client: Client | None = None,
    output_dir: AnyPath | None = None,
    **about: Unpack[EpisodeAbout],
) -> RecordedRun:
    """Encode one episode and upload it with `client`, or with the default client of rollbook.init."""
    scanned = scan_dataset(dataset)
    destination = Destination.find(client, about, output_dir)
    return _upload(scanned, episode_index, cameras, destination, output_dir)


def upload_dataset(
    dataset: AnyDataset,
    episodes: Iterable[int] | None = None,
    *,
    cameras: Sequence[str] | None = None,
    client: Client | None = None,
    output_dir: AnyPath | None = None,
    on_progress: OnProgress | None = None,
    stop_on_error: bool = False,
    **about: Unpack[EpisodeAbout],
) -> list[BatchResult]:
    """Upload all episodes, or only those named. An episode that cannot be read is reported and does not stop the rest.

    `{dataset}` and `{episode_index}` in the name are replaced. In `output_dir` each episode has a folder of its own.
    """
    scanned = scan_dataset(dataset)
    chosen_cameras(scanned.info, cameras)
    indices = list(scanned.episodes if episodes is None else episodes)
    for index in indices:
        scanned.episode(index)
    destination = Destination.find(client, about, output_dir)

    def one(index: int) -> RecordedRun:
        own = None if output_dir is None else Path(output_dir) / f"episode_{index:06d}"
        return _upload(scanned, index, cameras, destination, own)

    return run_many(indices, one, on_progress=on_progress, stop_on_error=stop_on_error)


# ------------------------------------------------------------------------------------- one episode


def _upload(
    dataset: LeRobotDataset,
    index: int,
    cameras: Sequence[str] | None,
    destination: Destination,
    output_dir: AnyPath | None,
) -> RecordedRun:
    entry = dataset.episode(index)
    chosen = chosen_cameras(dataset.info, cameras)
    named = destination.named(dataset=dataset.name, episode_index=index)
    with artifact_folder(output_dir) as folder:
        encoded = _encoded(dataset, entry, chosen, folder)
        return named.deliver(encoded, kept=output_dir is not None)


def _encoded(
    dataset: LeRobotDataset, entry: EpisodeEntry, cameras: tuple[str, ...], folder: Path
) -> EncodedEpisode:
    columns = read_columns(dataset.info, entry)
    layout: list[Tile] = []
    if cameras:
        layout = CameraFrames(dataset.info, entry, cameras).encode(folder / FILE_NAMES["video"])
    for slot in ("sensors", "actions"):
        if streams := columns.streams(slot):
            write_npz(folder / FILE_NAMES[slot], streams)
    suffix = f" #{entry.index}"
    robot = dataset.info.robot
    return EncodedEpisode(
        files=files_in(folder),
        name=dataset.name[: LONGEST_NAME - len(suffix)] + suffix,
        source="replay",
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
