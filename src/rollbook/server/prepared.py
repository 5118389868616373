"""Prepared statements: compiled once for each database, and from then on given to its driver without a detour.

What SQLAlchemy does anew for every execution costs more than all that a database does for a small statement. Values
still pass through the types of their columns, rows are its rows, and errors are its errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import result_tuple

from rollbook.server.rows import AnyRow

Converter: TypeAlias = "Callable[[Any], Any]"
Values: TypeAlias = "Mapping[str, Any]"


class Prepared:
    """One statement. Parameters come by name; those that are lists of unknown length are not for it."""

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._texts: dict[str, _Text] = {}

    def first(self, connection: sa.Connection, values: Values) -> AnyRow | None:
        found = self._done(connection, values).rows
        return found[0] if found else None

    def all(self, connection: sa.Connection, values: Values) -> list[AnyRow]:
        return self._done(connection, values).rows

    def run(self, connection: sa.Connection, values: Values) -> int:
        """How many rows were changed."""
        return self._done(connection, values).changed

    def run_many(self, connection: sa.Connection, rows: Sequence[Values]) -> None:
        text = self._text(connection.dialect)
        driver: Any = connection.connection.driver_connection
        try:
            driver.cursor().executemany(text.sql, [text.parameters(row) for row in rows])
        except Exception as error:
            raise as_sqlalchemy(connection, text.sql, error) from error

    def _done(self, connection: sa.Connection, values: Values) -> _Done:
        text = self._text(connection.dialect)
        try:
            return text.done(connection, values)
        except Exception as error:
            raise as_sqlalchemy(connection, text.sql, error) from error

    def _text(self, dialect: sa.Dialect) -> _Text:
        text = self._texts.get(dialect.name)
        if text is None:
            kind = _PostgresText if dialect.name == "postgresql" else _Text
            text = self._texts[dialect.name] = kind(self._statement, dialect)
        return text


@dataclass(frozen=True, slots=True)
class _Done:
    rows: list[AnyRow]
    changed: int


class _Text:
    """A statement in the words of one database."""

    def __init__(self, statement: Any, dialect: sa.Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        self.sql = str(compiled)
        self._dialect = dialect
        self._statement = statement
        self._in_order: list[str] | None = compiled.positiontup if compiled.positional else None
        self._fixed = {
            name: bind.effective_value for name, bind in compiled.binds.items() if not bind.required
        }
        self._into = [
            (name, convert)
            for name, bind in compiled.binds.items()
            if (convert := bind.type.dialect_impl(dialect).bind_processor(dialect)) is not None
        ]
        self._from: list[tuple[int, Converter]] | None = None
        self._as_row: Callable[[Iterable[Any]], AnyRow]

    def done(self, connection: sa.Connection, values: Values) -> _Done:
        driver: Any = connection.connection.driver_connection
        cursor = driver.execute(self.sql, self.parameters(values))
        if cursor.description is None:
            return _Done([], cursor.rowcount)
        kinds = [column[1] for column in cursor.description]
        return _Done(self._rows(cursor.fetchall(), kinds), cursor.rowcount)

    def parameters(self, values: Values) -> Any:
        given = self._converted(values)
        return given if self._in_order is None else [given[name] for name in self._in_order]

    def _converted(self, values: Values) -> dict[str, Any]:
        given = {**self._fixed, **values}
        for name, convert in self._into:
            given[name] = convert(given[name])
        return given

    def _rows(self, found: Iterable[Sequence[Any]], kinds: Sequence[Any]) -> list[AnyRow]:
        if self._from is None:
            self._from = self._converters(kinds)
        if not self._from:
            return [self._as_row(row) for row in found]
        rows = []
        for each in found:
            row = list(each)
            for at, convert in self._from:
                row[at] = convert(row[at])
            rows.append(self._as_row(row))
        return rows

    def _converters(self, kinds: Sequence[Any]) -> list[tuple[int, Converter]]:
        """Which there are depends on what the driver calls the type of a column, so the first answer is needed."""
        columns = list(self._statement.exported_columns.items())
        self._as_row = result_tuple([name for name, _ in columns])
        found = []
        for at, (_, column) in enumerate(columns):
            kind = column.type.dialect_impl(self._dialect)
            convert = kind.result_processor(self._dialect, kinds[at])
            if convert is not None:
                found.append((at, convert))
        return found


class _PostgresText(_Text):
    """Prepared on every connection under a name of its own, and run by libpq in one call: a cursor of psycopg takes
    the interpreter's lock several times for each statement, which is what the threads of a server wait for."""

    def __init__(self, statement: Any, dialect: sa.Dialect) -> None:
        super().__init__(statement, dialect)
        numbering: Any = type(dialect)
        numbered = statement.compile(dialect=numbering(paramstyle="numeric_dollar"))
        self._name = f"rollbook_{next(_numbers)}".encode()
        self._numbered = str(numbered).encode()
        self._numbers: list[str] = numbered.positiontup or []

    def done(self, connection: sa.Connection, values: Values) -> _Done:
        from psycopg.adapt import PyFormat, Transformer
        from psycopg.errors import InvalidSqlStatementName

        driver: Any = connection.connection.driver_connection
        known: set[bytes] = connection.info.setdefault(_PREPARED, set())
        if self._name not in known:
            _checked(driver.pgconn.prepare(self._name, self._numbered))
            known.add(self._name)
        given = self._converted(values)
        adapted = Transformer(driver)
        formats = [PyFormat.TEXT] * len(self._numbers)
        sent = adapted.dump_sequence([given[name] for name in self._numbers], formats)
        try:
            done = _checked(driver.pgconn.exec_prepared(self._name, sent))
        except (
            InvalidSqlStatementName
        ):  # somebody between us and the database forgot it; next time it is made again
            known.clear()
            raise
        if not done.nfields:
            return _Done([], done.command_tuples or 0)
        adapted.set_pgresult(done)
        rows = adapted.load_rows(0, done.ntuples, tuple)
        kinds = [done.ftype(at) for at in range(done.nfields)] if self._from is None else ()
        return _Done(self._rows(rows, kinds), done.command_tuples or 0)


_PREPARED = "rollbook statements"
_numbers = itertools.count(1)


def _checked(done: Any) -> Any:
    from psycopg.errors import error_from_result
    from psycopg.pq import ExecStatus

    if done.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        return done
    raise error_from_result(done)


def as_sqlalchemy(connection: sa.Connection, sql: str, error: Exception) -> BaseException:
    """A driver's error as SQLAlchemy would have raised it; a connection that broke is not used again."""
    dialect = connection.dialect
    base = dialect.loaded_dbapi.Error
    driver: Any = connection.connection.driver_connection
    lost = isinstance(error, base) and dialect.is_disconnect(error, driver, None)
    wrapped = sa.exc.DBAPIError.instance(
        sql, None, error, base, hide_parameters=True, connection_invalidated=lost, dialect=dialect
    )
    if lost:
        connection.invalidate(error)
    return wrapped
