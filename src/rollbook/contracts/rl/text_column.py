"""TextColumn: many strings as one UTF-8 buffer with offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """`self[i]` is `data[offsets[i]:offsets[i + 1]]` decoded; nothing is decoded before it is asked for."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def encode(cls, values: Sequence[bytes]) -> TextColumn:
        offsets = np.zeros(len(values) + 1, np.int64)
        np.cumsum([len(value) for value in values], out=offsets[1:])
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
        whole, bounds = self.data.tobytes(), self.offsets.tolist()
        return [whole[a:b] for a, b in pairwise(bounds)]

    def take(self, rows: NDArray[np.int64]) -> TextColumn:
        values = self.all_utf8() if len(rows) * 4 > len(self) else None
        if values is None:
            return TextColumn.encode([self.utf8(row) for row in rows.tolist()])
        return TextColumn.encode([values[row] for row in rows.tolist()])

    def rows_containing(self, character: str) -> NDArray[np.int64]:
        """Rows whose text has this ASCII character (one byte in UTF-8, never part of another)."""
        positions = np.flatnonzero(self.data == ord(character))
        return np.unique(np.searchsorted(self.offsets, positions, side="right") - 1)
