"""RldsImporter: a dataset of TensorFlow Datasets with episodes of steps, as Open X-Embodiment has them.

Each episode is one record. By the rules of RLDS a step holds an observation and the action that was taken then; the
last step has only an observation, and what stands in its other fields means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.encoded import EncodedEpisode, files_in
from rollbook.adapters.recording import (
    EpisodeInRecording,
    RecordedStream,
    Recording,
    Skipped,
    Slot,
)
from rollbook.adapters.rlds.dataset import INFO_FILE, Episode, RldsDataset, read_dataset
from rollbook.adapters.rlds.example import DamagedExample, parse_example
from rollbook.adapters.rlds.features import FEATURES_FILE, Feature
from rollbook.adapters.rlds.step_columns import DamagedColumn, StepColumn, UnreadableColumn
from rollbook.adapters.steps.camera_video import LOSSY, CameraVideo, chosen_cameras
from rollbook.adapters.steps.reward_total import RewardTotal
from rollbook.adapters.steps.step_clock import ASSUMED_KEY, StepClock
from rollbook.adapters.stream_files import StreamFiles
from rollbook.adapters.video_source import decoded_picture
from rollbook.client.video import Picture
from rollbook.contracts.episode import FILE_NAMES, LONGEST_NAME, ArtifactKind
from rollbook.contracts.streams import ONLY_FIELD
from rollbook.contracts.typed_metadata import EpisodeOutcome
from rollbook.digest import Plain
from rollbook.errors import ConfigurationError, CountMismatch, DamagedRecording

FORMAT = "rlds"
_INSTRUCTION = ("instruction", "task", "language")
_MOST_TASKS = 100
_LONGEST_VALUE = 256
"""Numbers, or characters of text, of an episode's own value that fit into its metadata."""
_LAST_STEP = (
    "By the rules of RLDS the action, the reward and the discount of the last step mean nothing; they are kept as they "
    "are stored."
)


def looks_like(path: Path) -> str | None:
    if (path / FEATURES_FILE).is_file() and (path / INFO_FILE).is_file():
        return f"there are {FEATURES_FILE} and {INFO_FILE}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RldsImporter:
    fps: float = field(
        default=10.0,
        metadata={
            "help": "Steps per second. The dataset has no times; they are made from this rate."
        },
    )
    cameras: tuple[str, ...] | None = field(
        default=None,
        metadata={"help": "Cameras in the video. Without this option: all of them."},
    )
    splits: tuple[str, ...] | None = field(
        default=None, metadata={"help": "Splits to import. Without this option: all of them."}
    )

    @property
    def format(self) -> str:
        return FORMAT

    def options(self) -> dict[str, Plain]:
        """Without the splits: an episode is the same, whichever other splits were imported with it."""
        cameras = None if self.cameras is None else list(self.cameras)
        return {"fps": float(self.fps), "cameras": cameras}

    def scan(self, path: Path) -> Recording:
        StepClock(self.fps)
        dataset = read_dataset(path, self.splits)
        cameras = self._cameras(dataset)
        return Recording(
            format=FORMAT,
            path=path,
            name=dataset.name,
            episodes=tuple(_episode(dataset, each) for each in dataset.episodes),
            streams=tuple(_streams(dataset, cameras)),
            skipped=tuple(_skipped(dataset, cameras)),
            losses=tuple(self._losses(dataset, cameras)),
            files=dataset.files,
            about={
                "version": dataset.version,
                "splits": list(dict.fromkeys(each.split for each in dataset.episodes)),
                "cameras": list(cameras),
                "damage": list(dataset.damage),
            },
            detail=dataset,
        )

    def encode(self, recording: Recording, index: int, folder: Path) -> EncodedEpisode:
        dataset: RldsDataset = recording.detail
        if not 0 <= index < len(dataset.episodes):
            message = f"{recording.path} has {len(dataset.episodes)} episodes; there is no {index}"
            raise ConfigurationError(message=message)
        episode = dataset.episodes[index]
        cameras = self._cameras(dataset)
        with _record_errors(episode):
            reading = _Reading(dataset, episode, cameras, StepClock(self.fps))
            reading.write_streams(folder)
            layout = reading.write_video(folder)
            metadata = reading.metadata(recording)
        suffix = f" {episode.split} #{index}"
        return EncodedEpisode(
            files=files_in(folder),
            name=dataset.name[: LONGEST_NAME - len(suffix)] + suffix[:LONGEST_NAME],
            source="real",
            fps=float(self.fps),
            duration_s=reading.steps / self.fps,
            metadata={**metadata, "video_cameras": layout},
        )

    def _cameras(self, dataset: RldsDataset) -> tuple[str, ...]:
        known = [each.name for each in dataset.features.steps if each.kind == "picture"]
        return chosen_cameras(known, self.cameras, str(dataset.folder))

    def _losses(self, dataset: RldsDataset, cameras: tuple[str, ...]) -> Iterator[str]:
        yield f"Steps have no times: they are taken to be 1/{self.fps:g} s apart."
        names = {each.name for each in dataset.features.steps}
        if "is_last" in names:
            yield _LAST_STEP
        for each in dataset.features.steps:
            if each.dtype in ("float64", "bfloat16") and each.encoding == "none":
                yield f"{each.name} is declared {each.dtype}, and stored and imported as float32."
        for camera in cameras:
            yield LOSSY.format(camera)
        if not dataset.counted:
            yield f"{INFO_FILE} does not say how many episodes there are, so nothing could be compared."


def _episode(dataset: RldsDataset, episode: Episode) -> EpisodeInRecording:
    files = (dataset.folder / FEATURES_FILE, dataset.folder / INFO_FILE, episode.record.path)
    return EpisodeInRecording(index=episode.index, key=episode.key, files=files)


def _slot(feature: Feature) -> Slot:
    if feature.kind == "picture":
        return "video"
    is_action = feature.name == "action" or feature.name.startswith(("action.", "action_"))
    return "actions" if is_action else "sensors"


def _streams(dataset: RldsDataset, cameras: tuple[str, ...]) -> Iterator[RecordedStream]:
    for each in dataset.features.steps:
        if each.kind != "picture" or each.name in cameras:
            yield RecordedStream(name=each.key, slot=_slot(each), type=each.type)


def _skipped(dataset: RldsDataset, cameras: tuple[str, ...]) -> Iterator[Skipped]:
    for left_out in dataset.features.left_out:
        yield Skipped(left_out.key, left_out.reason)
    for each in dataset.features.steps:
        if each.kind == "picture" and each.name not in cameras:
            yield Skipped(each.key, "this camera was not chosen")
    for each in dataset.features.episode:
        if each.kind == "picture":
            yield Skipped(each.key, "a picture of the whole episode has no place in an episode")
    for path in dataset.stray:
        yield Skipped(path.name, "no split that was chosen names this file")
    for sentence in dataset.damage:
        yield Skipped(*sentence.split(": ", 1))


# ----------------------------------------------------------------------------------------- one episode


@contextmanager
def _record_errors(episode: Episode) -> Iterator[None]:
    """Errors about the bytes of a record name the shard and the record."""
    try:
        yield
    except (DamagedExample, DamagedColumn) as error:
        detail = f"record {episode.record.number} cannot be read: {error}"
        raise DamagedRecording(path=str(episode.record.path), detail=detail) from error


class _Reading:
    """One episode while it is read."""

    def __init__(
        self, dataset: RldsDataset, episode: Episode, cameras: tuple[str, ...], clock: StepClock
    ) -> None:
        self._dataset = dataset
        self._episode = episode
        self._cameras = cameras
        self._clock = clock
        self._example = parse_example(episode.record.data())
        self._skipped: dict[str, str] = {}
        self._columns = dict(self._found_columns())
        self.steps = self._checked_steps()
        self._read: dict[str, int] = {}
        self._total = RewardTotal()
        self._last: dict[str, bool] = {}
        self._tasks: list[str] = []

    def _found_columns(self) -> Iterator[tuple[str, StepColumn]]:
        for feature in self._dataset.features.steps:
            if feature.kind == "picture" and feature.name not in self._cameras:
                continue
            try:
                yield feature.name, StepColumn.of(feature, self._example)
            except UnreadableColumn as reason:
                self._skipped[feature.key] = str(reason)
            except DamagedColumn as error:
                raise DamagedColumn(f"{feature.key}: {error}") from error

    def _checked_steps(self) -> int:
        """Every feature has a value for every step."""
        steps = max((each.rows for each in self._columns.values()), default=0)
        if not steps:
            raise DamagedColumn("the episode has no steps")
        for column in self._columns.values():
            if column.rows != steps:
                raise CountMismatch(
                    path=str(self._episode.record.path),
                    what=f"steps in record {self._episode.record.number}",
                    declared=steps,
                    read=column.rows,
                    detail=f"{column.feature.key} has another number of them",
                )
        return steps

    def write_streams(self, folder: Path) -> None:
        with StreamFiles(folder) as files:
            for name, column in self._columns.items():
                if column.feature.kind == "picture":
                    continue
                try:
                    self._write(files, name, column)
                except UnreadableColumn as reason:
                    self._skipped[column.feature.key] = str(reason)
                except DamagedColumn as error:
                    raise DamagedColumn(f"{column.feature.key}: {error}") from error
            files.write()

    def _write(self, files: StreamFiles, name: str, column: StepColumn) -> None:
        is_action = _slot(column.feature) == "actions"
        kind: ArtifactKind = "actions" if is_action else "sensors"
        done = 0
        for rows in column.blocks():
            files.add(kind, name, self._clock.times(done, len(rows)), {ONLY_FIELD: rows})
            done += len(rows)
            self._note(name, rows)
        self._read[name] = done
        if column.feature.kind == "text" and name.rpartition(".")[2].endswith(_INSTRUCTION):
            self._tasks += column.distinct_texts(_MOST_TASKS)

    def _note(self, name: str, rows: NDArray[Any]) -> None:
        if rows.size == len(rows) and rows.dtype.kind in "biuf":
            if name == "reward":
                self._total.add(rows)
            if name in ("is_last", "is_terminal"):
                self._last[name] = bool(rows.reshape(-1)[-1])

    def write_video(self, folder: Path) -> list[dict[str, Any]]:
        if not self._cameras:
            return []
        path = self._episode.record.path
        target = folder / FILE_NAMES["video"]
        with CameraVideo(target, self._clock.fps, self._cameras, path) as video:
            for pictures in zip(*(self._frames(each) for each in self._cameras), strict=True):
                video.add(pictures)
        self._read.update(dict.fromkeys(self._cameras, video.frames))
        return video.layout

    def _frames(self, camera: str) -> Iterator[Picture]:
        path = self._episode.record.path
        for step, data in enumerate(self._columns[camera].pictures()):
            what = f"{camera} of step {step} in record {self._episode.record.number}"
            yield decoded_picture(data, path, what)

    # ---------------------------------------------------------------------------------- metadata

    def metadata(self, recording: Recording) -> dict[str, Any]:
        episode = self._episode
        own = self._own_values()
        undeclared = "features.json does not declare it"
        skipped = [
            *({"name": each.name, "reason": each.reason} for each in recording.skipped),
            *({"name": key, "reason": reason} for key, reason in self._skipped.items()),
            *({"name": key, "reason": undeclared} for key in self._undeclared()),
        ]
        found: dict[str, Any] = {
            "adapter": FORMAT,
            "steps": self.steps,
            "declared": {} if episode.declared is None else {"records": episode.declared},
            "read": {"records": episode.found, **self._read},
            "skipped": skipped,
            "losses": list(recording.losses),
            "tasks": list(dict.fromkeys(self._tasks)),
            "outcome": EpisodeOutcome(success=_said_success(own), reward_total=self._total.value),
            "rlds_dataset": self._dataset.name,
            "rlds_version": self._dataset.version,
            "rlds_split": episode.split,
            "rlds_episode_metadata": own,
            ASSUMED_KEY: True,
            **self._end(),
        }
        if self._dataset.damage:
            detail = "; ".join(self._dataset.damage)
            found["damage"] = {"at": "the end of a shard", "detail": detail}
        return found

    def _end(self) -> dict[str, Any]:
        """An episode whose last step is not terminal was truncated. Without the flags nothing is known."""
        if "is_terminal" not in self._last:
            return {}
        terminated = self._last["is_terminal"]
        if terminated or not self._last.get("is_last", False):
            return {"terminated": terminated, **({"ended_by": "terminated"} if terminated else {})}
        return {"terminated": False, "truncated": True, "ended_by": "truncated"}

    def _own_values(self) -> dict[str, Any]:
        """Values of the episode, as far as they are short."""
        found = {}
        for feature in self._dataset.features.episode:
            if feature.kind == "picture":
                continue
            try:
                column = StepColumn.of(feature, self._example)
                if column.rows == 1 and feature.size <= _LONGEST_VALUE:
                    [rows] = column.blocks()
                    value = _plain(rows[0])
                    if value is not None:
                        found[feature.name] = value
                        continue
                self._skipped[feature.key] = "it is not one short value of the episode"
            except UnreadableColumn as reason:
                self._skipped[feature.key] = str(reason)
        return found

    def _undeclared(self) -> Iterator[str]:
        features = (*self._dataset.features.steps, *self._dataset.features.episode)
        known = {each.key for each in features}
        known.update(each.key for each in self._dataset.features.left_out)
        for key in self._example:
            base = key.rpartition("/")[0] if "/ragged_" in key else key
            if base not in known and not any(base.startswith(f"{each}/") for each in known):
                yield key


def _plain(value: Any) -> Any:
    """As JSON has it; None for what it cannot hold."""
    if isinstance(value, np.ndarray):
        whole = value.dtype.kind != "f" or np.isfinite(value).all()
        return value.tolist() if whole else None
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, str):
        return plain if len(plain) <= _LONGEST_VALUE else None
    return None if isinstance(plain, float) and not np.isfinite(plain) else plain


def _said_success(own: Mapping[str, Any]) -> bool | None:
    said = own.get("episode_metadata.success", own.get("success"))
    return bool(said) if isinstance(said, bool | int) and said in (0, 1) else None
