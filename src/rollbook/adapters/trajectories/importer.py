"""TrajectoriesImporter: expert rollouts of the package `imitation`, one NPZ file with all trajectories in a row.

`obs` has one row more for each trajectory than `acts`: the observation after its last action. `indices` says where in
`acts` a new trajectory begins. `infos` holds pickled Python objects: it is named and never read.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.encoded import EncodedEpisode, files_in
from rollbook.adapters.recording import EpisodeInRecording, RecordedStream, Recording, Skipped
from rollbook.adapters.steps.reward_total import RewardTotal
from rollbook.adapters.steps.step_clock import ASSUMED_KEY, StepClock
from rollbook.adapters.stream_files import StreamFiles
from rollbook.adapters.trajectories.array_rows import ArrayRows
from rollbook.contracts.episode import LONGEST_NAME, ArtifactKind
from rollbook.contracts.npz import ArrayFacts, NpzArchive
from rollbook.contracts.streams import ONLY_FIELD
from rollbook.contracts.typed_metadata import EpisodeOutcome
from rollbook.digest import Plain
from rollbook.errors import (
    ConfigurationError,
    CountMismatch,
    DamagedRecording,
    InvalidValue,
    UnknownFormat,
)
from rollbook.files import unreadable

FORMAT = "trajectories"
_NEEDED = ("obs", "acts", "terminal", "indices")
_REWARDS = "rews"
_STREAMS: Mapping[str, tuple[ArtifactKind, str]] = {
    "obs": ("sensors", "observation"),
    "acts": ("actions", "action"),
    _REWARDS: ("sensors", "reward"),
}
_MOST_TRAJECTORIES = 10_000_000


def looks_like(path: Path) -> str | None:
    names = _members(path)
    if names is None or not {f"{key}.npy" for key in _NEEDED} <= names:
        return None
    return f"an NPZ file with {', '.join(_NEEDED)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoriesImporter:
    fps: float = field(
        default=30.0,
        metadata={"help": "Steps per second. The file has no times; they are made from this rate."},
    )

    @property
    def format(self) -> str:
        return FORMAT

    def options(self) -> dict[str, Plain]:
        return {"fps": float(self.fps)}

    def scan(self, path: Path) -> Recording:
        StepClock(self.fps)
        _check_format(path)
        with NpzArchive(path, record=str(path)) as archive:
            arrays, skipped = _arrays(archive, path)
            content = _Content.of(archive, arrays, path)
        return Recording(
            format=FORMAT,
            path=path,
            name=path.stem,
            episodes=tuple(self._episodes(content)),
            streams=tuple(
                RecordedStream(
                    name=key,
                    slot="actions" if _STREAMS[key][0] == "actions" else "sensors",
                    type=f"{facts.dtype}[{','.join(map(str, facts.shape[1:]))}]",
                    rows=facts.shape[0],
                )
                for key, facts in content.streams.items()
            ),
            skipped=tuple(skipped),
            losses=tuple(self._losses()),
            files=(path,),
            about={"trajectories": len(content.ends), "steps": int(content.ends[-1])},
            detail=content,
        )

    def encode(self, recording: Recording, index: int, folder: Path) -> EncodedEpisode:
        content: _Content = recording.detail
        if not 0 <= index < len(content.ends):
            message = f"{recording.path} has {len(content.ends)} trajectories; there is no {index}"
            raise ConfigurationError(message=message)
        total, read = RewardTotal(), dict[str, int]()
        with StreamFiles(folder) as files:
            for key in content.streams:
                read[key] = self._write(content, key, index, files, total)
            files.write()
        declared = {key: content.rows(key, index)[1] for key in content.streams}
        suffix, steps = f" #{index}", declared["acts"]
        metadata: dict[str, Any] = {
            "adapter": FORMAT,
            "steps": steps,
            "declared": declared,
            "read": read,
            "skipped": [{"name": each.name, "reason": each.reason} for each in recording.skipped],
            "losses": list(recording.losses),
            "outcome": EpisodeOutcome(reward_total=total.value),
            "trajectories_terminal": bool(content.terminal[index]),
            ASSUMED_KEY: True,
        }
        return EncodedEpisode(
            files=files_in(folder),
            name=recording.name[: LONGEST_NAME - len(suffix)] + suffix,
            source="sim",
            fps=float(self.fps),
            duration_s=steps / self.fps,
            metadata=metadata,
        )

    def _write(
        self, content: _Content, key: str, index: int, files: StreamFiles, total: RewardTotal
    ) -> int:
        kind, namespace = _STREAMS[key]
        first, count = content.rows(key, index)
        clock, read = StepClock(self.fps), 0
        for rows in content.arrays.rows(key, first, first + count):
            # a reward is known at the end of its step
            tick = read + 1 if key == _REWARDS else read
            files.add(kind, namespace, clock.times(tick, len(rows)), {ONLY_FIELD: rows})
            if key == _REWARDS:
                total.add(rows)
            read += len(rows)
        return read

    def _episodes(self, content: _Content) -> Iterator[EpisodeInRecording]:
        for index in range(len(content.ends)):
            steps = content.rows("acts", index)[1]
            yield EpisodeInRecording(
                index=index,
                key=f"trajectory_{index}",
                rows=steps,
                duration_s=steps / self.fps,
            )

    def _losses(self) -> Iterator[str]:
        yield f"Steps have no times: they are taken to be 1/{self.fps:g} s apart."
        yield (
            "The file does not say whether a trajectory was terminated or truncated: `terminal` is true for both."
        )
        yield "The file names neither environment nor seed, so the trajectories cannot be run again."


# ------------------------------------------------------------------------------------------ content


@dataclass(frozen=True, slots=True)
class _Content:
    """What the file holds, without its rows."""

    arrays: ArrayRows
    streams: Mapping[str, ArrayFacts]
    ends: NDArray[np.int64]
    """Number of actions up to the end of each trajectory."""
    terminal: NDArray[Any]

    @classmethod
    def of(cls, archive: NpzArchive, arrays: Mapping[str, ArrayFacts], path: Path) -> _Content:
        _check_vectors(arrays, path)
        ends = _ends(archive.read("indices"), arrays["acts"].shape[0], path)
        terminal = archive.read("terminal")
        steps, count = int(ends[-1]), len(ends)
        _check_count(path, "values of terminal", count, len(terminal))
        _check_count(path, "rows of obs", steps + count, arrays["obs"].shape[0])
        if _REWARDS in arrays:
            _check_count(path, "rows of rews", steps, arrays[_REWARDS].shape[0])
        streams = {key: arrays[key] for key in _STREAMS if key in arrays}
        return cls(ArrayRows(path), streams, ends, terminal)

    def rows(self, key: str, index: int) -> tuple[int, int]:
        """The first row of a trajectory, and the number of its rows."""
        start = int(self.ends[index - 1]) if index else 0
        steps = int(self.ends[index]) - start
        return (start + index, steps + 1) if key == "obs" else (start, steps)


def _members(path: Path) -> set[str] | None:
    """Names in a zip file; None for any other file."""
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return None
    try:
        with zipfile.ZipFile(path) as archive:
            return set(archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, OverflowError):
        return None


def _check_format(path: Path) -> None:
    if not path.is_file():
        raise UnknownFormat(path=str(path), detail="it is not a file")
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise unreadable(path, error) from error
    if start != b"PK\x03\x04":
        raise UnknownFormat(path=str(path), detail="it is not an NPZ file")


def _arrays(archive: NpzArchive, path: Path) -> tuple[dict[str, ArrayFacts], list[Skipped]]:
    missing = [key for key in _NEEDED if key not in archive.keys]
    if missing:
        raise UnknownFormat(path=str(path), detail=f"there is no array {missing[0]} in it")
    found, skipped = dict[str, ArrayFacts](), list[Skipped]()
    for key in archive.keys:
        needed = key in _NEEDED or key == _REWARDS
        try:
            facts = archive.facts(key)
        except InvalidValue as error:
            if needed:
                raise
            skipped.append(Skipped(key, _reason(error)))
            continue
        if needed:
            found[key] = facts
        else:
            skipped.append(Skipped(key, "imitation does not define an array of this name"))
    return found, skipped


def _reason(error: InvalidValue) -> str:
    if "'|O'" in error.value:
        return "it holds pickled Python objects, which are never read"
    return str(error)


def _check_vectors(arrays: Mapping[str, ArrayFacts], path: Path) -> None:
    for key, facts in arrays.items():
        vector = key in ("terminal", "indices", _REWARDS)
        kinds = {"terminal": "b", "indices": "iu"}.get(key, "biuf")
        right = len(facts.shape) == 1 if vector else len(facts.shape) >= 1
        if not right or facts.dtype.kind not in kinds:
            detail = f"{key} is {facts.dtype} of shape {facts.shape}"
            raise DamagedRecording(path=str(path), detail=detail)
    if arrays["indices"].shape[0] >= _MOST_TRAJECTORIES:
        detail = f"it has more than {_MOST_TRAJECTORIES} trajectories"
        raise DamagedRecording(path=str(path), detail=detail)


def _ends(indices: NDArray[Any], steps: int, path: Path) -> NDArray[np.int64]:
    """The end of each trajectory. The file leaves the last one out: it is the end of `acts`."""
    ends = np.append(indices.astype(np.int64), steps)
    # compared, not subtracted: the difference of two whole numbers may not fit into 64 bits
    falls = ends <= np.concatenate([[0], ends[:-1]])
    if falls.any():
        row = int(falls.argmax())
        detail = f"trajectory {row} ends at action {ends[row]}, which is not after it begins"
        raise DamagedRecording(path=str(path), detail=detail)
    return ends


def _check_count(path: Path, what: str, declared: int, read: int) -> None:
    if declared != read:
        detail = "indices and acts say how many there have to be"
        raise CountMismatch(path=str(path), what=what, declared=declared, read=read, detail=detail)
