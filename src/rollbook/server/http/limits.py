"""Rate limits. A request over the limit is answered 429 with the whole seconds to wait.

Each process counts in its own memory, so with several workers each allows the full rate. That keeps the counts out of
the database; a limit stops floods and does not meter usage.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.requests import Request

from rollbook.server.http.responses import Problem
from rollbook.server.settings import Settings

_MOST_REMEMBERED = 50_000
_LONGEST_DELAY_S = 300.0
_FORGOTTEN_AFTER_S = 3600.0
_A_NETWORK = 64
"""Bits of an IPv6 address that belong to one customer, who chooses the rest."""


class TokenBuckets:
    """One bucket for each name, `burst` deep and filled at `per_s`. Only the time when a bucket is full again is
    stored."""

    def __init__(
        self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_s = 1.0 / per_s
        self._depth_s = burst * self._every_s
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def wait_s(self, name: str) -> int:
        """0 when a token was spent; else the whole seconds until there is a token, and nothing is spent."""
        now = self._clock()
        full_at = max(self._full_at.get(name, now), now) + self._every_s
        too_early_s = full_at - self._depth_s - now
        if too_early_s > 1e-9:
            return math.ceil(too_early_s)
        if len(self._full_at) >= _MOST_REMEMBERED and name not in self._full_at:
            self._forget(now)
        self._full_at[name] = full_at
        return 0

    def _forget(self, now: float) -> None:
        """Forgets full buckets. If that is not enough, also the buckets that would be full soonest."""
        draining = sorted((at, name) for name, at in self._full_at.items() if at > now)
        self._full_at = {name: at for at, name in draining[-_MOST_REMEMBERED // 2 :]}

    def __len__(self) -> int:
        return len(self._full_at)


class RateLimits:
    """Limits each key and each person, over all routes."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        rate = settings.requests_per_s
        self._buckets = TokenBuckets(rate, settings.requests_burst, clock) if rate else None

    def spend(self, request: Request, caller: str) -> None:
        """Raises a Problem 429 with an integer Retry-After when the caller sent too many requests."""
        if self._buckets is None or is_exempt(request.method, request.scope["path"]):
            return
        wait = self._buckets.wait_s(caller)
        if wait:
            raise too_many("requests with this key", wait)


def is_exempt(method: str, path: str) -> bool:
    """Requests that the public client gives up on when it is told to wait; it would lose a recording."""
    if method == "GET":
        return path.startswith("/api/episodes/")
    return path.endswith(("/finalize", "/api/verify/check")) or path.startswith("/api/cli/auth/")


class GrowingDelays:
    """Each name has some attempts at once. After that each attempt has to wait twice as long as the one before, until
    one succeeds or the name is quiet for an hour."""

    def __init__(self, free: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = free
        self._clock = clock
        self._tried: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Attempts in a row, and when the last one was made. The one that was quiet longest comes first."""

    def wait_s(self, name: str) -> int:
        """The whole seconds until the next attempt is allowed."""
        count, last = self._tried.get(name, (0, 0.0))
        if count < self._free or self._clock() >= last + _FORGOTTEN_AFTER_S:
            return 0
        delay_s = min(math.pow(2, min(count - self._free, 20)), _LONGEST_DELAY_S)
        return max(math.ceil(last + delay_s - self._clock()), 0)

    def note(self, name: str) -> None:
        """Counts an attempt when it begins: of many at once none is missed."""
        now = self._clock()
        count, last = self._tried.pop(name, (0, now))
        self._tried[name] = (1 if now >= last + _FORGOTTEN_AFTER_S else count + 1, now)
        while len(self._tried) > _MOST_REMEMBERED:
            self._tried.popitem(last=False)

    def succeeded(self, name: str) -> None:
        self._tried.pop(name, None)

    def __len__(self) -> int:
        return len(self._tried)


class AttemptLimits:
    """Limits attempts to get in. Each address has a rate over all accounts, and a growing delay for each account that
    it tries. There is no limit for an account as a whole: with one, anybody could keep its owner out."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rates = TokenBuckets(per_minute / 60, per_minute, clock)
        self._delays = GrowingDelays(per_minute, clock)

    def spend(self, what: str, name: str) -> None:
        """`name`: the address, or the person who is signed in."""
        wait = self._rates.wait_s(f"{what} {name}")
        if wait:
            raise too_many(f"attempts to {what}", wait)

    def guess(self, what: str, address: str, account: str) -> None:
        """Before a password is compared. A guess that is refused counts for nothing."""
        pair = f"{what} {address} {account}"
        wait = self._delays.wait_s(pair)
        if wait:
            raise too_many(f"attempts to {what}", wait)
        self.spend(what, address)
        self._delays.note(pair)

    def guessed(self, what: str, address: str, account: str) -> None:
        """The password was right: the delay ends."""
        self._delays.succeeded(f"{what} {address} {account}")


def address_of(request: Request) -> str:
    """The address of the client, for the audit log. The address behind a trusted proxy is already resolved."""
    return request.client.host if request.client is not None else "unknown"


def network_of(request: Request) -> str:
    """The unit that is counted: one IPv4 address, or the IPv6 network of one customer."""
    return network_of_address(address_of(request))


def network_of_address(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _A_NETWORK), strict=False))


def too_many(what: str, wait_s: int) -> Problem:
    unit = "second" if wait_s == 1 else "seconds"
    text = f"too many {what}; wait {wait_s} {unit} and try again"
    return Problem(429, "rate_limited", text, headers={"Retry-After": str(wait_s)})
