"""The tables of a LeRobot dataset: TableFiles with frames, EpisodeFiles with one row for each episode, and tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from rollbook.adapters.exports.provenance import provenance_types
from rollbook.adapters.exports.row_groups import RowGroups
from rollbook.adapters.extras import library

_EPISODES_AT_ONCE = 256
_TASK_INDEX = "__index_level_0__"


@dataclass(slots=True)
class TableFiles:
    """Parquet files `<folder>/chunk-000/file-000.parquet`, …, each up to a size."""

    folder: Path
    schema: Any
    largest: int
    """Bytes; the rows of a single episode may be more."""
    files_per_chunk: int
    repeating: Sequence[str] | None = None
    """Columns in which values repeat; None for all."""
    files: int = 0
    _file: RowGroups | None = None

    def place(self, size: int) -> tuple[int, int]:
        """Chunk and file for rows of about this size. They are added next."""
        file = self._file
        if file is None or (file.size and file.size + size > self.largest):
            self._begin()
        return divmod(self.files - 1, self.files_per_chunk)

    def add(self, batch: Any) -> None:
        """Add rows to the file that `place` gave."""
        assert self._file is not None
        self._file.add(batch)

    def __enter__(self) -> TableFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.__exit__(kind, error, trace)

    def _begin(self) -> None:
        if self._file is not None:
            self._file.close()
        chunk, number = divmod(self.files, self.files_per_chunk)
        path = self.folder / f"chunk-{chunk:03d}" / f"file-{number:03d}.parquet"
        self._file = RowGroups(path, self.schema, self.repeating)
        self.files += 1


# ----------------------------------------------------------------------------------------- episodes


def episode_schema(cameras: Sequence[str], stats: Mapping[str, Mapping[str, Any]]) -> Any:
    """Columns of meta/episodes. `stats` gives for each feature the Arrow types of its five numbers."""
    arrow = library("pyarrow")
    whole, number = arrow.int64(), arrow.float64()
    columns = {
        "episode_index": whole,
        "tasks": arrow.list_(arrow.string()),
        "length": whole,
        "data/chunk_index": whole,
        "data/file_index": whole,
        "dataset_from_index": whole,
        "dataset_to_index": whole,
    }
    for camera in cameras:
        columns |= {
            f"videos/{camera}/chunk_index": whole,
            f"videos/{camera}/file_index": whole,
            f"videos/{camera}/from_timestamp": number,
            f"videos/{camera}/to_timestamp": number,
        }
    for feature, types in stats.items():
        columns |= {f"stats/{feature}/{name}": kind for name, kind in types.items()}
    columns |= {"meta/episodes/chunk_index": whole, "meta/episodes/file_index": whole}
    columns |= {f"rollbook/{name}": kind for name, kind in provenance_types().items()}
    return arrow.schema(list(columns.items()))


@dataclass(slots=True)
class EpisodeFiles:
    tables: TableFiles
    _rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) >= _EPISODES_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        arrow = library("pyarrow")
        schema = self.tables.schema
        batch = arrow.RecordBatch.from_pylist(self._rows, schema=schema)
        place = self.tables.place(batch.nbytes)
        for name, number in zip(("chunk_index", "file_index"), place, strict=True):
            column = f"meta/episodes/{name}"
            numbers = arrow.array([number] * len(self._rows), arrow.int64())
            batch = batch.set_column(schema.get_field_index(column), column, numbers)
        self.tables.add(batch)
        self._rows = []


# -------------------------------------------------------------------------------------------- tasks


def write_tasks(path: Path, tasks: Sequence[str]) -> None:
    """LeRobot reads the table with pandas and takes the text of a task from its index. Without the note that says which
    column is the index, every task would be read as a number."""
    arrow = library("pyarrow")
    note = {
        "index_columns": [_TASK_INDEX],
        "column_indexes": [
            {
                "name": None,
                "field_name": None,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"},
            }
        ],
        "columns": [
            _pandas_column("task_index", "task_index", "int64", "int64"),
            _pandas_column(None, _TASK_INDEX, "unicode", "object"),
        ],
        "creator": {"library": "pyarrow", "version": arrow.__version__},
        "pandas_version": "2.2.0",
    }
    schema = arrow.schema(
        [("task_index", arrow.int64()), (_TASK_INDEX, arrow.string())],
        metadata={"pandas": json.dumps(note)},
    )
    columns = {"task_index": range(len(tasks)), _TASK_INDEX: list(tasks)}
    table = arrow.table({name: list(each) for name, each in columns.items()}, schema=schema)
    library("pyarrow.parquet").write_table(table, path)


def _pandas_column(name: str | None, field_name: str, kind: str, numpy_type: str) -> dict[str, Any]:
    return {
        "name": name,
        "field_name": field_name,
        "pandas_type": kind,
        "numpy_type": numpy_type,
        "metadata": None,
    }
