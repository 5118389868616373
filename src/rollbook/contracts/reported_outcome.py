"""ReportedOutcome: the outcome of an episode, read from what its environment reports.

Recorder and closed loop read it with the same rules, so that both sides of a pair are measured alike:

- `success`: the last `success` or `is_success` in an info. Without any, it is unknown.
- `reward_total`: the sum of the rewards; unknown unless it is finite.
- `collision_count`: the last `collision_count` in an info, else the number of steps with a true `collision` or
  `collided`.
- `time_to_goal_s`: for a success, the time of the first step that reported it; needs the rate.
- An `outcome` in the last info, with any of these, replaces them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from rollbook.contracts.outcomes import OUTCOMES

KnownOutcome: TypeAlias = "dict[str, bool | int | float | None]"
"""None for what is unknown."""

_SUCCESS_KEYS = ("is_success", "success")
_COLLISION_KEYS = ("collision", "collided")


@dataclass(slots=True)
class ReportedOutcome:
    _success: bool | None = None
    _first_success: int | None = None
    _collisions: int | None = None
    _counted: int | None = None
    _said: Mapping[str, Any] = field(default_factory=dict)

    def note(self, info: Mapping[str, Any], steps: int) -> None:
        """Reads an info that was reported after so many steps."""
        success = _first_boolean(info, _SUCCESS_KEYS)
        if success is not None:
            self._success = success
            if success and self._first_success is None:
                self._first_success = steps
        collided = _first_boolean(info, _COLLISION_KEYS)
        if collided is not None:
            self._collisions = (self._collisions or 0) + collided
        counted = _number(info.get("collision_count"))
        self._counted = self._counted if counted is None else int(counted)
        said = info.get("outcome")
        self._said = said if isinstance(said, Mapping) else {}

    def outcome(self, rewards: Sequence[float], fps: float | None) -> KnownOutcome:
        reached = self._first_success if self._success else None
        found: KnownOutcome = {
            "success": self._success,
            "reward_total": finite_sum(rewards),
            "collision_count": self._collisions if self._counted is None else self._counted,
            "time_to_goal_s": None if reached is None or fps is None else reached / fps,
        }
        for name, kind in OUTCOMES.items():
            number = _number(self._said.get(name))
            if number is not None:
                found[name] = kind.type(number)
            known = found[name]
            if known is not None and kind.lowest is not None and known < kind.lowest:
                found[name] = None
        return found


def finite_sum(rewards: Sequence[float]) -> float | None:
    """None without rewards, and where the sum is not a finite number."""
    try:
        total = math.fsum(rewards)
    except (OverflowError, ValueError):
        return None
    return total if len(rewards) and math.isfinite(total) else None


def _first_boolean(info: Mapping[str, Any], keys: tuple[str, ...]) -> bool | None:
    number = next((_number(info[key]) for key in keys if key in info), None)
    return None if number is None else bool(number)


def _number(value: Any) -> float | None:
    """One finite number or boolean; None for anything else."""
    given = np.asarray(value)
    if given.size != 1 or given.dtype.kind not in "biuf":
        return None
    number = float(given.item())
    return number if math.isfinite(number) else None
