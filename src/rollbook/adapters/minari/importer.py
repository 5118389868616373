"""MinariImporter: a Minari dataset, read without the package `minari`.

Seed, environment and actions are kept as rollbook.adapters.gymnasium keeps them, so that an imported episode can be
run again in its environment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbook.adapters.encoded import EncodedEpisode, files_in
from rollbook.adapters.minari.dataset import METADATA, MinariDataset, data_folder, read_dataset
from rollbook.adapters.minari.episode_reading import REWARD, EpisodeReading
from rollbook.adapters.minari.spaces import SpaceLeaf, compact_space
from rollbook.adapters.minari.storage import StoredEpisode
from rollbook.adapters.recording import EpisodeInRecording, RecordedStream, Recording, Skipped
from rollbook.adapters.steps.camera_video import LOSSY, chosen_cameras
from rollbook.adapters.steps.step_clock import ASSUMED_KEY, StepClock
from rollbook.contracts.episode import LONGEST_NAME
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.digest import Plain
from rollbook.errors import ConfigurationError, InvalidValue

FORMAT = "minari"
FPS_VALUE = "rollbook/fps"
"""Attribute of an episode that Rollbook exported: Minari itself has no times."""
ASSUMED_VALUE = "rollbook/timestamps_assumed"
"""The same, if that rate was assumed already when the episode was first imported."""
SPACES_KEY = "minari_spaces"
"""Key in the metadata of an episode."""
_ASSUMED_FPS = 30.0
_LONGEST_SPACES = 16_384


def looks_like(path: Path) -> str | None:
    folder = data_folder(path)
    if folder is None:
        return None
    with open(folder / METADATA, "rb") as file:
        start = file.read(1 << 16)
    found = b'"data_format"' in start and b'"total_episodes"' in start
    return f"{METADATA} has a data_format and total_episodes" if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MinariImporter:
    fps: float | None = field(
        default=None,
        metadata={
            "help": "Steps per second, which Minari does not store. Without this option: the rate of an episode that "
            "Rollbook exported, else 30."
        },
    )
    cameras: tuple[str, ...] | None = field(
        default=None,
        metadata={"help": "Observations to show as video. Without this option: all pictures."},
    )

    @property
    def format(self) -> str:
        return FORMAT

    def options(self) -> dict[str, Plain]:
        cameras = None if self.cameras is None else list(self.cameras)
        return {"fps": None if self.fps is None else float(self.fps), "cameras": cameras}

    def scan(self, path: Path) -> Recording:
        if self.fps is not None:
            StepClock(self.fps)
        dataset = read_dataset(path)
        cameras = self._cameras(dataset)
        environment = dataset.environment
        return Recording(
            format=FORMAT,
            path=path,
            name=dataset.name,
            episodes=tuple(self._episode(each) for each in dataset.episodes),
            streams=tuple(_streams(dataset, cameras)),
            skipped=tuple(_skipped(dataset, cameras)),
            losses=tuple(self._losses(dataset, cameras)),
            files=tuple(dict.fromkeys(path for each in dataset.episodes for path in each.files)),
            about={
                **dataset.about,
                "environment": None if environment is None else environment.id,
                "steps": sum(each.steps or 0 for each in dataset.episodes),
            },
            detail=dataset,
        )

    def encode(self, recording: Recording, index: int, folder: Path) -> EncodedEpisode:
        dataset: MinariDataset = recording.detail
        episode = next((each for each in dataset.episodes if each.index == index), None)
        if episode is None:
            message = f"{recording.path} has {len(dataset.episodes)} episodes; there is no {index}"
            raise ConfigurationError(message=message)
        fps, assumed = self._rate(episode)
        with dataset.storage.open(episode) as opened:
            reading = EpisodeReading(dataset, episode, opened, fps)
            reading.write_streams(folder)
            layout = reading.write_video(folder, self._cameras(dataset))
        metadata = _metadata(recording, dataset, episode, reading)
        if assumed:
            metadata[ASSUMED_KEY] = True
        suffix = f" #{index}"
        return EncodedEpisode(
            files=files_in(folder),
            name=dataset.name[: LONGEST_NAME - len(suffix)] + suffix,
            source="sim",
            fps=fps,
            duration_s=reading.steps / fps,
            metadata={**metadata, "video_cameras": layout},
            env_version=None if dataset.environment is None else dataset.environment.id,
            seed=episode.seed,
        )

    def _cameras(self, dataset: MinariDataset) -> list[SpaceLeaf]:
        known = {each.name: each for each in dataset.observation if each.is_picture}
        return [known[name] for name in chosen_cameras(list(known), self.cameras, dataset.name)]

    def _rate(self, episode: StoredEpisode) -> tuple[float, bool]:
        """Steps per second, and whether that is only assumed."""
        if self.fps is not None:
            return float(self.fps), True
        kept = episode.values.get(FPS_VALUE)
        if isinstance(kept, int | float) and not isinstance(kept, bool):
            return StepClock(float(kept)).fps, bool(episode.values.get(ASSUMED_VALUE))
        return _ASSUMED_FPS, True

    def _episode(self, episode: StoredEpisode) -> EpisodeInRecording:
        fps, _ = self._rate(episode)
        return EpisodeInRecording(
            index=episode.index,
            key=episode.key,
            rows=episode.steps,
            duration_s=None if episode.steps is None else episode.steps / fps,
            files=episode.files,
        )

    def _losses(self, dataset: MinariDataset, cameras: Sequence[SpaceLeaf]) -> Iterator[str]:
        made_up = [rate for rate, assumed in map(self._rate, dataset.episodes) if assumed]
        if made_up:
            yield f"Steps have no times: they are taken to be 1/{made_up[0]:g} s apart."
        for leaf in dataset.observation:
            if leaf.is_picture and dataset.encoded:
                yield (
                    f"{leaf.name} was stored as JPEG, which is lossy: it is shown as video, and is not kept as an "
                    "observation that a replay could compare."
                )
            elif leaf in cameras:
                yield LOSSY.format(leaf.name) + " The observation itself is kept exactly."
        if dataset.environment is None:
            yield "The dataset names no environment, so its episodes cannot be run again."
        elif dataset.environment.description is None:
            yield (
                f"{dataset.environment.id} is not registered on this machine, so a replay cannot tell whether it has "
                "changed, only whether the recorded actions lead to the same observations."
            )
        if any(key.startswith("options") for each in dataset.episodes for key in each.values):
            yield "Options of a reset are kept as metadata; a replay resets with the seed alone."


def _streams(dataset: MinariDataset, cameras: Sequence[SpaceLeaf]) -> Iterator[RecordedStream]:
    known = [each.steps for each in dataset.episodes if each.steps is not None]
    steps = sum(known) if len(known) == len(dataset.episodes) else None
    rows = None if steps is None else steps + len(dataset.episodes)
    for leaf in dataset.observation:
        if not (leaf.is_picture and dataset.encoded):
            yield RecordedStream(name=leaf.name, slot="sensors", type=leaf.type, rows=rows)
    for leaf in cameras:
        yield RecordedStream(name=leaf.name, slot="video", type=leaf.type, rows=rows)
    for leaf in dataset.action:
        yield RecordedStream(name=leaf.name, slot="actions", type=leaf.type, rows=steps)
    yield RecordedStream(name=REWARD, slot="sensors", type="number", rows=steps)


def _skipped(dataset: MinariDataset, cameras: Sequence[SpaceLeaf]) -> Iterator[Skipped]:
    for each in dataset.unreadable:
        yield Skipped(each.name, each.reason)
    for leaf in dataset.observation:
        if leaf.is_picture and dataset.encoded and leaf not in cameras:
            yield Skipped(leaf.name, "this camera was not chosen, and it is stored as JPEG")
    for leaf in dataset.action:
        if leaf.is_picture and dataset.encoded:
            yield Skipped(leaf.name, "JPEG pictures are shown, and are not actions")
    for name in dataset.storage.stray():
        yield Skipped(name, "it is not an episode")


def _metadata(
    recording: Recording, dataset: MinariDataset, episode: StoredEpisode, reading: EpisodeReading
) -> dict[str, Any]:
    outcome = reading.outcome()
    skipped = {each.name: each.reason for each in recording.skipped} | reading.skipped
    found: dict[str, Any] = {
        "adapter": FORMAT,
        "steps": reading.steps,
        **reading.end(),
        "total_reward": outcome.reward_total,
        "outcome": outcome,
        "declared": reading.declared,
        "read": reading.read,
        "skipped": [{"name": name, "reason": reason} for name, reason in skipped.items()],
        "losses": list(recording.losses),
        "minari_dataset_id": dataset.name,
        "minari_version": dataset.version,
        "minari_episode": dict(_own_values(episode)),
    }
    if dataset.environment is not None:
        truncated = found.get("ended_by") == "truncated"
        found |= dataset.environment.metadata(reading.steps, truncated)
    spaces = {name: compact_space(each) for name, each in dataset.spaces.items()}
    if len(json.dumps(spaces)) <= _LONGEST_SPACES:
        found[SPACES_KEY] = spaces
    return found


def _own_values(episode: StoredEpisode) -> Iterator[tuple[str, Any]]:
    """Values of the episode that JSON can hold."""
    for name, value in episode.values.items():
        try:
            yield name, plain_metadata({name: value})[name]
        except InvalidValue:
            continue
