"""octets(column): the bytes of a text or JSON column in UTF-8, computed by the database, so that large values need not
be loaded."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class octets(FunctionElement[int]):
    type = sa.BigInteger()
    inherit_cache = True


@compiles(octets, "sqlite")
def _on_sqlite(element: octets, compiler: SQLCompiler, **kw: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **kw)} AS BLOB))"


@compiles(octets, "postgresql")
def _on_postgres(element: octets, compiler: SQLCompiler, **kw: Any) -> str:
    return f"octet_length(CAST({compiler.process(element.clauses, **kw)} AS text))"
