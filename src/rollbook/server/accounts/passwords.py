"""Passwords: hashed with argon2id, two at a time, in threads of their own. A hash is slow and takes memory on purpose.
People who sign in together wait in a queue; when the queue is too long, they are refused."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from rollbook.contracts.wire.limits import LONGEST_PASSWORD
from rollbook.server.http.responses import Problem

if TYPE_CHECKING:
    from argon2 import PasswordHasher

T = TypeVar("T")

SHORTEST_PASSWORD = 12
_AT_ONCE = 2
_MOST_WAITING = 32
_RETRY_AFTER_S = 5

_threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="argon2")
_waiting = 0


def checked_password(password: str, email: str) -> str:
    """A password that may be set. Only its length is checked, because length makes it hard to guess."""
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        text = f"password: expected {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters; a few words make a good one"
        raise Problem(400, "weak_password", text)
    if password.strip().lower() in ("", email.strip().lower()) or len(set(password)) < 4:
        text = "password: this one would be guessed first; choose a few words that do not belong together"
        raise Problem(400, "weak_password", text)
    return password


async def hashed(password: str) -> str:
    return await _in_queue(lambda: _hasher().hash(_as_bytes(password)))


async def is_password(password: str, stored: str | None) -> bool:
    """Takes the same time without a stored hash, so that nobody can find out whether an account exists."""
    return await _in_queue(lambda: _compare(password, stored))


def _compare(password: str, stored: str | None) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError

    if stored is None:
        _hasher().hash(_as_bytes(password))
        return False
    try:
        return _hasher().verify(stored, _as_bytes(password))
    except (VerificationError, InvalidHashError):
        return False


@cache
def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    # the smallest OWASP setting: 19 MiB and two passes, so that two at once fit into a small server
    return PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


def _as_bytes(password: str) -> bytes:
    """The password in one Unicode form, however the keyboard composed its letters. A text too long to be a password is
    cut."""
    return unicodedata.normalize("NFKC", password[:LONGEST_PASSWORD]).encode(
        "utf-8", "surrogatepass"
    )


async def _in_queue(work: Callable[[], T]) -> T:
    global _waiting
    if _waiting >= _MOST_WAITING:
        text = "too many people sign in at this moment; try again in a few seconds"
        raise Problem(503, "busy", text, headers={"Retry-After": str(_RETRY_AFTER_S)})
    _waiting += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, work)
    finally:
        _waiting -= 1
