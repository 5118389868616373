"""Selection policies choose the candidates with which a node continues, and record the probability of each choice.

Arrays are as long as the shell. A candidate is eligible if it is valid and its score is finite. All others keep their
row with probability 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.generate.config_checks import invalid_setting
from rollbook.generate.rollout.guards import Guards, GuardView

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]
Generator = np.random.Generator

_LARGEST = float(np.finfo(np.float32).max)
"""Logits are limited to float32, because they are stored and used as float32."""
_SMALLEST_SPREAD = float(np.finfo(np.float64).eps)
_ENOUGH_FOR_QUARTILES = 4


class CounterfactualSelectionPolicy(StrEnum):
    FARTHEST_FROM_HISTORY = "farthest_from_history"
    """Greedy; the score is the distance to the nearest visited place."""
    FARTHEST_FROM_REFERENCE = "farthest_from_reference"
    """Greedy; the score is the distance to the current place."""
    RANDOM = "random"
    """Every candidate gets a random number, and the highest wins."""
    RANDOM_VALID = "random_valid"
    """One uniform draw. Same distribution as `random`, from one random number instead of one per candidate."""
    ORACLE_GREEDY = "oracle_greedy"
    """Greedy; the score comes from the oracle."""
    TEMPERATURE_SOFTMAX = "temperature_softmax"
    """Drawn; a higher score is more likely."""
    EPSILON_GREEDY = "epsilon_greedy"
    """Drawn: the best score, or with the probability `epsilon` any candidate, the best included."""


_Policy = CounterfactualSelectionPolicy
_GREEDY = frozenset(
    {_Policy.FARTHEST_FROM_HISTORY, _Policy.FARTHEST_FROM_REFERENCE, _Policy.ORACLE_GREEDY}
)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """One selected branch and the distribution from which it was drawn. Every sibling has its own distribution."""

    shell_index: int
    logits: Floats
    """[N]; the scores of a greedy policy. Minus infinity for candidates that could not be taken.

    The softmax of the logits of a drawing policy is its distribution."""
    probabilities: Floats
    """[N]"""
    log_probabilities: Floats
    """[N]; minus infinity where the probability is 0."""
    log_probability: float
    """Log-probability of the selected candidate."""
    entropy: float
    """Entropy of the distribution in nats."""


def select_branches(
    policy: CounterfactualSelectionPolicy,
    scores: ArrayLike,
    valid: ArrayLike,
    count: int,
    rng: Generator,
    *,
    tie_break: ArrayLike | None,
    temperature: float,
    epsilon: float | UnsetType = UNSET,
    robust: bool = True,
    guards: Guards,
    shell: GuardView,
) -> list[Selection]:
    """Up to `count` different candidates, first choice first; empty if no candidate is eligible.

    A greedy policy takes fewer candidates if the guards exclude the others, but at least one. A drawing policy ignores
    the guards when they exclude all remaining candidates.
    """
    policy = _Policy(policy)  # a policy read from a store is text
    if count < 1:
        raise _invalid("count", count, "at least 1")
    values = _column("scores", scores, len(shell))
    eligible = _eligible(values, valid)
    if policy in _GREEDY:
        order = _best_first(values, eligible, tie_break, rng)
        return _greedy(order, values, eligible, count, guards, shell)
    if policy is _Policy.EPSILON_GREEDY:
        ties = _tie_breaks(tie_break, len(values))
        draw = partial(_draw_near_best, values, ties, _probability(epsilon), rng)
        return _draw_branches(draw, eligible, count, guards, shell)
    if policy is _Policy.TEMPERATURE_SOFTMAX:
        logits = temperature_logits(values, eligible, temperature, robust)
    else:
        logits = np.where(eligible, 0.0, -np.inf)
    draw = partial(_draw_by_logits, policy, logits.astype(np.float32), rng)
    return _draw_branches(draw, eligible, count, guards, shell)


def temperature_logits(
    scores: ArrayLike, valid: ArrayLike, temperature: float, robust: bool = True
) -> Doubles:
    """[N]: scores divided by the temperature; minus infinity for candidates that are not eligible.

    With `robust`, scores are first centred at their median and divided by their spread, so that their unit and zero do
    not matter. The spread is the interquartile range for four or more scores, else the standard deviation. If most
    scores are equal, the spread is almost 0, and a score that differs is certain to win at any temperature.
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
    """Interquartile range, or the standard deviation if there are too few scores or the quartiles are equal."""
    if len(known) >= _ENOUGH_FOR_QUARTILES:
        low, high = np.quantile(known, [0.25, 0.75])
        if high > low:
            return float(high - low)
    return float(known.std())


# ------------------------------------------------------------------------------------------ greedy


def _best_first(
    values: Doubles, eligible: Mask, tie_break: ArrayLike | None, rng: Generator
) -> NDArray[np.intp]:
    """Eligible rows by score, then by tie break, then by chance: the order of a shell must not matter."""
    lot = rng.permutation(len(values))
    second = _tie_breaks(tie_break, len(values))
    rows = np.flatnonzero(eligible)
    return rows[np.lexsort((lot[rows], -second[rows], -values[rows]))]


def _tie_breaks(given: ArrayLike | None, count: int) -> Doubles:
    if given is None:
        return np.zeros(count)
    ties = _column("tie_break", given, count)
    return np.where(np.isnan(ties), -np.inf, ties)


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


def _draw_branches(
    draw: Callable[[Mask], Selection], eligible: Mask, count: int, guards: Guards, shell: GuardView
) -> list[Selection]:
    """Draws one branch after another; `draw` gets the candidates that are offered."""
    selections: list[Selection] = []
    passing = guards.far_from_history(shell)
    remaining = eligible.copy()
    while len(selections) < count and remaining.any():
        offered = remaining & passing
        if not offered.any():
            offered = remaining
        drawn = draw(offered)
        selections.append(drawn)
        remaining[drawn.shell_index] = False
        passing &= guards.apart_from(shell, drawn.shell_index)
    return selections


def _draw_by_logits(
    policy: CounterfactualSelectionPolicy, logits: Floats, rng: Generator, offered: Mask
) -> Selection:
    """Draws one row from the softmax of these logits, with exactly the probabilities that are recorded."""
    logits = np.where(offered, logits, np.float32(-np.inf))
    shifted = logits.astype(np.float64) - float(logits.max())
    weights = np.exp(shifted)
    total = float(weights.sum())
    logs = shifted - np.log(total)
    probabilities = (weights / total).astype(np.float32)
    possible = probabilities > 0
    if policy is _Policy.RANDOM:
        row = int(np.where(possible, rng.random(len(logits)), -1.0).argmax())
    else:
        row = _drawn_row(probabilities, rng)
    log_probabilities = np.where(possible, logs, -np.inf).astype(np.float32)
    return Selection(
        row,
        logits,
        probabilities,
        log_probabilities,
        float(log_probabilities[row]),
        0.0 - float((weights[possible] * logs[possible]).sum()) / total,
    )


def _drawn_row(probabilities: Floats, rng: Generator) -> int:
    shares = probabilities.astype(np.float64)
    return int(rng.choice(len(shares), p=shares / shares.sum()))


def _draw_near_best(
    values: Doubles, ties: Doubles, epsilon: float, rng: Generator, offered: Mask
) -> Selection:
    """Draws the best row or, with the probability epsilon, any offered row. Rows that are equally good share."""
    best = offered & (values == values[offered].max())
    best &= ties == ties[best].max()
    shares = best * ((1 - epsilon) / best.sum()) + offered * (epsilon / offered.sum())
    probabilities = np.minimum(shares, 1).astype(np.float32)
    possible = probabilities > 0
    known = np.log(shares[possible])
    log_probabilities = np.full(len(shares), -np.inf, np.float32)
    log_probabilities[possible] = np.minimum(known, 0)
    row = _drawn_row(probabilities, rng)
    return Selection(
        row,
        log_probabilities,
        probabilities,
        log_probabilities,
        float(log_probabilities[row]),
        abs(float((shares[possible] * known).sum())),
    )


# ------------------------------------------------------------------------------------------- input


def _eligible(values: Doubles, valid: ArrayLike) -> Mask:
    mask = np.asarray(valid)
    if mask.dtype != np.bool_ or mask.shape != values.shape:
        raise _invalid("valid", f"{mask.dtype}{list(mask.shape)}", f"bool{list(values.shape)}")
    eligible = mask & np.isfinite(values)
    beyond = np.flatnonzero(eligible & (np.abs(values) > _LARGEST))
    if len(beyond):
        raise _invalid(f"scores[{beyond[0]}]", values[beyond[0]], "a number that float32 can hold")
    return eligible


def _probability(epsilon: float | UnsetType) -> float:
    if epsilon is UNSET or not 0 <= epsilon <= 1:
        raise invalid_setting("recipe.epsilon", epsilon, "a probability from 0 to 1")
    return epsilon


def _column(field: str, given: ArrayLike, count: int) -> Doubles:
    values = np.asarray(given, np.float64)
    if values.shape != (count,):
        raise _invalid(field, f"of shape {list(values.shape)}", f"[{count}], one per candidate")
    return values


def _invalid(field: str, value: object, expected: str) -> InvalidValue:
    return InvalidValue(record="selection", field=field, value=str(value), expected=expected)
