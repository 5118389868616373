"""Files that are cut off, changed or hostile: what is before the damage is imported, or an error names it."""

from __future__ import annotations

import sqlite3
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType
from rosbags.rosbag2 import CompressionMode, StoragePlugin

from rollbook.adapters.extras import library
from rollbook.adapters.ros2 import Ros2Importer
from rollbook.adapters.ros2.packed import unpacked
from rollbook.contracts.npz import read_npz
from rollbook.errors import RollbookError, TruncatedFile
from tests.adapters.ros2.ros2_bags import (
    START_NS,
    as_json,
    data_file,
    imported,
    joint_rows,
    json_channel,
    sensors,
    text_rows,
    write_bag,
    write_mcap,
)

ROWS = 60


@cache
def whole(kind: str) -> bytes:
    """The bytes of a small recording of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        if kind in ("none", "lz4"):
            compression = CompressionType.NONE if kind == "none" else CompressionType.LZ4
            messages = [("/state", START_NS + i, as_json({"x": i})) for i in range(ROWS)]
            path = write_mcap(
                Path(folder, "a.mcap"),
                {"/state": json_channel()},
                messages,
                compression=compression,
                chunk_size=256,
                enable_data_crcs=True,
            )
        else:
            storage = StoragePlugin.SQLITE3 if kind == "db3" else StoragePlugin.MCAP
            rows = joint_rows(ROWS, "/state")
            path = data_file(write_bag(Path(folder, "bag"), rows, storage=storage))
        return path.read_bytes()


def times_of(data: bytes, suffix: str) -> tuple[list[int], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a{suffix}")
        path.write_bytes(data)
        encoded = imported(path, Path(folder, "out"))
        arrays = read_npz(encoded.files["sensors"])
        assert all(len(each) == len(arrays["/state/_t_ns"]) for each in arrays.values())
        return arrays["/state/_t_ns"].tolist(), dict(encoded.metadata)


def suffix_of(kind: str) -> str:
    return ".db3" if kind == "db3" else ".mcap"


@pytest.mark.parametrize("kind", ["none", "lz4", "rosbags", "db3"])
def test_a_file_that_is_cut_off_is_imported_up_to_there(kind: str) -> None:
    data = whole(kind)
    every, metadata = times_of(data, suffix_of(kind))
    assert "damage" not in metadata
    assert len(every) == ROWS
    found: list[int] = []
    for cut in range(0, len(data), max(1, len(data) // 40)):
        try:
            times, metadata = times_of(data[:cut], suffix_of(kind))
        except RollbookError:
            assert not found  # once there is a message before the cut, it is imported
            continue
        assert metadata["damage"]["at"].startswith("a.")
        assert times == every[: len(times)]
        assert any("is damaged" in loss for loss in metadata["losses"])
        found.append(len(times))
    assert found == sorted(found)
    assert found[-1] > ROWS / 2


def test_nothing_before_the_damage_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    path.write_bytes(whole("none")[:40])
    with pytest.raises(TruncatedFile, match="no message before the damage"):
        Ros2Importer().scan(path)


def test_a_damaged_part_of_a_split_bag_does_not_hide_the_other_parts(tmp_path: Path) -> None:
    rows = joint_rows(9)
    bag = tmp_path / "bag"
    bag.mkdir()
    for i in range(3):
        part = write_bag(tmp_path / f"part{i}", rows[i * 3 : i * 3 + 3])
        data = data_file(part).read_bytes()
        (bag / f"bag_{i}.mcap").write_bytes(data[: len(data) // 3] if i == 1 else data)
    encoded = imported(bag, tmp_path / "out")
    times = sensors(encoded)["/joint_states/_t_ns"].tolist()
    assert times[:3] + times[-3:] == [row[2] for row in rows[:3] + rows[-3:]]
    assert len(times) < 9
    assert encoded.metadata["damage"]["at"].startswith("bag_1.mcap")


@pytest.mark.parametrize("mode", [CompressionMode.FILE, CompressionMode.MESSAGE])
def test_damaged_compression_is_reported(mode: CompressionMode, tmp_path: Path) -> None:
    rows = [*joint_rows(50), *text_rows(["hello"])]
    bag = write_bag(tmp_path / "bag", rows, mode=mode, storage=StoragePlugin.MCAP)
    path = data_file(bag)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    try:
        encoded = imported(bag, tmp_path / "out")
    except RollbookError:
        return
    assert "damage" in encoded.metadata


# -------------------------------------------------------------------------------------------- fuzz


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["none", "lz4", "rosbags"]),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3
    ),
)
def test_changed_bytes_of_an_mcap_give_an_error_or_damage_or_the_same(
    kind: str, changes: list[tuple[float, int]]
) -> None:
    data = bytearray(whole(kind))
    for where, change in changes:
        data[int(where * len(data))] ^= change
    every, _ = times_of(whole(kind), ".mcap")
    try:
        times, metadata = times_of(bytes(data), ".mcap")
    except (RollbookError, KeyError):
        return  # KeyError: the name of the topic was changed
    if "damage" in metadata or kind == "rosbags":  # rosbags writes no checksums over its chunks
        return
    assert times == every


@settings(max_examples=60, deadline=None)
@given(
    cut=st.floats(0.3, 1),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4
    ),
)
def test_changed_bytes_of_an_sqlite_file_never_give_another_error(
    cut: float, changes: list[tuple[float, int]]
) -> None:
    data = bytearray(whole("db3"))
    data = data[: int(cut * len(data))]
    for where, change in changes:
        data[int(where * len(data))] ^= change
    try:
        times, _ = times_of(bytes(data), ".db3")
    except (RollbookError, KeyError):
        return
    assert len(times) <= 2 * ROWS


# ----------------------------------------------------------------------------------------- hostile


def record(opcode: int, body: bytes, length: int | None = None) -> bytes:
    return struct.pack("<BQ", opcode, len(body) if length is None else length) + body


MAGIC = b"\x89MCAP0\r\n"


@pytest.mark.parametrize(
    "body",
    [
        record(6, b"", 2**63),
        record(6, struct.pack("<QQQLL", 0, 0, 2**62, 0, 4) + b"zstd" + struct.pack("<Q", 0)),
        record(6, struct.pack("<QQQLL", 0, 0, 2**62, 0, 0) + struct.pack("<Q", 2**62)),
        record(4, struct.pack("<HHL", 1, 0, 2**31)),
        record(5, b""),
        record(5, struct.pack("<HIQQ", 7, 0, 0, 0)),
        record(9, struct.pack("<QQL", 0, 0, 2**31)),
        record(12, struct.pack("<L", 2**31)),
        record(2, struct.pack("<QQL", 2**60, 0, 0)) + MAGIC,
        record(0, b""),
    ],
)
def test_sizes_that_a_file_only_claims_are_never_used(body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    path.write_bytes(MAGIC + body)
    with pytest.raises(RollbookError):
        Ros2Importer().scan(path)


def test_a_small_chunk_that_unpacks_to_much_is_refused() -> None:
    bomb = library("lz4.frame").compress(bytes(1 << 24))
    with pytest.raises(ValueError, match="more than 100 bytes"):
        unpacked(bomb, "lz4", 100)


def test_a_view_in_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "a.db3"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE topics (id, name, type, serialization_format)")
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
    database.execute(
        f"CREATE VIEW messages AS {endless} SELECT x AS topic_id, x AS timestamp, x AS data FROM n"
    )
    database.commit()
    database.close()
    with pytest.raises(RollbookError, match="no tables"):
        Ros2Importer().scan(path)


def test_an_array_that_claims_more_entries_than_bytes_skips_the_topic(tmp_path: Path) -> None:
    rows = [*joint_rows(3), *text_rows(["hello"])]
    bag = write_bag(tmp_path / "bag", rows, storage=StoragePlugin.SQLITE3)
    path = data_file(bag)
    count = struct.pack("<I", 3) + struct.pack("<I", 9) + b"shoulder"
    assert count in path.read_bytes()
    huge = struct.pack("<I", 2**32 - 1) + count[4:]
    path.write_bytes(path.read_bytes().replace(count, huge))
    encoded = imported(bag, tmp_path / "out")
    [skipped] = encoded.metadata["skipped"]
    assert skipped["name"] == "/joint_states"
    assert "goes beyond the end" in skipped["reason"]
    assert np.array_equal(sensors(encoded)["/chatter/data"], ["hello"])
