"""Errors of the drivers: which of our errors each one means, and whether the same work can run again."""

from __future__ import annotations

import sqlite3

import sqlalchemy as sa

from rollbook.errors import DatabaseFull, DatabaseUnavailable, InvalidText, RollbookError

_SQLITE = {
    sqlite3.SQLITE_BUSY: "another process holds its lock",
    sqlite3.SQLITE_LOCKED: "another connection holds its lock",
    sqlite3.SQLITE_INTERRUPT: "the query took too long",
    sqlite3.SQLITE_CANTOPEN: "its file cannot be opened",
    sqlite3.SQLITE_READONLY: "its file cannot be written",
    sqlite3.SQLITE_IOERR: "its disk does not answer as it should",
    sqlite3.SQLITE_CORRUPT: "its file is damaged; restore a backup",
    sqlite3.SQLITE_NOTADB: "its file is not a database; restore a backup",
}
_POSTGRES = {
    "08": "the connection was lost",
    "25006": "it takes no writes, as a standby does",
    "40": "others were changing the same rows",
    "53": "it is short of resources",
    "55P03": "others hold a lock on the same rows",
    "57014": "the query took too long",
    "57": "it is being stopped or started",
    "58": "its disk does not answer as it should",
    "3D000": "there is no database of that name",
    "28": "it does not accept our role or password",
}
"""By class or code of SQLSTATE; the longer match is used."""
_DISK_FULL = "53100"
_UNDONE_BY_THE_DATABASE = ("40001", "40P01")


def translated(error: BaseException) -> BaseException:
    """Our error for a fault of the database; any other error unchanged."""
    if isinstance(error, RollbookError):
        return error
    if isinstance(error, UnicodeEncodeError) or _holds_unstorable_text(error):
        return _unstorable()
    if isinstance(error, sqlite3.Error):
        return _from_sqlite(error) or error
    if isinstance(error, sa.exc.TimeoutError):
        return DatabaseUnavailable(detail="all its connections are in use")
    if not isinstance(error, sa.exc.DBAPIError):
        return error
    if isinstance(error.orig, sqlite3.Error):
        return _from_sqlite(error.orig) or error
    return _from_postgres(error) or error


def can_run_again(error: BaseException, began: bool) -> bool:
    """`began`: whether the work had received the connection."""
    if not isinstance(error, sa.exc.DBAPIError):
        return False
    if began:
        return _sqlstate(error) in _UNDONE_BY_THE_DATABASE
    return error.connection_invalidated


def _holds_unstorable_text(error: BaseException) -> bool:
    if isinstance(error, sa.exc.StatementError) and isinstance(error.orig, UnicodeEncodeError):
        return True
    return isinstance(error, sa.exc.DataError) and "NUL" in str(error.orig)


def _unstorable() -> InvalidText:
    detail = "holds a NUL character or half a surrogate pair, which cannot be stored; remove it"
    return InvalidText(record="request", field="a text", detail=detail)


def _from_sqlite(error: sqlite3.Error) -> RollbookError | None:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    primary = code & 0xFF
    if primary == sqlite3.SQLITE_FULL:
        return DatabaseFull()
    detail = _SQLITE.get(primary)
    return None if detail is None else DatabaseUnavailable(detail=detail)


def _from_postgres(error: sa.exc.DBAPIError) -> RollbookError | None:
    state = _sqlstate(error)
    if state == _DISK_FULL:
        return DatabaseFull()
    detail = _POSTGRES.get(state) or _POSTGRES.get(state[:2])
    if detail is None and (
        error.connection_invalidated or isinstance(error, sa.exc.OperationalError)
    ):
        detail = "it cannot be reached"
    return None if detail is None else DatabaseUnavailable(detail=detail)


def _sqlstate(error: sa.exc.DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""
