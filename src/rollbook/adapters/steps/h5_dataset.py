"""H5Dataset: type, shape and storage of a dataset, known without reading it; the datasets below a group; and rows."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.extras import library
from rollbook.adapters.recording import Skipped
from rollbook.adapters.steps.h5_file import h5_errors, link_problem, object_at, object_names
from rollbook.adapters.storable_text import stream_name_problem
from rollbook.errors import DamagedRecording, StorageError

Kind: TypeAlias = Literal["numbers", "text", "bytes"]
"""`bytes`: a list of bytes in each row, of any length, such as a JPEG picture."""

MOST_OBJECTS = 4096
"""Groups and datasets below one group."""
LONGEST_TEXT = 4096
"""Characters of a text that is kept in each row."""
_DEEPEST = 32
_BLOCK = 1 << 20
"""Bytes that are read at once. A block of this size stays in the cache of the processor until it is written."""
_MOST_AT_ONCE = 64 << 20
"""Bytes of the rows of one chunk. A dataset with more is put in order in a temporary file first."""
_LARGEST_PIECE = 1 << 30
"""Bytes of one row, and of one chunk."""


@dataclass(frozen=True, slots=True)
class H5Dataset:
    name: str
    """Its path below the group of the episode."""
    kind: Kind
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None
    unreadable: str | None = None
    """Why reading its values fails: for example because a filter is missing."""

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def type(self) -> str:
        shape = ",".join(map(str, self.row_shape))
        name = {"text": "text", "bytes": "bytes"}.get(self.kind, str(self.dtype))
        return f"{name}[{shape}]" if shape else name


@dataclass(slots=True)
class H5Tree:
    """What lies below a group."""

    datasets: list[H5Dataset] = field(default_factory=list)
    handles: dict[str, Any] = field(default_factory=dict)
    """The ids of the open groups and datasets by name. They are valid as long as the file is open."""
    skipped: list[Skipped] = field(default_factory=list)

    def reader(self, described: H5Dataset, path: Path) -> DatasetReader:
        return DatasetReader(self.handles[described.name], described, path)


def datasets_below(group: Any, path: Path) -> H5Tree:
    tree = H5Tree()
    _walk(group, "", path, tree, (), 0)
    return tree


def _walk(
    group: Any, above: str, path: Path, tree: H5Tree, ancestors: tuple[Any, ...], depth: int
) -> None:
    h5py = library("h5py")
    with h5_errors(path, f"{above or 'a group'} cannot be read"):
        address = h5py.h5o.get_info(group.id).addr
    for name, raw in object_names(group, path):
        full = f"{above}{name}"
        if len(tree.handles) + len(tree.skipped) >= MOST_OBJECTS:
            detail = f"there are more than {MOST_OBJECTS} objects below {group.file.name}"
            raise DamagedRecording(path=str(path), detail=detail)
        reason = stream_name_problem(full) or link_problem(group, raw, path)
        if reason is not None:
            tree.skipped.append(Skipped(full, reason))
            continue
        found = object_at(group, raw, path)
        if isinstance(found, h5py.h5g.GroupID):
            with h5_errors(path, f"{full} cannot be opened"):
                place = h5py.h5o.get_info(found).addr
            if place in (*ancestors, address) or depth == _DEEPEST:
                tree.skipped.append(Skipped(full, "it leads back to a group above it"))
                continue
            tree.handles[full] = found
            _walk(h5py.Group(found), f"{full}/", path, tree, (*ancestors, address), depth + 1)
        elif isinstance(found, h5py.h5d.DatasetID):
            described = described_dataset(found, full, path)
            if isinstance(described, Skipped):
                tree.skipped.append(described)
            else:
                tree.datasets.append(described)
                tree.handles[full] = found
        else:
            tree.skipped.append(Skipped(full, "it is a named type, not data"))


# ------------------------------------------------------------------------------------- description


def described_dataset(found: Any, name: str, path: Path) -> H5Dataset | Skipped:
    """Type and shape, or the reason why it is left out. `found` is a DatasetID, and its values are not read."""
    h5py = library("h5py")
    h5d = h5py.h5d
    with h5_errors(path, f"{name} cannot be read"):
        plan = found.get_create_plist()
        layout = plan.get_layout()
        # asked before the shape: for the shape of a virtual dataset, HDF5 opens the files it is made of
        if layout == h5d.VIRTUAL:
            return Skipped(
                name, "it is a virtual dataset, a view of other files, which are not opened"
            )
        if plan.get_external_count():
            return Skipped(name, "its values are in another file, and other files are not opened")
        kind = _kind(h5py.h5t, found.get_type())
        if isinstance(kind, str):
            return Skipped(name, kind)
        space = found.get_space()
        if space.get_simple_extent_type() == h5py.h5s.NULL:
            return Skipped(name, "it has no values")
        shape = tuple(map(int, space.get_simple_extent_dims()))
        chunks = tuple(map(int, plan.get_chunk())) if layout == h5d.CHUNKED else None
        if 0 in shape:
            return Skipped(name, "it has no values")
        problem = _storage_problem(found, shape, chunks, kind[1], name, path)
        if problem is not None:
            return Skipped(name, problem)
        unreadable = _missing_filter(h5py.h5z, found, plan) or _too_large(shape, chunks, kind[1])
    return H5Dataset(name, kind[0], kind[1], shape, chunks, unreadable)


def _kind(h5t: Any, type_id: Any) -> tuple[Kind, np.dtype[Any]] | str:
    """Kind and type of the values, or why they cannot be kept."""
    number = type_id.get_class()
    if number == h5t.STRING:
        width = 0 if type_id.is_variable_str() else type_id.get_size()
        return "text", np.dtype(f"S{width}")
    if number == h5t.VLEN:
        inner = type_id.get_super()
        if inner.get_class() == h5t.INTEGER and inner.get_size() == 1:
            return "bytes", np.dtype(np.uint8)
        return "its rows are lists of different lengths"
    if number in (h5t.INTEGER, h5t.FLOAT, h5t.ENUM):
        with suppress(TypeError, ValueError):
            dtype = np.dtype(type_id.dtype)
            if dtype.kind in "biuf" and dtype.itemsize <= 8:
                return "numbers", np.dtype(dtype.newbyteorder("=").str)  # without names of an enum
        return f"its numbers of {type_id.get_size()} bytes are of a type that NumPy does not have"
    names = {
        h5t.COMPOUND: "compound values",
        h5t.REFERENCE: "references to other objects",
        h5t.OPAQUE: "opaque bytes",
        h5t.BITFIELD: "bit fields",
        h5t.ARRAY: "arrays in each value",
        h5t.TIME: "times of an old type",
    }
    return f"it holds {names.get(number, 'values of an unknown type')}, neither numbers nor text"


def _storage_problem(
    found: Any,
    shape: tuple[int, ...],
    chunks: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    name: str,
    path: Path,
) -> str | None:
    """A file may declare any shape. Values that were never written are not made up."""
    never = f"it declares the shape {shape}, but nothing was ever written to it"
    if chunks is None:
        return never if found.get_storage_size() == 0 else None
    declared = math.prod(-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True))
    written = found.get_num_chunks()
    if written == 0:
        return never
    if written < declared:
        detail = f"{name} declares the shape {shape}, but only {written} of its {declared} chunks were written"
        raise DamagedRecording(path=str(path), detail=detail)
    return None


def _missing_filter(h5z: Any, found: Any, plan: Any) -> str | None:
    """The filter that is needed to unpack the dataset and that this HDF5 does not have."""
    for position in range(plan.get_nfilters()):
        code, _, _, name = plan.get_filter(position)
        if h5z.filter_avail(code):
            continue
        with suppress(ImportError):
            import_module("hdf5plugin")  # it makes its filters known
        was_used = not found.get_chunk_info(0).filter_mask >> position & 1
        if was_used and not h5z.filter_avail(code):
            shown = name.decode("utf-8", "backslashreplace") or "without a name"
            return f"it is compressed by filter {code} ({shown}), which is missing: pip install hdf5plugin"
    return None


def _too_large(
    shape: tuple[int, ...], chunks: tuple[int, ...] | None, dtype: np.dtype[Any]
) -> str | None:
    for what, piece in (("row", shape[1:]), ("chunk", chunks or ())):
        size = math.prod(piece) * max(1, dtype.itemsize)
        if size > _LARGEST_PIECE:
            return f"one {what} of it has {size} bytes; at most {_LARGEST_PIECE} are read at once"
    return None


# ---------------------------------------------------------------------------------------- reading


class DatasetReader:
    """Reads the values of an open dataset, in blocks of rows."""

    def __init__(self, dataset_id: Any, described: H5Dataset, path: Path) -> None:
        if described.unreadable is not None:
            raise StorageError(path=str(path), detail=f"{described.name}: {described.unreadable}")
        self.described = described
        self._id = dataset_id
        self._path = path

    @cached_property
    def _dataset(self) -> Any:
        """Made when it is needed: a small dataset of numbers is read faster without it."""
        return library("h5py").Dataset(self._id)

    def _errors(self) -> Any:
        return h5_errors(self._path, f"the values of {self.described.name} cannot be read")

    def scalar(self) -> Any:
        """The value of a dataset without rows."""
        with self._errors():
            return self._dataset[()]

    def blocks(self) -> Iterator[NDArray[Any]]:
        """All rows of a dataset of numbers, in order. A block is valid until the next one is asked for."""
        described = self.described
        if not described.shape:
            yield np.asarray(self.scalar(), described.dtype).reshape(1)
            return
        chunk_rows = described.chunks[0] if described.chunks else 1
        chunk_rows = min(chunk_rows, described.rows)
        width = max(1, described.row_bytes)
        if described.chunks and chunk_rows * width > max(_MOST_AT_ONCE, width):
            yield from self._reordered(chunk_rows)
            return
        # along chunk boundaries, because a chunk is unpacked whole
        at_once = min(described.rows, chunk_rows * max(1, _BLOCK // (chunk_rows * width)))
        buffer = np.empty((at_once, *described.row_shape), described.dtype)
        if at_once == described.rows:
            everything = library("h5py").h5s.ALL
            with self._errors():
                self._id.read(everything, everything, buffer)
            yield buffer
            return
        for first in range(0, described.rows, at_once):
            count = min(at_once, described.rows - first)
            with self._errors():
                self._dataset.read_direct(buffer, np.s_[first : first + count], np.s_[0:count])
            yield buffer[:count]

    def _reordered(self, chunk_rows: int) -> Iterator[NDArray[Any]]:
        """For chunks that reach over many rows: each chunk is unpacked once, into a temporary file in row order."""
        described = self.described
        assert described.chunks is not None
        with tempfile.TemporaryFile() as file:
            for first in range(0, described.rows, chunk_rows):
                count = min(chunk_rows, described.rows - first)
                file.truncate(count * described.row_bytes)
                rows = np.memmap(file, described.dtype, "r+", shape=(count, *described.row_shape))
                for columns in _tiles(described.row_shape, described.chunks[1:]):
                    with self._errors():
                        rows[(slice(None), *columns)] = self._dataset[
                            (slice(first, first + count), *columns)
                        ]
                at_once = max(1, _BLOCK // max(1, described.row_bytes))
                for start in range(0, count, at_once):
                    yield np.array(rows[start : start + at_once])

    def texts(self) -> Iterator[list[str]]:
        """The rows of a dataset of text with one text in each row. Bytes that are no text raise UnicodeDecodeError."""
        at_once = max(1, min(4096, _BLOCK // max(1, self.described.row_bytes)))
        for first in range(0, self.described.rows, at_once):
            with self._errors():
                values = self._dataset[first : first + at_once]
            yield [text_of(value) for value in values.ravel()]

    def byte_rows(self) -> Iterator[NDArray[np.uint8]]:
        """The rows of a dataset whose rows are lists of bytes."""
        for row in range(self.described.rows):
            with self._errors():
                values = np.asarray(self._dataset[row]).view(np.uint8)
            yield values


def _tiles(shape: tuple[int, ...], chunks: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    counts = [-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True)]
    for place in np.ndindex(*counts):
        yield tuple(
            slice(i * chunk, (i + 1) * chunk) for i, chunk in zip(place, chunks, strict=True)
        )


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode("utf-8")
