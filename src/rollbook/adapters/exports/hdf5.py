"""Hdf5Exporter: episodes become the demonstrations of one HDF5 file, in the layout that robomimic reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import ExportSummary, Loss, OnEpisode
from rollbook.adapters.exports.h5_writing import (
    check_room,
    h5_write_errors,
    storable_attribute,
)
from rollbook.adapters.exports.hdf5_plan import (
    ATTRIBUTES,
    DemoPlan,
    DemoRules,
    PlannedStream,
    inside,
    is_demo,
    plan_demo,
)
from rollbook.adapters.extras import library
from rollbook.adapters.hdf5.episode import STEP_TIMES
from rollbook.adapters.hdf5.facts import PROVENANCE
from rollbook.adapters.video_source import VideoSource
from rollbook.contracts.streams import CLOCK_FIELD
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.errors import ConfigurationError, StorageError, TargetExists
from rollbook.files import fsync_folder

FORMAT = "hdf5"
_COUNTED = frozenset({"num_samples", "total", "num_demos"})
"""Attributes that are made anew."""
_GYM_TYPE = 2
"""The number that robomimic gives to environments of Gymnasium."""
_LONGEST_METADATA = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Exporter:
    action: str | None = field(
        default=None,
        metadata={"help": "Stream that becomes `actions`, needed if there are several."},
    )
    resample: Literal["refuse", "previous"] = field(
        default="refuse",
        metadata={
            "help": "Streams at other times than the actions: refuse, or take the previous row."
        },
    )
    next_obs: bool = field(
        default=False,
        metadata={"help": "Also write next_obs where the observation after an action is known."},
    )
    images: bool = field(
        default=True,
        metadata={"help": "Write the frames of the video as pictures in obs."},
    )

    @property
    def format(self) -> str:
        return FORMAT

    def losses(self, episodes: Sequence[ExportedEpisode]) -> list[Loss]:
        plans = self._plans(episodes)
        found = [loss for plan in plans for loss in plan.losses]
        found += _renamed(episodes)
        found += (loss for episode in episodes for loss in _lost_attributes(episode))
        return found + _FileAttributes(episodes).losses

    def write(
        self, episodes: Sequence[ExportedEpisode], target: Path, on_episode: OnEpisode
    ) -> ExportSummary:
        plans = self._plans(episodes)
        for plan in plans:
            if plan.refused:
                message = (
                    f"{plan.episode.name}: {', '.join(plan.refused)}: not at the times of the actions; "
                    "export with the option resample=previous, which takes the last row before each action"
                )
                raise ConfigurationError(message=message)
        h5py = library("h5py")
        with _new_file(target) as part, h5_write_errors(target):
            with h5py.File(part, "w") as file:
                data = file.create_group("data")
                shared = _FileAttributes(episodes)
                _put_attributes(file, shared.file)
                _put_attributes(data, shared.data)
                for number, plan in enumerate(plans):
                    _write_demo(data.create_group(f"demo_{number}"), plan)
                    on_episode(number + 1, len(plans))
                data.attrs["total"] = sum(plan.steps for plan in plans)
                if shared.counts_demos:
                    data.attrs["num_demos"] = len(plans)
                _write_masks(file, episodes)
            size = part.stat().st_size
        rows = sum(plan.steps for plan in plans)
        return ExportSummary(
            format=FORMAT, path=target, episodes=len(plans), rows=rows, files=1, size=size
        )

    def _plans(self, episodes: Sequence[ExportedEpisode]) -> list[DemoPlan]:
        if not episodes:
            raise ConfigurationError(message="there is no episode to export")
        rules = DemoRules(
            action=self.action,
            resample=self.resample,
            next_obs=self.next_obs,
            images=self.images,
        )
        return [plan_demo(episode, rules) for episode in episodes]


def _renamed(episodes: Sequence[ExportedEpisode]) -> Iterator[Loss]:
    for number, episode in enumerate(episodes):
        group = episode.metadata.get("hdf5_group")
        if is_demo(episode) and group != f"data/demo_{number}":
            yield Loss(episode.name, "hdf5_group", f"{group} comes back as data/demo_{number}")


# ------------------------------------------------------------------------------------------ the file


@contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """A temporary name beside the target, which becomes the target when the block ends without an error."""
    if os.path.lexists(target):
        raise TargetExists(path=str(target), detail="choose another name, or remove the file")
    part = target.with_name(f".{target.name[:40]}.{os.urandom(8).hex()}.tmp")
    try:
        yield part
        try:
            descriptor = os.open(part, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.link(part, target)  # unlike a rename, it never replaces a file
        except FileExistsError as error:
            detail = "it appeared while the export ran"
            raise TargetExists(path=str(target), detail=detail) from error
        except OSError as error:
            detail = f"cannot be written ({error.strerror or error})"
            raise StorageError(path=str(target), detail=detail) from error
        fsync_folder(target.parent)
    finally:
        with suppress(OSError):
            part.unlink()


class _FileAttributes:
    """Attributes of the whole file. Episodes that come from different files may contradict each other."""

    def __init__(self, episodes: Sequence[ExportedEpisode]) -> None:
        self.file: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        self.losses: list[Loss] = []
        self.counts_demos = False
        for episode in episodes:
            kept = _kept_attributes(episode)
            self.counts_demos |= "num_demos" in kept.get("data", {})
            self._merge(episode, "file", self.file, kept.get("file", {}))
            self._merge(episode, "data", self.data, self._of_data(episode, kept))

    def _of_data(
        self, episode: ExportedEpisode, kept: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        values = dict(kept.get("data", {}))
        spec = episode.metadata.get("gymnasium_spec")
        if "env_args" not in values and isinstance(spec, Mapping) and "id" in spec:
            kwargs = spec.get("kwargs")
            values["env_args"] = json.dumps(
                {
                    "env_name": spec["id"],
                    "type": _GYM_TYPE,
                    "env_kwargs": dict(kwargs) if isinstance(kwargs, Mapping) else {},
                }
            )
        return values

    def _merge(
        self,
        episode: ExportedEpisode,
        owner: str,
        into: dict[str, Any],
        values: Mapping[str, Any],
    ) -> None:
        for name, value in values.items():
            if name in _COUNTED:
                continue
            if storable_attribute(value) is None:
                reason = "an attribute of HDF5 cannot hold its value"
                self.losses.append(Loss(episode.name, f"attribute {name} of {owner}", reason))
                continue
            known = into.setdefault(name, value)
            if not np.array_equal(known, value):
                reason = "an earlier episode has another value, and a file has one"
                self.losses.append(Loss(episode.name, f"attribute {name} of {owner}", reason))


def _kept_attributes(episode: ExportedEpisode) -> dict[str, dict[str, Any]]:
    """Attributes that an import of HDF5 kept, by object."""
    found = episode.metadata.get("hdf5_attributes")
    kept: dict[str, dict[str, Any]] = {}
    if isinstance(found, Mapping):
        for owner, values in found.items():
            if isinstance(values, Mapping):
                kept[str(owner)] = dict(values)
    if "sensors" not in episode.files:
        return kept
    with episode.open("sensors") as archive:
        for key in archive.keys:
            namespace, _, name = key.rpartition("/")
            if namespace.startswith(ATTRIBUTES) and name != CLOCK_FIELD:
                owner, _, attribute = namespace.removeprefix(ATTRIBUTES).rpartition("/")
                kept.setdefault(owner, {})[attribute] = archive.read(key)[0]
    return kept


def _lost_attributes(episode: ExportedEpisode) -> Iterator[Loss]:
    for owner, values in _kept_attributes(episode).items():
        if owner in ("file", "data"):
            continue
        for name, value in values.items():
            if storable_attribute(value) is None:
                reason = "an attribute of HDF5 cannot hold its value"
                yield Loss(episode.name, f"attribute {name} of {owner}", reason)
            elif owner != "episode" and not is_demo(episode):
                yield Loss(episode.name, f"attribute {name} of {owner}", "it is not written")


def _put_attributes(owner: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        given = storable_attribute(value)
        if given is not None and name not in _COUNTED and name != PROVENANCE:
            owner.attrs[name] = given


def _write_masks(file: Any, episodes: Sequence[ExportedEpisode]) -> None:
    members: dict[str, list[bytes]] = {}
    for number, episode in enumerate(episodes):
        masks = episode.metadata.get("hdf5_masks")
        for mask in masks if isinstance(masks, list) else ():
            name = inside(str(mask)).replace("/", ".")
            members.setdefault(name, []).append(f"demo_{number}".encode())
    for mask, names in members.items():
        file[f"mask/{mask}"] = np.array(names)


# ------------------------------------------------------------------------------------ a demonstration


def _write_demo(demo: Any, plan: DemoPlan) -> None:
    demo.attrs["num_samples"] = plan.steps
    for planned in plan.streams:
        _write_stream(demo, plan, planned)
    if not plan.episode.metadata.get("timestamps_assumed"):
        demo[STEP_TIMES] = plan.t_ns
    if plan.dones is not None:
        dones = np.zeros(plan.steps, np.uint8)
        dones[-1] = plan.dones
        demo["dones"] = dones
    shapes = plan.episode.metadata.get("hdf5_not_per_step")
    for name, text in plan.texts.items():
        shape = shapes.get(name) if isinstance(shapes, Mapping) else None
        demo.create_dataset(
            name,
            data=np.full(tuple(shape or ()), text, object),
            dtype=library("h5py").string_dtype(),
        )
    if plan.cameras:
        _write_pictures(demo, plan)
    _write_attributes(demo, plan)


def _write_stream(demo: Any, plan: DemoPlan, planned: PlannedStream) -> None:
    dtype = planned.facts.dtype
    stored: Any = np.dtype(np.int64) if dtype.kind in "mM" else dtype
    if dtype.kind in "U":
        stored = library("h5py").string_dtype()
    check_room(demo, planned.shape, dtype.itemsize if dtype.kind != "U" else 16)
    dataset = demo.create_dataset(planned.target, planned.shape, stored)
    if not planned.shape:
        for piece in _pieces(plan, planned):
            dataset[()] = _stored(piece, dtype)[0]
        return
    first = 0
    for piece in _pieces(plan, planned):
        values = _stored(piece, dtype).reshape(len(piece), *planned.shape[1:])
        dataset[first : first + len(piece)] = values
        first += len(piece)
    if first != planned.shape[0]:
        detail = (
            f"{planned.key} of {plan.episode.name} has {first} rows, expected {planned.shape[0]}"
        )
        raise StorageError(path=str(plan.episode.files[planned.kind]), detail=detail)


def _stored(piece: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind == "U":
        return piece.astype(object)
    return piece.view(np.int64) if dtype.kind in "mM" else piece


def _pieces(plan: DemoPlan, planned: PlannedStream) -> Iterator[NDArray[Any]]:
    """The rows to be written, in order, a few megabytes at a time."""
    rows = planned.facts.shape[0]
    start, stop = {"before": (0, rows - 1), "after": (1, rows)}.get(planned.fit, (0, rows))
    with plan.episode.open(planned.kind) as archive:
        # a namespace with one unnamed field may be stored under its own name
        key = planned.key if planned.key in archive.keys else planned.key.rpartition("/")[0]
        if planned.rows is None:
            yield from archive.rows(key, start, stop)
            return
        early = int((planned.rows < 0).sum())
        if early:
            yield np.full((early, *planned.facts.shape[1:]), np.nan)
        at = 0
        for piece in archive.rows(key, 0, rows):
            first, last = np.searchsorted(planned.rows, [at, at + len(piece)])
            if first < last:
                yield piece[planned.rows[first:last] - at]
            at += len(piece)


def _write_pictures(demo: Any, plan: DemoPlan) -> None:
    """Frames of the video, cut into the pictures of its cameras."""
    episode = plan.episode
    assert episode.fps is not None
    source = VideoSource(episode.files["video"], episode.fps, plan.steps)
    datasets: dict[str, Any] = {}
    with closing(source.frames()) as frames:
        for row, frame in enumerate(frames):
            for target, tile in plan.cameras.items():
                x, y, width, height = tile or (0, 0, frame.shape[1], frame.shape[0])
                cut = frame[y : y + height, x : x + width]
                if cut.shape[:2] != (height, width):
                    message = f"{episode.name}: {target} lies outside of the picture of its video"
                    raise ConfigurationError(message=message)
                if target not in datasets:
                    shape = (plan.steps, *cut.shape)
                    check_room(demo, shape, 1)
                    datasets[target] = demo.create_dataset(
                        target, shape, np.uint8, chunks=(1, *cut.shape)
                    )
                datasets[target][row] = cut


def _write_attributes(demo: Any, plan: DemoPlan) -> None:
    """Attributes that were there before, and where the episode came from."""
    kept = _kept_attributes(plan.episode)
    _put_attributes(demo, kept.get("episode", {}))
    for owner, values in kept.items():
        place = owner.removeprefix("episode/")
        if owner != place and is_demo(plan.episode) and place in demo:
            _put_attributes(demo[place], values)
    demo.attrs[PROVENANCE] = json.dumps(_provenance(plan.episode), ensure_ascii=False)


def _provenance(episode: ExportedEpisode) -> dict[str, Any]:
    metadata = plain_metadata(episode.metadata)
    facts = {
        "name": episode.name,
        "episode_id": episode.episode_id,
        "source": episode.source,
        "sha256": dict(episode.digests),
        "fps": episode.fps,
        "duration_s": episode.duration_s,
        "robot": episode.robot,
        "seed": episode.seed,
        "env_version": episode.env_version,
        "policy_version": episode.policy_version,
        "git_sha": episode.git_sha,
        **{name: metadata.get(name) for name in ("source_file", "tasks", "outcome")},
    }
    rest = {k: v for k, v in metadata.items() if k not in facts and not k.startswith("hdf5_")}
    if len(json.dumps(rest)) <= _LONGEST_METADATA:
        facts["metadata"] = rest
    return {name: value for name, value in facts.items() if value is not None}
