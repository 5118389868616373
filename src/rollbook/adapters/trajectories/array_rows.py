"""ArrayRows: rows of the arrays of an NPZ file, read from the first to the last.

A packed array can be reached only by unpacking all rows before. Trajectories are read in their order, so each array is
unpacked once; going back begins again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.npz import NpzArchive
from rollbook.files import unreadable


class ArrayRows:
    def __init__(self, path: Path) -> None:
        try:
            stream = open(path, "rb")  # noqa: SIM115 - until this object is gone
        except OSError as error:
            raise unreadable(path, error) from error
        weakref.finalize(self, stream.close)
        self._archive = NpzArchive(stream, record=str(path))
        self._columns: dict[str, _Column] = {}

    def rows(self, key: str, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """The rows from `start` up to `stop`, in pieces of a few megabytes."""
        column = self._columns.get(key)
        if column is None or column.at != start:
            column = self._columns[key] = _Column(self._archive, key, start)
        yield from column.take(stop - start)


class _Column:
    def __init__(self, archive: NpzArchive, key: str, at: int) -> None:
        self.at = at
        """The next row."""
        self._pieces = archive.rows(key, at, archive.facts(key).shape[0])
        self._rest: NDArray[Any] = np.empty(0)

    def take(self, count: int) -> Iterator[NDArray[Any]]:
        while count:
            if not len(self._rest):
                self._rest = next(self._pieces)
            piece, self._rest = self._rest[:count], self._rest[count:]
            self.at += len(piece)
            count -= len(piece)
            yield piece
