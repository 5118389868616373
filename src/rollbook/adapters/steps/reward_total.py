"""RewardTotal: the sum of the rewards of an episode, added up block by block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


class RewardTotal:
    def __init__(self) -> None:
        self._total = 0.0
        self._any = False

    def add(self, rewards: NDArray[Any]) -> None:
        self._any = self._any or bool(rewards.size)
        with np.errstate(all="ignore"):  # a sum that is not finite is unknown, not an error
            self._total += float(np.sum(rewards, dtype=np.float64))

    @property
    def value(self) -> float | None:
        """None without rewards, and where the sum is not a finite number."""
        return self._total if self._any and math.isfinite(self._total) else None
