"""The typical-value bound T: sign flips of whole clusters, turned into a bound of the mean gain.

Pairs of one cluster (a scene, a task) are alike, so they count together. If the policies are equal, each cluster could
as well have the opposite sign. A delta is rejected when flipping the signs of `gain - delta` rarely reaches the data.
Flipping a set A of clusters reaches the data exactly when the mean gain inside A is at most delta. Test, margin and
interval are therefore one sorted list of means over random sets of clusters.

The test is exact where policies are interchangeable inside every cluster. Pairs without clusters are clusters of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rollbook.scoring.intervals import power_of_two
from rollbook.scoring.paired_tests import PValues

Floats = NDArray[np.float64]

MOST_FOR_ALL_SETS = 13
"""Up to this many clusters, every set of clusters is looked at."""
RANDOM_SETS = 9_999
_BITS = 8
_ROUNDING = 1e-12
_EVERY_BYTE: Floats = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(
    np.float64
)


@dataclass(frozen=True)
class FlipBound:
    """Of gains that are summed over clusters."""

    sums: Floats
    sizes: Floats
    """Pairs of each cluster."""
    seed: int | list[int] = 0

    def lower(self, alpha: float) -> float:
        """Above delta where `p_better(delta)` is below alpha. -inf where there are too few clusters for this level."""
        place = self._place(alpha)
        return float(self._means[place - 1]) * self._scale if place else -math.inf

    def upper(self, alpha: float) -> float:
        place = self._place(alpha)
        return float(self._means[-place]) * self._scale if place else math.inf

    def _place(self, alpha: float) -> int:
        """The largest number of sets, the empty one included, that is still less than a share of alpha."""
        return max(0, math.ceil(alpha * (len(self._means) + 1) - 1e-6) - 1)

    def p_better(self, delta: float = 0.0) -> float:
        """The p-value of "the mean gain is above delta". The empty set, which changes nothing, counts too."""
        room = _ROUNDING
        found = int(np.searchsorted(self._means, delta / self._scale + room, side="right"))
        return (found + 1) / (len(self._means) + 1)

    def p_worse(self, delta: float = 0.0) -> float:
        room = _ROUNDING
        found = int(np.searchsorted(self._means, delta / self._scale - room, side="left"))
        return (len(self._means) - found + 1) / (len(self._means) + 1)

    @cached_property
    def _scale(self) -> float:
        return power_of_two(self.sums) if np.abs(self.sums).any() else 1.0

    @cached_property
    def _means(self) -> Floats:
        """Mean gain inside each set of clusters that is not empty, sorted."""
        if len(self.sums) <= MOST_FOR_ALL_SETS:
            sums, sizes = _all_sets(self.sums / self._scale), _all_sets(self.sizes)
            sums, sizes = sums[1:], sizes[1:]
        else:
            sums, sizes = self._random_sets()
        means = np.divide(sums, sizes, out=np.full(len(sums), -np.inf), where=sizes > 0)
        return np.sort(means)

    def _random_sets(self) -> tuple[Floats, Floats]:
        """A random byte chooses among eight clusters at once; the 256 possible sums are in a table. A set that is empty
        by chance has the mean -inf, which can only make the bound lower."""
        groups = -(-len(self.sums) // _BITS)
        words = -(-groups * RANDOM_SETS // 8)
        random = np.random.default_rng(self.seed).integers(0, 2**64, words, np.uint64)
        chosen = random.view(np.uint8)[: groups * RANDOM_SETS].reshape(groups, RANDOM_SETS)
        return (
            _chosen_sums(self.sums / self._scale, chosen),
            _chosen_sums(self.sizes.astype(np.float64), chosen),
        )


def sign_flip(gains: Floats, seed: int | list[int] = 0) -> PValues:
    """P-values of the mean gain of pairs that count alone. Pairs without a difference have no sign to flip."""
    gains = gains[gains != 0]
    bound = FlipBound(gains, np.ones(len(gains)), seed)
    return PValues(bound.p_better(), bound.p_worse())


def _chosen_sums(values: Floats, chosen: NDArray[np.uint8]) -> Floats:
    groups, sets = chosen.shape
    padded = np.zeros(groups * _BITS)
    padded[: len(values)] = values
    table = padded.reshape(groups, _BITS) @ _EVERY_BYTE.T
    sums, looked_up = np.zeros(sets), np.empty(sets)
    for row, bytes_of_group in zip(table, chosen, strict=True):
        # mode="clip" skips the bounds check; a byte is always a valid index into 256 entries
        sums += row.take(bytes_of_group, out=looked_up, mode="clip")
    return sums


def _all_sets(values: Floats) -> Floats:
    """The sum of every set; the empty one first."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums
