"""A raw array is plain Zarr: what we write is what zarr-python reads, and our chunk files are its bytes."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.codecs import BytesCodec

from rollbook.digest import checksum
from rollbook.errors import ConfigurationError, StorageError, TargetExists, WrongColumnType
from rollbook.store.raw_array import (
    AppendingArrayWriter,
    RawArrayWriter,
)
from rollbook.store.raw_layout import (
    HUGE_PAGE,
    PAGE,
    WrittenFiles,
    chunk_rows_for,
    decode_fill,
    page_rows,
    parse_raw_layout,
    raw_array_metadata,
)

Array = NDArray[Any]
DTYPES = ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
ROW_SHAPES = ((), (12,), (5, 3))
MIB = 1 << 20


def some_rows(dtype: str, shape: tuple[int, ...]) -> Array:
    """Any bits at all, NaNs included; bools are 0 or 1, the only ones there are."""
    rng = np.random.default_rng(7)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(size), dtype=np.dtype(dtype).newbyteorder("<")).reshape(shape)


def same_bits(left: Array, right: Array) -> bool:
    return (
        left.shape == right.shape
        and left.dtype == right.dtype
        and left.tobytes() == right.tobytes()
    )


def read_by_zarr(folder: Path) -> Array:
    array = zarr.open_array(folder, mode="r")
    return np.asarray(array[...])


def chunk_files(folder: Path) -> dict[str, bytes]:
    found = (path for path in (folder / "c").rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def on_disk(folder: Path) -> WrittenFiles:
    files = {"zarr.json": (folder / "zarr.json").read_bytes(), **chunk_files(folder)}
    return {name: (len(data), checksum(data)) for name, data in files.items()}


def write_known(folder: Path, rows: Array, **options: Any) -> WrittenFiles:
    writer = RawArrayWriter(folder, rows.dtype, rows.shape[1:], len(rows), **options)
    writer.write(0, rows)
    return writer.close()


def append_all(folder: Path, *blocks: Array, **options: Any) -> WrittenFiles:
    writer = AppendingArrayWriter(folder, blocks[0].dtype, blocks[0].shape[1:], **options)
    for block in blocks:
        writer.append(block)
    return writer.close()


def row_counts(dtype: str, row_shape: tuple[int, ...]) -> tuple[int, ...]:
    """None, one, a few, a page of rows exactly, several pages exactly, and one row more."""
    page = page_rows(np.dtype(dtype).itemsize * math.prod(row_shape))
    return 0, 1, 7, page, 3 * page, 3 * page + 1


# -------------------------------------------------------------------------------------------- metadata


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        *((dtype, 0) for dtype in DTYPES),
        *(("bool", True), ("i1", -128), ("u8", 2**64 - 1), ("i8", -(2**63)), ("f4", 0.1)),
        *(("f2", math.nan), ("f4", math.nan), ("f8", -math.inf), ("f4", math.inf), ("f8", -0.0)),
    ],
)
def test_metadata_is_what_zarr_itself_writes(tmp_path: Path, dtype: str, fill: Any) -> None:
    zarr.create_array(
        tmp_path,
        shape=(7, 0, 3),
        chunks=(4, 1, 3),
        dtype=dtype,
        fill_value=fill,
        filters=None,
        compressors=None,
        serializer=BytesCodec(),
        attributes={"unit": "m"},
    )
    theirs = json.loads((tmp_path / "zarr.json").read_bytes())
    ours = raw_array_metadata(dtype, (7, 0, 3), 4, fill, {"unit": "m"})
    assert json.dumps(ours, sort_keys=True) == json.dumps(theirs, sort_keys=True)


def test_an_empty_array_has_chunks_of_at_least_one() -> None:
    grid = raw_array_metadata("f4", (0, 0), 0)["chunk_grid"]
    assert grid["configuration"]["chunk_shape"] == [1, 1]


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("f2", 0x7E00),
        ("f4", 0xFFC00000),
        ("f4", 0x7F800001),
        ("f8", 0xFFF8000000000003),
        ("f2", 0xFE01),
    ],
)
def test_a_nan_keeps_its_bits_through_the_metadata(dtype: str, bits: int) -> None:
    size = np.dtype(dtype).itemsize
    fill = np.array(bits, f"<u{size}").view(f"<{dtype}")
    metadata = raw_array_metadata(dtype, (3,), 3, fill)
    layout = parse_raw_layout(json.dumps(metadata).encode())
    assert layout.fill.view(f"<u{size}") == bits


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("u1", 256),
        ("u1", -1),
        ("i4", 0.5),
        ("i4", math.nan),
        ("bool", 2),
        ("f4", "1"),
        ("f8", None),
    ],
)
def test_a_fill_value_the_type_cannot_hold_is_refused(dtype: str, fill: Any) -> None:
    with pytest.raises(WrongColumnType, match="fill value"):
        raw_array_metadata(dtype, (1,), 1, fill)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(True, "i4"), (1.0, "i4"), (0, "bool"), ("1", "f4"), (None, "f8"), ([], "u1")],
)
def test_a_stored_fill_value_of_another_type_is_refused(value: Any, dtype: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        decode_fill(value, np.dtype(dtype))


@pytest.mark.parametrize("dtype", ["c8", "U4", "M8[s]", "O", "g"])
def test_a_type_without_a_plain_zarr_name_is_refused(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(WrongColumnType, match="float64"):
        AppendingArrayWriter(tmp_path / "column", dtype, ())


# ----------------------------------------------------------------------------------------- chunk sizes


def test_a_small_array_is_one_chunk_of_exactly_its_rows() -> None:
    assert chunk_rows_for(0, 8) == 1
    assert chunk_rows_for(7, 0) == 7
    assert chunk_rows_for(1000, 96) == 1000
    assert chunk_rows_for(1024, 4096) == 1024


def test_a_middling_array_has_chunks_of_four_mebibytes_and_a_large_one_of_sixty_four() -> None:
    assert chunk_rows_for(1025, 4096) == 513
    assert chunk_rows_for(262_144, 4096) == 1024
    assert chunk_rows_for(262_145, 4096) == 15_872


def test_chunks_of_a_large_array_are_whole_huge_pages_where_that_costs_little() -> None:
    assert chunk_rows_for(100_000, 4096) * 4096 == 4 * MIB
    assert chunk_rows_for(10_000_000, 96) * 96 % HUGE_PAGE != 0
    assert chunk_rows_for(20_000_000, 96) * 96 % HUGE_PAGE == 0
    assert chunk_rows_for(5000, 4096) * 4096 < 4 * MIB


def test_a_chunk_that_would_round_up_past_the_array_holds_it_exactly() -> None:
    assert chunk_rows_for(4000, 1721) == 4000


@given(rows=st.integers(0, 10**10), row_bytes=st.integers(1, 10**5))
def test_several_chunks_are_whole_pages_and_a_bounded_number_of_files(
    rows: int, row_bytes: int
) -> None:
    chunk_rows = chunk_rows_for(rows, row_bytes)
    files = -(-rows // chunk_rows)
    assert files <= 256
    assert files <= 1 or chunk_rows * row_bytes % PAGE == 0
    assert files != 1 or chunk_rows == rows


# --------------------------------------------------------------------------------- written by us, read by zarr


@pytest.mark.parametrize("row_shape", ROW_SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zarr_reads_back_what_both_writers_wrote(
    tmp_path: Path, dtype: str, row_shape: tuple[int, ...]
) -> None:
    chunk_rows = page_rows(np.dtype(dtype).itemsize * math.prod(row_shape))
    for count in row_counts(dtype, row_shape):
        rows = some_rows(dtype, (count, *row_shape))
        known, grown = tmp_path / f"known-{count}", tmp_path / f"grown-{count}"
        assert write_known(known, rows, chunk_rows=chunk_rows) == on_disk(known)
        assert append_all(grown, rows, chunk_bytes=1) == on_disk(grown)
        assert on_disk(known) == on_disk(grown)
        assert same_bits(read_by_zarr(known), rows)


@pytest.mark.parametrize("row_shape", [(0,), (3, 0)])
def test_rows_without_values_need_no_chunk_files(
    tmp_path: Path, row_shape: tuple[int, ...]
) -> None:
    rows = np.zeros((9, *row_shape), "f4")
    assert list(write_known(tmp_path / "known", rows)) == ["zarr.json"]
    assert list(append_all(tmp_path / "grown", rows)) == ["zarr.json"]
    assert same_bits(read_by_zarr(tmp_path / "known"), rows)
    assert on_disk(tmp_path / "known") == on_disk(tmp_path / "grown")


def test_a_single_chunk_is_not_padded_and_the_last_of_several_is(tmp_path: Path) -> None:
    rows = np.arange(1030, dtype="<f4")
    append_all(tmp_path / "one", rows[:1000], chunk_bytes=PAGE, fill_value=math.nan)
    append_all(tmp_path / "two", rows, chunk_bytes=PAGE, fill_value=math.nan)
    assert chunk_files(tmp_path / "one") == {"c/0": rows[:1000].tobytes()}
    padded = np.concatenate((rows[1024:], np.full(1018, np.nan, "<f4")))
    assert chunk_files(tmp_path / "two") == {
        "c/0": rows[:1024].tobytes(),
        "c/1": padded.tobytes(),
    }


def test_attributes_reach_zarr(tmp_path: Path) -> None:
    write_known(tmp_path, some_rows("f4", (3, 2)), attributes={"unit": "m"})
    array = zarr.open_array(tmp_path, mode="r")
    assert dict(array.attrs) == {"unit": "m"}


def test_a_big_array_takes_the_usual_chunk_size_whatever_the_blocks(tmp_path: Path) -> None:
    rows = some_rows("f4", (3001, 1024))
    writer = RawArrayWriter(tmp_path, "f4", (1024,), len(rows))
    for start in range(0, len(rows), 700):
        writer.write(start, rows[start : start + 700])
    assert writer.close() == on_disk(tmp_path)
    assert [len(data) for data in chunk_files(tmp_path).values()] == [1001 * 4096] * 3
    assert same_bits(read_by_zarr(tmp_path), rows)


@given(data=st.data())
def test_the_blocks_rows_come_in_leave_no_trace(data: st.DataObject) -> None:
    rows = some_rows("i4", (data.draw(st.integers(0, 1500), label="rows"), 4))
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=6).map(sorted), label="cuts")
    bounds = [0, *cuts, len(rows)]
    with tempfile.TemporaryDirectory() as folder:
        whole, parts, grown = (Path(folder) / name for name in ("whole", "parts", "grown"))
        write_known(whole, rows, chunk_rows=256)
        writer = RawArrayWriter(parts, "i4", (4,), len(rows), chunk_rows=256)
        appender = AppendingArrayWriter(grown, "i4", (4,), PAGE)
        for start, stop in itertools.pairwise(bounds):
            writer.write(start, rows[start:stop])
            appender.append(rows[start:stop])
        assert writer.close() == appender.close() == on_disk(whole) == on_disk(parts)
        assert on_disk(grown) == on_disk(whole)


def test_blocks_may_be_big_endian_strided_or_views(tmp_path: Path) -> None:
    rows = some_rows("u4", (10, 6))
    append_all(tmp_path, rows[:5].astype(">u4"), np.asfortranarray(rows[5:]))
    assert same_bits(read_by_zarr(tmp_path), rows)


# ------------------------------------------------------------------------------------------- one value only


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("f4", 0.0),
        ("f4", -0.0),
        ("f4", math.nan),
        ("f8", -math.inf),
        ("bool", True),
        ("u8", 2**64 - 1),
    ],
)
def test_an_array_of_one_value_has_no_chunk_files_and_reads_back(
    tmp_path: Path, dtype: str, value: Any
) -> None:
    rows = np.full((3000, 2), value, dtype)
    files = append_all(tmp_path, rows[:10], rows[10:], chunk_bytes=PAGE, elide=True)
    assert list(files) == ["zarr.json"]
    assert files == on_disk(tmp_path)
    assert same_bits(read_by_zarr(tmp_path), rows)


def test_without_elide_an_array_of_one_value_is_written_out(tmp_path: Path) -> None:
    assert "c/0" in append_all(tmp_path, np.zeros(5))


def test_an_empty_array_keeps_the_fill_value_it_was_given(tmp_path: Path) -> None:
    append_all(tmp_path, np.zeros(0, "f4"), fill_value=2.5, elide=True)
    assert zarr.open_array(tmp_path, mode="r").fill_value == 2.5


@given(
    values=st.lists(st.sampled_from([0.0, -0.0, 1.0, math.nan]), min_size=1, max_size=4),
    block=st.integers(1, 1200),
)
def test_eliding_never_changes_what_is_read(values: list[float], block: int) -> None:
    rows = np.repeat(np.array(values, "<f4"), block)
    with tempfile.TemporaryDirectory() as folder:
        plain, elided = Path(folder) / "plain", Path(folder) / "elided"
        blocks = np.split(rows, len(values))
        append_all(plain, *blocks, chunk_bytes=PAGE)
        files = append_all(elided, *blocks, chunk_bytes=PAGE, elide=True)
        assert same_bits(read_by_zarr(elided), rows)
        one_value = len(set(rows.view("<u4").tolist())) == 1
        assert (len(files) == 1) == one_value
        assert one_value or on_disk(elided) == on_disk(plain)


def test_a_nan_that_other_readers_would_change_is_written_out(tmp_path: Path) -> None:
    rows = np.full(9, 0x7D01, "<u2").view("<f2")
    assert "c/0" in append_all(tmp_path, rows, elide=True)
    assert same_bits(read_by_zarr(tmp_path), rows)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "block", [np.zeros((2, 3)), np.zeros((2, 4), "f4"), np.zeros(3, "f4"), np.float32(1)]
)
def test_a_block_of_another_type_or_shape_is_refused_not_cast(tmp_path: Path, block: Any) -> None:
    writer = AppendingArrayWriter(tmp_path / "pose", "f4", (3,))
    with pytest.raises(WrongColumnType, match=r"'pose'.*float32\[3\]"):
        writer.append(block)


def test_rows_out_of_order_too_many_or_missing_are_refused(tmp_path: Path) -> None:
    writer = RawArrayWriter(tmp_path, "i4", (), 5)
    writer.write(0, np.zeros(2, "i4"))
    with pytest.raises(StorageError, match="row 2 of 5 is next"):
        writer.write(3, np.zeros(2, "i4"))
    with pytest.raises(StorageError, match="4 rows at 2"):
        writer.write(2, np.zeros(4, "i4"))
    with pytest.raises(StorageError, match="only 2 of 5"):
        writer.close()
    assert not (tmp_path / "zarr.json").exists()


def test_a_closed_array_takes_no_more_rows(tmp_path: Path) -> None:
    writer = AppendingArrayWriter(tmp_path, "i4", ())
    writer.close()
    with pytest.raises(StorageError, match="already closed"):
        writer.append(np.zeros(1, "i4"))
    with pytest.raises(StorageError, match="already closed"):
        writer.close()


def test_several_chunks_that_are_not_whole_pages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="multiple of 1024, not 1000"):
        RawArrayWriter(tmp_path, "f4", (), 5000, chunk_rows=1000)


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    append_all(tmp_path, np.zeros(3))
    with pytest.raises(TargetExists):
        AppendingArrayWriter(tmp_path, "f8", ())


def test_a_full_disk_is_a_storage_error_that_names_the_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", no_space)
    with pytest.raises(StorageError, match=r"c/0.*No space left"):
        append_all(tmp_path, np.zeros(MIB))


def test_a_write_the_system_takes_in_parts_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole_write(file, data[:1000]))
    rows = some_rows("f8", (5000,))
    files = append_all(tmp_path, rows)
    assert files == on_disk(tmp_path)
    assert same_bits(read_by_zarr(tmp_path), rows)
