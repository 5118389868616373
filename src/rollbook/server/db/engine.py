"""Database: work in, results out, each piece of work in a transaction that knows its tenant.

Whoever gave the work gets its result or its error. Trouble of the database itself comes as DatabaseUnavailable or
DatabaseFull, without SQL or values in its text.
"""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from rollbook.errors import DatabaseUnavailable

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

LONGEST_QUERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """On whose behalf a transaction runs. On PostgreSQL these become settings that the policies look at."""

    org_id: str | None = None
    user_id: str | None = None
    """Lets a user see which organisations they belong to, before one is chosen."""
    key_id: str | None = None
    """Lets an API key be looked up, before it is known whose it is."""
    invitation_hash: str | None = None
    """Lets an invitation be looked up by whoever holds its token."""

    @property
    def acts_by_key(self) -> bool:
        """A transaction in the name of an API key is refused with KeyRevoked when the key does not count any more."""
        return self.org_id is not None and self.key_id is not None


NOBODY = Tenant()

_in_work = threading.local()


class Database(ABC):
    """Work is a function of a connection. It runs in another thread, and must not keep the connection.

    On PostgreSQL it may run again after a deadlock, so it does nothing but talk to its connection.
    """

    kind: str

    async def read(self, tenant: Tenant, work: Work[T]) -> T:
        return await asyncio.wrap_future(self.submit_read(tenant, work))

    async def write(self, tenant: Tenant, work: Work[T]) -> T:
        """Durable when it returns. A caller who is cancelled before the work began has changed nothing."""
        return await asyncio.wrap_future(self.submit_write(tenant, work))

    def read_now(self, tenant: Tenant, work: Work[T]) -> T:
        _refuse_inside_work()
        return self.submit_read(tenant, work).result()

    def write_now(self, tenant: Tenant, work: Work[T]) -> T:
        _refuse_inside_work()
        return self.submit_write(tenant, work).result()

    @abstractmethod
    def submit_read(self, tenant: Tenant, work: Work[T]) -> Future[T]: ...

    @abstractmethod
    def submit_write(self, tenant: Tenant, work: Work[T]) -> Future[T]: ...

    @abstractmethod
    def close(self) -> None:
        """Work that waits is done first; later work is refused."""


_decode = msgspec.json.Decoder().decode


def from_json(text: str | bytes) -> Any:
    """Several times as fast as the standard library, and as exact: integers of any size stay what they are. The library
    reads what msgspec refuses, such as a number greater than every float."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


def to_json(value: object) -> str:
    """As it was given, with NaN refused: no other reader of JSON takes it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _refuse_inside_work() -> None:
    if getattr(_in_work, "yes", False):
        raise RuntimeError("work asked its database for more work and would wait for itself")


def do(work: Work[T], connection: sa.Connection) -> T:
    _in_work.yes = True
    try:
        return work(connection)
    finally:
        _in_work.yes = False


def submit(pool: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
    try:
        return pool.submit(work)
    except RuntimeError as closed:
        raise DatabaseUnavailable(detail="it is closing") from closed
