"""Writers of raw arrays: chunk files with checksums while rows arrive, and the `zarr.json` at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from rollbook.digest import checksum, piecewise_checksum
from rollbook.errors import ConfigurationError, StorageError, TargetExists, WrongColumnType
from rollbook.files import AnyPath, write_errors
from rollbook.store.raw_layout import (
    METADATA_FILE,
    PAGE,
    SMALL_CHUNK,
    Array,
    WrittenFiles,
    array_dtype,
    bits_of,
    chunk_rows_for,
    chunk_rows_of_size,
    fill_array,
    is_plain,
    little_endian,
    page_rows,
    raw_array_metadata,
    rest_of_key,
    row_bytes,
)

_WRITE_BUFFER = 256 << 10


class _ChunkFiles:
    """A stream of bytes that is written to chunk files, each with its size and checksum.

    A file is open only while it is written to, and small pieces are collected first. A store has hundreds of arrays
    that grow at the same time; it must not need an open file or a whole chunk in memory for each.
    """

    def __init__(self, folder: Path, dimensions: int, chunk_bytes: int) -> None:
        self.folder = folder
        self.files: WrittenFiles = {}
        self._rest = rest_of_key(dimensions)
        self._chunk_bytes = chunk_bytes
        self._pending = bytearray()
        self._start_chunk()

    def _start_chunk(self) -> None:
        self._hasher = piecewise_checksum()
        self._filled = 0

    @property
    def missing_bytes(self) -> int:
        """How many bytes the current chunk still needs."""
        return self._chunk_bytes - self._filled if self._filled else 0

    def write(self, data: memoryview) -> None:
        while data:
            part = data[: self._chunk_bytes - self._filled]
            self._filled += len(part)
            if len(self._pending) + len(part) < _WRITE_BUFFER:
                self._pending += part
            else:
                self._flush(part)
            if self._filled == self._chunk_bytes:
                self.finish_chunk()
            data = data[len(part) :]

    def _flush(self, part: memoryview | bytes = b"") -> None:
        path = self.folder / self._key
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab", buffering=0) as file:
                for data in (self._pending, part):
                    self._hasher.update(data)
                    _write_all(file.fileno(), data)
        self._pending = bytearray()

    @property
    def _key(self) -> str:
        return f"c/{len(self.files)}{self._rest}"

    def finish_chunk(self) -> None:
        """End the current chunk, full or not. Does nothing between chunks."""
        if not self._filled:
            return
        if self._pending:
            self._flush()
        self.files[self._key] = (self._filled, self._hasher.hexdigest())
        self._start_chunk()


def _write_all(descriptor: int, data: memoryview | bytes | bytearray) -> None:
    """Write everything. A single os.write may write less than it was given, for example at most 2 GiB."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _repeated(fill: Array, size: int) -> Iterator[memoryview]:
    """`size` bytes of one value, in pieces that fit into the cache."""
    piece = np.full(max(1, _WRITE_BUFFER // fill.dtype.itemsize), fill).view(np.uint8).data
    for start in range(0, size, len(piece)):
        yield piece[: size - start]


class _ArrayWriter:
    """Base class of both writers: the folder, the checks of a block, and the metadata at the end."""

    def __init__(
        self,
        folder: AnyPath,
        dtype: DTypeLike,
        row_shape: Sequence[int],
        fill_value: object,
        attributes: Mapping[str, Any] | None,
    ) -> None:
        self.folder = Path(folder)
        self.dtype = array_dtype(dtype, self.folder.name)
        self.row_shape = tuple(row_shape)
        self.rows_written = 0
        self._row_bytes = row_bytes(self.dtype, self.row_shape)
        self._fill = fill_array(fill_value, self.dtype, self.folder.name)
        self._attributes = attributes
        self._closed = False
        self._start_folder()

    def _start_folder(self) -> None:
        with write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            occupied = any(self.folder.iterdir())
        if occupied:
            raise TargetExists(path=str(self.folder), detail="an array starts in an empty folder")

    def _checked(self, block: Array) -> Array:
        """The block in the form in which it is written. Nothing is cast, because a cast can change values."""
        self._refuse_closed()
        given = np.asarray(block)
        if little_endian(given.dtype) != self.dtype or given.shape[1:] != self.row_shape:
            raise WrongColumnType(
                column=self.folder.name,
                expected=f"rows of {self.dtype.name}{list(self.row_shape)}",
                actual=f"{given.dtype.name}{list(given.shape)}",
            )
        return np.ascontiguousarray(given, dtype=self.dtype)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StorageError(path=str(self.folder), detail="the array is already closed")

    def _finish(self, files: WrittenFiles, chunk_rows: int, fill: Array) -> WrittenFiles:
        self._closed = True
        metadata = raw_array_metadata(
            self.dtype,
            (self.rows_written, *self.row_shape),
            chunk_rows,
            fill,
            self._attributes,
        )
        text = json.dumps(metadata, indent=2, allow_nan=False).encode()
        with write_errors(self.folder / METADATA_FILE):
            (self.folder / METADATA_FILE).write_bytes(text)
        return {METADATA_FILE: (len(text), checksum(text)), **files}


def _bytes_of(block: Array) -> memoryview:
    return block.reshape(-1).view(np.uint8).data


class RawArrayWriter(_ArrayWriter):
    """Writes an array with a known number of rows, block by block in row order. It does not sync to disk."""

    def __init__(
        self,
        folder: AnyPath,
        dtype: DTypeLike,
        row_shape: Sequence[int],
        rows: int,
        fill_value: object = 0,
        *,
        attributes: Mapping[str, Any] | None = None,
        chunk_rows: int | None = None,
    ) -> None:
        """`chunk_rows` overrides the usual chunk size. If there are several chunks, each must fill whole pages."""
        super().__init__(folder, dtype, row_shape, fill_value, attributes)
        self.rows = rows
        self._chunk_rows = self._chosen_chunk_rows(chunk_rows)
        chunk_bytes = self._chunk_rows * self._row_bytes
        self._chunks = _ChunkFiles(self.folder, 1 + len(self.row_shape), chunk_bytes)

    def _chosen_chunk_rows(self, asked: int | None) -> int:
        if asked is None:
            return chunk_rows_for(self.rows, self._row_bytes)
        if asked >= self.rows or self._row_bytes == 0:
            return max(self.rows, 1)
        if asked < 1 or asked * self._row_bytes % PAGE:
            step = page_rows(self._row_bytes)
            message = f"{self.folder.name}: chunk_rows has to be a multiple of {step}, not {asked}"
            raise ConfigurationError(message=message)
        return asked

    def write(self, start: int, block: Array) -> None:
        """Write the rows from `start` on. `start` must be the number of rows written so far."""
        checked = self._checked(block)
        end = self.rows_written + len(checked)
        if start != self.rows_written or end > self.rows:
            detail = f"{len(checked)} rows at {start}, where row {self.rows_written} of {self.rows} is next"
            raise StorageError(path=str(self.folder), detail=detail)
        self._chunks.write(_bytes_of(checked))
        self.rows_written = end

    def close(self) -> WrittenFiles:
        """Pad the last chunk and write the metadata. Refused while rows are missing."""
        self._refuse_closed()
        if self.rows_written != self.rows:
            detail = f"only {self.rows_written} of {self.rows} rows were written"
            raise StorageError(path=str(self.folder), detail=detail)
        for piece in _repeated(self._fill, self._chunks.missing_bytes):
            self._chunks.write(piece)
        return self._finish(self._chunks.files, self._chunk_rows, self._fill)


class AppendingArrayWriter(_ArrayWriter):
    """Writes an array that grows until it is closed. It does not sync to disk.

    With `elide`, a constant array gets no chunk files: the value becomes its fill value. Rows are only counted until
    a second value appears.
    """

    def __init__(
        self,
        folder: AnyPath,
        dtype: DTypeLike,
        row_shape: Sequence[int],
        chunk_bytes: int = SMALL_CHUNK,
        fill_value: object = 0,
        *,
        attributes: Mapping[str, Any] | None = None,
        elide: bool = False,
    ) -> None:
        super().__init__(folder, dtype, row_shape, fill_value, attributes)
        self._chunk_rows = chunk_rows_of_size(chunk_bytes, self._row_bytes)
        self._chunks = _ChunkFiles(
            self.folder, 1 + len(self.row_shape), self._chunk_rows * self._row_bytes
        )
        self._only_counting = elide
        self._constant: Array | None = None

    def append(self, block: Array) -> None:
        checked = self._checked(block)
        if self._only_counting and not self._continues_constant(checked):
            self._write_counted()
        if not self._only_counting:
            self._chunks.write(_bytes_of(checked))
        self.rows_written += len(checked)

    def _continues_constant(self, block: Array) -> bool:
        if block.size == 0:
            return True
        if self._constant is None:
            first = block.reshape(-1)[:1].copy().reshape(())
            if not is_plain(first):
                return False
            self._constant = first
        return bool((bits_of(block) == bits_of(self._constant)).all())

    def _write_counted(self) -> None:
        """A second value has appeared: write the rows that were only counted so far."""
        self._only_counting = False
        if self._constant is not None:
            for piece in _repeated(self._constant, self.rows_written * self._row_bytes):
                self._chunks.write(piece)

    def close(self) -> WrittenFiles:
        """End the array. A single chunk holds exactly its rows; the last of several chunks is padded."""
        self._refuse_closed()
        if self._chunks.files:
            for piece in _repeated(self._fill, self._chunks.missing_bytes):
                self._chunks.write(piece)
        self._chunks.finish_chunk()
        chunk_rows = min(self._chunk_rows, self.rows_written)
        if self._only_counting and self._constant is not None:
            return self._finish({}, chunk_rows, self._constant)
        return self._finish(self._chunks.files, chunk_rows, self._fill)
