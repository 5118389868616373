"""Prepared statements: compiled once for each database, and from then on given to its driver without a detour.

What SQLAlchemy does anew for every execution costs more than all that a database does for a small statement. Values
still pass through the types of their columns, rows are its rows, and errors are its errors.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import result_tuple

from rollbook.server.db.pipeline import checked, opening_of
from rollbook.server.db.rows import AnyRow

Converter: TypeAlias = "Callable[[Any], Any]"
Values: TypeAlias = "Mapping[str, Any]"


_decode = msgspec.json.Decoder().decode


def from_json(text: str | bytes | None) -> Any:
    """Several times as fast as the standard library, and as exact: integers of any size stay what they are. What it
    does not take, a number beyond all floats among it, is left to the library."""
    if text is None:
        return None
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


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

    def ask(
        self, connection: sa.Connection, values: Values, then: Callable[[AnyRow | None], None]
    ) -> None:
        """`then` gets the first row before anything that is asked later has a result, and may refuse to go on by
        raising. On PostgreSQL the question travels with the next statement of a transaction that has not begun."""
        text = self._text(connection.dialect)
        with _errors_of_sqlalchemy(connection, text.sql):
            waits = text.waits(connection, values, then)
        if not waits:
            then(self.first(connection, values))

    def run_many(self, connection: sa.Connection, rows: Sequence[Values]) -> None:
        text = self._text(connection.dialect)
        driver: Any = connection.connection.driver_connection
        begin_now(connection)
        with _errors_of_sqlalchemy(connection, text.sql):
            driver.cursor().executemany(text.sql, [text.parameters(row) for row in rows])

    def _done(self, connection: sa.Connection, values: Values) -> _Done:
        text = self._text(connection.dialect)
        with _errors_of_sqlalchemy(connection, text.sql):
            return text.done(connection, values)

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

    def waits(
        self, connection: sa.Connection, values: Values, then: Callable[[AnyRow | None], None]
    ) -> bool:
        """Whether it was left for the next statement."""
        return False

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
            if convert is not None and isinstance(column.type, sa.JSON):
                convert = from_json
            if convert is not None:
                found.append((at, convert))
        return found


class _PostgresText(_Text):
    """Prepared on every connection under a name of its own, and run by libpq in one call: a cursor of psycopg takes
    the interpreter's lock several times for each statement, which is what the threads of a server wait for."""

    def __init__(self, statement: Any, dialect: sa.Dialect) -> None:
        from psycopg.adapt import PyFormat, Transformer

        super().__init__(statement, dialect)
        numbering: Any = type(dialect)
        numbered = statement.compile(dialect=numbering(paramstyle="numeric_dollar"))
        self._name = f"rollbook_{next(_numbers)}".encode()
        self._numbered = str(numbered).encode()
        self._numbers: list[str] = numbered.positiontup or []
        self._formats = [PyFormat.TEXT] * len(self._numbers)
        self._transformer = Transformer

    def done(self, connection: sa.Connection, values: Values) -> _Done:
        from psycopg.errors import InvalidSqlStatementName

        opening = opening_of(connection)
        driver: Any = connection.connection.driver_connection
        adapted, sent = self._adapted(connection, values)
        try:
            if opening is None:
                found = checked(driver.pgconn.exec_prepared(self._name, sent))
            else:
                found = opening.send(lambda: driver.pgconn.send_query_prepared(self._name, sent))
        except InvalidSqlStatementName:
            # somebody between us and the database forgot it; next time it is made again
            connection.info.pop(_PREPARED, None)
            raise
        return self._read(adapted, found)

    def waits(
        self, connection: sa.Connection, values: Values, then: Callable[[AnyRow | None], None]
    ) -> bool:
        opening = opening_of(connection)
        if opening is None:
            return False
        driver: Any = connection.connection.driver_connection
        adapted, sent = self._adapted(connection, values)

        def received(found: Any) -> None:
            rows = self._read(adapted, found).rows
            then(rows[0] if rows else None)

        opening.add(lambda: driver.pgconn.send_query_prepared(self._name, sent), received)
        return True

    def _adapted(self, connection: sa.Connection, values: Values) -> tuple[Any, Sequence[Any]]:
        """What turns values into text and results into rows, and the values as text; prepared if it was not."""
        driver: Any = connection.connection.driver_connection
        prepare(connection, self._name, self._numbered)
        given = self._converted(values)
        adapted = self._transformer(driver)
        sent = adapted.dump_sequence([given[name] for name in self._numbers], self._formats)
        return adapted, sent

    def _read(self, adapted: Any, found: Any) -> _Done:
        if not found.nfields:
            return _Done([], found.command_tuples or 0)
        adapted.set_pgresult(found)
        rows = adapted.load_rows(0, found.ntuples, tuple)
        kinds = [found.ftype(at) for at in range(found.nfields)] if self._from is None else ()
        return _Done(self._rows(rows, kinds), found.command_tuples or 0)


_PREPARED = "rollbook statements"
_numbers = itertools.count(1)


def prepare(connection: sa.Connection, name: bytes, sql: bytes) -> None:
    """On PostgreSQL, once for each connection."""
    known: set[bytes] = connection.info.setdefault(_PREPARED, set())
    if name not in known:
        driver: Any = connection.connection.driver_connection
        checked(driver.pgconn.prepare(name, sql))
        known.add(name)


def begin_now(connection: sa.Connection) -> None:
    """For a statement that goes its own way to the database."""
    opening = opening_of(connection)
    if opening is None:
        return
    with _errors_of_sqlalchemy(connection, "BEGIN"):
        opening.send()


@contextmanager
def _errors_of_sqlalchemy(connection: sa.Connection, sql: str) -> Iterator[None]:
    """Only what the driver says is wrapped: a question may have been answered with a refusal of our own."""
    try:
        yield
    except connection.dialect.loaded_dbapi.Error as error:
        raise as_sqlalchemy(connection, sql, error) from error


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
