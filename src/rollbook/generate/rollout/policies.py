"""Selection policies: which candidates of a shell a node goes on with, and how likely each choice was.

Arrays are as long as the shell. A candidate is eligible if it is valid and its score is finite; all others keep
their row, with probability 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.generate.rollout.guards import Guards, GuardView

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]
Generator = np.random.Generator

_LARGEST = float(np.finfo(np.float32).max)
"""Logits are recorded as float32, and what is recorded is what was used."""
_SMALLEST_SPREAD = float(np.finfo(np.float64).eps)
_ENOUGH_FOR_QUARTILES = 4


class CounterfactualSelectionPolicy(StrEnum):
    FARTHEST_FROM_HISTORY = "farthest_from_history"
    """Greedy; the score is the distance to the nearest visited place."""
    FARTHEST_FROM_REFERENCE = "farthest_from_reference"
    """Greedy; the score is the distance to the current place."""
    RANDOM = "random"
    """Every candidate gets a random number; the highest is taken."""
    RANDOM_VALID = "random_valid"
    """One uniform draw among the candidates. As likely as `random`, from one number instead of one per candidate."""
    ORACLE_GREEDY = "oracle_greedy"
    """Greedy; the score is what the oracle says."""
    TEMPERATURE_SOFTMAX = "temperature_softmax"
    """Drawn; the higher the score the likelier."""


_Policy = CounterfactualSelectionPolicy
_GREEDY = frozenset(
    {_Policy.FARTHEST_FROM_HISTORY, _Policy.FARTHEST_FROM_REFERENCE, _Policy.ORACLE_GREEDY}
)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """One branch that was taken, with the distribution it was taken from. Siblings have each their own."""

    shell_index: int
    logits: Floats
    """[N]; a greedy policy's scores. Minus infinity for what could not be taken."""
    probabilities: Floats
    """[N]"""
    log_probabilities: Floats
    """[N]; minus infinity where the probability is 0."""
    log_probability: float
    """Of what was taken."""
    entropy: float
    """Nats."""


def select_branches(
    policy: CounterfactualSelectionPolicy,
    scores: ArrayLike,
    valid: ArrayLike,
    count: int,
    rng: Generator,
    *,
    tie_break: ArrayLike | None,
    temperature: float,
    robust: bool = True,
    guards: Guards,
    shell: GuardView,
) -> list[Selection]:
    """Up to `count` different candidates, first choice first; none if none is eligible.

    A greedy policy would rather take fewer than break a guard, but takes one; a drawing one breaks guards when
    nothing else is left.
    """
    policy = _Policy(policy)  # a policy read from a store is text
    if count < 1:
        raise _wrong("count", count, "at least 1")
    values = _column("scores", scores, len(shell))
    eligible = _eligible(values, valid)
    if policy in _GREEDY:
        order = _best_first(values, eligible, tie_break, rng)
        return _greedy(order, values, eligible, count, guards, shell)
    if policy is _Policy.TEMPERATURE_SOFTMAX:
        logits = temperature_logits(values, eligible, temperature, robust)
    else:
        logits = np.where(eligible, 0.0, -np.inf)
    return _drawn(policy, logits.astype(np.float32), eligible, count, rng, guards, shell)


def temperature_logits(
    scores: ArrayLike, valid: ArrayLike, temperature: float, robust: bool = True
) -> Doubles:
    """Scores over temperature, [N]; minus infinity where a candidate is not eligible.

    Robust ones are first measured from the median in units of the spread (the quartiles' where there are four
    scores or more, else the standard deviation), so that the unit and the zero of the scores do not matter. Where
    most are equal the spread counts as almost 0: whatever stands out is certain, at any temperature.
    """
    if not 0 < temperature < np.inf:
        message = f"recipe.selection_temperature is {temperature}, expected a finite number above 0"
        raise ConfigurationError(message=message)
    values = np.asarray(scores, np.float64)
    eligible = _eligible(values, valid)
    logits = np.full(len(values), -np.inf)
    if not eligible.any():
        return logits
    known = values[eligible]
    if robust:
        known = (known - np.median(known)) / max(_spread(known), _SMALLEST_SPREAD)
    with np.errstate(over="ignore"):  # a temperature near 0
        logits[eligible] = np.clip(known / temperature, -_LARGEST, _LARGEST)
    return logits


def _spread(known: Doubles) -> float:
    """Where most scores are equal the quartiles say nothing: then all of them together have to."""
    if len(known) >= _ENOUGH_FOR_QUARTILES:
        low, high = np.quantile(known, [0.25, 0.75])
        if high > low:
            return float(high - low)
    return float(known.std())


# ------------------------------------------------------------------------------------------ greedy


def _best_first(
    values: Doubles, eligible: Mask, tie_break: ArrayLike | None, rng: Generator
) -> NDArray[np.intp]:
    """Eligible rows by score, then by tie break, then by lot: a shell's order says nothing about its candidates."""
    lot = rng.permutation(len(values))
    second = np.zeros(len(values))
    if tie_break is not None:
        second = _column("tie_break", tie_break, len(values))
        second = np.where(np.isnan(second), -np.inf, second)
    rows = np.flatnonzero(eligible)
    return rows[np.lexsort((lot[rows], -second[rows], -values[rows]))]


def _greedy(
    order: NDArray[np.intp],
    values: Doubles,
    eligible: Mask,
    count: int,
    guards: Guards,
    shell: GuardView,
) -> list[Selection]:
    logits = np.where(eligible, values, -np.inf).astype(np.float32)
    taken: list[int] = []
    passing = guards.far_from_history(shell)
    while len(taken) < count and passing[order].any():
        taken.append(int(order[passing[order]][0]))
        passing &= guards.apart_from(shell, taken[-1])
    return [_certain(row, logits) for row in taken or order[:1].tolist()]


def _certain(row: int, logits: Floats) -> Selection:
    probabilities = np.zeros(len(logits), np.float32)
    probabilities[row] = 1
    log_probabilities = np.full(len(logits), -np.inf, np.float32)
    log_probabilities[row] = 0
    return Selection(row, logits, probabilities, log_probabilities, 0.0, 0.0)


# ------------------------------------------------------------------------------------------- drawn


def _drawn(
    policy: CounterfactualSelectionPolicy,
    logits: Floats,
    eligible: Mask,
    count: int,
    rng: Generator,
    guards: Guards,
    shell: GuardView,
) -> list[Selection]:
    selections: list[Selection] = []
    passing = guards.far_from_history(shell)
    remaining = eligible.copy()
    while len(selections) < count and remaining.any():
        offered = remaining & passing
        if not offered.any():
            offered = remaining
        drawn = _draw(policy, np.where(offered, logits, np.float32(-np.inf)), rng)
        selections.append(drawn)
        remaining[drawn.shell_index] = False
        passing &= guards.apart_from(shell, drawn.shell_index)
    return selections


def _draw(policy: CounterfactualSelectionPolicy, logits: Floats, rng: Generator) -> Selection:
    """One draw from the softmax of these logits, by the probabilities as they are recorded."""
    shifted = logits.astype(np.float64) - float(logits.max())
    weights = np.exp(shifted)
    total = float(weights.sum())
    logs = shifted - np.log(total)
    probabilities = (weights / total).astype(np.float32)
    possible = probabilities > 0
    if policy is _Policy.RANDOM:
        row = int(np.where(possible, rng.random(len(logits)), -1.0).argmax())
    else:
        shares = probabilities.astype(np.float64)
        row = int(rng.choice(len(shares), p=shares / shares.sum()))
    log_probabilities = np.where(possible, logs, -np.inf).astype(np.float32)
    return Selection(
        row,
        logits,
        probabilities,
        log_probabilities,
        float(log_probabilities[row]),
        0.0 - float((weights[possible] * logs[possible]).sum()) / total,
    )


# ------------------------------------------------------------------------------------------- input


def _eligible(values: Doubles, valid: ArrayLike) -> Mask:
    mask = np.asarray(valid)
    if mask.dtype != np.bool_ or mask.shape != values.shape:
        raise _wrong("valid", f"{mask.dtype}{list(mask.shape)}", f"bool{list(values.shape)}")
    eligible = mask & np.isfinite(values)
    beyond = np.flatnonzero(eligible & (np.abs(values) > _LARGEST))
    if len(beyond):
        raise _wrong(f"scores[{beyond[0]}]", values[beyond[0]], "a number that float32 can hold")
    return eligible


def _column(field: str, given: ArrayLike, count: int) -> Doubles:
    values = np.asarray(given, np.float64)
    if values.shape != (count,):
        raise _wrong(field, f"of shape {list(values.shape)}", f"[{count}], one per candidate")
    return values


def _wrong(field: str, value: object, expected: str) -> InvalidValue:
    return InvalidValue(record="selection", field=field, value=str(value), expected=expected)
