"""Trajectories of the package imitation: cut as its own reader cuts them, and never unpickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.adapters.formats import detect
from rollbook.adapters.trajectories import TrajectoriesImporter, looks_like
from rollbook.errors import (
    ConfigurationError,
    CountMismatch,
    DamagedRecording,
    InvalidValue,
    UnknownFormat,
)
from tests.adapters.damaged_files import outcomes_of_damage
from tests.adapters.encoded_files import import_all, imported
from tests.adapters.memory import most_memory_of_import
from tests.adapters.recordings.trajectories import arrays, make
from tests.public_packages import public_source


def save(path: Path, packed: bool = True, **changes: Any) -> Path:
    held = {key: value for key, value in {**arrays(), **changes}.items() if value is not None}
    write: Callable[..., None] = np.savez_compressed if packed else np.savez
    write(path, **held)
    return path


def split_as_imitation_does(held: dict[str, Any]) -> list[tuple[Any, Any, Any]]:
    indices, count = held["indices"], len(held["terminal"])
    observations = np.split(held["obs"], indices + np.arange(count - 1) + 1)
    return list(
        zip(
            observations,
            np.split(held["acts"], indices),
            np.split(held["rews"], indices),
            strict=True,
        )
    )


@pytest.mark.parametrize("packed", [True, False])
def test_each_trajectory_is_an_episode(packed: bool, tmp_path: Path) -> None:
    path = save(tmp_path / "final.npz", packed)
    found = import_all(TrajectoriesImporter(fps=10), path, tmp_path)
    for each, (obs, acts, rews) in zip(found, split_as_imitation_does(arrays()), strict=True):
        assert each.sensors["observation/value"].tobytes() == obs.tobytes()
        assert each.actions["action/value"].tolist() == acts.tolist()
        assert each.sensors["reward/value"].tolist() == rews.tolist()
        assert each.sensors["reward/_t_ns"][0] == 100_000_000
        assert each.metadata["outcome"]["reward_total"] == rews.sum()
        assert each.metadata["declared"] == each.metadata["read"]
        assert each.metadata["trajectories_terminal"] is True
        assert "terminated" not in each.metadata, "the file does not say"
    assert [each.encoded.duration_s for each in found] == [0.3, 0.4]


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    width=st.integers(0, 3),
    packed=st.booleans(),
)
def test_any_lengths_are_cut_as_imitation_cuts_them(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], width: int, packed: bool
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    held = {**arrays(tuple(lengths)), "acts": np.zeros((sum(lengths), *[2] * width))}
    found = import_all(TrajectoriesImporter(), save(folder / "x.npz", packed, **held), folder)
    for each, (obs, acts, _) in zip(found, split_as_imitation_does(held), strict=True):
        assert each.sensors["observation/value"].tobytes() == obs.tobytes()
        assert each.actions["action/value"].shape == acts.shape


def test_a_file_is_recognised_by_its_arrays(tmp_path: Path) -> None:
    path = make(tmp_path)
    assert looks_like(path) is not None
    assert [found.format for found in detect(path)] == ["trajectories"]
    np.savez(tmp_path / "other.npz", obs=np.zeros(3))
    assert looks_like(tmp_path / "other.npz") is None
    assert looks_like(tmp_path) is None
    for other in (tmp_path, tmp_path / "other.npz", tmp_path / "nothing"):
        with pytest.raises(UnknownFormat):
            TrajectoriesImporter().scan(other)


class Hostile:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("code of the file was run",))


def test_infos_are_named_and_never_unpickled(tmp_path: Path) -> None:
    path = save(tmp_path / "final.npz", infos=np.array([Hostile()] * 7, object))
    found = import_all(TrajectoriesImporter(), path, tmp_path)
    (skipped,) = found[0].metadata["skipped"]
    assert skipped["name"] == "infos"
    assert "never read" in skipped["reason"]
    with pytest.raises(InvalidValue, match=r"'\|O'"):
        TrajectoriesImporter().scan(save(tmp_path / "b.npz", obs=np.array([Hostile()], object)))


def test_a_pickle_with_the_name_of_an_archive_is_refused(tmp_path: Path) -> None:
    """Older releases of imitation saved pickles so, and `numpy.load` would open them."""
    path = tmp_path / "final.npz"
    path.write_bytes(pickle.dumps(Hostile()))
    assert looks_like(path) is None
    with pytest.raises(UnknownFormat, match="not an NPZ file"):
        TrajectoriesImporter().scan(path)


def test_other_arrays_are_named_and_rewards_may_be_missing(tmp_path: Path) -> None:
    path = save(tmp_path / "final.npz", rews=None, infos=None, weights=np.zeros(3))
    found = import_all(TrajectoriesImporter(), path, tmp_path)
    assert found[0].metadata["skipped"][0]["name"] == "weights"
    assert found[0].metadata["outcome"]["reward_total"] is None
    assert "reward/value" not in found[0].sensors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs": np.zeros((8, 3))}, "declares 9 rows of obs, but 8 were read"),
        ({"rews": np.zeros(6)}, "declares 7 rows of rews, but 6 were read"),
        ({"terminal": np.ones(3, bool)}, "declares 2 values of terminal, but 3"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CountMismatch, match=message):
        TrajectoriesImporter().scan(save(tmp_path / "final.npz", **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": np.array([7])}, "trajectory 1 ends at action 7"),
        ({"indices": np.array([0])}, "trajectory 0 ends at action 0"),
        ({"indices": np.array([-3])}, "trajectory 0"),
        ({"indices": np.array([2**63 - 1])}, "trajectory 1 ends at action 7"),
        ({"indices": np.array([2.5])}, "indices is float64"),
        ({"terminal": np.ones((2, 1), bool)}, "terminal is bool of shape"),
        ({"acts": np.array(["left"] * 7)}, "acts is"),
        ({"obs": np.float32(1)}, "obs is float32 of shape"),
    ],
)
def test_arrays_that_are_wrong_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DamagedRecording, match=message):
        TrajectoriesImporter().scan(save(tmp_path / "final.npz", **changes))


def test_options_and_indices_are_checked(tmp_path: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(ConfigurationError, match="fps"):
        TrajectoriesImporter(fps=0).scan(path)
    recording = TrajectoriesImporter().scan(path)
    with pytest.raises(ConfigurationError, match="there is no 2"):
        imported(TrajectoriesImporter(), recording, 2, tmp_path)


@pytest.mark.parametrize("packed", [True, False])
def test_trajectories_may_be_read_in_any_order(packed: bool, tmp_path: Path) -> None:
    held = arrays((3, 4, 2, 5))
    path = save(tmp_path / "final.npz", packed, **held)
    importer = TrajectoriesImporter()
    recording = importer.scan(path)
    expected = split_as_imitation_does(held)
    for index in (2, 3, 0, 0, 1, 2):
        found = imported(importer, recording, index, tmp_path)
        assert found.sensors["observation/value"].tobytes() == expected[index][0].tobytes()
        assert found.actions["action/value"].tobytes() == expected[index][1].tobytes()


def test_damaged_files_give_errors_of_rollbook(tmp_path: Path) -> None:
    counts = outcomes_of_damage(make, TrajectoriesImporter(), tmp_path, most=90)
    assert counts["refused"] > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trajectories", "steps"), [("cartpole_0", 57, 26964), ("pendulum_0", 56, 11200)]
)
def test_the_rollouts_of_imitation_itself(
    name: str, trajectories: int, steps: int, tmp_path: Path
) -> None:
    source = public_source("imitation", "1.0.1")
    path = source / "tests/testdata/expert_models" / name / "rollouts/final.npz"
    with np.load(path) as archive:
        held = {key: archive[key] for key in archive.files if key != "infos"}
    found = import_all(TrajectoriesImporter(), path, tmp_path)
    assert len(found) == trajectories
    assert sum(each.metadata["steps"] for each in found) == steps
    for each, (obs, acts, rews) in zip(found, split_as_imitation_does(held), strict=True):
        assert each.sensors["observation/value"].tobytes() == obs.tobytes()
        assert each.actions["action/value"].tobytes() == acts.tobytes()
        assert each.sensors["reward/value"].tobytes() == rews.tobytes()
        assert [name["name"] for name in each.metadata["skipped"]] == ["infos"]


@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
def test_memory_does_not_grow_with_the_trajectory(packed: bool, tmp_path: Path) -> None:
    def keep(steps: int) -> Path:
        held = {
            "obs": np.ones((steps + 1, 64), np.float32),
            "acts": np.zeros(steps),
            "rews": np.zeros(steps),
            "terminal": np.ones(1, bool),
            "indices": np.zeros(0, np.int64),
            "infos": None,
        }
        return save(tmp_path / f"{steps}.npz", packed, **held)

    short, long = keep(30_000), keep(300_000)
    importer = TrajectoriesImporter()
    most_memory_of_import(importer, short, tmp_path)  # what is loaded once does not count
    before = most_memory_of_import(importer, short, tmp_path)
    assert most_memory_of_import(importer, long, tmp_path) < before + (4 << 20)
