"""LeRobot itself and lerobot-doctor open what was exported. Both run in environments of their own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.lerobot_export.exporter import LeRobotExporter
from tests.adapters.exports.exported_episodes import clock, ignore, imported, made, stream
from tests.adapters.lerobot_datasets import TOP, WRIST, Plan, write_v2, write_v3
from tests.public_packages import reader_python

pytestmark = pytest.mark.slow

# torchvision's compiled part is made for another torch. LeRobot uses none of it: a declaration is enough.
_READER = """
import json, sys, torch
declared = torch.library.Library("torchvision", "DEF")
declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from lerobot.datasets.lerobot_dataset import LeRobotDataset

root, rows, deltas = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
dataset = LeRobotDataset("some/where", root=root, video_backend="pyav", delta_timestamps=deltas)
items = []
for row in rows if rows is not None else range(len(dataset)):
    item = dataset[row]
    found = {}
    for name, value in item.items():
        if name in dataset.meta.video_keys:
            frames = value if value.ndim == 4 else value[None]
            found[name] = {
                "numbers": [
                    sum(1 << b for b in range(8) if frame[:, 4, b * 8 + 4].mean() > 0.5)
                    if frame.shape[2] >= 64 else round(float(frame.mean() * 255))
                    for frame in frames
                ],
                "colour": [float(each) for each in frames[-1][:, -4, 4]],
                "shape": list(frames.shape),
            }
        else:
            found[name] = value if isinstance(value, str) else value.tolist()
    items.append(found)
batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=2, shuffle=False)))
print(json.dumps({
    "length": len(dataset),
    "episodes": dataset.num_episodes,
    "fps": dataset.fps,
    "items": items,
    "batch": {name: list(value.shape) for name, value in batch.items() if hasattr(value, "shape")},
    "stats": {
        feature: {name: value.tolist() for name, value in each.items()}
        for feature, each in dataset.meta.stats.items()
    },
    "columns": {name: dataset.meta.episodes[0][name] for name in dataset.meta.episodes.features},
}))
"""


def _lerobot() -> Path:
    return reader_python(
        *("torch==2.13.0", "datasets>=4,<4.2", "numpy<2.3", "av>=15,<16"),
        *("accelerate", "pandas", "pillow"),
        without_dependencies=("lerobot==0.4.4", "torchvision==0.25.0"),
    )


def _read(
    root: Path, rows: list[int] | None = None, deltas: dict[str, list[float]] | None = None
) -> dict[str, Any]:
    command = [str(_lerobot()), "-c", _READER, str(root), json.dumps(rows), json.dumps(deltas)]
    cache = {"HF_HOME": str(root.parent / "hf"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=cache, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _exported(episodes: list[ExportedEpisode], target: Path, **options: Any) -> Path:
    LeRobotExporter(**options).write(episodes, target, ignore)
    return target


def _numbers(episode: int, length: int) -> dict[str, Any]:
    """A column of each type that LeRobot has."""
    rng = np.random.default_rng(episode)
    kinds = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    found: dict[str, Any] = {
        f"of.{kind}": pa.array(rng.integers(0, 2, length).astype(kind))
        for kind in (*kinds, "float16", "float32", "float64")
    }
    matrix = pa.array(rng.normal(size=length * 6).astype(np.float32))
    for width in (3, 2):
        matrix = pa.FixedSizeListArray.from_arrays(matrix, width)
    return {**found, "matrix": matrix, "note": pa.array([f"row {i} é" for i in range(length)])}


def test_lerobot_reads_tasks_values_statistics_and_both_cameras(tmp_path: Path) -> None:
    plan = Plan(lengths=(12, 7, 9), cameras=(TOP, WRIST), columns=_numbers)
    episodes = imported(write_v3(tmp_path / "set", plan), tmp_path / "in")
    root = _exported(episodes, tmp_path / "out")
    found = _read(root, deltas={"action": [0, 0.1, 0.2], TOP: [-0.1, 0.0]})
    assert (found["length"], found["episodes"], found["fps"]) == (28, 3, 10)
    table = pa.concat_tables([plan.table(i) for i in range(3)]).to_pydict()
    ends = [12, 19, 28]
    for row, item in enumerate(found["items"]):
        episode = next(i for i, end in enumerate(ends) if row < end)
        first, last = [0, *ends][episode], ends[episode] - 1
        assert item["task"] == ["pick", "place", "pick"][episode]
        assert item[TOP]["numbers"] == [max(row - 1, first), row]
        assert item[WRIST]["numbers"] == [row]
        assert item[TOP]["shape"][1:] == [3, 48, 64]
        assert item[WRIST]["shape"][1:] == [3, 48, 80]
        assert item[TOP]["colour"][0] > 0.9 > 0.1 > item[TOP]["colour"][2]
        assert item[WRIST]["colour"][2] > 0.9 > 0.1 > item[WRIST]["colour"][0]
        wanted = [min(row + ahead, last) for ahead in (0, 1, 2)]
        assert item["action"] == [table["action"][each] for each in wanted]
        assert item["action_is_pad"] == [row + ahead > last for ahead in (0, 1, 2)]
        for name in ("observation.state", "next.success", "note", "matrix"):
            assert item[name] == table[name][row]
        for name in _numbers(0, 1):
            if name.startswith("of."):
                assert item[name] == table[name][row]
    assert found["batch"][TOP] == [2, 2, 3, 48, 64]
    stats = found["stats"]
    states = np.array(table["observation.state"])
    assert np.allclose(stats["observation.state"]["mean"], states.mean(axis=0))
    assert np.allclose(stats["observation.state"]["std"], states.std(axis=0))
    assert np.shape(stats[TOP]["mean"]) == (3, 1, 1)
    assert stats[TOP]["mean"][0][0][0] > 0.8
    assert found["columns"]["rollbook/sensors_sha256"] == episodes[0].digests["sensors"]
    assert found["columns"]["rollbook/name"] == episodes[0].name


def test_lerobot_reads_copied_videos_from_several_files(tmp_path: Path) -> None:
    """Videos with frames that refer to later ones; each kind of coding begins a file."""
    first = imported(write_v2(tmp_path / "one", Plan(lengths=(5, 4))), tmp_path / "in")
    second = imported(write_v3(tmp_path / "two", Plan(lengths=(3, 2))), tmp_path / "in")
    root = _exported([*first, *second], tmp_path / "out", files_per_chunk=1)
    assert len(list((root / "videos").rglob("*.mp4"))) == 2
    found = _read(root)
    numbers = [item[TOP]["numbers"][0] for item in found["items"]]
    assert numbers == [*range(9), *range(5)]


def _long(folder: Path, rows: int, fps: float) -> ExportedEpisode:
    def shade(row: int) -> NDArray[np.uint8]:
        return np.full((16, 16, 3), 20 + row % 11 * 20, np.uint8)

    actions = stream("action", np.arange(rows, dtype=np.float32), clock(rows, fps))
    return made(
        folder, actions=actions, video=[shade(i) for i in range(rows)], video_fps=fps, fps=fps
    )


def test_lerobot_finds_frames_late_in_long_recordings(tmp_path: Path) -> None:
    """Times of 32 bits are too coarse behind 1024 s; both a long episode and a long file would reach it."""
    fps = 3.0
    episodes = [_long(tmp_path / f"e{i}", rows, fps) for i, rows in enumerate((1400, 1500, 4000))]
    root = _exported(episodes, tmp_path / "out")
    rows = [*range(0, 6900, 97), *range(2800, 2900, 3), *range(5980, 6140, 4)]
    found = _read(root, rows)
    camera = "observation.images.video"
    for row, item in zip(rows, found["items"], strict=True):
        frame = item["frame_index"]
        assert item["action"] == frame == row - [0, 1400, 2900][item["episode_index"]]
        assert abs(item[camera]["numbers"][0] - (20 + frame % 11 * 20)) <= 3


def test_lerobot_reads_rows_from_many_files(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(20_000, 8))
    episodes = [
        made(tmp_path / f"e{i}", actions=stream("action", values + i, clock(20_000, 50)), fps=50.0)
        for i in range(3)
    ]
    root = _exported(episodes, tmp_path / "out", data_file_mb=2, files_per_chunk=2)
    rows = [0, 19_999, 20_000, 45_678, 59_999]
    found = _read(root, rows)
    for row, item in zip(rows, found["items"], strict=True):
        expected = values[row % 20_000] + row // 20_000
        assert np.allclose(item["action"], expected, rtol=1e-6)
        assert item["index"] == row


def test_lerobot_doctor_finds_nothing_wrong_with_the_format(tmp_path: Path) -> None:
    plan = Plan(lengths=(30, 25, 40), cameras=(TOP, WRIST))
    episodes = imported(write_v3(tmp_path / "set", plan), tmp_path / "in")
    root = _exported(episodes, tmp_path / "out")
    python = reader_python("lerobot-doctor==0.2.0")
    command = [str(python), "-m", "lerobot_doctor.cli", "check", str(root), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    report = json.loads(done.stdout)
    severities = {check["name"]: check["severity"] for check in report["checks"]}
    for name in ("Metadata & Format Compliance", "Temporal Consistency", "Video Integrity"):
        assert severities[name] == "PASS"
    assert "FAIL" not in severities.values()
