"""Outcomes: what an episode came to, read from where recorders write it, or said by the policy itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from rollbook.contracts.evals import OUTCOMES
from rollbook.errors import InvalidValue

_NESTED = ("outcome", "lerobot_episode_outcome", "hdf5_episode_outcome")
"""Where an outcome is written below the top of the metadata, in the order in which they are asked."""
_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "success": ("success", "next.success"),
        "reward_total": ("reward_total", "next.reward_sum", "reward"),
        "collision_count": ("collision_count",),
        "time_to_goal_s": ("time_to_goal_s",),
    }
)
_OUR_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"success": ("successes",), "reward_total": ("total_reward", "reward_sum")}
)
"""Of recorders that the public client does not know. They are asked last, so that it and we never differ."""


def outcome_of(metadata: Mapping[str, Any]) -> dict[str, bool | float | None]:
    """The four outcomes of a recorded episode. None is not known; nothing is guessed from another field."""
    sources = [metadata, *_nested(metadata)]
    return {name: _first(name, sources) for name in OUTCOMES}


def candidate_outcome(said: object) -> dict[str, bool | float | int]:
    """What a policy says in `_outcome`, as plain values. What it does not say is not there."""
    if said is None:
        return {}
    if not isinstance(said, Mapping):
        raise _wrong("_outcome", said, "a mapping with any of " + ", ".join(OUTCOMES))
    known = {name: said[name] for name in OUTCOMES if said.get(name) is not None}
    return {name: _checked(name, value) for name, value in known.items()}


# --------------------------------------------------------------------------------------- recorded


def _nested(metadata: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in _NESTED:
        nested = metadata.get(name)
        if isinstance(nested, Mapping):
            yield nested


def _first(outcome: str, sources: list[Mapping[str, Any]]) -> bool | float | None:
    for names in (_NAMES[outcome], _OUR_NAMES.get(outcome, ())):
        for source in sources:
            for name in names:
                value = _recorded(outcome, source.get(name))
                if value is not None:
                    return value
    return None


def _recorded(outcome: str, value: object) -> bool | float | None:
    """Truth values for success, numbers for the rest; anything else was not recorded."""
    if outcome == "success":
        return value if isinstance(value, bool) else None
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


# ---------------------------------------------------------------------------------------- asserted


def _checked(name: str, value: object) -> bool | float | int:
    plain = (
        value.item() if isinstance(value, np.generic | np.ndarray) and value.size == 1 else value
    )
    if name == "success":
        if isinstance(plain, bool):
            return plain
        if isinstance(plain, int) and plain in (0, 1):
            return plain == 1
        raise _wrong(name, value, "true or false")
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise _wrong(name, value, "a number")
    if not math.isfinite(plain):
        raise _wrong(name, value, "a finite number, or nothing at all when it is not known")
    if name != "reward_total" and plain < 0:
        raise _wrong(name, value, "0 or more")
    if name == "collision_count":
        if plain != int(plain):
            raise _wrong(name, value, "a whole number")
        return int(plain)
    return float(plain)


def _wrong(name: str, value: object, expected: str) -> InvalidValue:
    field = name if name.startswith("_") else f"_outcome.{name}"
    shown = f"{str(value)[:80]!r} ({type(value).__name__})"
    return InvalidValue(record="action", field=field, value=shown, expected=expected)
