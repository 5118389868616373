"""Tables of a store as data frames: Arrow, pandas, polars, DuckDB.

Numbers are passed without a copy; vectors become lists of fixed size. A frame keeps the mapping alive as long as it
needs it. With `decode`, a code becomes a word (a dictionary entry, a category), and unknown values (a code without a
word, NaN) become null, so that averages skip them. Without `decode`, every column is exactly as stored. A store and a
collection of stores are read alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, near_names
from rollbook.lazy import needs
from rollbook.store.coded_words import CodedWords, coded_words
from rollbook.store.schema import TABLES, table_named
from rollbook.store.views.store_view import StoreView

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow

Array = NDArray[Any]


def library(name: str) -> Any:
    with needs("this view of a store"):
        return import_module(name)


def table_columns(store: StoreView, table: str, columns: Sequence[str] | None) -> dict[str, Array]:
    """The mapped columns. Names that the schema or the store does not have are refused."""
    table_named(table)
    there = store.column_names(table)
    for name in columns or ():
        if name not in there:
            raise ConfigurationError(
                message=f"{table} has no column {name!r} in this store; {near_names(name, there)}"
            )
    if not there:
        raise ConfigurationError(
            message=f"this store was written without {table}: there is nothing in it"
        )
    return {
        name: store.array(f"{table}/{name}") for name in (there if columns is None else columns)
    }


def column_words(store: StoreView, table: str, column: str, values: Array) -> CodedWords | None:
    """A column of codes in words; None for other columns."""
    return coded_words(TABLES[table].columns[column], values, store.words)


# ---------------------------------------------------------------------------------------- Arrow


def arrow_table(
    store: StoreView,
    table: str,
    columns: Sequence[str] | None = None,
    decode: bool = True,
) -> pyarrow.Table:
    """A table as Arrow. With `decode`, codes become dictionary arrays of their words, and NaN is null."""
    arrow = library("pyarrow")
    chosen = table_columns(store, table, columns)
    return arrow.table(
        {
            name: _arrow_array(
                arrow, values, column_words(store, table, name, values) if decode else None, decode
            )
            for name, values in chosen.items()
        }
    )


def _arrow_array(arrow: Any, values: Array, coded: CodedWords | None, decode: bool) -> Any:
    if coded is not None:
        codes = _nullable(arrow, coded.codes, coded.codes < 0)
        return arrow.DictionaryArray.from_arrays(codes, list(coded.words))
    if decode and values.ndim == 1 and values.dtype.kind == "f":
        return _nullable(arrow, values, np.isnan(values))
    if values.ndim == 2 and values.dtype == np.uint8:
        # digests are bytes, not numbers
        return _mapped(arrow, arrow.binary(values.shape[1]), values, len(values))
    if values.dtype == np.bool_:
        flat = arrow.array(values.reshape(-1))
    else:
        flat = _mapped(arrow, arrow.from_numpy_dtype(values.dtype), values, values.size)
    for size in reversed(values.shape[1:]):
        flat = arrow.FixedSizeListArray.from_arrays(flat, size)
    return flat


def _mapped(arrow: Any, kind: Any, values: Array, length: int, known: Any = None) -> Any:
    """An Arrow array over the bytes of the numpy array. Arrow keeps a reference to them."""
    data = arrow.py_buffer(np.ascontiguousarray(values))
    return arrow.Array.from_buffers(kind, length, [known, data])


def _nullable(arrow: Any, values: Array, unknown: Array) -> Any:
    """An Arrow array with nulls. They are one bit each, beside the values, which are not copied."""
    bits = np.packbits(~unknown, bitorder="little") if unknown.any() else None
    known = None if bits is None else arrow.py_buffer(bits)
    return _mapped(arrow, arrow.from_numpy_dtype(values.dtype), values, len(values), known)


# ------------------------------------------------------------------------------- pandas, polars


def pandas_frame(
    store: StoreView,
    table: str,
    columns: Sequence[str] | None = None,
    decode: bool = True,
) -> pandas.DataFrame:
    """A table as pandas. Codes become categories; a vector becomes one array per row."""
    pandas = library("pandas")
    chosen = table_columns(store, table, columns)
    series = {
        name: _pandas_column(
            pandas, values, column_words(store, table, name, values) if decode else None
        )
        for name, values in chosen.items()
    }
    return pandas.DataFrame(series, copy=False)


def _pandas_column(pandas: Any, values: Array, coded: CodedWords | None) -> Any:
    if coded is not None:
        codes = np.where(coded.codes < 0, -1, coded.codes)
        return pandas.Categorical.from_codes(codes, categories=list(coded.words))
    if values.ndim == 1:
        return values
    rows = np.empty(len(values), object)
    rows[:] = list(values)
    return rows


def polars_frame(
    store: StoreView,
    table: str,
    columns: Sequence[str] | None = None,
    decode: bool = True,
) -> polars.DataFrame:
    """A table as polars. Codes become categories; a vector becomes a fixed-size array."""
    module = library("polars")
    frame: polars.DataFrame = module.from_arrow(arrow_table(store, table, columns, decode))
    return frame


# --------------------------------------------------------------------------------------- DuckDB


def duckdb_relation(
    store: StoreView,
    table: str,
    columns: Sequence[str] | None = None,
    decode: bool = True,
    *,
    connection: duckdb.DuckDBPyConnection | None = None,
) -> duckdb.DuckDBPyRelation:
    """A table that DuckDB can query without a copy: `duckdb_relation(store, "candidates").filter("q_train_mask")`."""
    duckdb = library("duckdb")
    source = arrow_table(store, table, tuple(flat_columns(store, table, columns)), decode)
    return (connection or duckdb.connect()).from_arrow(source)


def flat_columns(store: StoreView, table: str, columns: Sequence[str] | None) -> dict[str, Array]:
    """The columns that DuckDB can query: numbers and vectors, but no images."""
    chosen = table_columns(store, table, columns)
    flat = {name: values for name, values in chosen.items() if values.ndim <= 2}
    if columns is not None and len(flat) < len(chosen):
        images = ", ".join(name for name in chosen if name not in flat)
        raise ConfigurationError(
            message=f"{table}: {images} cannot be queried with DuckDB; arrow_table has them"
        )
    return flat


def duckdb_columns(
    store: StoreView, table: str, columns: Sequence[str] | None = None
) -> dict[str, Array]:
    """Mapped numpy columns to register with DuckDB under a name: without Arrow, without a copy, with codes as stored.

    DuckDB takes flat columns only, so a vector becomes one column per entry: `pose_world_cam_9` is x.
    """
    split: dict[str, Array] = {}
    for name, values in flat_columns(store, table, columns).items():
        if values.ndim == 1:
            split[name] = values
        else:
            split |= {f"{name}_{place}": values[:, place] for place in range(values.shape[1])}
    return split
