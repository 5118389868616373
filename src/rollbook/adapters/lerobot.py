"""LeRobot: import a dataset of version 2 or 3 from a local folder. Neither torch nor LeRobot is needed.

    from rollbook.adapters import lerobot
    lerobot.upload_dataset("~/datasets/pusht", policy_version="teleop")

A column becomes an array of the same name and type. A column that cannot become one is left out, and `skipped_columns`
in the metadata names it with the reason. Several cameras are shown side by side in one video; `video_cameras` gives the
position of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from rollbook.adapters.destination import (
    BatchResult,
    Destination,
    EpisodeAbout,
    OnProgress,
    RecordedRun,
    run_many,
)
from rollbook.adapters.encoded import (
    AnyPath,
    EncodedEpisode,
    artifact_folder,
    prepared_folder,
)
from rollbook.adapters.episode_folder import write_episode_file
from rollbook.adapters.lerobot_dataset import (
    AnyDataset,
    LeRobotDataset,
    encoded_episode,
    scan_dataset,
)
from rollbook.adapters.lerobot_frames import chosen_cameras
from rollbook.adapters.lerobot_importer import LeRobotImporter, looks_like

if TYPE_CHECKING:
    from rollbook.client import Client

__all__ = [
    "AnyDataset",
    "LeRobotDataset",
    "LeRobotImporter",
    "encode_episode",
    "looks_like",
    "scan_dataset",
    "upload_dataset",
    "upload_episode",
]


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
    folder = prepared_folder(output_dir)
    encoded = encoded_episode(scanned, entry, chosen, folder)
    write_episode_file(folder, encoded)
    return encoded


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
        encoded = encoded_episode(dataset, entry, chosen, folder)
        return named.deliver(encoded, kept_in=None if output_dir is None else folder)
