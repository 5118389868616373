"""RowGroups: one Parquet file, to which batches of rows are added. Small batches are collected to larger groups."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from rollbook.adapters.extras import library
from rollbook.errors import StorageError

_GROUP_BYTES = 16 << 20
_GROUP_ROWS = 1 << 17


@dataclass(slots=True)
class RowGroups:
    path: Path
    schema: Any
    repeating: Sequence[str] | None = None
    """Columns in which values repeat; None for all. Looking for repetitions in others costs time and saves nothing."""
    group_bytes: int = _GROUP_BYTES
    size: int = 0
    """Bytes that were added, before they are compressed."""
    _writer: Any = None
    _waiting: list[Any] = field(default_factory=list)
    _waiting_rows: int = 0
    _waiting_bytes: int = 0

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        repeating = True if self.repeating is None else list(self.repeating)
        self._writer = library("pyarrow.parquet").ParquetWriter(
            self.path, self.schema, compression="snappy", use_dictionary=repeating
        )

    def add(self, batch: Any) -> None:
        self._waiting.append(batch)
        self.size += batch.nbytes
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= _GROUP_ROWS or self._waiting_bytes >= self.group_bytes:
            self._flush()

    def close(self) -> None:
        self._flush()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def abandon(self) -> None:
        """Close the file without what is waiting."""
        with suppress(OSError):
            self._waiting = []
            self.close()

    def __enter__(self) -> RowGroups:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    def _flush(self) -> None:
        if self._waiting:
            arrow = library("pyarrow")
            table = arrow.Table.from_batches(self._waiting, self.schema)
            try:
                self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            except arrow.ArrowInvalid as error:
                detail = f"the rows cannot be written: {error}"
                raise StorageError(path=str(self.path), detail=detail) from error
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
