"""Openings: what comes before the first statement of a transaction on PostgreSQL, and goes to the database with it.

A message there and back takes as long as many a statement. So the beginning, the tenant, and questions whose answers
only have to be known before anything else is told wait for the first statement; all of them are one message.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa

Send: TypeAlias = "Callable[[], None]"
"""Puts one statement into a pipeline of libpq."""
Receive: TypeAlias = "Callable[[Any], None]"
"""Gets its result, and may refuse to go on by raising."""

_OPENING = "rollbook opening"


class Opening:
    def __init__(self, connection: sa.Connection, begin: Send) -> None:
        driver: Any = connection.connection.driver_connection
        self._pgconn = driver.pgconn
        self._info = connection.info
        self._begin = begin
        self._waiting: list[tuple[Send, Receive]] = []
        self.is_sent = False
        self.has_begun = False
        """The database has said so: until then nothing can have been changed, by whatever was sent along."""
        self._info[_OPENING] = self

    def add(self, send: Send, receive: Receive) -> None:
        self._waiting.append((send, receive))

    def send(self, statement: Send | None = None) -> Any:
        """All that waits, and the statement; gives the result of that one."""
        self.is_sent = True
        self._info.pop(_OPENING, None)
        waiting = [send for send, _ in self._waiting]
        last = [] if statement is None else [statement]
        results = sent_together(self._pgconn, [self._begin, *waiting, *last])
        checked(results[0])
        self.has_begun = True
        for (_, receive), result in zip(self._waiting, results[1:], strict=False):
            receive(checked(result))
        return checked(results[-1])


def opening_of(connection: sa.Connection) -> Opening | None:
    """None when the transaction has begun already, and on other databases."""
    opening: Opening | None = connection.info.get(_OPENING)
    return opening


def sent_together(pgconn: Any, statements: Sequence[Send]) -> list[Any]:
    """One result for each. After one that failed, the database passes over the rest."""
    from psycopg import OperationalError
    from psycopg.pq import ConnStatus

    pgconn.enter_pipeline_mode()
    for send in statements:
        send()
    pgconn.pipeline_sync()
    readable = select.poll()
    readable.register(pgconn.socket, select.POLLIN)
    _wait_until_sent(pgconn)
    results = []
    for _ in statements:
        results.append(_next_result(pgconn, readable))
        _next_result(pgconn, readable)  # none: the end of this one
    _next_result(pgconn, readable)  # the end of all
    if pgconn.status != ConnStatus.OK or None in results:
        raise OperationalError("the connection was lost")
    pgconn.exit_pipeline_mode()
    return results


def _wait_until_sent(pgconn: Any) -> None:
    """Also reads: a database that cannot get rid of an answer takes no more questions."""
    while pgconn.flush():
        ready = select.poll()
        ready.register(pgconn.socket, select.POLLIN | select.POLLOUT)
        if ready.poll()[0][1] & select.POLLIN:
            pgconn.consume_input()


def _next_result(pgconn: Any, readable: select.poll) -> Any:
    while pgconn.is_busy():
        readable.poll()
        pgconn.consume_input()
    return pgconn.get_result()


def checked(result: Any) -> Any:
    """A result of libpq, or its failure as psycopg's error."""
    from psycopg.errors import error_from_result
    from psycopg.pq import ExecStatus

    if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        return result
    raise error_from_result(result)
