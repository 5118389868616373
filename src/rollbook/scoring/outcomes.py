"""Outcomes of one episode: read from the metadata of a recording, or stated by the policy itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from rollbook.contracts.outcomes import OUTCOMES, OutcomeKind
from rollbook.errors import InvalidValue

_MISSPELT = 0.8
"""Keys that look this much like an outcome are taken for a misspelling; others are the policy's own."""
_NESTED = ("outcome", "lerobot_episode_outcome", "hdf5_episode_outcome")
"""Objects inside the metadata that can hold outcomes, in the order in which they are read."""


def outcome_of(metadata: Mapping[str, Any]) -> dict[str, bool | float | None]:
    """The outcomes of a recorded episode. None means unknown; an outcome is never guessed from another field."""
    nested = [metadata.get(name) for name in _NESTED]
    sources = [metadata, *(each for each in nested if isinstance(each, Mapping))]
    return {name: _first(kind, sources) for name, kind in OUTCOMES.items()}


def candidate_outcome(stated: object) -> dict[str, bool | float | int]:
    """The outcomes that a policy states in `_outcome`, as plain values. Others are absent."""
    if stated is None:
        return {}
    if not isinstance(stated, Mapping):
        raise _invalid("_outcome", stated, "a mapping with any of " + ", ".join(OUTCOMES))
    for name in stated:
        near = get_close_matches(str(name), OUTCOMES, cutoff=_MISSPELT)
        if near and name not in OUTCOMES:  # it would count as not measured
            expected = f"a known outcome; did you mean {near[0]}?"
            raise _invalid(f"_outcome.{name}", stated[name], expected)
    return {
        name: _checked(kind, stated[name])
        for name, kind in OUTCOMES.items()
        if stated.get(name) is not None
    }


# --------------------------------------------------------------------------------------- recorded


def _first(kind: OutcomeKind, sources: list[Mapping[str, Any]]) -> bool | float | None:
    for names in (kind.recorded_as, kind.also_recorded_as):
        for source in sources:
            for name in names:
                value = _recorded(kind, source.get(name))
                if value is not None:
                    return value
    return None


def _recorded(kind: OutcomeKind, value: object) -> bool | float | None:
    """A truth value or a finite number, as the outcome asks; None for anything else."""
    if kind.type is bool:
        return value if isinstance(value, bool) else None
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


# ---------------------------------------------------------------------------------------- asserted


def _checked(kind: OutcomeKind, value: object) -> bool | float | int:
    field = f"_outcome.{kind.name}"
    plain = value
    if isinstance(value, np.generic | np.ndarray) and value.size == 1:
        plain = value.item()
    if kind.type is bool:
        if isinstance(plain, bool | int) and plain in (0, 1):
            return plain == 1
        raise _invalid(field, value, "true or false")
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise _invalid(field, value, "a number")
    if not math.isfinite(plain):
        raise _invalid(field, value, "a finite number, or nothing at all when it is not known")
    if kind.lowest is not None and plain < kind.lowest:
        raise _invalid(field, value, f"{kind.lowest:g} or more")
    if kind.type is int and plain != int(plain):
        raise _invalid(field, value, "a whole number")
    return kind.type(plain)


def _invalid(field: str, value: object, expected: str) -> InvalidValue:
    shown = f"{str(value)[:80]!r} ({type(value).__name__})"
    return InvalidValue(record="action", field=field, value=shown, expected=expected)
