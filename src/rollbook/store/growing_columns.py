"""GrowingColumns: the columns of a store while rows are appended to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rollbook.store.raw_array import AppendingArrayWriter
from rollbook.store.raw_layout import Array, WrittenFiles
from rollbook.store.schema import TABLES


class GrowingColumns:
    def __init__(self, folder: Path) -> None:
        """`folder` is the folder of the store."""
        self._folder = folder
        self._writers: dict[str, AppendingArrayWriter] = {}

    def writer(self, table: str, name: str, row_shape: tuple[int, ...]) -> AppendingArrayWriter:
        """The writer of a column, or of an array that holds several columns side by side."""
        path = f"{table}/{name}"
        if path not in self._writers:
            column = TABLES[table].columns.get(name)
            packed = TABLES[table].packed().get(name)
            self._writers[path] = AppendingArrayWriter(
                self._folder / path,
                np.float32 if column is None else column.numpy,
                row_shape,
                fill_value=np.nan if column is None else column.fill,
                attributes=None if packed is None else {"columns": packed},
                elide=True,
            )
        return self._writers[path]

    def append(self, table: str, name: str, values: Array) -> None:
        self.writer(table, name, values.shape[1:]).append(values)

    def close(self) -> WrittenFiles:
        """Ends all columns. Returns size and checksum of every file, by its path in the store."""
        return {
            f"{path}/{name}": sums
            for path, writer in self._writers.items()
            for name, sums in writer.close().items()
        }
