"""FrameMethods: a store or a collection as data frames and in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollbook.store.views import frames
from rollbook.store.views.sql import Parameters, query_tables
from rollbook.store.views.store_view import StoreView

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class FrameMethods:
    """With `decode`, codes become words and unknown numbers null; without it, all is as stored."""

    def to_arrow(
        self: StoreView, table: str, columns: Sequence[str] | None = None, *, decode: bool = True
    ) -> pyarrow.Table:
        """A table as Arrow. Columns of one store are not copied."""
        return frames.arrow_table(self, table, columns, decode)

    def to_pandas(
        self: StoreView, table: str, columns: Sequence[str] | None = None, *, decode: bool = True
    ) -> pandas.DataFrame:
        return frames.pandas_frame(self, table, columns, decode)

    def to_polars(
        self: StoreView, table: str, columns: Sequence[str] | None = None, *, decode: bool = True
    ) -> polars.DataFrame:
        return frames.polars_frame(self, table, columns, decode)

    def sql(
        self: StoreView, query: str, parameters: Parameters | None = None, *, decode: bool = True
    ) -> pyarrow.Table:
        """The rows of a SELECT over the tables: `reader.sql("select count(*) from candidates")`.

        `parameters` are the values of `?` or `$name` in the query. See `sql.py`.
        """
        return query_tables(self, query, parameters, decode=decode)
