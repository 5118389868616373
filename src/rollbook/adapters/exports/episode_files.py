"""Export formats with one file for each episode: one file, or a folder of files, that is complete or absent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import ExportSummary, OnEpisode
from rollbook.errors import ConfigurationError
from rollbook.files import atomic_write, promote_folder, write_errors

WriteEpisode: TypeAlias = "Callable[[ExportedEpisode, BinaryIO, Path], int]"
"""Writes one episode to the stream and returns the number of rows. Temporary files may lie beside the path."""


def write_episode_files(
    kind: str,
    episodes: Sequence[ExportedEpisode],
    target: Path,
    on_episode: OnEpisode,
    write: WriteEpisode,
) -> ExportSummary:
    """A target with the suffix of the format is one file, for one episode. Any other target is a folder of files,
    named by the number of the episode."""
    suffix = f".{kind}"
    if target.suffix.lower() == suffix:
        if len(episodes) != 1:
            held = f"{len(episodes)} episodes are to be exported"
            message = f"{target.name} is one file, for one episode; {held}: name a folder"
            raise ConfigurationError(message=message)
        with atomic_write(target, replace=False) as stream:
            rows = write(episodes[0], stream, target)
        on_episode(1, 1)
        return _summary(kind, target, [target], 1, rows)
    part = target.with_name(f".{target.name[:40]}.{os.urandom(8).hex()}.part")
    rows = 0
    try:
        with write_errors(target):
            part.mkdir()
        for index, episode in enumerate(episodes):
            path = part / f"episode_{index:06d}{suffix}"
            with atomic_write(path, replace=False) as stream:
                rows += write(episode, stream, path)
            on_episode(index + 1, len(episodes))
        promote_folder(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return _summary(kind, target, sorted(target.iterdir()), len(episodes), rows)


def _summary(
    kind: str, target: Path, files: Sequence[Path], episodes: int, rows: int
) -> ExportSummary:
    size = sum(path.stat().st_size for path in files)
    return ExportSummary(
        format=kind, path=target, episodes=episodes, rows=rows, files=len(files), size=size
    )
