"""HDF5 against others: real files of robosuite, and robomimic itself as the reader of what we export."""

from __future__ import annotations

import json
import subprocess
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.hdf5 import Hdf5Exporter
from rollbook.adapters.hdf5 import Hdf5Importer
from rollbook.adapters.steps import h5_dataset
from rollbook.contracts.npz import read_npz
from tests.adapters.hdf5.hdf5_files import numbers, write_robomimic
from tests.public_packages import public_source, reader_python

_STEPS = {
    "door": 261,
    "lift": 412,
    "nut-assembly": 1036,
    "pick-place": 1482,
    "stack": 532,
    "wipe": 174,
}
"""Steps of the human demonstrations that come with robosuite 1.0.1."""

_READ = """
import json, sys
import numpy as np
import robomimic.utils.obs_utils as ObsUtils
from robomimic.utils.dataset import SequenceDataset

path, keys, mask = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] or None
ObsUtils.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": keys, "rgb": []}})
dataset = SequenceDataset(
    path, obs_keys=keys, dataset_keys=("actions", "rewards", "dones"), hdf5_cache_mode=None,
    filter_by_attribute=mask, load_next_obs=True, seq_length=1,
)
rows = [dataset[i] for i in range(len(dataset))]
answer = {
    "demos": list(dataset.demos),
    "actions": np.concatenate([row["actions"] for row in rows]).tolist(),
    "rewards": np.concatenate([row["rewards"] for row in rows]).tolist(),
    **{f"obs/{k}": np.concatenate([row["obs"][k] for row in rows]).tolist() for k in keys},
    **{f"next_obs/{k}": np.concatenate([row["next_obs"][k] for row in rows]).tolist() for k in keys},
}
print("ANSWER" + json.dumps(answer))
"""


@pytest.mark.slow
def test_the_demonstrations_of_robosuite_are_imported_whole(tmp_path: Path) -> None:
    root = public_source("robosuite", "1.0.1")
    found = {}
    importer = Hdf5Importer()
    for path in sorted(root.rglob("demo.hdf5")):
        task = path.parent.parent.name
        recording = importer.scan(path)
        assert recording.about["layout"] == "robosuite"
        assert [episode.key for episode in recording.episodes] == ["demo_1"]
        folder = tmp_path / task
        folder.mkdir()
        encoded = importer.encode(recording, 0, folder)
        found[task] = encoded.metadata["steps"]
        sensors, actions = (read_npz(encoded.files[kind]) for kind in ("sensors", "actions"))
        with h5py.File(path) as file:
            demo = file["data/demo_1"]
            assert np.array_equal(actions["actions/value"], demo["actions"][()])
            for name in ("states", "joint_torques"):
                assert np.array_equal(sensors[f"{name}/value"], demo[name][()])
        assert encoded.robot == "Panda"
        assert encoded.metadata["skipped"] == []
    assert found == _STEPS


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["", "train"])
def test_robomimic_reads_what_we_export(mask: str, tmp_path: Path) -> None:
    python = reader_python(
        *("h5py", "numpy", "psutil", "termcolor", "torch==2.13.0", "tqdm"),
        without_dependencies=("robomimic==0.3.0",),
    )
    source = write_robomimic(tmp_path / "lift.hdf5", lengths=(6, 3))
    importer = Hdf5Importer()
    recording = importer.scan(source)
    episodes = []
    for episode in recording.episodes:
        folder = tmp_path / episode.key
        folder.mkdir()
        encoded = importer.encode(recording, episode.index, folder)
        episodes.append(ExportedEpisode.of_encoded(encoded, {}))
    target = tmp_path / "exported.hdf5"
    Hdf5Exporter().write(episodes, target, lambda done, of: None)
    keys = ["object", "robot0_eef_pos"]
    command = [str(python), "-c", _READ, str(target), json.dumps(keys), mask]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(each for each in done.stdout.splitlines() if each.startswith("ANSWER"))
    answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER"))
    demos = ["demo_0"] if mask else ["demo_0", "demo_1"]
    assert answer["demos"] == demos
    with h5py.File(source) as file:
        for name in (
            "actions",
            "rewards",
            *(f"{g}/{k}" for g in ("obs", "next_obs") for k in keys),
        ):
            stored = np.concatenate([file[f"data/{demo}/{name}"][()] for demo in demos])
            np.testing.assert_array_equal(np.array(answer[name]), stored.astype(np.float64))


def _peak(path: Path, folder: Path) -> int:
    importer = Hdf5Importer()
    folder.mkdir()
    tracemalloc.start()
    try:
        importer.encode(importer.scan(path), 0, folder)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_the_recording(tmp_path: Path) -> None:
    peaks = []
    for steps in (40_000, 400_000):
        path = write_robomimic(tmp_path / f"{steps}.hdf5", (steps,))
        with h5py.File(path, "r+") as file:
            packed = file["data/demo_0"].create_dataset(
                "obs/packed", (steps, 16), "f8", chunks=(512, 16), compression=1
            )
            for first in range(0, steps, 8000):
                packed[first : first + 8000] = numbers((8000, 16), first)
        peaks.append(_peak(path, tmp_path / f"out-{steps}"))
    assert peaks[1] < peaks[0] + (1 << 20)
    assert peaks[1] < 16 << 20


def test_chunks_over_many_rows_are_put_in_order_without_unpacking_them_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h5_dataset, "_MOST_AT_ONCE", 4096)
    monkeypatch.setattr(h5_dataset, "_BLOCK", 1024)
    path = write_robomimic(tmp_path / "lift.hdf5", (70,))
    values = numbers((70, 6, 9), 5)
    with h5py.File(path, "r+") as file:
        file["data/demo_0"].create_dataset(
            "obs/field", data=values, chunks=(32, 4, 2), compression="gzip"
        )
    importer = Hdf5Importer()
    (tmp_path / "out").mkdir()
    encoded = importer.encode(importer.scan(path), 0, tmp_path / "out")
    assert np.array_equal(read_npz(encoded.files["sensors"])["obs/field/value"], values)
