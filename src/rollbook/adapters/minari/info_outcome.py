"""InfoOutcome: success and collisions that an environment reported step by step, read as contracts.reported_outcome
reads them from a running environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SUCCESS = ("is_success", "success")
_COLLISION = ("collision", "collided")
_COUNT = "collision_count"
KEYS = (*_SUCCESS, *_COLLISION, _COUNT)


class InfoOutcome:
    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._first_true: dict[str, int] = {}
        self._true: dict[str, int] = {}

    def add(self, key: str, first_step: int, values: NDArray[Any]) -> None:
        """Values of one info, one for each step from `first_step` on."""
        numbers = values.astype(np.float64)
        known = np.isfinite(numbers)
        if not known.any():
            return
        self._last[key] = float(numbers[known][-1])
        true = known & (numbers != 0)
        self._true[key] = self._true.get(key, 0) + int(np.count_nonzero(true))
        if true.any() and key not in self._first_true:
            self._first_true[key] = first_step + int(true.argmax())

    @property
    def success(self) -> bool | None:
        key = self._key(_SUCCESS)
        return None if key is None else bool(self._last[key])

    @property
    def collisions(self) -> int | None:
        if self._last.get(_COUNT, -1) >= 0:
            return int(self._last[_COUNT])
        key = self._key(_COLLISION)
        return None if key is None else self._true[key]

    def time_to_goal_s(self, fps: float) -> float | None:
        key = self._key(_SUCCESS)
        reached = self.success and key in self._first_true
        return self._first_true[str(key)] / fps if reached else None

    def _key(self, keys: tuple[str, ...]) -> str | None:
        return next((key for key in keys if key in self._last), None)
