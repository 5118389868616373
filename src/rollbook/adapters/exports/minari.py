"""MinariExporter: episodes of an environment become a Minari dataset in HDF5, written without the package `minari`.

An episode has to be of the form of rollbook.adapters.gymnasium: one observation more than actions. Pictures among the
observations are written as they are, not as JPEG, so that every value comes back.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import ExportSummary, Loss, OnEpisode
from rollbook.adapters.exports.h5_writing import (
    check_room,
    h5_write_errors,
    storable_attribute,
)
from rollbook.adapters.exports.minari_plan import EpisodePlan, path_of, written_values
from rollbook.adapters.exports.minari_spaces import PARTS, ExportSpace, spaces_for
from rollbook.adapters.exports.provenance import provenance
from rollbook.adapters.extras import library
from rollbook.adapters.minari.episode_reading import FLAGS, REWARD
from rollbook.adapters.minari.hdf5_storage import FILE
from rollbook.adapters.minari.importer import ASSUMED_VALUE, FPS_VALUE
from rollbook.adapters.minari.spaces import Key, SpaceLeaf
from rollbook.adapters.steps.step_clock import ASSUMED_KEY
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.npz import NpzArchive
from rollbook.contracts.streams import ONLY_FIELD
from rollbook.errors import ConfigurationError, StorageError, TargetExists
from rollbook.files import promote_folder, write_errors

FORMAT = "minari"
_VERSION = "0.5.4"
"""The Minari whose layout is written."""
_ID = re.compile(r"(?:[-\w]+/)*[-\w]+-v\d+")
_SLOTS: dict[str, tuple[ArtifactKind, str]] = {
    "observation": ("sensors", "observations"),
    "action": ("actions", "actions"),
}
_LONGEST_VALUE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class MinariExporter:
    dataset_id: str | None = field(
        default=None,
        metadata={
            "help": "Id of the dataset, such as cartpole/expert-v0. Without this option: from the target's name."
        },
    )

    @property
    def format(self) -> str:
        return FORMAT

    def losses(self, episodes: Sequence[ExportedEpisode]) -> list[Loss]:
        plans = [EpisodePlan.of(each) for each in episodes]
        found = [loss for plan in plans for loss in plan.losses()]
        if plans:
            for part, space in _common_spaces(plans).items():
                if not space.exact:
                    reason = "The bounds of the space are not known: they are those of its type."
                    found += [Loss(plan.episode.name, f"space of {part}", reason) for plan in plans]
        return found

    def write(
        self, episodes: Sequence[ExportedEpisode], target: Path, on_episode: OnEpisode
    ) -> ExportSummary:
        plans = [EpisodePlan.of(each) for each in episodes]
        if not plans:
            raise ConfigurationError(message="there are no episodes to export")
        spaces = _common_spaces(plans)
        spec = _common_spec(plans)
        name = self._dataset_id(target)
        if os.path.lexists(target):
            raise TargetExists(path=str(target), detail="choose another one, or remove it")
        with _new_folder(target) as folder, h5_write_errors(target):
            data = folder / "data"
            data.mkdir()
            with library("h5py").File(data / FILE, "x", track_order=True) as file:
                for index, plan in enumerate(plans):
                    _EpisodeWriter(file, index, plan, spaces).write()
                    on_episode(index + 1, len(plans))
            size = (data / FILE).stat().st_size
            described = _description(plans, spaces, spec, name, size)
            (data / "metadata.json").write_text(json.dumps(described))
            size += (data / "metadata.json").stat().st_size
        steps = sum(plan.steps for plan in plans)
        return ExportSummary(
            format=FORMAT, path=target, episodes=len(plans), rows=steps, files=2, size=size
        )

    def _dataset_id(self, target: Path) -> str:
        """Minari wants a version at the end of the id."""
        given = self.dataset_id
        if given is not None:
            if not _ID.fullmatch(given):
                message = f"dataset_id={given!r}; it has to be like name-v0 or group/name-v0"
                raise ConfigurationError(message=message)
            return given
        name = target.name
        return name if _ID.fullmatch(name) else re.sub(r"[^-\w]", "-", name) + "-v0"


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A folder beside the target, which becomes the target when the block ends without an error."""
    folder = target.with_name(f".{target.name[:40]}.{os.urandom(8).hex()}.tmp")
    try:
        with write_errors(target):
            folder.mkdir()
        yield folder
        promote_folder(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _common_spaces(plans: Sequence[EpisodePlan]) -> dict[str, ExportSpace]:
    """The spaces of all episodes, which have to be of one form."""
    first = plans[0]
    spaces = spaces_for(first.episode.metadata, _widest(plans))
    for plan in plans[1:]:
        for part in PARTS:
            if _forms(plan, part) != _forms(first, part):
                raise ConfigurationError(
                    message=f"{plan.episode.name} and {first.episode.name} differ in the names, types or shapes of "
                    f"their {part}s; a Minari dataset has one space for all its episodes"
                )
    return spaces


def _forms(plan: EpisodePlan, part: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Texts may differ in their longest length."""
    streams = plan.streams[part].items()
    return {
        name: ("text" if f.dtype.kind == "U" else str(f.dtype), f.shape[1:]) for name, f in streams
    }


def _widest(plans: Sequence[EpisodePlan]) -> Any:
    """The streams of the first episode, with the widest text of all."""
    found = {part: dict(plans[0].streams[part]) for part in PARTS}
    for plan in plans[1:]:
        for part in PARTS:
            for name, facts in plan.streams[part].items():
                known = found[part].get(name)
                if known is not None and facts.dtype.itemsize > known.dtype.itemsize:
                    found[part][name] = facts
    return found


def _common_spec(plans: Sequence[EpisodePlan]) -> Any:
    found = [plan.episode.metadata.get("gymnasium_spec") for plan in plans]
    # metadata may come from anybody, and mean something else under this name
    specs = [spec if isinstance(spec, Mapping) else None for spec in found]
    for plan, spec in zip(plans, specs, strict=True):
        if spec != specs[0]:
            raise ConfigurationError(
                message=f"{plan.episode.name} and {plans[0].episode.name} were recorded in different environments; "
                "a Minari dataset has one environment"
            )
    return specs[0]


def _description(
    plans: Sequence[EpisodePlan], spaces: dict[str, ExportSpace], spec: Any, name: str, size: int
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "total_episodes": len(plans),
        "total_steps": sum(plan.steps for plan in plans),
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": spaces["observation"].text,
        "action_space": spaces["action"].text,
        "dataset_id": name,
        "minari_version": _VERSION,
        "dataset_size": round(size / 1e6, 1),
    }
    if spec is not None:
        described["env_spec"] = json.dumps(spec)
    policies = {plan.episode.policy_version for plan in plans}
    if len(policies) == 1 and None not in policies:
        described["algorithm_name"] = policies.pop()
    return described


class _EpisodeWriter:
    def __init__(
        self, file: Any, index: int, plan: EpisodePlan, spaces: dict[str, ExportSpace]
    ) -> None:
        self._group = file.create_group(f"episode_{index}", track_order=True)
        self._index = index
        self._plan = plan
        self._spaces = spaces

    def write(self) -> None:
        self._write_values()
        for part, (kind, group) in _SLOTS.items():
            with self._plan.episode.open(kind) as archive:
                for leaf in self._spaces[part].leaves:
                    self._copy(archive, leaf.name, "/".join([group, *_path(leaf)]))
        with self._plan.episode.open("sensors") as archive:
            self._write_rewards(archive)
            for part, name in FLAGS.items():
                self._write_flags(archive, part, name)
            for name in self._plan.infos:
                self._copy(archive, name, "/".join(["infos", *path_of(name)[1:]]))

    def _write_values(self) -> None:
        attributes = self._group.attrs
        attributes["id"] = self._index
        if self._plan.seed is not None:
            attributes["seed"] = self._plan.seed
        attributes["total_steps"] = self._plan.steps
        for name, value in written_values(self._plan.episode.metadata):
            kept = storable_attribute(value)
            if kept is not None and name:
                attributes[name] = kept
        if self._plan.episode.fps is not None:
            attributes[FPS_VALUE] = float(self._plan.episode.fps)
            if self._plan.episode.metadata.get(ASSUMED_KEY):
                attributes[ASSUMED_VALUE] = True
        for name, value in provenance(self._plan.episode).items():
            if value is not None and len(str(value)) <= _LONGEST_VALUE:
                attributes[f"rollbook/{name}"] = value

    def _copy(self, archive: NpzArchive, name: str, path: str) -> None:
        key = f"{name}/{ONLY_FIELD}"
        facts = archive.facts(key)
        is_text = facts.dtype.kind == "U"
        dtype = library("h5py").string_dtype("utf-8") if is_text else facts.dtype.newbyteorder("=")
        check_room(self._group, facts.shape, 16 if is_text else facts.dtype.itemsize)
        written = self._group.create_dataset(
            path, facts.shape, dtype, chunks=True, maxshape=(None, *facts.shape[1:])
        )
        first = 0
        for rows in archive.rows(key, 0, facts.shape[0]):
            written[first : first + len(rows)] = rows.astype(object) if is_text else rows
            first += len(rows)
        if first != facts.shape[0]:
            detail = f"{name} has {first} rows; {facts.shape[0]} were declared"
            raise StorageError(path=str(self._plan.episode.files["sensors"]), detail=detail)

    def _write_rewards(self, archive: NpzArchive) -> None:
        if self._plan.rewards:
            self._copy(archive, REWARD, "rewards")
        else:
            self._vector("rewards", np.full(self._plan.steps, np.nan))

    def _write_flags(self, archive: NpzArchive, part: str, name: str) -> None:
        if name in self._plan.flags:
            self._copy(archive, name, part)
            return
        flags = np.zeros(self._plan.steps, bool)
        flags[-1] = self._plan.ended[name]
        self._vector(part, flags)

    def _vector(self, path: str, values: Any) -> None:
        self._group.create_dataset(path, data=values, chunks=True, maxshape=(None,))


def _path(leaf: SpaceLeaf) -> list[str]:
    def step(key: Key) -> str:
        return f"_index_{key}" if isinstance(key, int) else key

    return [step(key) for key in leaf.path]
