"""A part of a recording whose name no stream can have is named and left out. The other parts are imported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook.adapters.formats import importer
from rollbook.adapters.importing import ImportFolder, import_recording
from tests.adapters import rlds_datasets, zarr_buffers
from tests.adapters.lerobot_datasets import Plan, write_v2

ODD = ".."
LONG = "x" * 600


def lerobot(folder: Path) -> Path:
    root = write_v2(folder, Plan(lengths=(3,), cameras=()))
    [path] = (root / "data").rglob("*.parquet")
    table = pq.read_table(path, partitioning=None)
    for name in (ODD, LONG):
        table = table.append_column(name, pa.array([1, 2, 3]))
    pq.write_table(table, path)
    return root


def rlds(folder: Path) -> Path:
    features = {name: rlds_datasets.tensor("float32") for name in ("action", ODD, LONG)}
    described = rlds_datasets.group(steps=rlds_datasets.steps(rlds_datasets.group(**features)))
    episode = {f"steps/{name}": np.zeros(3, "f4") for name in features}
    return rlds_datasets.write(folder, {"train": [[episode]]}, described)


def zarr_buffer(folder: Path) -> Path:
    """A name on disk can neither be `..` nor be as long."""
    root = zarr_buffers.write_small(folder)
    for name in ("a\\b", "line\nbreak"):
        shutil.copytree(root / "data" / "action", root / "data" / name)
    return root


def minari(folder: Path) -> Path:
    box = {"type": "Box", "dtype": "float32", "shape": [2], "low": [0, 0], "high": [1, 1]}
    space = {"type": "Dict", "subspaces": {"arm": box, "a\\b": box, LONG: box}}
    stated = {
        "observation_space": json.dumps(space),
        "action_space": json.dumps(box),
        "data_format": "hdf5",
        "total_episodes": 1,
        "total_steps": 3,
    }
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "metadata.json").write_text(json.dumps(stated))
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        episode = file.create_group("episode_0")
        episode.attrs["total_steps"] = 3
        episode["observations/arm"] = np.zeros((4, 2), "f4")
        episode["actions"] = np.zeros((3, 2), "f4")
        episode["rewards"] = np.zeros(3)
        episode["terminations"] = episode["truncations"] = np.zeros(3, bool)
    return folder


MADE: dict[str, Callable[[Path], Path]] = {
    "lerobot": lerobot,
    "rlds": rlds,
    "zarr-buffer": zarr_buffer,
    "minari": minari,
}


@pytest.mark.parametrize("kind", sorted(MADE))
def test_a_name_that_no_stream_can_have_does_not_keep_the_episode_out(
    kind: str, tmp_path: Path
) -> None:
    path = MADE[kind](tmp_path / "recording")
    done = import_recording(importer(kind), path, ImportFolder(tmp_path / "out"))
    assert done
    for each in done:
        assert each.error is None
        assert each.metadata is not None
        reasons = [skip["reason"] for skip in each.metadata["skipped"]]
        assert sum("its name cannot be the name of an array" in reason for reason in reasons) == 2
        with np.load(Path(each.place or "", "actions.npz")) as actions:
            assert "action/value" in actions.files


def test_one_long_text_does_not_make_every_row_of_its_column_long(tmp_path: Path) -> None:
    """An array of text has one width: 6000 rows of one letter would become 96 MB."""
    rows = 6000
    texts = ["a"] * (rows - 1) + ["b" * 4000]
    plan = Plan(lengths=(rows,), cameras=(), columns=lambda *_: {"said": pa.array(texts)})
    dataset = write_v2(tmp_path / "lerobot", plan)
    demos = tmp_path / "demos.hdf5"
    with h5py.File(demos, "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((rows, 2))
        demo.create_dataset("obs/said", data=texts, dtype=h5py.string_dtype())
    for kind, path in (("lerobot", dataset), ("hdf5", demos)):
        [done] = import_recording(importer(kind), path, ImportFolder(tmp_path / f"{kind}-out"))
        assert done.error is None
        assert done.metadata is not None
        [reason] = [skip["reason"] for skip in done.metadata["skipped"]]
        assert reason == "one text has 4000 characters, which would make all 6000 rows as long"


def test_pictures_of_no_known_colours_are_observations_and_no_video(tmp_path: Path) -> None:
    path = minari(tmp_path / "recording")
    pair = {"type": "Box", "dtype": "uint8", "shape": [32, 32, 2], "low": 0, "high": 255}
    stated = json.loads((path / "data" / "metadata.json").read_text())
    stated |= {"observation_space": json.dumps(pair), "jpeg_encoding": False}
    (path / "data" / "metadata.json").write_text(json.dumps(stated))
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        file["episode_0/observations"] = np.ones((4, 32, 32, 2), "u1")
    [done] = import_recording(importer("minari"), path, ImportFolder(tmp_path / "out"))
    assert done.error is None
    place = Path(done.place or "")
    with np.load(place / "sensors.npz") as sensors:
        assert sensors["observation/value"].shape == (4, 32, 32, 2)
    assert not (place / "video.mp4").exists()
