"""ArrayRows: rows of one array of an archive, taken in rising order. A packed array is unpacked once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.npz import ArrayFacts, NpzArchive


class ArrayRows:
    def __init__(self, archive: NpzArchive, key: str, facts: ArrayFacts) -> None:
        self._archive = archive
        self._key = key
        self._facts = facts
        self._unpacked: Iterator[tuple[int, NDArray[Any]]] | None = None
        self._current: tuple[int, NDArray[Any]] | None = None
        if archive.is_packed(key):
            self._unpacked = self._numbered(0, self._facts.shape[0])

    def span(self, first: int, stop: int) -> NDArray[Any]:
        """The rows from `first` up to `stop`."""
        if self._unpacked is not None:
            return self.take(np.arange(first, stop))
        pieces = list(self._archive.rows(self._key, first, stop))
        if not pieces:
            return np.empty((0, *self._facts.shape[1:]), self._facts.dtype)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """The rows with these numbers, which do not fall, neither here nor from call to call."""
        taken = np.empty((len(rows), *self._facts.shape[1:]), self._facts.dtype.newbyteorder("="))
        done = 0
        while done < len(rows):
            for first, piece in self._pieces(int(rows[done]), int(rows[-1]) + 1):
                end = int(np.searchsorted(rows, first + len(piece)))
                taken[done:end] = piece[rows[done:end] - first]
                done = end
        return taken

    def _pieces(self, first: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
        if self._unpacked is None:
            yield from self._numbered(first, stop)
            return
        while True:
            if self._current is None or self._current[0] + len(self._current[1]) <= first:
                self._current = next(self._unpacked)
                continue
            yield self._current
            first = self._current[0] + len(self._current[1])
            if first >= stop:
                return

    def _numbered(self, first: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
        for piece in self._archive.rows(self._key, first, stop):
            yield first, piece
            first += len(piece)
