"""Mapped arrays: the bytes zarr-python reads, views that cannot dangle, and arrays that are not what they seem."""

from __future__ import annotations

import gc
import itertools
import json
import math
import mmap
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec

from rollbook.errors import (
    NotRawArray,
    RowOutOfRange,
    StorageError,
    TruncatedFile,
    WrongColumnType,
)
from rollbook.store import mapped
from rollbook.store.mapped import MappedArray, is_raw
from rollbook.store.raw_layout import (
    HUGE_PAGE,
    page_rows,
)
from tests.store.test_raw_array import (
    DTYPES,
    ROW_SHAPES,
    Array,
    append_all,
    row_counts,
    same_bits,
    some_rows,
    write_known,
)


def write_by_zarr(folder: Path, rows: Array, chunks: tuple[int, ...], **options: Any) -> None:
    array = zarr.create_array(
        folder,
        shape=rows.shape,
        chunks=chunks,
        dtype=rows.dtype,
        config={"write_empty_chunks": True},
        **{"compressors": None, "filters": None, "serializer": BytesCodec(), **options},
    )
    array[...] = rows


def change_metadata(folder: Path, **changes: Any) -> None:
    path = folder / "zarr.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))


def states(folder: Path, count: int = 10, chunk_rows: int = 2) -> Array:
    """Rows of one page each, so that any number of them makes a chunk."""
    rows = some_rows("u4", (count, 1024))
    write_known(folder, rows, chunk_rows=chunk_rows)
    return rows


def in_subprocess(program: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.strip()


# ------------------------------------------------------------------------------------------- same bytes


@pytest.mark.parametrize("row_shape", ROW_SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_we_wrote_is_mapped_bit_by_bit(
    tmp_path: Path, dtype: str, row_shape: tuple[int, ...]
) -> None:
    chunk_rows = page_rows(np.dtype(dtype).itemsize * math.prod(row_shape))
    for count in row_counts(dtype, row_shape):
        rows = some_rows(dtype, (count, *row_shape))
        write_known(tmp_path / f"{count}", rows, chunk_rows=chunk_rows)
        assert same_bits(MappedArray.open(tmp_path / f"{count}").view(), rows)


@pytest.mark.parametrize("row_shape", ROW_SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_zarr_wrote_is_mapped_bit_by_bit(
    tmp_path: Path, dtype: str, row_shape: tuple[int, ...]
) -> None:
    chunk_rows = page_rows(np.dtype(dtype).itemsize * math.prod(row_shape))
    for count in row_counts(dtype, row_shape):
        rows = some_rows(dtype, (count, *row_shape))
        write_by_zarr(tmp_path / f"{count}", rows, (chunk_rows, *row_shape))
        array = MappedArray.open(tmp_path / f"{count}")
        assert same_bits(array.view(), rows)
        assert is_raw(array.folder)


@pytest.mark.parametrize("shape", [(0,), (0, 12), (9, 0), (9, 3, 0)])
def test_an_array_without_values_maps_to_an_empty_one(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    append_all(tmp_path, np.zeros(shape, "f4"))
    array = MappedArray.open(tmp_path)
    assert (array.shape, array.view().shape, len(array)) == (shape, shape, shape[0])
    array.prefetch([])
    assert array.take([]).shape == (0, *shape[1:])


@pytest.mark.parametrize("value", [0.0, -0.0, 2.5, math.nan, math.inf])
def test_an_array_without_chunk_files_is_its_fill_value_everywhere(
    tmp_path: Path, value: float
) -> None:
    rows = np.full((3000, 3), value, "<f4")
    append_all(tmp_path, rows, elide=True)
    array = MappedArray.open(tmp_path)
    assert array.is_constant
    assert same_bits(array.view(), rows)
    assert same_bits(array.take([5, 0, 2999]), rows[:3])
    assert same_bits(np.atleast_1d(array.view()[0, 0]), rows[0, :1])
    array.prefetch([1, 2])
    with pytest.raises(ValueError, match="read-only"):
        array.view()[0] = 1


def test_a_constant_of_any_length_costs_no_memory(tmp_path: Path) -> None:
    append_all(tmp_path, np.ones((4, 8)), elide=True)
    grid = {"name": "regular", "configuration": {"chunk_shape": [64, 8]}}
    change_metadata(tmp_path, shape=[10**12, 8], chunk_grid=grid)
    array = MappedArray.open(tmp_path)
    assert array.view()[10**12 - 1].sum() == 8
    assert array.take([10**12 - 1, 3]).tolist() == [[1.0] * 8] * 2


def test_shape_type_attributes_and_name_are_at_hand(tmp_path: Path) -> None:
    write_known(tmp_path / "pose", some_rows("f4", (3, 12)), attributes={"unit": "m"})
    array = MappedArray.open(tmp_path / "pose")
    assert (array.shape, array.dtype) == ((3, 12), np.dtype("<f4"))
    assert not array.is_constant
    assert repr(array).endswith("pose', float32[3, 12])")


def test_a_big_padded_single_chunk_of_zarr_is_cut_to_its_rows(tmp_path: Path) -> None:
    rows = some_rows("i2", (7, 3))
    write_by_zarr(tmp_path, rows, (1000, 3))
    assert same_bits(MappedArray.open(tmp_path).view(), rows)


# ------------------------------------------------------------------------------------------------- take


@given(
    indices=st.lists(st.integers(0, 9), max_size=30), kind=st.sampled_from(["i4", "i8", "u1", "u8"])
)
def test_take_is_fancy_indexing(
    tmp_path_factory: pytest.TempPathFactory, indices: list[int], kind: str
) -> None:
    folder = tmp_path_factory.mktemp("take")
    rows = states(folder / "array")
    array = MappedArray.open(folder / "array")
    wanted = np.array(indices, kind)
    out = np.empty((len(indices), 1024), "u4")
    assert same_bits(array.take(wanted), rows[wanted])
    assert array.take(wanted, out=out) is out
    assert same_bits(out, rows[wanted])
    array.prefetch(wanted)


def test_take_of_one_row_and_of_a_table_of_rows_keep_their_shape(tmp_path: Path) -> None:
    rows = states(tmp_path)
    array = MappedArray.open(tmp_path)
    assert same_bits(np.asarray(array.take(3)), rows[3])
    assert same_bits(array.take([[1, 2], [3, 9]]), rows[[[1, 2], [3, 9]]])


@pytest.mark.parametrize("indices", [[-1], [0, 10], [2**40], np.array([2**64 - 1], "u8")])
@pytest.mark.parametrize("elide", [False, True])
def test_rows_that_are_not_there_are_refused(tmp_path: Path, indices: Any, elide: bool) -> None:
    append_all(tmp_path, np.zeros(10, "f4"), elide=elide)
    array = MappedArray.open(tmp_path)
    for use in (array.take, array.prefetch):
        with pytest.raises(RowOutOfRange, match="the array has 10"):
            use(indices)


@pytest.mark.parametrize("indices", [[0.0], [True], ["1"]])
def test_indices_that_are_not_whole_numbers_are_refused(tmp_path: Path, indices: Any) -> None:
    states(tmp_path)
    with pytest.raises(WrongColumnType, match="whole numbers"):
        MappedArray.open(tmp_path).take(indices)


@pytest.mark.parametrize("out", [np.empty((2, 1024), "f4"), np.empty((3, 1024), "u4")])
def test_an_out_array_of_another_type_or_shape_is_refused(tmp_path: Path, out: Array) -> None:
    states(tmp_path)
    with pytest.raises(WrongColumnType, match=r"uint32\[2, 1024\]"):
        MappedArray.open(tmp_path).take([0, 1], out=out)


# --------------------------------------------------------------------------------------------- prefetch


def test_prefetch_asks_for_the_pages_of_the_rows_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = some_rows("u1", (6 * 4096, 100))
    write_known(tmp_path, rows, chunk_rows=4096)
    array = MappedArray.open(tmp_path)
    asked: list[tuple[int, int]] = []

    class Pages:
        size = rows.nbytes

        def will_need(self, start: int, stop: int) -> None:
            asked.append((start // mmap.PAGESIZE, stop // mmap.PAGESIZE))

    monkeypatch.setattr(array, "_pages", Pages())
    array.prefetch([0, 1, 40, 41, 500, 499, 0, 24575])
    assert asked == [(0, 2), (12, 13), (599, 600)]


@pytest.mark.parametrize("count", [3, 600_000])
def test_prefetch_reaches_the_last_row_of_a_file_that_ends_inside_a_page(
    tmp_path: Path, count: int
) -> None:
    rows = some_rows("u1", (count, 5))
    write_known(tmp_path, rows)
    array = MappedArray.open(tmp_path)
    array.prefetch([0, count - 1])
    assert same_bits(array.take([count - 1]), rows[-1:])


def test_a_large_array_begins_where_a_huge_page_can(tmp_path: Path) -> None:
    rows = some_rows("u4", (1600, 1024))
    write_known(tmp_path / "one", rows, chunk_rows=1600)
    write_known(tmp_path / "many", rows, chunk_rows=512)
    for name in ("one", "many"):
        view = MappedArray.open(tmp_path / name).view()
        assert view.__array_interface__["data"][0] % HUGE_PAGE == 0
        assert same_bits(view, rows)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50, unique=True), st.integers(1, 10**4))
def test_page_ranges_cover_every_row_and_never_touch(rows: list[int], row_bytes: int) -> None:
    ranges = mapped._page_ranges(np.array(sorted(rows)), row_bytes)
    page = mmap.PAGESIZE
    needed = {
        p for r in rows for p in range(r * row_bytes // page, ((r + 1) * row_bytes - 1) // page + 1)
    }
    covered = [p for start, stop in ranges for p in range(start // page, stop // page)]
    assert sorted(needed) == covered
    assert all(left[1] < right[0] for left, right in itertools.pairwise(ranges))


def test_neighbouring_pages_are_asked_for_together() -> None:
    page = mmap.PAGESIZE
    ranges = mapped._page_ranges(np.array([3, 4, 6]), page)
    assert ranges == [[3 * page, 5 * page], [6 * page, 7 * page]]


# ---------------------------------------------------------------------------------- lifetime and safety


OUTLIVE = """
import gc, sys
import numpy as np
from rollbook.store.mapped import MappedArray

array = MappedArray.open(sys.argv[1])
whole, tail, column = array.view(), array.view()[7:], array.view()[:, 5]
flat, row = whole.reshape(-1)[4096:].view("u1"), array.view()[9]
expected = [part.copy() for part in (tail, column, flat, row)]
del array, whole
gc.collect()
others = [MappedArray.open(sys.argv[1]) for _ in range(50)]  # would take over freed addresses
garbage = [np.ones(1 << 20) for _ in range(20)]
for part, copy in zip((tail, column, flat, row), expected):
    assert (part == copy).all()
for array in others:
    assert (array.view()[7:] == expected[0]).all()
print("alive")
"""

WRITE_EVERY_WAY = """
import sys
import numpy as np
from rollbook.store.mapped import MappedArray

array = MappedArray.open(sys.argv[1])
view = array.view()
refused = 0
def attempt(action):
    global refused
    try:
        action()
    except (ValueError, TypeError, BufferError):
        refused += 1
def owner(part):
    while isinstance(part, np.ndarray):
        part = part.base
    return part.obj if isinstance(part, memoryview) else part
attempt(lambda: view.__setitem__(0, 1))
attempt(lambda: view[3:].fill(1))
attempt(lambda: view.setflags(write=True))
attempt(lambda: view.reshape(-1).view("u1").setflags(write=True))
attempt(lambda: np.add(view, 1, out=view))
attempt(lambda: view.sort())
attempt(lambda: memoryview(view.reshape(-1)).__setitem__(0, 1))
attempt(lambda: array.take([0], out=view[:1]))
attempt(lambda: owner(view).close())
attempt(lambda: owner(view).resize(1))
attempt(lambda: owner(view).write(b"x"))
assert int(view.sum()) >= 0
print(refused)
"""


@pytest.mark.parametrize("chunk_rows", [2, 10])
def test_views_outlive_the_array_they_came_from(tmp_path: Path, chunk_rows: int) -> None:
    states(tmp_path, chunk_rows=chunk_rows)
    assert in_subprocess(OUTLIVE, tmp_path) == "alive"


@pytest.mark.parametrize("chunk_rows", [2, 10])
def test_every_way_to_write_is_refused_and_none_ends_the_process(
    tmp_path: Path, chunk_rows: int
) -> None:
    states(tmp_path, chunk_rows=chunk_rows)
    assert in_subprocess(WRITE_EVERY_WAY, tmp_path) == "11"


def maps_of(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(folder))


def test_pages_are_given_back_when_the_last_view_is_gone(tmp_path: Path) -> None:
    states(tmp_path)
    array = MappedArray.open(tmp_path)
    view = array.view()[3:]
    del array
    gc.collect()
    assert maps_of(tmp_path) == 5
    del view
    assert maps_of(tmp_path) == 0


def test_no_file_stays_open(tmp_path: Path) -> None:
    states(tmp_path / "many")
    states(tmp_path / "one", chunk_rows=10)
    before = os.listdir("/proc/self/fd")
    arrays = [MappedArray.open(tmp_path / name) for name in ("many", "one")]
    assert os.listdir("/proc/self/fd") == before
    assert [len(array) for array in arrays] == [10, 10]


def test_a_refused_array_leaves_neither_maps_nor_open_files(tmp_path: Path) -> None:
    states(tmp_path)
    os.truncate(tmp_path / "c/3/0", 100)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(TruncatedFile):
        MappedArray.open(tmp_path)
    gc.collect()
    assert os.listdir("/proc/self/fd") == before
    assert maps_of(tmp_path) == 0


def test_a_file_replaced_by_a_rename_leaves_the_open_map_alone(tmp_path: Path) -> None:
    rows = states(tmp_path)
    old = MappedArray.open(tmp_path).view()
    (tmp_path / "new").write_bytes(bytes(8192))
    os.replace(tmp_path / "new", tmp_path / "c/1/0")
    assert same_bits(old, rows)
    assert not MappedArray.open(tmp_path).view()[2:4].any()


def test_a_pickled_array_is_opened_again_wherever_it_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = states(tmp_path / "array")
    monkeypatch.chdir(tmp_path)
    frozen = pickle.dumps(MappedArray.open("array"))
    assert len(frozen) < 500
    monkeypatch.chdir("/")
    assert same_bits(pickle.loads(frozen).view(), rows)


# In a process of its own: zarr-python has threads, and a process with threads is not to be forked.
FORK = """
import multiprocessing, sys
from rollbook.store.mapped import MappedArray

if __name__ == "__main__":
    array = MappedArray.open(sys.argv[1])
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            for rows, taken in zip(([0, 9], [4]), pool.map(array.take, [[0, 9], [4]])):
                assert (taken == array.view()[rows]).all()
    print("same")
"""


def test_other_processes_read_the_same_rows(tmp_path: Path) -> None:
    states(tmp_path / "array")
    assert in_subprocess(FORK, tmp_path / "array") == "same"


# ----------------------------------------------------------------------------------- what cannot be mapped


def write_group(folder: Path) -> None:
    zarr.create_group(folder)


NOT_RAW: dict[str, tuple[Callable[[Path, Array], None], str]] = {
    "zstd": (
        lambda folder, rows: write_by_zarr(folder, rows, (2, 1024), compressors="auto"),
        "encoded",
    ),
    "sharding": (
        lambda folder, rows: write_by_zarr(folder, rows, (1, 1024), shards=(2, 1024)),
        "encoded",
    ),
    "big-endian": (
        lambda folder, rows: write_by_zarr(
            folder, rows, (2, 1024), serializer=BytesCodec(endian="big")
        ),
        "big-endian",
    ),
    "axis 1": (lambda folder, rows: write_by_zarr(folder, rows, (2, 512)), "cut or pad"),
    "half a page": (
        lambda folder, rows: write_by_zarr(folder, rows[:, :512].copy(), (1, 512)),
        "whole pages",
    ),
    "dotted keys": (
        lambda folder, rows: write_by_zarr(
            folder,
            rows,
            (2, 1024),
            chunk_key_encoding={"name": "default", "separator": "."},
        ),
        "chunk keys",
    ),
    "complex": (
        lambda folder, rows: write_by_zarr(folder, rows.astype("c8"), (2, 1024)),
        "complex64",
    ),
    "no rows": (lambda folder, rows: write_by_zarr(folder, rows.sum(), ()), "no rows"),
    "a group": (lambda folder, rows: write_group(folder), "cannot be mapped"),
}


@pytest.mark.parametrize("kind", NOT_RAW)
def test_an_array_that_is_not_raw_is_left_to_zarr(tmp_path: Path, kind: str) -> None:
    write, reason = NOT_RAW[kind]
    write(tmp_path, some_rows("u4", (10, 1024)))
    assert not is_raw(tmp_path)
    with pytest.raises(NotRawArray, match=reason):
        MappedArray.open(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"zarr_format": 2},
        {"shape": [10, -1]},
        {"shape": "10"},
        {"shape": [2**54, 1024]},
        {"data_type": "float32", "fill_value": 1e300},
        {"codecs": []},
        {"codecs": ["bytes"]},
        {"fill_value": None},
        {"fill_value": 2**32},
        {"chunk_grid": {"name": "rectangular"}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 1024]}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2.0, 1024]}}},
        {"storage_transformers": [{"name": "other"}]},
    ],
)
def test_metadata_that_does_not_prove_a_raw_array_is_not_trusted(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    states(tmp_path)
    change_metadata(tmp_path, **changes)
    assert not is_raw(tmp_path)
    with pytest.raises(StorageError, match="cannot be mapped"):
        MappedArray.open(tmp_path)


def test_a_chunk_missing_among_others_is_refused_not_filled(tmp_path: Path) -> None:
    for chunk in ("c/0/0", "c/2/0", "c/4/0"):
        folder = tmp_path / chunk.replace("/", "-")
        states(folder)
        (folder / chunk).unlink()
        assert is_raw(folder)
        with pytest.raises(TruncatedFile, match=rf"{chunk} is incomplete: the chunk is missing"):
            MappedArray.open(folder)


def test_the_holes_zarr_leaves_for_empty_chunks_are_refused(tmp_path: Path) -> None:
    rows = some_rows("u4", (10, 1024)).copy()
    rows[4:6] = 0
    zarr.create_array(tmp_path, data=rows, chunks=(2, 1024), filters=None, compressors=None)
    with pytest.raises(TruncatedFile, match="missing"):
        MappedArray.open(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 8191, 8193, 16384])
@pytest.mark.parametrize("chunk_rows", [2, 10])
def test_a_chunk_file_of_another_size_is_refused(
    tmp_path: Path, size: int, chunk_rows: int
) -> None:
    states(tmp_path, chunk_rows=chunk_rows)
    os.truncate(tmp_path / "c/0/0", size)
    with pytest.raises(TruncatedFile, match=f"has {size} bytes"):
        MappedArray.open(tmp_path)


def test_an_array_that_is_not_there_is_a_storage_error(tmp_path: Path) -> None:
    for use in (is_raw, MappedArray.open):
        with pytest.raises(StorageError, match="cannot be read"):
            use(tmp_path / "nowhere")


def test_a_chunk_that_is_a_folder_or_too_large_to_map_is_a_storage_error(tmp_path: Path) -> None:
    states(tmp_path)
    (tmp_path / "c/1/0").unlink()
    (tmp_path / "c/1/0").mkdir()
    with pytest.raises(StorageError, match="c/1/0"):
        MappedArray.open(tmp_path)
    change_metadata(tmp_path, shape=[2**48, 1024])
    with pytest.raises(StorageError, match="cannot be mapped"):
        MappedArray.open(tmp_path)
