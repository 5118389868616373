"""TextColumn: many strings as one UTF-8 buffer with offsets; and how lengths become offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

Offsets = NDArray[np.int64]
_NO_ROWS = np.zeros(0, np.int64)


def offsets_of(lengths: ArrayLike) -> Offsets:
    """Where each of several parts begins when they lie end to end, and where the last one ends."""
    sizes = np.asarray(lengths, np.int64)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


class TextColumn(msgspec.Struct, frozen=True, eq=False):
    """`self[i]` is `data[offsets[i]:offsets[i + 1]]`, decoded when it is read."""

    data: NDArray[np.uint8]
    offsets: Offsets

    @classmethod
    def encode(cls, values: Sequence[bytes]) -> TextColumn:
        # summed by Python: numpy takes longer for the few texts of a single artifact
        offsets = np.array([0, *accumulate(map(len, values))], np.int64)
        return cls(np.frombuffer(b"".join(values), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> str:
        return self.utf8(row).decode()

    def __iter__(self) -> Iterator[str]:
        return (value.decode() for value in self.all_utf8())

    def utf8(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def all_utf8(self) -> list[bytes]:
        whole = self.data.tobytes()
        if len(self.offsets) == 2:  # a single artifact is a table of one row
            return [whole]
        return [whole[a:b] for a, b in pairwise(self.offsets.tolist())]

    def take(self, rows: NDArray[np.int64]) -> TextColumn:
        # for many rows it is faster to split the whole buffer once
        utf8 = self.all_utf8().__getitem__ if len(rows) * 4 > len(self) else self.utf8
        return TextColumn.encode([utf8(row) for row in rows.tolist()])

    def rows_containing(self, character: str) -> NDArray[np.int64]:
        """Rows whose text contains this ASCII character. Its byte is never part of another character in UTF-8."""
        if character.encode() not in self.data.tobytes():
            return _NO_ROWS
        positions = np.flatnonzero(self.data == ord(character))
        return np.unique(np.searchsorted(self.offsets, positions, side="right") - 1)
