"""Minari datasets: what was recorded comes back, bit for bit where the dataset allows, and differences are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from rollbook.adapters.minari import MinariImporter, looks_like
from rollbook.errors import (
    ConfigurationError,
    CountMismatch,
    DamagedRecording,
    UnknownFormat,
    UnsupportedVersion,
)
from tests.adapters.damaged_files import outcomes_of_damage
from tests.adapters.encoded_files import import_all, imported
from tests.adapters.minari_datasets import (
    balance,
    cart_pole,
    made_up,
    rollout,
    write,
    write_cart_pole,
)
from tests.adapters.pictures import decode

every_format = pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])


def change_metadata(path: Path, **changes: Any) -> None:
    file = path / "data" / "metadata.json"
    stated = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in stated.items() if v is not None}))


def main_file(path: Path) -> Path:
    return path / "data" / "main_data.hdf5"


@every_format
def test_the_rows_of_a_dataset_are_those_of_the_run(data_format: str, tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path / "sets", data_format=data_format)
    run = rollout(cart_pole(max_episode_steps=50), balance, 7)
    (first, second) = import_all(MinariImporter(), path, tmp_path)
    observed = first.sensors["observation/value"]
    assert observed.dtype == np.float32
    assert observed.tobytes() == np.array(run["observations"]).tobytes()
    assert first.actions["action/value"].tolist() == run["actions"]
    assert first.actions["action/value"].dtype == np.int64
    assert first.sensors["reward/value"].tolist() == run["rewards"]
    assert first.encoded.seed == 7
    assert first.encoded.env_version == "CartPole-v1"
    assert first.metadata["ended_by"] == "truncated"
    assert first.metadata["truncated_by"] == "max_steps"
    assert (second.metadata["terminated"], second.metadata["truncated"]) == (True, False)
    assert second.metadata["outcome"]["reward_total"] == len(second.actions["action/value"])
    assert second.metadata["declared"]["steps"] == second.metadata["read"]["steps"]
    assert second.metadata["timestamps_assumed"] is True


@every_format
def test_a_dataset_is_recognised_by_its_folder_or_its_data(
    data_format: str, tmp_path: Path
) -> None:
    path = write_cart_pole(tmp_path, data_format=data_format)
    assert looks_like(path) == looks_like(path / "data") is not None
    assert looks_like(tmp_path) is None
    scanned = [MinariImporter().scan(each) for each in (path, path / "data")]
    assert {each.name for each in scanned} == {"test/set-v0"}
    assert [each.rows for each in scanned[0].episodes] == [50, 10]
    assert scanned[0].about["environment"] == "CartPole-v1"


def test_times_are_those_of_the_gymnasium_adapter(tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path / "sets", seeds=(8,))
    (slow,) = import_all(MinariImporter(fps=4), path, tmp_path)
    assert slow.sensors["observation/_t_ns"][:3].tolist() == [0, 250_000_000, 500_000_000]
    assert slow.actions["action/_t_ns"][:2].tolist() == [0, 250_000_000]
    assert slow.sensors["reward/_t_ns"][:2].tolist() == [250_000_000, 500_000_000]
    assert slow.encoded.duration_s == 2.5
    with pytest.raises(ConfigurationError, match="fps=0"):
        MinariImporter(fps=0).scan(path)


NESTED = spaces.Dict(
    {
        "arm": spaces.Tuple([spaces.Box(-1, 1, (2, 3), np.float64), spaces.Discrete(5)]),
        "words": spaces.Text(8, charset="abcdeé "),
        "switches": spaces.MultiBinary(3),
        "deep": spaces.Dict({"gears": spaces.MultiDiscrete([3, 4])}),
    }
)
NESTED_ACTION = spaces.Tuple([spaces.Discrete(4), spaces.Box(-2, 2, (2,), np.float32)])


def nested(rng: np.random.Generator, steps: int) -> dict[str, Any]:
    rows = steps + 1
    observations = {
        "arm": (rng.normal(size=(rows, 2, 3)), rng.integers(0, 5, rows)),
        "words": ["abé", "", "d e"] * (rows // 3) + ["c"] * (rows % 3),
        "switches": rng.integers(0, 2, (rows, 3)).astype(np.int8),
        "deep": {"gears": rng.integers(0, 3, (rows, 2))},
    }
    actions = (rng.integers(0, 4, steps), rng.normal(size=(steps, 2)).astype(np.float32))
    return made_up(steps, observations, actions)


@every_format
def test_parts_of_dict_and_tuple_spaces_become_streams(data_format: str, tmp_path: Path) -> None:
    given = nested(np.random.default_rng(1), 7)
    path = write(
        tmp_path / "sets",
        [given],
        data_format=data_format,
        observation_space=NESTED,
        action_space=NESTED_ACTION,
    )
    (found,) = import_all(MinariImporter(), path, tmp_path)
    arm, gear = given["observations"]["arm"]
    assert found.sensors["observation.arm.0/value"].tobytes() == arm.tobytes()
    assert found.sensors["observation.arm.0/value"].shape == (8, 2, 3)
    assert found.sensors["observation.arm.1/value"].tolist() == gear.tolist()
    assert found.sensors["observation.words/value"].tolist() == given["observations"]["words"]
    assert found.sensors["observation.switches/value"].dtype == np.int8
    gears = given["observations"]["deep"]["gears"]
    assert found.sensors["observation.deep.gears/value"].tolist() == gears.tolist()
    assert found.actions["action.0/value"].tolist() == given["actions"][0].tolist()
    assert found.actions["action.1/value"].tobytes() == given["actions"][1].tobytes()
    assert found.encoded.seed is None
    assert "environment_description" not in found.metadata
    assert any("no environment" in each for each in found.metadata["losses"])


def pictures(rows: int, side: int = 32) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Pictures whose brightness is their number."""
    shades = np.arange(rows, dtype=np.uint8)[:, None, None, None] * 8 + 16
    return np.broadcast_to(shades, (rows, side, side, 3)).copy()


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
@pytest.mark.parametrize("jpeg", [True, False])
def test_pictures_are_shown_and_lossy_ones_said_so(
    data_format: str, jpeg: bool, tmp_path: Path
) -> None:
    space = spaces.Dict(
        {"image": spaces.Box(0, 255, (32, 32, 3), np.uint8), "x": spaces.Box(-1, 1, (1,))}
    )
    shown = pictures(5)
    given = made_up(4, {"image": shown, "x": np.zeros((5, 1), np.float32)}, np.zeros(4, np.int64))
    path = write(
        tmp_path / "sets",
        [given],
        data_format=data_format,
        observation_space=space,
        action_space=spaces.Discrete(2),
        jpeg_encoding=jpeg,
    )
    (found,) = import_all(MinariImporter(), path, tmp_path)
    film = decode(found.encoded.files["video"])
    assert len(film.pictures) == 5
    for frame, expected in zip(film.pictures, shown, strict=True):
        assert abs(frame.astype(int) - expected).max() <= 4
    assert found.metadata["video_cameras"][0]["camera"] == "observation.image"
    assert any("JPEG" in each for each in found.metadata["losses"]) is jpeg
    assert ("observation.image/value" in found.sensors) is not jpeg
    if not jpeg:
        assert np.array_equal(found.sensors["observation.image/value"], shown)
    assert "observation.x/value" in found.sensors
    (bare,) = import_all(MinariImporter(cameras=()), path, tmp_path)
    assert "video" not in bare.encoded.files
    assert [each["name"] for each in bare.metadata["skipped"]] == (
        ["observation.image"] if jpeg else []
    )


@every_format
def test_infos_are_kept_and_say_how_it_went(data_format: str, tmp_path: Path) -> None:
    infos = {
        "success": np.array([False, False, True, True]),
        "force": {"left": np.arange(8.0).reshape(4, 2)},
    }
    given = made_up(3, np.zeros((4, 1), np.float32), np.zeros(3, np.int64), infos=infos)
    path = write(
        tmp_path / "sets",
        [given],
        data_format=data_format,
        observation_space=spaces.Box(-1, 1, (1,)),
        action_space=spaces.Discrete(2),
    )
    (found,) = import_all(MinariImporter(fps=10), path, tmp_path)
    assert found.sensors["info.force.left/value"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert found.metadata["outcome"]["success"] is True
    assert found.metadata["outcome"]["time_to_goal_s"] == 0.2


def test_flags_in_the_middle_are_kept_as_streams(tmp_path: Path) -> None:
    given = made_up(3, np.zeros((4, 1), np.float32), np.zeros(3, np.int64))
    given["terminations"] = [True, False, False]
    options: dict[str, Any] = {
        "observation_space": spaces.Box(-1, 1, (1,)),
        "action_space": spaces.Discrete(2),
    }
    path = write(tmp_path / "sets", [given], **options)
    (found,) = import_all(MinariImporter(), path, tmp_path)
    assert found.sensors["terminated/value"].tolist() == [True, False, False]
    assert found.metadata["terminated"] is False
    assert "ended_by" not in found.metadata, "the dataset does not say why the episode ends"


# ------------------------------------------------------------------------------------- differences


@every_format
@pytest.mark.parametrize("what", ["episodes", "steps"])
def test_totals_that_do_not_add_up_are_refused(data_format: str, what: str, tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path, data_format=data_format)
    change_metadata(path, **{f"total_{what}": 9})
    with pytest.raises(CountMismatch, match=f"declares 9 {what}"):
        MinariImporter().scan(path)


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "truncations"])
def test_rows_that_are_missing_are_refused(name: str, tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path / "sets", seeds=(8,))
    with h5py.File(main_file(path), "a") as file:
        values = file[f"episode_0/{name}"]
        values.resize((len(values) - 2, *values.shape[1:]))
    importer = MinariImporter()
    recording = importer.scan(path)
    with pytest.raises(CountMismatch):
        imported(importer, recording, 0, tmp_path)


def test_rewards_of_a_type_that_is_not_read_are_refused(tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path / "sets", seeds=(8,))
    replace_dataset(
        path,
        "rewards",
        lambda group, name: group.create_dataset(name, data=np.zeros(10, [("x", "f4")])),
    )
    with pytest.raises(DamagedRecording, match="rewards: it holds compound values"):
        import_all(MinariImporter(), path, tmp_path)


def test_other_things_in_the_file_are_named(tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path)
    with h5py.File(main_file(path), "a") as file:
        file.create_group("notes")
    assert [each.name for each in MinariImporter().scan(path).skipped] == ["notes"]


def test_an_environment_that_is_not_known_here_is_never_loaded(tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path / "sets", seeds=(8,))
    spec = {"id": "Hostile-v0", "entry_point": "antigravity:Env", "kwargs": {}}
    change_metadata(path, env_spec=json.dumps(spec))
    (found,) = import_all(MinariImporter(), path, tmp_path)
    assert found.encoded.env_version == "Hostile-v0"
    assert found.metadata["gymnasium_spec"]["entry_point"] == "antigravity:Env"
    assert "environment_description" not in found.metadata
    assert any("not registered" in each for each in found.metadata["losses"])
    spec["id"] = "CartPole-v1"
    change_metadata(path, env_spec=json.dumps(spec))
    assert MinariImporter().scan(path).detail.environment.description is None


# ------------------------------------------------------------------------------------ hostile files


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"data_format": "zip"}, UnsupportedVersion, "data_format is 'zip'"),
        ({"data_format": None}, UnknownFormat, "no data_format"),
        ({"observation_space": None}, DamagedRecording, "no observation_space"),
        ({"observation_space": "[]"}, DamagedRecording, "not a JSON object"),
        ({"observation_space": '{"type": "Box"}'}, DamagedRecording, "no shape"),
        ({"observation_space": '{"type": "Box", "shape": [99999999999], "dtype": "float64"}'},
         DamagedRecording, "values in one step"),
        ({"env_spec": "{"}, DamagedRecording, "not JSON"),
        ({"total_steps": "many"}, DamagedRecording, "not a whole number"),
    ],
)  # fmt: skip
def test_a_description_that_is_wrong_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = write_cart_pole(tmp_path)
    change_metadata(path, **changes)
    with pytest.raises(error, match=message):
        MinariImporter().scan(path)


def test_a_folder_without_a_description_is_not_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match=r"metadata\.json"):
        MinariImporter().scan(tmp_path)


def replace_dataset(path: Path, name: str, make: Any) -> None:
    with h5py.File(main_file(path), "a") as file:
        group = file["episode_0"]
        del group[name]
        make(group, name)


def test_rows_that_were_declared_and_never_written_are_refused(tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path / "sets", seeds=(8,))
    replace_dataset(
        path,
        "observations",
        lambda group, name: group.create_dataset(name, (11, 4), "f4", chunks=(11, 4)),
    )
    with pytest.raises(DamagedRecording, match="nothing was ever written"):
        import_all(MinariImporter(), path, tmp_path)


def test_data_outside_of_the_file_is_never_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 1000)
    outside = [(str(secret), 0, 176)]
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["x"] = np.zeros((11, 4), np.float32)

    def external(group: Any, name: str) -> None:
        group.create_dataset(name, (11, 4), "f4", external=outside)

    def linked(group: Any, name: str) -> None:
        group[name] = h5py.ExternalLink(str(other), "x")

    def virtual(group: Any, name: str) -> None:
        layout = h5py.VirtualLayout((11, 4), "f4")
        layout[:] = h5py.VirtualSource(str(other), "x", (11, 4))
        group.create_virtual_dataset(name, layout)

    for number, make in enumerate((external, linked, virtual)):
        path = write_cart_pole(tmp_path / f"sets{number}", seeds=(8,))
        replace_dataset(path, "observations", make)
        with pytest.raises(DamagedRecording, match=r"other files|link to elsewhere"):
            import_all(MinariImporter(), path, tmp_path)


def test_infos_that_contain_themselves_are_refused(tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path / "sets", seeds=(8,))
    with h5py.File(main_file(path), "a") as file:
        group = file.create_group("episode_0/infos")
        group["again"] = group
    with pytest.raises(DamagedRecording, match="parts of itself"):
        import_all(MinariImporter(), path, tmp_path)


def test_a_heap_of_text_that_does_not_end_is_refused(tmp_path: Path) -> None:
    given = nested(np.random.default_rng(1), 5)
    options: dict[str, Any] = {"observation_space": NESTED, "action_space": NESTED_ACTION}
    path = write(tmp_path / "sets", [given], **options)
    damaged_heap_is_refused(path, tmp_path)


def test_a_heap_of_attributes_that_does_not_end_is_refused(tmp_path: Path) -> None:
    path = write_cart_pole(tmp_path / "sets", seeds=(8,))
    with h5py.File(main_file(path), "a") as file:
        file["episode_0"].attrs["operator"] = "somebody"
    damaged_heap_is_refused(path, tmp_path)


def damaged_heap_is_refused(path: Path, tmp_path: Path) -> None:
    """The HDF5 library would read it forever."""
    data = bytearray(main_file(path).read_bytes())
    heap = data.index(b"GCOL")
    at = heap + 16
    while index := int.from_bytes(data[at : at + 2], "little"):
        assert index < 100
        at += 16 + (int.from_bytes(data[at + 8 : at + 16], "little") + 7) // 8 * 8
    data[at + 8 : at + 16] = bytes(8)
    main_file(path).write_bytes(data)
    with pytest.raises(DamagedRecording, match=f"heap at byte {heap} has an object of 0 bytes"):
        import_all(MinariImporter(), path, tmp_path)


@every_format
def test_damaged_files_give_errors_of_rollbook(data_format: str, tmp_path: Path) -> None:
    def make(folder: Path) -> Path:
        given = nested(np.random.default_rng(1), 5)
        options: dict[str, Any] = {"observation_space": NESTED, "action_space": NESTED_ACTION}
        return write(folder, [given], data_format=data_format, **options)

    counts = outcomes_of_damage(make, MinariImporter(), tmp_path)
    assert counts["refused"] > 20
