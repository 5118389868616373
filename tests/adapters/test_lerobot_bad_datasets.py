"""Datasets that are not what they should be: each is refused by name, and nothing outside of it is read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook.adapters import lerobot
from rollbook.errors import (
    ConfigurationError,
    MalformedJson,
    RollbookError,
    StorageError,
    TruncatedFile,
)
from tests.adapters.lerobot_datasets import (
    TOP,
    Plan,
    change_info,
    in_table,
    put_lines,
    write_v2,
    write_v3,
)
from tests.adapters.pictures import numbered, write_video

V2_DATA = Path("data/chunk-000/episode_000001.parquet")
V2_VIDEO = Path(f"videos/chunk-000/{TOP}/episode_000001.mp4")
V3_DATA = Path("data/chunk-000/file-000.parquet")
V3_VIDEO = Path(f"videos/{TOP}/chunk-000/file-000.mp4")
V3_EPISODES = Path("meta/episodes/chunk-000/file-001.parquet")


def encode(root: Path) -> None:
    out = root.with_name("out")
    try:
        lerobot.encode_episode(root, 1, out)
    finally:
        assert not list(out.glob("video.mp4")), "half an episode is not left behind as a video"


# ---------------------------------------------------------------------------------------- info.json


def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a LeRobot dataset"):
        lerobot.scan_dataset(tmp_path)


@pytest.mark.parametrize("version", ["v1.6", "v4.0", "three", "", None, 3, "v3.0; rm"])
def test_a_version_nobody_here_knows_is_refused(tmp_path: Path, version: Any) -> None:
    root = write_v3(tmp_path / "d")
    change_info(root, codebase_version=version)
    with pytest.raises(ConfigurationError, match="versions 2 and 3 can be read"):
        lerobot.scan_dataset(root)


@pytest.mark.parametrize(
    "template",
    [
        "../../{episode_index:06d}.parquet",
        "/etc/{episode_index:06d}.parquet",
        "data/../../{episode_index}.parquet",
        "data\\..\\{episode_index}.parquet",
        "data/{episode_index.__class__}",
        "data/{episode_index:>999999999}",
        "data/{episode_index!r}",
        "data/{other}",
        "data/{0}",
        "{",
        "data/\0{episode_index}",
    ],
)
@pytest.mark.parametrize("key", ["data_path", "video_path"])
def test_a_path_that_leads_out_or_asks_for_more_than_a_number_is_refused(
    tmp_path: Path, key: str, template: str
) -> None:
    root = write_v2(tmp_path / "d", Plan(lengths=(3, 3)))
    change_info(root, **{key: template})
    with pytest.raises(ConfigurationError, match=f"{key} in meta/info.json"):
        encode(root)


def test_a_camera_whose_name_leads_out_is_refused(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "d", Plan(lengths=(3, 3)))
    change_info(root, features={"../../../x": {"dtype": "video", "shape": [4, 4, 3]}})
    with pytest.raises(ConfigurationError, match="leads out of the dataset"):
        encode(root)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"features": ...}, r"\$\.features"),
        ({"features": []}, r"\$\.features"),
        ({"features": {"action": {}}}, r"\$\.features\.action"),
        ({"features": {"action": {"dtype": "float32", "shape": ["x"]}}}, r"action\.shape"),
        ({"fps": ...}, r"\$\.fps"),
        ({"data_path": 7}, r"\$\.data_path"),
        ({"chunks_size": 0}, r"\$\.chunks_size"),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named(
    tmp_path: Path, changes: dict[str, Any], where: str
) -> None:
    root = write_v2(tmp_path / "d", Plan(lengths=(3, 3)))
    change_info(root, **changes)
    with pytest.raises(MalformedJson, match=where):
        lerobot.scan_dataset(root)


@pytest.mark.parametrize("fps", [0, -5, "10", None, 1e9])
def test_a_rate_that_is_none_is_refused(tmp_path: Path, fps: Any) -> None:
    root = write_v2(tmp_path / "d", Plan(lengths=(3, 3)))
    change_info(root, fps=fps)
    with pytest.raises(ConfigurationError, match="fps="):
        lerobot.scan_dataset(root)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\udce4"])
def test_an_info_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    root = write_v2(tmp_path / "d", Plan(lengths=(3, 3)))
    (root / "meta" / "info.json").write_text(text, errors="surrogateescape")
    with pytest.raises(MalformedJson, match=r"info\.json"):
        lerobot.scan_dataset(root)


# ----------------------------------------------------------------------------------------- episodes


def test_an_episode_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "d", Plan(lengths=(3, 3)))
    with pytest.raises(ConfigurationError, match="no episode 7; it has 0 to 1"):
        lerobot.encode_episode(root, 7, tmp_path / "out")


def test_a_camera_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "d", Plan(lengths=(3, 3)))
    with pytest.raises(ConfigurationError, match=f"no camera 'left'; known: {TOP}"):
        lerobot.encode_episode(root, 1, tmp_path / "out", cameras=["left"])


@pytest.mark.parametrize(
    "row",
    [
        {"length": 3},
        {"episode_index": -1, "length": 3},
        {"episode_index": 1.5, "length": 3},
        {"episode_index": 1, "length": "3"},
        {"episode_index": True, "length": 3},
        [],
    ],
)
def test_a_line_of_episodes_that_is_wrong_is_named(tmp_path: Path, row: Any) -> None:
    root = write_v2(tmp_path / "d", Plan(lengths=(3, 3)))
    put_lines(root / "meta" / "episodes.jsonl", [{"episode_index": 0, "length": 3}, row])
    with pytest.raises(MalformedJson, match=r"episodes\.jsonl at line 2"):
        lerobot.scan_dataset(root)


def test_a_line_that_was_cut_short_is_named(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "d", Plan(lengths=(3, 3)))
    path = root / "meta" / "episodes.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(MalformedJson, match="line 2"):
        lerobot.scan_dataset(root)


def change_episode(root: Path, **changes: Any) -> None:
    (row,) = pq.read_table(root / V3_EPISODES).to_pylist()
    row = {key: value for key, value in {**row, **changes}.items() if value is not ...}
    pq.write_table(pa.Table.from_pylist([row]), root / V3_EPISODES)


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset_from_index": ...},
        {"dataset_to_index": 4},
        {"data/chunk_index": None},
        {"data/file_index": -1},
        {"length": 99},
        {f"videos/{TOP}/from_timestamp": ...},
        {f"videos/{TOP}/to_timestamp": float("nan")},
        {f"videos/{TOP}/file_index": "0"},
    ],
)
def test_a_row_of_episodes_that_is_wrong_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    root = write_v3(tmp_path / "d")
    change_episode(root, **changes)
    with pytest.raises(MalformedJson, match=r"file-001\.parquet"):
        lerobot.scan_dataset(root)


def test_a_film_that_is_said_to_end_too_early_is_not_filled_from_the_next_episode(
    tmp_path: Path,
) -> None:
    root = write_v3(tmp_path / "d")
    change_episode(root, **{f"videos/{TOP}/to_timestamp": 1.5})
    with pytest.raises(TruncatedFile, match=r"3 frames belong to episode 1, which has 7"):
        encode(root)


# -------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_v2, V2_DATA),
        (write_v2, V2_VIDEO),
        (write_v3, V3_DATA),
        (write_v3, V3_VIDEO),
        (write_v2, Path("meta/episodes.jsonl")),
    ],
)
def test_a_file_that_is_missing_is_named(
    tmp_path: Path, write: Callable[[Path], Path], name: Path
) -> None:
    root = write(tmp_path / "d")
    (root / name).unlink()
    with pytest.raises(StorageError, match=f"{name}: .*missing"):
        encode(root)


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.8])
@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_v2, V2_DATA),
        (write_v2, V2_VIDEO),
        (write_v3, V3_DATA),
        (write_v3, V3_VIDEO),
        (write_v3, V3_EPISODES),
    ],
)
def test_a_file_that_was_cut_short_is_named(
    tmp_path: Path, write: Callable[[Path], Path], name: Path, kept: float
) -> None:
    root = write(tmp_path / "d")
    data = (root / name).read_bytes()
    (root / name).write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(StorageError, match=str(name)):
        encode(root)


def test_a_film_with_too_few_frames_is_refused(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "d")
    write_video(root / V2_VIDEO, [numbered(row) for row in range(4)], 10)
    with pytest.raises(TruncatedFile, match="frame 4 of 7"):
        encode(root)


def test_a_table_with_too_few_rows_is_refused(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "d")
    pq.write_table(pq.read_table(root / V2_DATA).slice(0, 5), root / V2_DATA)
    with pytest.raises(TruncatedFile, match="5 rows of episode 1, which has 7"):
        encode(root)


def test_rows_of_another_episode_are_not_taken_for_ours(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "d")
    table = pq.read_table(root / V3_DATA)
    at = table.column_names.index("episode_index")
    swapped = table.set_column(at, "episode_index", pa.array(np.zeros(len(table), np.int64)))
    pq.write_table(swapped, root / V3_DATA)
    with pytest.raises(StorageError, match="rows of episode 1 have the episode_index 0"):
        encode(root)


@pytest.mark.parametrize(
    "times",
    [
        [0.0, 0.1, 0.1, 0.3, 0.4, 0.5, 0.6],
        [0.0, 0.1, float("nan"), 0.3, 0.4, 0.5, 0.6],
        [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, float("inf")],
        [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1e300],
        ["a"] * 7,
        [[0.0, 1.0]] * 7,
    ],
)
def test_times_that_do_not_go_forward_are_refused(tmp_path: Path, times: list[Any]) -> None:
    def columns(episode: int, length: int) -> dict[str, Any]:
        return {"timestamp": pa.array(times)} if episode == 1 else {}

    root = write_v2(tmp_path / "d", Plan(lengths=(3, 7), columns=columns))
    with pytest.raises(StorageError, match="timestamp"):
        encode(root)


def test_a_picture_in_a_table_that_is_none_is_named(tmp_path: Path) -> None:
    for number, bad in enumerate(
        [b"no picture", b"\x89PNG\r\n\x1a\n cut short", None, b"#EXTM3U\nfile:///etc/hostname\n"]
    ):
        plan = in_table()
        pictures = [{"bytes": bad, "path": "x.png"}] * 5
        plan.columns = lambda e, n, pictures=pictures: {TOP: pa.array(pictures)}  # type: ignore[misc]
        root = write_v2(tmp_path / str(number) / "d", plan)
        with pytest.raises(StorageError, match=f"{TOP} of row 0"):
            lerobot.encode_episode(root, 0, tmp_path / str(number) / "out")


def test_no_way_of_damaging_a_dataset_ends_in_an_error_that_is_not_ours(tmp_path: Path) -> None:
    """One byte after another is changed in every small file that describes the dataset."""
    root = write_v2(tmp_path / "d", Plan(lengths=(3,)))
    draw = np.random.default_rng(7)
    for name in ("meta/info.json", "meta/episodes.jsonl", "meta/tasks.jsonl"):
        path = root / name
        whole = path.read_bytes()
        for at in draw.integers(0, len(whole), 150):
            path.write_bytes(
                whole[:at] + bytes(draw.integers(0, 256, 1, np.uint8)) + whole[at + 1 :]
            )
            with suppress(RollbookError):
                lerobot.scan_dataset(root)
        path.write_bytes(whole)
    assert len(lerobot.scan_dataset(root).episodes) == 1
