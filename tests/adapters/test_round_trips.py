"""Every import goes out in every format: it comes back equal, or the export said beforehand what would not."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from rollbook.adapters.episode_folder import read_episode_file
from rollbook.adapters.exports.chosen_episodes import ChosenEpisodes
from rollbook.adapters.exports.exporter import Loss
from rollbook.adapters.formats import EXPORTS, IMPORTS
from rollbook.adapters.importing import ImportFolder, import_recording
from rollbook.contracts.npz import read_npz
from rollbook.errors import ConfigurationError

BACK = {"hdf5": "hdf5", "lerobot": "lerobot", "mcap": "ros2", "minari": "minari"}
"""The importer that reads what an exporter wrote."""
CANNOT_HOLD = {
    ("ros2", "hdf5"),
    ("ros2", "minari"),
    ("hdf5", "minari"),
    ("lerobot", "minari"),
    ("episodes", "minari"),
    ("rlds", "minari"),
    ("zarr-buffer", "minari"),
}
"""Pairs in which the export is refused: the episodes have no actions, or not one observation more than actions."""


def imported(kind: str, folder: Path) -> Path:
    module = importlib.import_module(f"tests.adapters.recordings.{kind.replace('-', '_')}")
    (folder / "recording").mkdir()
    target = ImportFolder(folder / "episodes")
    importer = IMPORTS[kind].made_by()()
    import_recording(importer, module.make(folder / "recording"), target, stop_on_error=True)
    return target.path


@pytest.mark.parametrize("out", sorted(BACK))
@pytest.mark.parametrize("kind", sorted(IMPORTS))
def test_what_does_not_come_back_was_listed_before_the_export(
    kind: str, out: str, tmp_path: Path
) -> None:
    before = imported(kind, tmp_path)
    exporter = EXPORTS[out].made_by()()
    with ChosenEpisodes("default", near=tmp_path / "exported") as chosen:
        episodes = chosen.find([str(before)], None)
        if (kind, out) in CANNOT_HOLD:
            with pytest.raises(ConfigurationError):
                exporter.losses(episodes)
            return
        losses = exporter.losses(episodes)
        exporter.write(episodes, tmp_path / "exported", lambda done, total: None)
    again = ImportFolder(tmp_path / "again")
    importer = IMPORTS[BACK[out]].made_by()()
    import_recording(importer, tmp_path / "exported", again, stop_on_error=True)
    assert len(list(again.path.iterdir())) == len(list(before.iterdir()))
    unexplained = [
        (folder.name, slot, key)
        for folder, back in _pairs(before, again.path)
        for slot, key in _differences(folder, back)
        if not _is_listed(key, losses)
    ]
    assert unexplained == []


def _pairs(before: Path, after: Path) -> Iterator[tuple[Path, Path]]:
    yield from zip(sorted(before.iterdir()), sorted(after.iterdir()), strict=True)


def _differences(before: Path, after: Path) -> Iterator[tuple[str, str]]:
    for slot in ("sensors", "actions"):
        old, new = _arrays(before, slot), _arrays(after, slot)
        for key, value in old.items():
            same = key in new and new[key].dtype == value.dtype
            if not same or not np.array_equal(new[key], value, equal_nan=value.dtype.kind in "fc"):
                yield slot, key
    one, two = read_episode_file(before), read_episode_file(after)
    for fact in ("seed", "env_version", "policy_version"):
        if getattr(one, fact) != getattr(two, fact):
            yield "facts", fact


def _arrays(folder: Path, slot: str) -> dict[str, np.ndarray]:
    path = folder / f"{slot}.npz"
    return read_npz(path) if path.is_file() else {}


def _is_listed(key: str, losses: Sequence[Loss]) -> bool:
    namespace = key.rpartition("/")[0] or key
    return any(namespace in each.what or each.what in key for each in losses)
