"""SpooledRows: rows of one shape, kept in memory while they are few and on disk once they are many."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

_IN_MEMORY = 8 << 20


class SpooledRows:
    """A long run with a camera among its observations needs no more memory than a short one."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._dtype = dtype
        self._shape = shape
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - until close
        self._bytes = 0
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, row: NDArray[Any]) -> None:
        """As it is now: whoever gave it may use the array again."""
        self._bytes += self._file.write(np.ascontiguousarray(row, self._dtype).tobytes())
        self._rows += 1

    def array(self) -> NDArray[Any]:
        """All rows. Mapped, where they are on disk, and then only until `close`."""
        shape = (self._rows, *self._shape)
        if self._bytes <= _IN_MEMORY:
            self._file.seek(0)
            return np.frombuffer(self._file.read(), self._dtype).reshape(shape)
        self._file.flush()
        return np.memmap(self._file, self._dtype, "r", shape=shape)

    def close(self) -> None:
        self._file.close()


class TextRows:
    """Text has no width before the longest is known."""

    def __init__(self) -> None:
        self._rows: list[str] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: str) -> None:
        self._rows.append(row)

    def array(self) -> NDArray[Any]:
        return np.array(self._rows, object)

    def close(self) -> None:
        self._rows = []
