"""Looks: a run that is judged several times, each time with twice as many pairs as before.

The number of looks is in the gate, so it is fixed before anything is measured, and every look is judged at a lower
level (`Gate.look_level`). A look judges the first pairs in the order of their baseline ids. The order in which results
arrive makes no difference: otherwise a slow loss could be left out of a look.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ReachedLook(NamedTuple):
    number: int
    pairs: int


def look_sizes(total: int, looks: int) -> tuple[int, ...]:
    """Pairs of each look: the last one has all of them, each other one half as many as the next, rounded up."""
    return tuple(-(-total // 2 ** (looks - number)) for number in range(1, looks + 1))


def leading_pairs(finished: NDArray[np.bool_]) -> int:
    """The number of pairs, sorted by baseline id, before the first one that has no result."""
    waiting = np.flatnonzero(~finished)
    return int(waiting[0]) if len(waiting) else len(finished)


def reached_look(finished: NDArray[np.bool_], total: int, looks: int) -> ReachedLook | None:
    """The last look whose pairs all have a result. None before the first one.

    `finished` has one entry per pair, sorted by baseline id. Pairs that it does not list have no result.
    """
    leading = leading_pairs(finished)
    sizes = look_sizes(total, looks)
    number = sum(0 < size <= leading for size in sizes)
    return ReachedLook(number, sizes[number - 1]) if number else None
