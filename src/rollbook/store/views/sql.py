"""SQL over the tables of a store or a collection, by DuckDB. It only reads, and reaches nothing but these tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rollbook.errors import ConfigurationError
from rollbook.store.schema import TABLES
from rollbook.store.views.frames import arrow_table, flat_columns, library
from rollbook.store.views.store_view import StoreView

if TYPE_CHECKING:
    import pyarrow

Parameters = Sequence[Any] | Mapping[str, Any]

_ONLY_THESE_TABLES = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # otherwise a name that is no table could be a variable of the caller
    "python_enable_replacements": "false",
    # otherwise a large sort writes files into the working folder
    "temp_directory": "",
}


def query_tables(
    store: StoreView, query: str, parameters: Parameters | None = None, *, decode: bool = True
) -> pyarrow.Table:
    """The rows of one SELECT over the tables of a store, which have their names. Images are left out.

    Values of `parameters` take the places of `?` or `$name` in the query. With `decode`, codes are words and NaN is
    NULL; without it, every column is as stored.
    """
    duckdb = library("duckdb")
    with closing(duckdb.connect(config=_ONLY_THESE_TABLES)) as connection:
        try:
            _check_reads(duckdb, connection, query)
            for table in _named_tables(store, query):
                columns = tuple(flat_columns(store, table, None))
                connection.register(table, arrow_table(store, table, columns, decode))
            connection.execute("SET lock_configuration = true")
            return connection.sql(query, params=parameters).to_arrow_table()
        except duckdb.Error as error:
            # the rest of the text repeats the query
            said = " ".join(str(error).partition("\n\nLINE ")[0].split())
            raise ConfigurationError(message=f"the SQL query failed: {said}") from error


def _check_reads(duckdb: Any, connection: Any, query: str) -> None:
    kinds = [statement.type for statement in connection.extract_statements(query)]
    if kinds != [duckdb.StatementType.SELECT]:
        found = ", ".join(kind.name for kind in kinds) or "nothing"
        raise ConfigurationError(message=f"a store takes one SELECT at a time, not {found}")


def _named_tables(store: StoreView, query: str) -> list[str]:
    """The tables that the query can mean, so that the others are not opened; all if it names none."""
    there = [table for table in TABLES if store.column_names(table)]
    named = [table for table in there if re.search(rf"\b{table}\b", query, re.IGNORECASE)]
    return named or there
