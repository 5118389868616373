"""Episodes become Parquet tables: every reader finds the same values, times and digests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.parquet import ParquetExporter
from rollbook.contracts.npz import read_npz, write_npz
from rollbook.errors import ConfigurationError, InvalidValue, RollbookError, TargetExists
from tests.adapters.exports.exported_episodes import clock, ignore, imported, made, stream
from tests.adapters.lerobot_datasets import Plan, write_v2
from tests.adapters.pictures import numbered


def exported(
    episodes: list[ExportedEpisode], target: Path, **options: Any
) -> tuple[Path, list[str]]:
    exporter = ParquetExporter(**options)
    losses = [f"{each.what}: {each.reason}" for each in exporter.losses(episodes)]
    exporter.write(episodes, target, ignore)
    return target, losses


def values_of(column: pa.ChunkedArray) -> NDArray[Any]:
    """Lists of a fixed length are dimensions."""
    values, shape = column.combine_chunks(), [len(column)]
    while pa.types.is_fixed_size_list(values.type):
        shape.append(values.type.list_size)
        values = values.flatten()
    found: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(shape)
    return found


_TYPES = ["bool", *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64))]
_TYPES += ["float16", "float32", "float64", "M8[ns]", "M8[us]", "m8[ms]", "S3", "U3"]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_value_is_kept_bit_for_bit(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("kept")
    kinds = st.tuples(st.sampled_from(_TYPES), st.sampled_from([(), (1,), (3,), (2, 3), (2, 1, 2)]))
    fields = data.draw(st.dictionaries(st.sampled_from("abcd"), kinds, min_size=1))
    seed = data.draw(st.integers(0, 2**32 - 1))
    episodes, expected = [], []
    for index, rows in enumerate(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))):
        rng = np.random.default_rng([seed, index])
        arrays = {}
        for name, (kind, shape) in fields.items():
            size = (rows, *shape)
            if kind[0] in "SU":
                arrays[name] = rng.integers(100, 999, size).astype(kind)
            elif kind == "bool":
                arrays[name] = rng.random(size) > 0.5
            else:
                bits = rng.integers(0, 128, (*size, np.dtype(kind).itemsize), np.uint8)
                arrays[name] = bits.view(kind).reshape(size)
        keyed = {f"arm/left/{name}": array for name, array in arrays.items()}
        times = np.cumsum(rng.integers(1, 10**9, rows))
        episodes.append(made(folder / f"e{index}", sensors={**keyed, "arm/left/_t_ns": times}))
        expected.append({**arrays, "t_ns": times})
    root, losses = exported(episodes, folder / "out")
    table = pq.read_table(root / "sensors" / "arm%2Fleft.parquet")
    assert losses == []
    for name in (*fields, "t_ns"):
        whole = np.concatenate([each[name] for each in expected])
        found = values_of(table[name])
        if whole.dtype.kind in "SU":
            assert found.tolist() == whole.tolist()
        else:
            assert found.dtype == whole.dtype
            assert found.tobytes() == whole.tobytes()


def _two(folder: Path) -> list[ExportedEpisode]:
    source = {
        **{"format": "hdf5", "name": "demo", "digest": "d" * 64, "size": 9, "files": 1},
        **{"episode": "demo_0", "options": {}},
    }
    episodes = []
    for i in range(2):
        sensors = {
            **{"arm/position": np.arange(6.0).reshape(3, 2) + i, "arm/_t_ns": clock(3, 10)},
            **{"arm/name": np.array(["a", "bé", "c"]), "arm/mat": np.ones((3, 2, 2), np.float32)},
            **stream("imu", np.arange(30, dtype=np.uint16), clock(30, 100)),
        }
        actions = stream("action", np.array([True, False, True]), clock(3, 10))
        episodes.append(
            made(
                folder / f"e{i}",
                sensors=sensors,
                actions=actions,
                video=[numbered(k) for k in range(3)],
                metadata={"source_file": source},
                episode_id=f"ep_{i}",
                seed=2**70,
            )
        )
    return episodes


def test_each_namespace_is_a_table_with_its_own_times(tmp_path: Path) -> None:
    episodes = _two(tmp_path)
    root, losses = exported(episodes, tmp_path / "out")
    assert losses == []
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert names == [
        *("actions/action.parquet", "episodes.parquet", "sensors/arm.parquet"),
        *("sensors/imu.parquet", "videos/episode_000000.mp4", "videos/episode_000001.mp4"),
    ]
    imu = pq.read_table(root / "sensors" / "imu.parquet")
    assert imu["t_ns"].to_pylist() == clock(30, 100).tolist() * 2
    assert imu["episode_index"].to_pylist() == [0] * 30 + [1] * 30
    assert set(imu["artifact_sha256"].to_pylist()) == {e.digests["sensors"] for e in episodes}
    copied = (root / "videos" / "episode_000001.mp4").read_bytes()
    assert copied == episodes[1].files["video"].read_bytes()


def test_provenance_is_in_columns(tmp_path: Path) -> None:
    episodes = _two(tmp_path)
    root, _ = exported(episodes, tmp_path / "out")
    rows = pq.read_table(root / "episodes.parquet").to_pylist()
    assert [row["episode_id"] for row in rows] == ["ep_0", "ep_1"]
    assert [row["sensors_sha256"] for row in rows] == [e.digests["sensors"] for e in episodes]
    assert rows[0]["source_digest"] == "d" * 64
    assert rows[0]["seed"] == str(2**70)
    assert rows[0]["tasks"] == ["pick"]
    assert rows[0]["video"] == "videos/episode_000000.mp4"
    assert json.loads(rows[0]["metadata"])["source_file"]["format"] == "hdf5"


def test_other_readers_find_the_same_values(tmp_path: Path) -> None:
    """pyarrow is the writer. These are the readers that people use."""
    import datasets

    episodes = _two(tmp_path)
    root, _ = exported(episodes, tmp_path / "out")
    path = root / "sensors" / "arm.parquet"
    expected = [[[0, 1], [2, 3], [4, 5], [1, 2], [3, 4], [5, 6]], ["a", "bé", "c"] * 2]
    digest = episodes[0].digests["sensors"]

    polars = pl.read_parquet(path)
    assert [polars["position"].to_list(), polars["name"].to_list()] == expected
    assert polars["mat"].to_list()[0] == [[1, 1], [1, 1]]
    assert polars["artifact_sha256"][0] == digest

    query = (
        f"select position, name, artifact_sha256, t_ns from '{path}' order by episode_index, t_ns"
    )
    rows = duckdb.execute(query).fetchall()
    assert [[list(row[0]) for row in rows], [row[1] for row in rows]] == expected
    assert rows[0][2] == digest
    joined = duckdb.execute(
        f"select count(*) from '{path}' join '{root}/episodes.parquet' using (episode_index)"
    )
    assert joined.fetchall() == [(6,)]

    pandas = pd.read_parquet(path)
    assert [[each.tolist() for each in pandas["position"]], pandas["name"].tolist()] == expected
    assert pandas["artifact_sha256"][0] == digest

    own = {"cache_dir": str(tmp_path / "cache"), "split": "train"}
    loaded = datasets.load_dataset("parquet", data_files=str(path), **own)
    assert [list(map(list, loaded["position"])), list(loaded["name"])] == expected
    assert loaded["artifact_sha256"][0] == digest
    listed = datasets.load_dataset("parquet", data_files=str(root / "episodes.parquet"), **own)
    assert listed["episode_id"][:] == ["ep_0", "ep_1"]


def test_streams_with_one_clock_fit_into_a_wide_table(tmp_path: Path) -> None:
    plan = Plan(lengths=(4, 3), cameras=())
    episodes = imported(write_v2(tmp_path / "set", plan), tmp_path / "in")
    root, losses = exported(episodes, tmp_path / "out", wide=True)
    assert losses == []
    table = pq.read_table(root / "streams.parquet")
    state = np.concatenate(
        [read_npz(e.files["sensors"])["observation.state/value"] for e in episodes]
    )
    assert np.array_equal(values_of(table["observation.state/value"]), state)
    assert table["action/value"].type == pa.list_(pa.float32(), 2)
    first = episodes[0].digests
    assert table["artifact_sha256"][0].as_py() == " ".join(
        sorted([first["sensors"], first["actions"]])
    )
    with pytest.raises(ConfigurationError, match="arm and imu have other times"):
        ParquetExporter(wide=True).losses(_two(tmp_path))


def test_namespaces_can_be_chosen_and_videos_left_out(tmp_path: Path) -> None:
    root, losses = exported(_two(tmp_path), tmp_path / "out", only=("imu",), video=False)
    names = sorted(path.name for path in root.rglob("*.*"))
    assert names == ["episodes.parquet", "imu.parquet"]
    assert "video: Videos were not asked for." in losses
    assert "sensors: arm: It was not chosen by only." in losses
    with pytest.raises(ConfigurationError, match="did you mean imu"):
        ParquetExporter(only=("imo",)).losses(_two(tmp_path / "more"))


def test_a_namespace_may_be_missing_but_not_differ(tmp_path: Path) -> None:
    t = clock(2, 10)
    both = {**stream("a", np.zeros(2), t), **stream("b", np.zeros(2), t)}
    one = made(tmp_path / "one", sensors=both)
    less = made(tmp_path / "less", sensors=stream("a", np.ones(2), t))
    root, _ = exported([less, one], tmp_path / "out")
    assert pq.read_table(root / "sensors" / "b.parquet")["episode_index"].to_pylist() == [1, 1]
    other = made(tmp_path / "other", sensors=stream("a", np.ones((2, 3)), t))
    with pytest.raises(ConfigurationError, match="one and other differ in value of sensors/a"):
        ParquetExporter().losses([one, other])


def test_what_parquet_cannot_hold_is_listed(tmp_path: Path) -> None:
    t = clock(2, 10)
    sensors = {
        **stream("day", np.array([1, 2], "M8[D]"), t),
        **stream("second", np.array([1, 2], "M8[s]"), t),
        **stream("long", np.array([1, 2], np.longdouble), t),
        **stream("none", np.zeros((2, 0)), t),
        **{"t/t_ns": np.array([7, 8]), "t/_t_ns": t},
    }
    root, losses = exported([made(tmp_path / "e", sensors=sensors)], tmp_path / "out")
    assert sorted(each.split("/")[0] for each in losses) == [
        *("sensors: day", "sensors: long", "sensors: none", "sensors: second")
    ]
    assert pq.read_table(root / "sensors" / "day.parquet")["value"].to_pylist() == [1, 2]
    kept = pq.read_table(root / "sensors" / "t.parquet")
    assert (kept["t/t_ns"].to_pylist(), kept["t_ns"].to_pylist()) == ([7, 8], t.tolist())


@pytest.mark.parametrize("namespace", ["...", "a/b", "%2e%2e", "x" * 190, "ü" * 60, "C:evil"])
def test_names_stay_inside_of_the_folder(tmp_path: Path, namespace: str) -> None:
    sensors = stream(namespace, np.zeros(2), clock(2, 10))
    episode = made(tmp_path / "e", sensors=sensors)
    root, _ = exported([episode], tmp_path / "out")
    [path] = (root / "sensors").iterdir()
    if len(namespace.encode()) < 100:
        assert unquote(path.name.removesuffix(".parquet")) == namespace
    assert sorted(each.name for each in tmp_path.iterdir()) == ["e", "out"]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("kind", "damage"), [("sensors", _cut), ("sensors", Path.unlink), ("video", Path.unlink)]
)
def test_damaged_files_give_errors_of_rollbook_and_no_tables(
    tmp_path: Path, kind: Any, damage: Callable[[Path], None]
) -> None:
    [episode, _] = _two(tmp_path)
    damage(episode.files[kind])
    with pytest.raises(RollbookError):
        ParquetExporter().write([episode], tmp_path / "out", ignore)
    assert not list(tmp_path.glob("*out*"))


def test_a_clock_that_falls_is_refused(tmp_path: Path) -> None:
    sensors = stream("s", np.zeros(3), np.array([0, 5, 4], np.int64))
    with pytest.raises(InvalidValue, match="later than the row before, at 5 ns"):
        ParquetExporter().write([made(tmp_path / "e", sensors=sensors)], tmp_path / "out", ignore)
    assert not list(tmp_path.glob("*out*"))


def test_no_episode_and_an_existing_target_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no episode"):
        ParquetExporter().losses([])
    with pytest.raises(TargetExists):
        ParquetExporter().write(_two(tmp_path), tmp_path, ignore)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    script = r"""
import re, sys
from pathlib import Path
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.parquet import ParquetExporter
folder = Path(sys.argv[1])
files = {"sensors": folder / "sensors.npz"}
episode = ExportedEpisode(name="e", source="sim", files=files, digests={}, metadata={}, fps=None)
ParquetExporter().write([episode], folder / "out", lambda done, of: None)
print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""
    peaks = []
    for rows in (1_000_000, 10_000_000):
        folder = tmp_path / str(rows)
        folder.mkdir()
        times = np.arange(rows, dtype=np.int64)
        write_npz(folder / "sensors.npz", stream("s", times.astype(np.float64), times))
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout) / 1024)
    assert peaks[1] - peaks[0] < 60, f"{peaks} MB; the longer one has 144 MB of numbers more"
