"""Exports a table of a store for other programs: Parquet, CSV or JSON lines."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError
from rollbook.files import atomic_write
from rollbook.lazy import needs
from rollbook.store.audit.rows import plain
from rollbook.store.views.frames import arrow_table, column_words, table_columns
from rollbook.store.views.store_view import StoreView

Array = NDArray[Any]
FORMATS = (".parquet", ".csv", ".jsonl")
_BLOCK_ROWS = 1 << 14
"""Number of rows that are Python objects at one time."""


def export_table(
    reader: StoreView,
    table: str,
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    decode: bool = True,
    replace: bool = False,
) -> int:
    """Write a table, or some of its columns. The suffix of the file sets the format. Returns the number of rows.

    With `decode`, codes become words. In CSV and JSON lines, numbers that are not finite are empty. CSV has one column
    for every entry of a vector. Every byte that is exported is first compared with the manifest.
    """
    suffix = Path(path).suffix
    if suffix not in FORMATS:
        raise ConfigurationError(
            message=f"{os.fspath(path)}: cannot tell the format from {suffix!r}; name it {', '.join(FORMATS)}"
        )
    chosen = table_columns(reader, table, columns)
    reader.verify_columns(table, tuple(chosen))
    rows = len(next(iter(chosen.values())))
    if suffix == ".parquet":
        content = arrow_table(reader, table, tuple(chosen), decode)
        with atomic_write(path, replace=replace) as stream:
            _write_parquet(content, stream)
        return rows
    with atomic_write(path, replace=replace) as stream:
        write = _write_csv if suffix == ".csv" else _write_jsonl
        write(stream, chosen, _blocks(reader, table, chosen, rows, decode))
    return rows


def _write_parquet(content: Any, stream: BinaryIO) -> None:
    with needs("a Parquet file"):
        from pyarrow import parquet

    parquet.write_table(content, stream, compression="zstd")


def _blocks(
    reader: StoreView, table: str, chosen: dict[str, Array], rows: int, decode: bool
) -> Iterator[list[list[Any]]]:
    """The columns as lists, a block of rows at a time."""
    for start in range(0, rows, _BLOCK_ROWS):
        block = {name: values[start : start + _BLOCK_ROWS] for name, values in chosen.items()}
        yield [
            _as_list(values)
            if not decode or (coded := column_words(reader, table, name, values)) is None
            else coded.tolist()
            for name, values in block.items()
        ]


def _as_list(values: Array) -> list[Any]:
    if values.ndim == 1:
        return plain(values)
    if values.dtype == np.uint8:
        return [row.tobytes().hex() for row in values]
    flat = plain(values.reshape(-1))
    return _folded(flat, values.shape[1:])


def _folded(flat: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """A flat list as nested lists, the last axis innermost."""
    for size in reversed(shape):
        flat = [flat[at : at + size] for at in range(0, len(flat), size)]
    return flat


def _write_jsonl(
    stream: BinaryIO, chosen: dict[str, Array], blocks: Iterator[list[list[Any]]]
) -> None:
    names = tuple(chosen)
    for block in blocks:
        lines = (
            json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, allow_nan=False)
            for row in zip(*block, strict=True)
        )
        stream.write(("\n".join(lines) + "\n").encode())


def _write_csv(
    stream: BinaryIO, chosen: dict[str, Array], blocks: Iterator[list[list[Any]]]
) -> None:
    wide = {name: _width(name, values) for name, values in chosen.items()}
    header = [
        name if width is None else f"{name}_{place}"
        for name, width in wide.items()
        for place in range(width or 1)
    ]
    text = io.TextIOWrapper(stream, "utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    for block in blocks:
        flat = [
            each
            for width, values in zip(wide.values(), block, strict=True)
            for each in ([values] if width is None else zip(*values, strict=True))
        ]
        writer.writerows(zip(*flat, strict=True))
    # the caller closes the stream
    text.detach()


def _width(name: str, values: Array) -> int | None:
    """How many CSV columns a vector needs; None for a single value."""
    if values.ndim == 1 or values.dtype == np.uint8:
        return None
    if values.ndim > 2:
        raise ConfigurationError(
            message=f"{name} is an image per row, which CSV cannot hold; use .parquet, or --columns without it"
        )
    return int(values.shape[1])
