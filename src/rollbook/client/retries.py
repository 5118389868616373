"""Retries: when a request is sent again, and how long to wait before."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Waits grow as 1, 2, 4 … times `first_wait_s` and are drawn at random from the upper half of that, so that a
    hundred robots that lost one server do not all come back in the same instant."""

    attempts: int = 4
    """With the first one."""
    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0
    """Also the longest wait a server may ask for; when it asks for more, the caller is told instead."""

    def wait_s(self, failed_attempts: int, asked_s: int | None = None) -> float | None:
        """Before the next attempt; None when there is to be none."""
        if failed_attempts >= self.attempts or (asked_s or 0) > self.longest_wait_s:
            return None
        backoff = min(self.first_wait_s * float(2 ** (failed_attempts - 1)), self.longest_wait_s)
        return max(backoff * random.uniform(0.5, 1.0), float(asked_s or 0))


ONCE = Retries(attempts=1)
