"""Regret: how much gain the best-scored candidates lose against the best ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NOTHING = 1e-12
"""A regret that is only the rounding of a mean."""


@dataclass(frozen=True, slots=True, eq=False)
class RegretMeasure:
    """Rates scores of the candidates of some states by the gains of these candidates.

    Only states with at least two known gains count. Among them a candidate without a known gain cannot be chosen.
    """

    gain: NDArray[np.float64]
    """[S, A]: NaN where the gain is not known."""

    @property
    def counted(self) -> NDArray[np.bool_]:
        """[S]: whether there was something to choose."""
        return np.asarray(np.isfinite(self.gain).sum(axis=1) >= 2)

    @property
    def differs(self) -> NDArray[np.bool_]:
        """[S]: whether one choice was better than another."""
        known = np.isfinite(self.gain)
        best = np.where(known, self.gain, -np.inf).max(axis=1, initial=-np.inf)
        worst = np.where(known, self.gain, np.inf).min(axis=1, initial=np.inf)
        return np.asarray(best > worst)

    def of(self, scores: NDArray[Any]) -> float:
        """Mean gain that is lost, for scores [S, A]. 0 where the best candidate is always chosen."""
        gain, known = self._known()
        if not len(gain):
            return 0.0
        chosen = np.where(known, scores[self.counted], -np.inf).argmax(axis=1)
        got = gain[np.arange(len(gain)), chosen]
        return float((gain.max(axis=1) - got).mean())

    def of_random(self) -> float:
        """Mean regret of a policy that chooses among the known candidates at random."""
        gain, known = self._known()
        if not len(gain):
            return 0.0
        mean = np.where(known, gain, 0.0).sum(axis=1) / known.sum(axis=1)
        return float((gain.max(axis=1) - mean).mean())

    def _known(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        gain = self.gain[self.counted]
        known = np.isfinite(gain)
        return np.where(known, gain, -np.inf), known


def head_metrics(
    head: int, iterations: int, regret: float, random_regret: float
) -> dict[str, float]:
    """The metrics of a head in the record of a run. Where nothing can be lost there is no gap to close."""
    closed = 1 - regret / random_regret if random_regret > _NOTHING else 0.0
    return {
        f"head_{head}_iterations": float(iterations),
        f"head_{head}_validation_regret": regret,
        f"head_{head}_random_regret": random_regret,
        f"head_{head}_gap_closed": closed,
    }
