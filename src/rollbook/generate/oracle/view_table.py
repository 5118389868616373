"""ViewTable: what every set of views would do, for a list of views that is fixed.

Distances after a set of views are the least of the distances after each: so one row a view answers for all sets. The
error falls with every view added, and by less the more is known already (it is monotone and submodular: the
completeness is a facility location function, the accuracy a convex one of the number of points). So the views that
greed picks reach at least 1 - 1/e of what any set of as many could.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import InvalidValue
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.oracle.oracle import SMALLEST_ERROR, Oracle, OracleState, RegionState
from rollbook.generate.raycast.compiled import compiled
from rollbook.generate.raycast.vector_steps import LANES, add_least

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ViewTable:
    """Rows are views. All gains are root gains: the error that is gone, over the error where the rollout began."""

    losses: Floats
    """[V, S]: what each sample or face adds to the completeness after the view, times S."""
    added: NDArray[np.int64]
    """[V]: the points each view brings."""
    state: RegionState
    """Before any of the views."""

    @classmethod
    def build(
        cls,
        oracle: Oracle,
        state: OracleState,
        depth: ArrayLike,
        poses: ArrayLike,
        camera: Camera,
        *,
        region: str = "target",
    ) -> ViewTable:
        """Depth [V, H, W] rendered at poses [V, 12]."""
        d2, added = oracle.distances(state, depth, poses, camera, region)
        if not len(d2):
            raise InvalidValue(record="view table", field="views", value="none", expected="one")
        if oracle.config.metric != "face_sq":
            np.sqrt(d2, out=d2)
        return cls(d2, added, oracle.known(state, region))

    def __len__(self) -> int:
        return len(self.losses)

    def error(self, views: Sequence[int]) -> float:
        """After taking all of these views, in whatever order; one that stands there twice is taken twice."""
        if not len(views):
            return self.state.error
        row = list(views)
        total = _sum(self.losses[row].min(axis=0))
        return float(self._error(total, self.added[row].sum()))

    def gain(self, views: Sequence[int]) -> float:
        return float(self._gain(self.error(views)))

    def gains(self) -> Doubles:
        """[V]: of each view alone."""
        return self._gain(self._error(_sums(self.losses), self.added))

    def pair_gains(self) -> Doubles:
        """[V, V]: of every two views; on the diagonal, of one alone."""
        gains = self._gain(self._error(_pair_sums(self.losses), self.added[:, None] + self.added))
        np.fill_diagonal(gains, self.gains())
        return gains

    def best_pair(self) -> tuple[int, int, float]:
        """The two views that gain most together, tried exhaustively; the first such pair."""
        self._expect_two()
        gains = np.triu(self.pair_gains(), 1)
        gains[np.tril_indices(len(self))] = -np.inf
        first, second = np.unravel_index(int(np.argmax(gains)), gains.shape)
        return int(first), int(second), float(gains[first, second])

    def two_step_values(self) -> tuple[Doubles, NDArray[np.int64]]:
        """Exact Q_2 [V] of taking each view first and the best other one after it, and which that is [V]."""
        self._expect_two()
        gains = self.pair_gains()
        np.fill_diagonal(gains, -np.inf)
        second = gains.argmax(axis=1)
        return gains[np.arange(len(self)), second], second

    def greedy(self, count: int) -> tuple[list[int], list[float]]:
        """Views one after another, each the one that gains most then; and the gain after each.

        A view is looked at again only when its gain as it once was could still be the greatest: it cannot have grown.
        """
        if not 1 <= count <= len(self):
            raise InvalidValue(
                record="view table", field="count", value=str(count), expected=f"1 to {len(self)}"
            )
        waiting = [(-gain, view, 0) for view, gain in enumerate(self.gains().tolist())]
        heapq.heapify(waiting)
        views: list[int] = []
        gains: list[float] = []
        known = np.full(self.losses.shape[1], np.inf, np.float32)
        while len(views) < count:
            gained, view, when = heapq.heappop(waiting)
            if when == len(views):
                views.append(view)
                gains.append((gains[-1] if gains else 0.0) - gained)
                known = np.minimum(known, self.losses[view])
                continue
            total = _least_sum(known, self.losses[view])
            reached = self._error(total, self.added[[*views, view]].sum())
            more = float(self._gain(reached)) - gains[-1]
            heapq.heappush(waiting, (-more, view, len(views)))
        return views, gains

    def _error(self, total: Doubles | float, added: NDArray[np.int64] | int) -> Doubles:
        accuracy = self.state.accuracy_sum / (self.state.points + np.asarray(added))
        return np.asarray(accuracy + np.asarray(total) / self.losses.shape[1])

    def _gain(self, error: Doubles | float) -> Doubles:
        root = max(self.state.root_error, SMALLEST_ERROR)
        return np.asarray((self.state.error - np.asarray(error)) / root)

    def _expect_two(self) -> None:
        if len(self) < 2:
            raise InvalidValue(record="view table", field="views", value="1", expected="at least 2")


@compiled
def _least_sum(one: Floats, other: Floats) -> float:
    """The sum of the lesser of two values, over all samples; in sixteen parts, always the same."""
    parts = np.zeros(LANES, np.float64)
    place = 0
    while place + LANES <= len(one):
        place += add_least(one[place:], other[place:], parts)
    total = 0.0
    for part in parts:
        total += part
    while place < len(one):
        total += np.float64(min(one[place], other[place]))
        place += 1
    return total


@compiled
def _pair_sums(losses: Floats) -> Doubles:
    views = len(losses)
    found = np.empty((views, views), np.float64)
    for first in range(views):
        for second in range(first, views):
            total = _least_sum(losses[first], losses[second])
            found[first, second], found[second, first] = total, total
    return found


def _sum(losses: Floats) -> float:
    return float(_least_sum(losses, losses))


def _sums(losses: Floats) -> Doubles:
    return np.array([_sum(row) for row in losses])
