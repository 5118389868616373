"""Episodes to export: imported from LeRobot datasets, or made of arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.lerobot import LeRobotImporter
from rollbook.client.video import VideoWriter
from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.contracts.npz import write_npz

Arrays = Mapping[str, NDArray[Any]]


def imported(
    dataset: Path, folder: Path, cameras: tuple[str, ...] | None = None
) -> list[ExportedEpisode]:
    """The episodes of a LeRobot dataset, as files below `folder`."""
    importer = LeRobotImporter(cameras=cameras)
    recording = importer.scan(dataset)
    episodes = []
    for each in recording.episodes:
        own = folder / f"{dataset.name}_{each.index}"
        own.mkdir(parents=True)
        encoded = importer.encode(recording, each.index, own)
        episodes.append(ExportedEpisode.of_encoded(encoded, digests_of(encoded.files)))
    return episodes


def digests_of(files: Mapping[ArtifactKind, Path]) -> dict[ArtifactKind, str]:
    return {kind: hashlib.sha256(path.read_bytes()).hexdigest() for kind, path in files.items()}


def made(
    folder: Path,
    *,
    sensors: Arrays | None = None,
    actions: Arrays | None = None,
    video: Sequence[NDArray[np.uint8]] = (),
    video_fps: float = 10.0,
    fps: float | None = 10.0,
    metadata: Mapping[str, Any] | None = None,
    **facts: Any,
) -> ExportedEpisode:
    """An episode of its own folder. Its name is that of the folder."""
    folder.mkdir(parents=True)
    files: dict[ArtifactKind, Path] = {}
    given: dict[ArtifactKind, Arrays | None] = {"sensors": sensors, "actions": actions}
    for kind, arrays in given.items():
        if arrays:
            files[kind] = folder / FILE_NAMES[kind]
            write_npz(files[kind], arrays)
    if video:
        files["video"] = folder / FILE_NAMES["video"]
        with VideoWriter(files["video"], video_fps) as writer:
            for picture in video:
                writer.add(picture)
    return ExportedEpisode(
        name=folder.name,
        source="sim",
        files=files,
        digests=digests_of(files),
        metadata={"tasks": ["pick"], **(metadata or {})},
        fps=fps,
        **facts,
    )


def stream(name: str, values: NDArray[Any], t_ns: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """A namespace with one field."""
    return {f"{name}/value": values, f"{name}/_t_ns": t_ns}


def clock(rows: int, fps: float, start_s: float = 0.0) -> NDArray[np.int64]:
    """As the LeRobot importer makes it: times are stored as float32."""
    seconds = (np.arange(rows) / fps).astype(np.float32).astype(np.float64)
    return np.rint((seconds + start_s) * 1e9).astype(np.int64)


def ignore(done: int, of: int) -> None:
    """Progress that nobody looks at."""
