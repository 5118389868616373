"""StepClock: the times of steps or frames, in nanoseconds. They never go backwards and never repeat."""

from __future__ import annotations

import math
import time

import numpy as np

from rollbook.errors import ConfigurationError, InvalidValue

_LATEST_NS = 2**63 - 1


def step_ns(row: int, fps: float) -> int:
    """The time of a row without a time of its own, at a steady rate."""
    return round(row * 1e9 / fps)


class StepClock:
    """A time is given in seconds (`t`) or nanoseconds (`t_ns`), for every row or for none.

    Rows without a time are `1 / fps` apart. Without `fps` they get the time that has passed since the first row.
    """

    def __init__(self, what: str, fps: float | None) -> None:
        """`what` has these times: `step` or `frame`."""
        self._what = what
        self._fps = fps
        self._rows = 0
        self._first_ns = 0
        self._last_ns = -1
        self._is_given = False

    def next_ns(self, t: float | None, t_ns: int | None) -> int:
        """The time of the next row, checked. It counts once `accept` is called."""
        is_given = t is not None or t_ns is not None
        if self._rows and is_given != self._is_given:
            found = "there" if is_given else "missing"
            raise self._refusal("t", found, "every row with its time, or no row, like the first")
        now = self._given(t, t_ns) if is_given else self._measured()
        if self._rows and now <= self._last_ns:
            expected = f"later than the row before it, at {self._last_ns} ns"
            raise self._refusal("t", f"{now} ns", expected)
        return now

    def accept(self, now_ns: int, is_given: bool) -> None:
        self._is_given = is_given
        self._last_ns = now_ns
        self._rows += 1

    def _measured(self) -> int:
        if self._fps is not None:
            return step_ns(self._rows, self._fps)
        now = time.monotonic_ns()
        if not self._rows:
            self._first_ns = now
        return max(now - self._first_ns, self._last_ns + 1)

    def _given(self, t: float | None, t_ns: int | None) -> int:
        if t is not None and t_ns is not None:
            raise ConfigurationError(message="give t= in seconds or t_ns= in nanoseconds, not both")
        if t_ns is not None:
            if isinstance(t_ns, bool) or not isinstance(t_ns, int | np.integer):
                raise self._refusal("t_ns", repr(t_ns), "a whole number of nanoseconds")
            now = int(t_ns)
        else:
            now = self._seconds(t)
        if abs(now) > _LATEST_NS:
            expected = "seconds; t_ns= takes nanoseconds, such as those of time.time_ns()"
            raise self._refusal("t" if t_ns is None else "t_ns", str(t or t_ns), expected)
        return now

    def _seconds(self, t: object) -> int:
        if isinstance(t, bool) or not isinstance(t, int | float | np.integer | np.floating):
            raise self._refusal("t", repr(t), "a number of seconds")
        if not math.isfinite(t):
            raise self._refusal("t", str(t), "a finite number of seconds")
        return round(float(t) * 1e9)

    def _refusal(self, field: str, value: str, expected: str) -> InvalidValue:
        record = f"{self._what} at row {self._rows}"
        return InvalidValue(record=record, field=field, value=value, expected=expected)
