"""Minari exports: Minari itself opens them, the environment runs again to the same observations, and nothing is lost
in silence."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.adapters import gymnasium as gymnasium_adapter
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import Loss
from rollbook.adapters.exports.minari import MinariExporter
from rollbook.adapters.minari import MinariImporter
from rollbook.errors import ConfigurationError, StorageError, TargetExists
from tests.adapters.encoded_files import Imported, import_all
from tests.adapters.minari_datasets import (
    AnyEnv,
    balance,
    cart_pole,
    made_up,
    minari_root,
    write,
    write_cart_pole,
)


def recorded(folder: Path, seed: int, env: AnyEnv | None = None, **options: Any) -> ExportedEpisode:
    """An episode of the Gymnasium adapter."""
    made = env or cart_pole(max_episode_steps=40)
    encoded = gymnasium_adapter.encode_rollout(made, balance, folder / str(seed), seed=seed)
    digests = dict.fromkeys(encoded.files, "0" * 64)
    return replace(ExportedEpisode.of_encoded(encoded, digests), **options)


def nothing(done: int, total: int) -> None:
    pass


def write_export(episodes: list[ExportedEpisode], target: Path, **options: Any) -> Path:
    MinariExporter(**options).write(episodes, target, nothing)
    return target


def test_minari_opens_the_export_and_the_environment_runs_to_the_same_observations(
    tmp_path: Path,
) -> None:
    episodes = [recorded(tmp_path, seed, episode_id=f"ep_{seed}") for seed in (3, 4)]
    summary = MinariExporter().write(episodes, tmp_path / "cart-v0", nothing)
    assert (summary.episodes, summary.rows) == (2, 80)
    with minari_root(tmp_path) as minari:
        dataset = minari.load_dataset("cart-v0")
        assert dataset.total_episodes == 2
        assert dataset.spec.observation_space == cart_pole().observation_space
        assert dataset.spec.action_space == cart_pole().action_space
        facts = list(dataset.storage.get_episode_metadata([0, 1]))
        assert [each["seed"] for each in facts] == [3, 4]
        assert facts[0]["rollbook"]["episode_id"] == "ep_3"
        assert facts[0]["rollbook"]["sensors_sha256"] == "0" * 64
        for episode, fact in zip(dataset.iterate_episodes(), facts, strict=True):
            env = dataset.recover_environment()
            observed = [env.reset(seed=fact["seed"])[0]]
            for step, action in enumerate(episode.actions):
                observation, reward, terminated, truncated, _ = env.step(int(action))
                observed.append(observation)
                assert reward == episode.rewards[step]
                assert terminated == episode.terminations[step]
                assert truncated == episode.truncations[step]
            assert np.array(observed).tobytes() == episode.observations.tobytes()
            env.close()


def same(first: Imported, second: Imported) -> None:
    """Everything but what says where the episode was read from."""
    for one, two in ((first.sensors, second.sensors), (first.actions, second.actions)):
        assert one.keys() == two.keys()
        for key, values in one.items():
            assert values.dtype == two[key].dtype, key
            assert values.shape == two[key].shape, key
            assert values.tobytes() == two[key].tobytes(), key
    for name in ("seed", "fps", "env_version", "source", "duration_s"):
        assert getattr(first.encoded, name) == getattr(second.encoded, name)
    about_import = {"minari_episode", "minari_dataset_id", "losses"}
    kept = [
        {k: v for k, v in each.metadata.items() if k not in about_import}
        for each in (first, second)
    ]
    assert kept[0] == kept[1]


def harmless(losses: list[Loss]) -> bool:
    return {each.what for each in losses} <= {"name"}


def round_trip(path: Path, folder: Path) -> None:
    before = import_all(MinariImporter(fps=20), path, folder)
    episodes = [each.exported() for each in before]
    assert harmless(MinariExporter().losses(episodes))
    exported = write_export(episodes, folder / "again-v0")
    for one, two in zip(before, import_all(MinariImporter(), exported, folder), strict=True):
        same(one, two)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_an_import_that_is_exported_and_imported_again_is_the_same(
    data_format: str, tmp_path: Path
) -> None:
    round_trip(write_cart_pole(tmp_path / "sets", data_format=data_format), tmp_path)


FLOATS = st.floats(width=32)
WORDS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=5)


@st.composite
def episode(draw: st.DrawFn) -> dict[str, Any]:
    steps = draw(st.integers(1, 6))

    def column(value: st.SearchStrategy[Any], rows: int) -> list[Any]:
        return draw(st.lists(value, min_size=rows, max_size=rows))

    observations = {
        "pose": np.array(column(st.lists(FLOATS, min_size=3, max_size=3), steps + 1), np.float32),
        "pair": (
            np.array(column(st.integers(-(2**31), 2**31 - 1), steps + 1), np.int64),
            column(WORDS, steps + 1),
        ),
        "image": np.array(column(st.integers(0, 255), steps + 1), np.uint8)[:, None, None, None]
        * np.ones((1, 32, 33, 3), np.uint8),
    }
    made = made_up(steps, observations, np.array(column(st.integers(0, 3), steps), np.int64))
    made["rewards"] = column(st.floats(), steps)
    made["terminations"] = column(st.booleans(), steps)
    made["truncations"] = column(st.booleans(), steps)
    if draw(st.booleans()):
        made["seed"] = draw(st.integers(0, 2**40))
    if draw(st.booleans()):
        made["infos"] = {"force": {"left": np.arange(steps + 1.0)}}
    return made


@settings(max_examples=15, deadline=None)
@given(st.lists(episode(), min_size=1, max_size=3))
def test_whatever_a_dataset_holds_survives_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("round-trip")
    space = spaces.Dict(
        {
            "pose": spaces.Box(-np.inf, np.inf, (3,), np.float32),
            "pair": spaces.Tuple([spaces.Discrete(7), spaces.Text(5)]),
            "image": spaces.Box(0, 255, (32, 33, 3), np.uint8),
        }
    )
    path = write(
        folder / "sets",
        episodes,
        observation_space=space,
        action_space=spaces.Discrete(4),
        jpeg_encoding=False,
    )
    before = import_all(MinariImporter(fps=20, cameras=()), path, folder)
    exported = write_export([each.exported() for each in before], folder / "again-v0")
    after = import_all(MinariImporter(cameras=()), exported, folder)
    for one, two in zip(before, after, strict=True):
        same(one, two)
    with minari_root(folder) as minari:
        dataset = minari.load_dataset("again-v0")
        assert dataset.spec.observation_space == space
        for one, read in zip(before, dataset.iterate_episodes(), strict=True):
            assert read.observations["pair"][1] == one.sensors["observation.pair.1/value"].tolist()
            assert np.array_equal(
                read.observations["image"], one.sensors["observation.image/value"]
            )


# ------------------------------------------------------------------------------------------ losses


def what(losses: list[Loss]) -> set[str]:
    return {each.what for each in losses}


def test_a_recorded_run_loses_only_what_is_listed(tmp_path: Path) -> None:
    plain = recorded(tmp_path / "a", 3)
    assert what(MinariExporter().losses([plain])) == {"name", "metadata"}
    told = replace(plain, robot="cart", policy_version="v4", git_sha="abc", seed=2**80)
    losses = MinariExporter().losses([told])
    assert what(losses) == {"name", "metadata", "robot", "policy_version", "git_sha", "seed"}
    film = replace(plain, files={**plain.files, "video": tmp_path / "video.mp4"})
    assert "video" in what(MinariExporter().losses([film]))


def rewrite(given_episode: ExportedEpisode, kind: Any, change: Any) -> ExportedEpisode:
    from rollbook.contracts.npz import read_npz, write_npz

    path = given_episode.files[kind]
    arrays = change(read_npz(path))
    path.unlink()
    write_npz(path, arrays)
    return given_episode


def test_other_streams_and_other_times_are_listed(tmp_path: Path) -> None:
    def more(arrays: dict[str, Any]) -> dict[str, Any]:
        times = arrays["observation/_t_ns"].copy()
        times[3] += 1
        other = {"lidar/ranges": np.zeros(41), "lidar/_t_ns": arrays["observation/_t_ns"]}
        return {**arrays, **other, "observation/_t_ns": times}

    episode = rewrite(recorded(tmp_path, 3), "sensors", more)
    losses = what(MinariExporter().losses([episode]))
    assert {"sensors: lidar/ranges", "sensors: observation"} <= losses
    write_export([episode], tmp_path / "set-v0")
    with h5py.File(tmp_path / "set-v0" / "data" / "main_data.hdf5") as file:
        assert "lidar" not in str(list(file["episode_0"]))


def test_an_unknown_space_is_made_from_the_types_and_said_so(tmp_path: Path) -> None:
    known = recorded(tmp_path, 3)
    metadata = {k: v for k, v in known.metadata.items() if k != "gymnasium_spec"}
    episode = replace(known, metadata=metadata)
    losses = what(MinariExporter().losses([episode]))
    assert {"space of observation", "space of action"} <= losses
    write_export([episode], tmp_path / "set-v0")
    with minari_root(tmp_path) as minari:
        dataset = minari.load_dataset("set-v0")
        assert dataset.spec.observation_space == spaces.Box(-np.inf, np.inf, (4,), np.float32)
        assert dataset.spec.env_spec is None
        assert len(next(iter(dataset.iterate_episodes())).actions) == 40


def test_missing_rewards_are_nan_and_listed(tmp_path: Path) -> None:
    def without(arrays: dict[str, Any]) -> dict[str, Any]:
        return {key: each for key, each in arrays.items() if not key.startswith("reward/")}

    episode = rewrite(recorded(tmp_path, 3), "sensors", without)
    assert "reward" in what(MinariExporter().losses([episode]))
    write_export([episode], tmp_path / "set-v0")
    with h5py.File(tmp_path / "set-v0" / "data" / "main_data.hdf5") as file:
        assert np.isnan(file["episode_0/rewards"][:]).all()


# --------------------------------------------------------------------------------------- refusals


def test_an_episode_of_another_form_is_refused(tmp_path: Path) -> None:
    def cut(arrays: dict[str, Any]) -> dict[str, Any]:
        return {key: each[:40] for key, each in arrays.items()}

    episode = rewrite(recorded(tmp_path / "a", 3), "sensors", cut)
    with pytest.raises(ConfigurationError, match="40 rows where 41 belong"):
        MinariExporter().losses([episode])
    bare = recorded(tmp_path / "b", 3)
    bare = replace(bare, files={"sensors": bare.files["sensors"]})
    with pytest.raises(ConfigurationError, match="no actions called action"):
        write_export([bare], tmp_path / "set-v0")
    with pytest.raises(ConfigurationError, match="no episodes"):
        write_export([], tmp_path / "set-v0")


def test_episodes_of_different_environments_are_refused(tmp_path: Path) -> None:
    one = recorded(tmp_path / "a", 3)
    two = recorded(tmp_path / "b", 3, cart_pole(max_episode_steps=30))
    with pytest.raises(ConfigurationError, match="different environments"):
        write_export([one, two], tmp_path / "set-v0")


def test_a_target_that_exists_is_kept_and_a_failure_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = recorded(tmp_path, 3)
    (tmp_path / "there").mkdir()
    with pytest.raises(TargetExists):
        write_export([episode], tmp_path / "there")

    def full(done: int, total: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space left"):
        MinariExporter().write([episode], tmp_path / "set-v0", full)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["3", "there"]


def test_the_id_of_a_dataset_has_a_version(tmp_path: Path) -> None:
    episode = recorded(tmp_path, 3)
    write_export([episode], tmp_path / "my set")
    stated = json.loads((tmp_path / "my set" / "data" / "metadata.json").read_text())
    assert stated["dataset_id"] == "my-set-v0"
    write_export([episode], tmp_path / "x", dataset_id="carts/expert-v2")
    with pytest.raises(ConfigurationError, match="name-v0"):
        write_export([episode], tmp_path / "y", dataset_id="carts")


def _with_streams(episode: ExportedEpisode, kind: str, **rows: int) -> ExportedEpisode:
    """More streams of so many rows each; names with `__` for a dot."""

    def add(arrays: dict[str, Any]) -> dict[str, Any]:
        for name, count in rows.items():
            full = name.replace("__", ".")
            arrays[f"{full}/value"] = np.zeros(count)
            arrays[f"{full}/_t_ns"] = np.arange(count)
        return arrays

    return rewrite(episode, kind, add)


def test_names_that_would_lie_inside_each_other_are_listed_or_refused(tmp_path: Path) -> None:
    made = recorded(tmp_path / "a", 3)
    infos = _with_streams(made, "sensors", info__x=40, info__x__y=40, info__=40, info__z=40)
    listed = {loss.what for loss in MinariExporter().losses([infos])}
    assert {"sensors: info.x.y/value", "sensors: info./value"} <= listed
    target = write_export([infos], tmp_path / "infos-v0")
    with h5py.File(target / "data" / "main_data.hdf5") as file:
        assert sorted(file["episode_0/infos"]) == ["x", "z"]

    def renamed(arrays: dict[str, Any]) -> dict[str, Any]:
        held = {key.rpartition("/")[2]: value for key, value in arrays.items()}
        names = ("observation.a", "observation.a.b")
        return {f"{name}/{field}": held[field] for name in names for field in held}

    only = rewrite(recorded(tmp_path / "b", 3), "sensors", _only_observations)
    with pytest.raises(
        ConfigurationError, match=r"'observation\.a\.b' has an empty part, or would"
    ):
        MinariExporter().losses([rewrite(only, "sensors", renamed)])


def _only_observations(arrays: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arrays.items() if key.startswith("observation/")}


def test_metadata_of_others_under_our_names_does_not_stop_an_export(tmp_path: Path) -> None:
    kept = {"l": [1, "x"], "s": "half \ud800", "n": "a\0b", "big": 2**70, "": 2, "d": {"e": 1}}
    odd = {
        "minari_episode": kept,
        "gymnasium_spec": "CartPole",
        "minari_spaces": {"observation": {"type": "Box", "shape": ["x"], "low": "q"}},
    }
    episode = recorded(tmp_path / "a", 3, metadata=odd)
    MinariExporter().losses([episode])
    target = write_export([episode], tmp_path / "odd-v0")
    with h5py.File(target / "data" / "main_data.hdf5") as file:
        assert {"l", "total_steps"} <= set(file["episode_0"].attrs)
        assert not {"s", "n", "big", "", "d"} & set(file["episode_0"].attrs)
    assert "env_spec" not in json.loads((target / "data" / "metadata.json").read_text())


def test_a_disk_without_room_is_named_before_hdf5_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = recorded(tmp_path / "a", 3)
    usage = shutil.disk_usage(tmp_path)._replace(free=4 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StorageError, match="no space left"):
        write_export([episode], tmp_path / "set-v0")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
