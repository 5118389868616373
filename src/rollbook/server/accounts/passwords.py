"""Passwords: hashed with argon2id, two at a time, in threads of their own. A hash is slow on purpose and takes memory;
a crowd that signs in at once waits in line, and one that is too long is turned away.
"""

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
    """One that may be set. Length is what makes it hard to guess; which letters it is made of is nobody's business."""
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        text = f"password: expected {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters; a few words make a good one"
        raise Problem(400, "weak_password", text)
    if password.strip().lower() in ("", email.strip().lower()) or len(set(password)) < 4:
        text = "password: this one would be guessed first; choose a few words that do not belong together"
        raise Problem(400, "weak_password", text)
    return password


async def hashed(password: str) -> str:
    return await _in_line(lambda: _hasher().hash(_as_bytes(password)))


async def is_password(password: str, stored: str | None) -> bool:
    """Takes as long without a stored hash as with one: whether an account exists cannot be told by the clock."""
    return await _in_line(lambda: _compare(password, stored))


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

    # OWASP's smallest: 19 MiB and two passes, so that two at once fit beside a server that is to stay small
    return PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


def _as_bytes(password: str) -> bytes:
    """However a keyboard composes its letters. What is too long to be a password is cut: hashing it is no work."""
    return unicodedata.normalize("NFKC", password[:LONGEST_PASSWORD]).encode(
        "utf-8", "surrogatepass"
    )


async def _in_line(work: Callable[[], T]) -> T:
    global _waiting
    if _waiting >= _MOST_WAITING:
        text = "too many people sign in at this moment; try again in a few seconds"
        raise Problem(503, "busy", text, headers={"Retry-After": str(_RETRY_AFTER_S)})
    _waiting += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, work)
    finally:
        _waiting -= 1
