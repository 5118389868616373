"""LeRobotExporter: episodes as one LeRobot dataset of version 3. Neither torch nor LeRobot is needed.

Every stream becomes a feature, with one value for each frame. Where each episode comes from, down to the digests of its
files, is kept in the columns `rollbook/*` of meta/episodes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import ExportSummary, Loss, OnEpisode
from rollbook.adapters.exports.file_errors import file_errors, text_errors
from rollbook.adapters.lerobot_export.plan import DatasetPlan, PlanOptions, plan_dataset
from rollbook.adapters.lerobot_export.writer import FileLimits, LeRobotWriter
from rollbook.errors import ConfigurationError, TargetExists
from rollbook.files import promote_folder, write_errors

FORMAT = "lerobot"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotExporter:
    fps: float | None = field(
        default=None,
        metadata={"help": "Frames per second of the dataset. Without it: that of the episodes."},
    )
    resample: Literal["nearest", "last"] = field(
        default="nearest",
        metadata={
            "help": "Which row a frame takes from a stream with other times: the nearest, or the last before it."
        },
    )
    only: tuple[str, ...] | None = field(
        default=None,
        metadata={"help": "Streams and cameras to export. Without it: all of them."},
    )
    rename: tuple[str, ...] | None = field(
        default=None,
        metadata={
            "help": "Names in the dataset, as STREAM=FEATURE: arm/position=observation.state."
        },
    )
    task: str | None = field(default=None, metadata={"help": "Task of episodes that name none."})
    data_file_mb: int | None = field(
        default=None, metadata={"help": "Largest size of a table in MB. Without it: 100."}
    )
    video_file_mb: int | None = field(
        default=None, metadata={"help": "Largest size of a video in MB. Without it: 200."}
    )
    files_per_chunk: int | None = field(
        default=None, metadata={"help": "Most files in a folder. Without it: 1000."}
    )

    @property
    def format(self) -> str:
        return FORMAT

    def losses(self, episodes: Sequence[ExportedEpisode]) -> list[Loss]:
        return self._plan(episodes).losses

    def write(
        self, episodes: Sequence[ExportedEpisode], target: Path, on_episode: OnEpisode
    ) -> ExportSummary:
        limits = self._limits()
        if os.path.lexists(target):
            raise TargetExists(path=str(target), detail="choose a folder that does not exist")
        plan = self._plan(episodes)
        part = target.with_name(f".{target.name[:40]}.{os.urandom(8).hex()}.part")
        try:
            with write_errors(target), text_errors():
                part.mkdir()
                writer = LeRobotWriter(plan, part, limits, self.resample)
                writer.write(on_episode)
            promote_folder(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        files = [path for path in target.rglob("*") if path.is_file()]
        return ExportSummary(
            format=FORMAT,
            path=target,
            episodes=len(plan.episodes),
            rows=writer.rows,
            files=len(files),
            size=sum(path.stat().st_size for path in files),
        )

    def _plan(self, episodes: Sequence[ExportedEpisode]) -> DatasetPlan:
        options = PlanOptions(
            fps=self.fps,
            resampling=self.resample,
            only=self.only,
            rename=self.rename or (),
            task=self.task,
        )
        with file_errors("a file of an episode"):
            return plan_dataset(episodes, options)

    def _limits(self) -> FileLimits:
        given = {
            "data_mb": self.data_file_mb,
            "video_mb": self.video_file_mb,
            "per_chunk": self.files_per_chunk,
        }
        for name, value in given.items():
            if value is not None and value < 1:
                raise ConfigurationError(message=f"{name}={value}; it has to be at least 1")
        return FileLimits(**{name: value for name, value in given.items() if value is not None})
