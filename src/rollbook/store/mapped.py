"""MappedArray: the chunk files of a raw Zarr array, mapped one after the other as one read-only numpy array.

Opening checks `zarr.json` and the sizes of the files: their bytes must be exactly the rows. Nothing is decoded or
copied afterwards. The pages belong to the buffer that every view refers to, so a view stays valid as long as it is
held. If a file is truncated while it is mapped, the system ends the process. This does not happen to a finished
store: its files are never written to, and replacing a file by a rename does not change the map.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rollbook.errors import NotRawArray, RowOutOfRange, StorageError, TruncatedFile, WrongColumnType
from rollbook.files import AnyPath
from rollbook.store.raw_layout import (
    HUGE_PAGE,
    METADATA_FILE,
    Array,
    RawLayout,
    parse_raw_layout,
)

_MAP_FIXED = 0x10  # the same on Linux, macOS and the BSDs; the standard library does not name it
_MAP_FAILED = ctypes.c_void_p(-1).value

_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_long,
)


def is_raw(folder: AnyPath) -> bool:
    """Whether the array can be mapped, according to its metadata. If not, it has to be read with zarr.

    Chunk files are not checked. An array without one of them is raw but damaged: zarr would read the fill value there,
    `MappedArray.open` refuses the array.
    """
    try:
        _mappable_layout(_read_metadata(Path(folder)))
    except ValueError:
        return False
    return True


def _read_metadata(folder: Path) -> bytes:
    path = folder / METADATA_FILE
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: AnyPath, error: OSError) -> StorageError:
    return StorageError(path=str(path), detail=f"cannot be read ({error.strerror or error})")


def _mappable_layout(metadata: bytes) -> RawLayout:
    """The layout. Raises ValueError with the reason if the array cannot be mapped."""
    layout = parse_raw_layout(metadata)
    if math.prod(layout.shape) * layout.dtype.itemsize > sys.maxsize:
        raise ValueError(f"shape {list(layout.shape)} is more than can be addressed")
    if layout.chunks > 1 and layout.chunk_bytes % mmap.PAGESIZE:
        raise ValueError(
            f"{layout.chunk_bytes} bytes per chunk are not whole pages of {mmap.PAGESIZE}"
        )
    return layout


class MappedArray:
    """A raw array on disk. Its pickle contains only the path, so the array is opened again after unpickling."""

    def __init__(self, folder: Path, layout: RawLayout, pages: _Pages | None) -> None:
        """Called by `open` only. Without pages every value is the fill value."""
        self.folder = folder
        self.shape = layout.shape
        self.dtype = layout.dtype
        self._layout = layout
        self._pages = pages
        self._view = _constant_view(layout) if pages is None else pages.view(layout)

    @classmethod
    def open(cls, folder: AnyPath, *, constant: bool | None = None) -> MappedArray:
        """Map the array. Refuses an array that is not raw, and one with missing files or files of the wrong size.

        `constant` says whether the array has no chunk files. Without it the disk decides, so all of them being lost is
        only noticed by a caller who knows the manifest.
        """
        path = Path(folder).absolute()
        metadata = _read_metadata(path)
        try:
            layout = _mappable_layout(metadata)
        except ValueError as error:
            raise NotRawArray(path=str(path), detail=str(error)) from error
        if constant is None:
            constant = not _has_files(path, layout)
        return cls(path, layout, None if constant else _Pages(path, layout))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(MappedArray.open, constant=self.is_constant), (str(self.folder),)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"MappedArray({str(self.folder)!r}, {self.dtype.name}{list(self.shape)})"

    @property
    def is_constant(self) -> bool:
        """Whether the array has no chunk files, so that every value is the fill value."""
        return self._pages is None

    def view(self) -> Array:
        """All rows, read-only and without a copy."""
        return self._view

    def take(self, indices: ArrayLike, out: Array | None = None) -> Array:
        """Copies of the rows at `indices`, in that order, into `out` if given. A mask of all rows selects rows."""
        rows = self._checked_rows(indices)
        shape = rows.shape + self.shape[1:]
        if out is None:
            out = np.empty(shape, self.dtype)
        elif out.dtype != self.dtype or out.shape != shape:
            raise WrongColumnType(
                column=self.folder.name,
                expected=f"{self.dtype.name}{list(shape)}",
                actual=f"{out.dtype.name}{list(out.shape)}",
            )
        if self._pages is None:
            out[...] = self._layout.fill  # numpy would first expand a constant view in memory
            return out
        # the rows were checked; mode="raise" would make numpy use a second buffer
        return self._view.take(rows, 0, out, "clip")

    def _checked_rows(self, indices: ArrayLike) -> Array:
        rows = np.asarray(indices)
        chosen = rows if rows.dtype == np.intp else self._row_numbers(rows)
        # as unsigned numbers, negative ones are the largest: one comparison finds both kinds
        if chosen.size and chosen.view(np.uintp).max() >= self.shape[0]:
            outside = rows[(rows < 0) | (rows >= len(self))]
            detail = f"row {outside[0]} was asked for, the array has {len(self)}"
            raise RowOutOfRange(path=str(self.folder), detail=detail)
        return chosen

    def _row_numbers(self, rows: Array) -> Array:
        if rows.dtype == np.bool_ and rows.shape == (len(self),):
            return np.flatnonzero(rows)
        if rows.size and rows.dtype.kind not in "iu":
            raise WrongColumnType(
                column="indices",
                expected=f"whole numbers, or a mask of {len(self)} rows",
                actual=f"{rows.dtype.name}{list(rows.shape)}",
            )
        return rows.astype(np.intp)

    def prefetch(self, indices: ArrayLike) -> None:
        """Ask the system to read these rows ahead, without waiting for them."""
        rows = self._checked_rows(indices)
        if self._pages is None or rows.size == 0:
            return
        for start, stop in _page_ranges(np.unique(rows), self._layout.row_bytes):
            self._pages.will_need(start, stop)


def _page_ranges(rows: Array, row_bytes: int) -> list[list[int]]:
    """Byte ranges of whole pages that cover sorted rows. Adjacent ranges are merged."""
    starts = rows * row_bytes // mmap.PAGESIZE
    stops = -(-(rows + 1) * row_bytes // mmap.PAGESIZE)
    opens = np.concatenate(([True], starts[1:] > stops[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    ranges: list[list[int]] = (
        np.stack((starts[opens], stops[closes]), axis=1) * mmap.PAGESIZE
    ).tolist()
    return ranges


def _constant_view(layout: RawLayout) -> Array:
    value = layout.fill.copy()
    value.flags.writeable = False
    return np.broadcast_to(value, layout.shape)


# ---------------------------------------------------------------------------------------------- mapping


def _has_files(folder: Path, layout: RawLayout) -> bool:
    """Whether there are chunk files. An array without any is empty, or holds its fill value everywhere."""
    first = next(layout.chunk_keys(), None)
    if first is None:
        return False
    return os.path.lexists(folder / first) or any(files for _, _, files in os.walk(folder / "c"))


class _Pages:
    """One range of addresses that holds all chunk files of an array, one after the other.

    An anonymous `mmap` object owns the range and releases it when the last view is gone. It is not a map of a file,
    because that would keep the file open.
    """

    def __init__(self, folder: Path, layout: RawLayout) -> None:
        self.size = layout.chunk_bytes * layout.chunks
        # huge pages need aligned addresses, so the range gets room for the alignment
        room = HUGE_PAGE if self.size >= HUGE_PAGE else 0
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            self._range = mmap.mmap(-1, self.size + room, flags=flags, prot=mmap.PROT_READ)
        except (OSError, OverflowError) as error:
            detail = f"{self.size} bytes cannot be mapped ({error})"
            raise StorageError(path=str(folder), detail=detail) from error
        address: int = np.frombuffer(self._range, np.uint8).__array_interface__["data"][0]
        self._start = -address % HUGE_PAGE if room else 0
        for index, key in enumerate(layout.chunk_keys()):
            place = address + self._start + index * layout.chunk_bytes
            _map_file(f"{folder}/{key}", place, layout.chunk_bytes)

    def view(self, layout: RawLayout) -> Array:
        # frombuffer keeps the buffer exported, so that the pages cannot be unmapped under a view
        count = math.prod(layout.shape)
        values = np.frombuffer(self._range, layout.dtype, count, offset=self._start)
        return values.reshape(layout.shape)

    def will_need(self, start: int, stop: int) -> None:
        self._range.madvise(mmap.MADV_WILLNEED, self._start + start, min(stop, self.size) - start)


def _map_file(path: str, place: int, size: int) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise TruncatedFile(path=path, detail="the chunk is missing") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        actual = os.fstat(descriptor).st_size
        if actual != size:
            raise TruncatedFile(path=path, detail=f"the chunk has {actual} bytes, not {size}")
        flags = mmap.MAP_SHARED | _MAP_FIXED
        if _mmap(place, size, mmap.PROT_READ, flags, descriptor, 0) == _MAP_FAILED:
            code = ctypes.get_errno()
            raise _unreadable(path, OSError(code, f"mapping: {os.strerror(code)}"))
    finally:
        os.close(descriptor)
