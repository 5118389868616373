"""Database: runs pieces of work, each in a transaction that knows its tenant.

The caller gets the result of the work or its error. A fault of the database itself is raised as DatabaseUnavailable or
DatabaseFull, without SQL or values in its text.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from rollbook.errors import DatabaseUnavailable
from rollbook.server.metrics import Metrics

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

LONGEST_QUERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whom a transaction runs for. On PostgreSQL these fields become settings that the policies read."""

    org_id: str | None = None
    user_id: str | None = None
    """Lets a user list their organisations before one is chosen."""
    key_id: str | None = None
    """Lets an API key be looked up before its organisation is known."""
    invitation_hash: str | None = None
    """Lets the holder of a token look up its invitation."""

    @property
    def acts_by_key(self) -> bool:
        """A transaction for an API key is refused with KeyRevoked when the key was revoked."""
        return self.org_id is not None and self.key_id is not None


NOBODY = Tenant()

_in_work = threading.local()


class Database(ABC):
    """Work is a function of a connection. It runs in another thread and must not keep the connection.

    On PostgreSQL it may run again after a deadlock, so it must have no effects outside its connection.
    """

    kind: str

    async def read(self, tenant: Tenant, work: Work[T]) -> T:
        return await self._result(self.submit_read(tenant, work))

    async def write(self, tenant: Tenant, work: Work[T]) -> T:
        """The change is durable when this returns. A caller who is cancelled before the work begins changes nothing."""
        return await self._result(self.submit_write(tenant, work))

    def read_now(self, tenant: Tenant, work: Work[T]) -> T:
        _refuse_inside_work()
        return self.submit_read(tenant, work).result()

    def write_now(self, tenant: Tenant, work: Work[T]) -> T:
        _refuse_inside_work()
        return self.submit_write(tenant, work).result()

    async def _result(self, future: Future[T]) -> T:
        return await asyncio.wrap_future(future)

    @abstractmethod
    def submit_read(self, tenant: Tenant, work: Work[T]) -> Future[T]: ...

    @abstractmethod
    def submit_write(self, tenant: Tenant, work: Work[T]) -> Future[T]: ...

    @abstractmethod
    def close(self) -> None:
        """Finishes the work that waits, as far as the database answers; refuses later work."""


_decode = msgspec.json.Decoder().decode


def from_json(text: str | bytes) -> Any:
    """Several times as fast as the standard library, and as exact: integers of any size are kept. The standard library
    reads what msgspec refuses, such as a number greater than every float."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


def to_json(value: object) -> str:
    """Refuses NaN, which other JSON readers do not accept."""
    if isinstance(value, dict) and any(map(_is_long, value.values())):
        members = (f"{_dumped(key)}:{_array_json(each)}" for key, each in value.items())
        return f"{{{','.join(members)}}}"
    return _dumped(value)


_LONG_ARRAY = 10_000


def _is_long(value: object) -> bool:
    return isinstance(value, list) and len(value) > _LONG_ARRAY


def _array_json(value: Any) -> str:
    """A long array is written in pieces: the standard library keeps a text for each value until it joins them."""
    if not _is_long(value):
        return _dumped(value)
    starts = range(0, len(value), _LONG_ARRAY)
    pieces = (_dumped(value[start : start + _LONG_ARRAY])[1:-1] for start in starts)
    return f"[{','.join(pieces)}]"


def _dumped(value: object) -> str:
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


def watched(metrics: Metrics, work: Callable[[], T]) -> Callable[[], T]:
    """The work, with the time that it waited for its turn from now on."""
    asked = time.perf_counter()

    def run() -> T:
        metrics.database_began(time.perf_counter() - asked)
        try:
            return work()
        finally:
            metrics.database_ended()

    return run


def submit(pool: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
    try:
        return pool.submit(work)
    except RuntimeError as closed:
        raise DatabaseUnavailable(detail="it is closing") from closed
