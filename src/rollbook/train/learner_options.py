"""Options of learners: names that are known, and whole numbers inside their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rollbook.errors import ConfigurationError, near_names

HEADS = (1, 64)
ITERATIONS = (1, 100_000)


def options_given(
    kind: Any, learner: str, given: Mapping[str, Any], horizon: int
) -> dict[str, Any]:
    """The arguments of the dataclass `kind`, by default with `horizon` heads."""
    known = [each.name for each in fields(kind)]
    for name in given:
        if name not in known:
            message = f"the {learner} learner has no option {name!r}; {near_names(name, known)}"
            raise ConfigurationError(message=message)
    return {"horizon": horizon, **given}


def check_whole_numbers(options: Any, **limits: tuple[int, int]) -> None:
    for name, (low, high) in limits.items():
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            message = f"{name} is {value!r}, expected a whole number from {low} to {high}"
            raise ConfigurationError(message=message)


def check_learning_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        message = f"learning_rate is {rate!r}, expected a number above 0, at most 1"
        raise ConfigurationError(message=message)
