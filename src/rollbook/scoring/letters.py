"""Letters of a ranking: candidates that share a letter are not told apart (Piepho 2004, insert and absorb).

a    b    ab        the first and the second are told apart, the third from neither
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

import numpy as np
from numpy.typing import NDArray


def letters(told_apart: NDArray[np.bool_], order: Sequence[int]) -> list[str]:
    """The letters of each candidate. `told_apart` is a symmetric table; `order` is the ranking, best first. The best
    has an `a`."""
    count = len(order)
    groups = [frozenset(range(count))]
    for first in range(count):
        for second in range(first + 1, count):
            if told_apart[first, second]:
                groups = _absorbed(_parted(groups, first, second))
    place = {candidate: at for at, candidate in enumerate(order)}
    groups.sort(key=lambda group: sorted(place[each] for each in group))
    found = [""] * count
    for name, group in zip(_names(len(groups)), groups, strict=True):
        for each in group:
            found[each] += name
    return found


def _parted(groups: list[frozenset[int]], first: int, second: int) -> list[frozenset[int]]:
    """No group has both of them any more."""
    parted = []
    for group in groups:
        if first in group and second in group:
            parted += [group - {first}, group - {second}]
        else:
            parted.append(group)
    return parted


def _absorbed(groups: list[frozenset[int]]) -> list[frozenset[int]]:
    """Without groups that are part of another one."""
    kept: list[frozenset[int]] = []
    for group in sorted(groups, key=len, reverse=True):
        if not any(group <= other for other in kept):
            kept.append(group)
    return kept


def _names(count: int) -> list[str]:
    """a to z, then a1 to z1 and so on."""
    rounds = range(-(-count // len(ascii_lowercase)))
    return [f"{letter}{each or ''}" for each in rounds for letter in ascii_lowercase][:count]
