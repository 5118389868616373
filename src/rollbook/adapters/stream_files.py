"""StreamFiles: the rows of an episode, kept as they are read, then joined into NPZ artifacts.

About a megabyte of rows is kept in memory, and more of them in temporary files: the memory that is needed does not
depend on the number of rows, and a short episode needs no temporary file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.contracts.npz import ArrayInPieces, storable_array, write_npz
from rollbook.contracts.streams import CLOCK_FIELD
from rollbook.errors import InvalidValue

_PIECE = 8 << 20
_IN_MEMORY = 1 << 20
"""Bytes of all columns together that wait in memory."""


@dataclass(slots=True)
class _Column:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    rows: int = 0
    waiting: bytearray = field(default_factory=bytearray)
    """The last rows, which are not in the file."""
    spilled: bool = False
    """Whether it has a file. A column that begins late may have none."""


class StreamFiles:
    """Add blocks of rows, then `write` once. As a context manager it removes its temporary files."""

    def __init__(self, folder: Path) -> None:
        """The artifacts are written into `folder`, and the temporary files too: it has to have room for both."""
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._waiting = 0
        self._columns: dict[ArtifactKind, dict[str, _Column]] = {}

    def add(
        self,
        kind: ArtifactKind,
        namespace: str,
        t_ns: NDArray[np.int64],
        fields: Mapping[str, NDArray[Any]],
    ) -> None:
        """Add rows of one namespace. All its blocks have the same fields, types and shapes. Large blocks are faster."""
        given = {CLOCK_FIELD: np.asarray(t_ns, np.int64), **fields}
        for name, value in given.items():
            key = f"{namespace}/{name}"
            array = storable_array(key, value)
            if len(array) != len(t_ns):
                raise InvalidValue(
                    record=FILE_NAMES[kind],
                    field=key,
                    value=f"of {len(array)} rows",
                    expected=f"{len(t_ns)} rows, as its clock",
                )
            self._append(kind, key, array)

    def rows(self, kind: ArtifactKind, namespace: str) -> int:
        column = self._columns.get(kind, {}).get(f"{namespace}/{CLOCK_FIELD}")
        return 0 if column is None else column.rows

    def write(self) -> None:
        """Write sensors.npz and actions.npz, each if it has rows."""
        for kind, columns in self._columns.items():
            arrays = {}
            for key, column in columns.items():
                shape = (column.rows, *column.shape)
                pieces = partial(self._pieces, column)
                arrays[key] = ArrayInPieces(column.dtype, shape, pieces)
            # not synced to disk here: the folder is, when it gets its final place
            with open(self._folder / FILE_NAMES[kind], "xb") as file:
                write_npz(file, arrays)

    def close(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> StreamFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _append(self, kind: ArtifactKind, key: str, array: NDArray[Any]) -> None:
        columns = self._columns.setdefault(kind, {})
        column = columns.get(key)
        if column is None:
            name = str(sum(map(len, self._columns.values())))
            column = columns[key] = _Column(name, array.dtype, array.shape[1:])
        if (array.dtype, array.shape[1:]) != (column.dtype, column.shape):
            raise InvalidValue(
                record=FILE_NAMES[kind],
                field=key,
                value=f"{array.dtype} {array.shape[1:]} in row {column.rows}",
                expected=f"{column.dtype} {column.shape}, as in the rows before",
            )
        column.waiting += array.tobytes()
        column.rows += len(array)
        self._waiting += array.nbytes
        if self._waiting > _IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix=".streams-", dir=self._folder)
        for column in (each for columns in self._columns.values() for each in columns.values()):
            # opened for each block: there may be more columns than a process may have open files
            with open(Path(self._temporary.name) / column.name, "ab") as file:
                file.write(column.waiting)
            column.waiting.clear()
            column.spilled = True
        self._waiting = 0

    def _pieces(self, column: _Column) -> Iterator[NDArray[Any]]:
        """All bytes of a column."""
        if column.spilled:
            assert self._temporary is not None
            with open(Path(self._temporary.name) / column.name, "rb") as file:
                while len(piece := np.fromfile(file, np.uint8, _PIECE)):
                    yield piece
        yield np.frombuffer(column.waiting, np.uint8)
