"""Planning: how many pairs a gate takes, before anything is run.

The answer follows from what the pairs are expected to be like: how large the gain is, how much pairs differ, and how
alike the pairs of one scene are. An earlier run on similar baselines is the best source of these numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from rollbook.contracts.gate import Gate
from rollbook.scoring.looks import look_sizes
from rollbook.scoring.pair_sums import PairSums
from rollbook.scoring.power import (
    MOST_PAIRS,
    POWER,
    clusters_for,
    mean_power,
    pairs_for_superiority,
    smallest_count,
)

UNDECLARED_SPREADS = 8.0
"""Where no reward range is declared, a pair is expected to lose at most so many standard deviations."""
LEAST_UNDECLARED = 150
"""Pairs that a gate asks for where no reward range is declared."""
_RUNS = 4_000
_SEED = 15


@dataclass(frozen=True, kw_only=True)
class ExpectedPairs:
    """What the pairs of a run are expected to be like."""

    effect: float
    """Mean gain of a pair. For success: the difference of the rates, 0.1 for ten points."""
    differ: float | None = None
    """For success: the share of the pairs in which one policy succeeds and the other fails. None for a reward."""
    spread: float = 1.0
    """For a reward: standard deviation of the gain."""
    worst_loss: float | None = None
    """For a reward: the largest loss of a pair, which is the width of the reward range. None: not declared."""
    scene_size: float = 1.0
    """Pairs of each scene. 1: every pair is a scene of its own."""
    correlation: float = 0.0
    """Of two pairs of one scene."""

    @property
    def deviation(self) -> float:
        if self.differ is None:
            return self.spread
        return math.sqrt(max(0.0, self.differ - self.effect * self.effect))

    @property
    def loss(self) -> float:
        """The worst loss that the bounds allow for."""
        if self.differ is not None:
            return 1.0
        return UNDECLARED_SPREADS * self.spread if self.worst_loss is None else self.worst_loss

    @property
    def rates(self) -> tuple[float, float]:
        """For success: the shares of the pairs that are won and lost."""
        differ = self.differ or 0.0
        return (differ + self.effect) / 2, (differ - self.effect) / 2


class PlannedPairs(NamedTuple):
    pairs: int
    """The most that the run takes."""
    scenes: int | None
    """None where every pair is a scene of its own."""
    mean_pairs: float
    """With several looks, a run may end early."""


def first_run_level(gate: Gate) -> float:
    """The level of the first run on its baselines. Where the ledger decides, later runs have lower ones."""
    return gate.look_level / 2 if gate.ledger == "decide" else gate.look_level


def plan_pairs(
    expected: ExpectedPairs, gate: Gate, power: float = POWER, *, primaries: int = 1
) -> PlannedPairs | None:
    """The smallest run that ships with this probability. None where no run with up to 100 000 pairs does.

    `primaries`: outcomes that can be shown to be better. With two, the level of the one planned for is halved (Holm).
    """
    if expected.scene_size > 1:
        return _scenes_of_one_size(expected, gate, first_run_level(gate) / primaries, power)
    least = _least_pairs(expected, gate)
    if gate.looks == 1:
        pairs = _pairs_for_one_look(expected, first_run_level(gate) / primaries, power)
        return None if pairs is None else PlannedPairs(max(least, pairs), None, max(least, pairs))
    return _pairs_for_looks(expected, gate, first_run_level(gate) / primaries, power)


def plan_scenes(
    expected: ExpectedPairs, gate: Gate, scenes: int, power: float = POWER, *, primaries: int = 1
) -> PlannedPairs | None:
    """The same for a fixed number of scenes: how many pairs each of them needs. More pairs of a few scenes may never be
    enough, because pairs of one scene are alike."""
    if scenes < gate.least_clusters:
        return None
    level = first_run_level(gate) / primaries

    def enough(size: int) -> bool:
        return _scene_power(expected, scenes, size, level) >= power

    least = math.ceil(_least_pairs(expected, gate) / scenes)
    size = smallest_count(enough, most=max(1, MOST_PAIRS // scenes))
    if size is None:
        return None
    pairs = scenes * max(least, size)
    return PlannedPairs(pairs, scenes, pairs)


def _least_pairs(expected: ExpectedPairs, gate: Gate) -> int:
    undeclared = expected.differ is None and expected.worst_loss is None
    return max(gate.n_min, LEAST_UNDECLARED if undeclared else 1)


def _scene_power(expected: ExpectedPairs, scenes: int, size: float, level: float) -> float:
    return mean_power(
        scenes,
        expected.effect,
        expected.deviation,
        expected.loss,
        level,
        size=size,
        correlation=expected.correlation,
    )


def _scenes_of_one_size(
    expected: ExpectedPairs, gate: Gate, level: float, power: float
) -> PlannedPairs | None:
    size = expected.scene_size
    found = clusters_for(
        expected.effect,
        expected.deviation,
        expected.loss,
        level,
        power,
        size=size,
        correlation=expected.correlation,
    )
    if found is None:
        return None
    least = math.ceil(_least_pairs(expected, gate) / size)
    scenes = max(found, least, gate.least_clusters)
    pairs = math.ceil(scenes * size)
    return PlannedPairs(pairs, scenes, pairs)


def _pairs_for_one_look(expected: ExpectedPairs, level: float, power: float) -> int | None:
    if expected.differ is not None:
        return pairs_for_superiority(*expected.rates, level, power)
    return clusters_for(expected.effect, expected.deviation, expected.loss, level, power)


# ------------------------------------------------------------------------------------ several looks


def _pairs_for_looks(
    expected: ExpectedPairs, gate: Gate, level: float, power: float
) -> PlannedPairs | None:
    if not expected.effect > 0:
        return None

    def ends(total: int) -> tuple[float, float]:
        sizes = look_sizes(total, gate.looks)
        ships = _ships(expected, sizes, level)
        ships[:, np.array(sizes) < _least_pairs(expected, gate)] = False
        first = np.where(ships.any(axis=1), ships.argmax(axis=1), len(sizes) - 1)
        return float(ships.any(axis=1).mean()), float(np.array(sizes)[first].mean())

    total = smallest_count(lambda count: ends(count)[0] >= power)
    return None if total is None else PlannedPairs(total, None, ends(total)[1])


def _ships(expected: ExpectedPairs, sizes: tuple[int, ...], level: float) -> NDArray[np.bool_]:
    """One row per simulated run, one column per look. The same random numbers for every size, so that a plan does not
    change from call to call."""
    rng = np.random.default_rng(_SEED)
    steps = np.diff([0, *sizes])
    if expected.differ is not None:
        win, loss = expected.rates
        drawn = [rng.multinomial(step, [win, loss, 1 - win - loss], _RUNS) for step in steps]
        won, lost, _ = np.cumsum(drawn, axis=0).transpose(2, 1, 0).astype(np.float64)
        chance = betainc(np.maximum(won, 1.0), lost + 1, 0.5)
        return np.asarray((won > 0) & (chance <= level))
    looks: list[NDArray[np.bool_]] = []
    sums: PairSums | None = None
    for step in steps:
        more = _normal_sums(expected, int(step), rng)
        sums = more if sums is None else sums + more
        looks.append(sums.typical_above(0.0, level) & sums.tails_above(0.0, expected.loss, level))
    return np.stack(looks, axis=1)


def _normal_sums(expected: ExpectedPairs, pairs: int, rng: np.random.Generator) -> PairSums:
    """Sums of normal gains, without drawing the gains."""
    if not pairs:
        nothing = np.zeros(_RUNS)
        return PairSums(0, 1.0, nothing, nothing, nothing)
    deviation = expected.deviation
    total = pairs * expected.effect + deviation * math.sqrt(pairs) * rng.normal(size=_RUNS)
    around = deviation * deviation * rng.chisquare(max(pairs - 1, 1), _RUNS) * (pairs > 1)
    squares = around + total * total / pairs
    return PairSums(pairs, 1.0, total, squares, squares)
