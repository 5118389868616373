"""StoredArray: one array of a Zarr store of version 2, read by rows.

It is read here and not through the library `zarr`, which makes every codec that a file names and unpacks to whatever
size the bytes lead to. Only `numcodecs`, on which `zarr` stands, unpacks the chunks.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.steps.json_file import parse_object
from rollbook.adapters.zarr_buffer.chunk_codecs import (
    DamagedChunk,
    UnreadableCodec,
    check_codecs,
    most_packed,
    unpacked,
)
from rollbook.adapters.zarr_buffer.chunk_files import ChunkFiles, FileState
from rollbook.errors import DamagedRecording

ARRAY_FILE = ".zarray"
_LARGEST_DESCRIPTION = 1 << 20
_LARGEST_CHUNK = 1 << 28
_LARGEST_ROW = 1 << 28
_MOST_DIMENSIONS = 32
_BLOCK = 8 << 20
_LARGEST_KEPT = 4 << 20
"""Bytes of a chunk that is kept for the next rows. Replay buffers have chunks of about 2 MB."""
_MOST_MISSING = 1_000_000
_MOST_MADE_UP = 1 << 30
"""Bytes of chunks that are not stored because all their values are the fill value."""
_DTYPE = re.compile(r"[<>|](?:b1|[iu][1248]|f[248]|U\d{1,6})", re.ASCII)


class UnreadableArray(Exception):
    """The reason why an array is left out."""


@dataclass(slots=True)
class _LastChunk:
    """Episodes that follow each other often lie in one chunk, which is then unpacked once."""

    name: str = ""
    state: FileState | None = None
    values: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class StoredArray:
    name: str
    """Path in the store."""
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: Any
    compressor: dict[str, Any] | None
    filters: list[Any] | None
    separator: str
    column_major: bool
    last: _LastChunk = field(default_factory=_LastChunk, repr=False, compare=False)

    @classmethod
    def of(cls, files: ChunkFiles, name: str) -> StoredArray:
        """Read the description of an array. One that is not read raises UnreadableArray with the reason."""
        place = f"{files.path}/{name}/{ARRAY_FILE}"
        stated = parse_object(files.read(f"{name}/{ARRAY_FILE}", _LARGEST_DESCRIPTION), place)
        if stated.get("zarr_format") != 2:
            raise DamagedRecording(path=place, detail="its zarr_format is not 2")
        compressor, filters = stated.get("compressor"), stated.get("filters")
        dtype = _dtype(stated.get("dtype"))
        try:
            check_codecs(compressor, filters)
        except UnreadableCodec as reason:
            raise UnreadableArray(str(reason)) from None
        shape, chunks = _lengths(stated, "shape", place), _lengths(stated, "chunks", place)
        if len(shape) != len(chunks) or 0 in chunks:
            raise DamagedRecording(path=place, detail=f"shape {shape} in chunks of {chunks}")
        found = cls(
            name,
            shape,
            chunks,
            dtype,
            _fill(stated.get("fill_value"), dtype, place),
            compressor,
            filters,
            stated.get("dimension_separator", "."),
            stated.get("order", "C") == "F",
        )
        found._check(place, stated)
        return found

    def _check(self, place: str, stated: dict[str, Any]) -> None:
        if self.separator not in (".", "/") or stated.get("order", "C") not in ("C", "F"):
            detail = "its dimension_separator or its order is unknown"
            raise DamagedRecording(path=place, detail=detail)
        if self._chunk_bytes > _LARGEST_CHUNK or self.row_bytes > _LARGEST_ROW:
            detail = f"a chunk of {self._chunk_bytes} bytes, a row of {self.row_bytes}: at most {_LARGEST_CHUNK}"
            raise DamagedRecording(path=place, detail=detail)

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def type(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape[1:]))}]"

    def blocks(self, files: ChunkFiles, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """The rows from `start` up to `stop`, chunk by chunk; small chunks several at once."""
        length = self.chunks[0]
        at_once = max(1, _BLOCK // max(1, self.row_bytes * length)) * length
        first = start
        while first < stop:
            last = min(stop, (first // length) * length + at_once)
            yield self._rows(files, first, last)
            first = last

    def check_stored(self, files: ChunkFiles, rows: int) -> None:
        """Refuse an array that is large only by its description: its rows would be made up on the disk."""
        needed = -(-rows // self.chunks[0]) * math.prod(len(each) for each in self._grid()[1:])
        stored = files.count(self.name)
        missing = needed - stored
        if missing > _MOST_MISSING or missing * self._chunk_bytes > _MOST_MADE_UP:
            detail = f"it declares {needed} chunks, and {stored} files are there"
            raise DamagedRecording(path=f"{files.path}/{self.name}", detail=detail)

    def chunk_names(self, start: int, stop: int) -> Iterator[str]:
        """The files in which these rows lie. A chunk whose values are all the fill value need not be stored."""
        if stop > start:
            numbers = range(start // self.chunks[0], (stop - 1) // self.chunks[0] + 1)
            for place in itertools.product(numbers, *self._grid()[1:]):
                yield self._file(place)

    def _rows(self, files: ChunkFiles, first: int, last: int) -> NDArray[Any]:
        rows = np.empty((last - first, *self.shape[1:]), self.dtype)
        length = self.chunks[0]
        for number in range(first // length, (last - 1) // length + 1):
            begin = number * length
            low, high = max(first, begin), min(last, begin + length)
            for place in itertools.product([number], *self._grid()[1:]):
                chunk = self._chunk(files, place)
                target = (slice(low - first, high - first), *self._inside(place))
                source = (slice(low - begin, high - begin),)
                source += tuple(slice(0, each.stop - each.start) for each in target[1:])
                rows[target] = chunk if chunk.ndim == 0 else chunk[source]
        return rows if rows.dtype.isnative else rows.astype(rows.dtype.newbyteorder("="))

    def _chunk(self, files: ChunkFiles, place: tuple[int, ...]) -> NDArray[Any]:
        """One chunk. A chunk that is not stored holds the fill value everywhere."""
        name = self._file(place)
        state = files.state(name)
        if state is None:
            return np.asarray(self.fill, self.dtype)
        last = self.last
        if last.values is not None and (last.name, last.state) == (name, state):
            return last.values
        values = self._read(files, name)
        if values.nbytes <= _LARGEST_KEPT:
            last.name, last.state, last.values = name, state, values
        return values

    def _read(self, files: ChunkFiles, name: str) -> NDArray[Any]:
        size = self._chunk_bytes
        data = files.read(name, size if self.compressor is None else most_packed(size))
        try:
            plain = unpacked(data, self.compressor, self.filters, size)
        except DamagedChunk as error:
            raise DamagedRecording(path=f"{files.path}/{name}", detail=str(error)) from error
        array = np.frombuffer(plain, np.uint8).view(self.dtype)
        if self.dtype.kind == "b":
            array = (
                array.view(np.uint8) != 0
            )  # a byte of 7 is a true value, but not to all of NumPy
        if self.dtype.kind == "U" and int(array.view(np.uint32).max(initial=0)) > 0x10FFFF:
            detail = "it holds text that is not Unicode"
            raise DamagedRecording(path=f"{files.path}/{name}", detail=detail)
        return array.reshape(self.chunks, order="F" if self.column_major else "C")

    def _file(self, place: tuple[int, ...]) -> str:
        return f"{self.name}/{self.separator.join(map(str, place))}"

    def _grid(self) -> list[range]:
        pairs = zip(self.shape, self.chunks, strict=True)
        return [range(-(-length // chunk)) for length, chunk in pairs]

    def _inside(self, place: tuple[int, ...]) -> tuple[slice, ...]:
        """Where the chunk lies in the rows, without the first dimension."""
        parts = zip(place[1:], self.shape[1:], self.chunks[1:], strict=True)
        return tuple(slice(n * chunk, min(length, (n + 1) * chunk)) for n, length, chunk in parts)

    @property
    def _chunk_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.chunks)


def _dtype(name: object) -> np.dtype[Any]:
    if isinstance(name, list):
        raise UnreadableArray("its rows have fields of several types")
    if isinstance(name, str) and name in ("|O", "O", "object"):
        raise UnreadableArray("it holds Python objects, which are never decoded")
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise UnreadableArray(f"values of type {str(name)[:40]} are not read")
    found = np.dtype(name)
    if not found.itemsize:
        raise UnreadableArray("its texts have no characters")
    return found


def _lengths(stated: dict[str, Any], key: str, place: str) -> tuple[int, ...]:
    given = stated.get(key)
    right = isinstance(given, list) and 1 <= len(given) <= _MOST_DIMENSIONS
    if not right or not all(type(n) is int and 0 <= n < 2**48 for n in given or ()):
        detail = f"its {key} is {str(given)[:80]}, not a list of lengths"
        raise DamagedRecording(path=place, detail=detail)
    return tuple(given or ())


def _fill(given: object, dtype: np.dtype[Any], place: str) -> Any:
    """None means that anything may stand there; it is read as zero."""
    if given is None:
        return np.zeros((), dtype)
    names = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    value = names.get(given, given) if isinstance(given, str) and dtype.kind == "f" else given
    try:
        if dtype.kind == "U" and value == 0:
            value = ""
        return np.asarray(value).astype(dtype).reshape(())
    except (ValueError, TypeError, OverflowError) as error:
        detail = f"its fill_value {str(given)[:40]} does not fit its type"
        raise DamagedRecording(path=place, detail=detail) from error
