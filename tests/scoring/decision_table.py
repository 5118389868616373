"""How often the shipped rule is wrong, and how often it is right, in worlds whose truth is known.

`python -m tests.scoring.decision_table 1000` prints the table of docs/explain/statistics.md. Every cell is so many
simulated runs that go through the functions that judge a real run. Beside it stands the uncorrected test, which takes
every pair for independent and knows no worst loss: exact McNemar for success, sign flips of pairs for means.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from rollbook.contracts.gate import Gate, MetricRule
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring.bounds.flip_bound import FlipBound
from rollbook.scoring.bounds.pair_clusters import PairClusters
from rollbook.scoring.bounds.tail_bound import tail_chance
from rollbook.scoring.decision import Verdict, judge
from rollbook.scoring.looks import look_sizes
from rollbook.scoring.max_t import candidates_better
from rollbook.scoring.outcome_statistics import OutcomeStatistics
from rollbook.scoring.run_rollup import measured
from tests.scoring.simulated_runs import columns_of
from tests.scoring.worlds import (
    DisasterWorld,
    Floats,
    Ints,
    NormalWorld,
    SkewedWorld,
    SuccessWorld,
    World,
    alone,
    equal_scenes,
    unequal_scenes,
)

SEED = 20_261_116
ALPHA = 0.05


class Judged(NamedTuple):
    verdict: Verdict
    statistics: OutcomeStatistics


@dataclass(frozen=True)
class Cell:
    """One row of the table. `is_false` says that a ship (or a pass of the margin) is a mistake here."""

    name: str
    world: World
    scenes: Ints
    gate: Gate
    is_false: bool
    vanish: float = 0.0
    """Up to this share of the pairs has no result of the candidate: lost ones, as many as there are. Below zero: so
    many pairs, at random."""
    most: float = ALPHA
    """The largest rate that the test accepts, for a mistake; standard errors come on top."""
    expected: float | None = None
    """The rate that was measured before, for a cell that is right to ship."""
    least_covered: float = 1 - ALPHA
    """How often the printed bound has to be at most the true gain."""


def success_gate(margin: float | None = None, **fields: object) -> Gate:
    rule = MetricRule(metric="success", role="primary", margin=margin, required=True)
    return Gate(rules=(rule,), n_min=1, **fields)  # type: ignore[arg-type]


def reward_gate(width: float | None, **fields: object) -> Gate:
    """Rewards lie between 0 and the width."""
    rule = MetricRule(metric="reward_total", role="primary", required=True)
    declared = None if width is None else (0.0, width)
    return Gate(rules=(rule,), n_min=1, reward_range=declared, **fields)  # type: ignore[arg-type]


def judged(gains: Floats, scenes: Ints, gate: Gate, vanished: Ints | None = None) -> Judged:
    """One run through the shipped functions. Each pair has the gain that is given; the candidate's outcome is missing
    in the vanished ones."""
    metric = gate.rules[0].metric
    n = len(gains)
    sides: dict[str, dict[Outcome, Floats]] = {
        side: {name: np.full(n, np.nan) for name in OUTCOMES} for side in ("baseline", "candidate")
    }
    if metric == "success":
        sides["baseline"][metric] = (gains <= 0).astype(np.float64)
        sides["candidate"][metric] = (gains >= 0).astype(np.float64)
    else:
        middle = 0.0 if gate.reward_range is None else sum(gate.reward_range) / 2
        sides["baseline"][metric] = middle - gains / 2
        sides["candidate"][metric] = middle + gains / 2
    if vanished is not None:
        sides["candidate"][metric][vanished] = np.nan
    columns = columns_of(sides["baseline"], sides["candidate"])
    labels = {
        name: {"scene": (str(scene),)}
        for name, scene in zip(columns.ids, scenes.tolist(), strict=True)
    }
    facts, statistics = measured(columns, gate, labels=labels)
    return Judged(judge(statistics, gate, facts, gate.look_level), statistics[metric])


def uncorrected(gains: Floats, gate: Gate) -> bool:
    """The test of single pairs at the same level."""
    if gate.rules[0].metric == "success":
        return tail_chance(gains, 1.0) <= gate.alpha
    pairs = PairClusters.of(gains)
    return FlipBound(pairs.sums, pairs.sizes, gate.seed).p_better() <= gate.alpha


# ------------------------------------------------------------------------------------------- cells


def _cells() -> Iterator[Cell]:
    ten, twenty, fifty = equal_scenes(10), equal_scenes(20), equal_scenes(50)
    for icc in (0.0, 0.1, 0.3, 0.5, 0.8):
        name = f"reward, equal, 10 scenes of 10, correlation {icc:g}"
        yield Cell(name, NormalWorld(0.0, icc), ten, reward_gate(8.0), True)
        name = f"success 15 % won, 15 % lost, 10 scenes of 10, correlation {icc:g}"
        yield Cell(name, SuccessWorld(0.15, 0.15, icc), ten, success_gate(), True)
    unequal = unequal_scenes(50)
    name = "success 15 % won, 15 % lost, 50 unequal scenes, correlation .8"
    yield Cell(name, SuccessWorld(0.15, 0.15, 0.8), unequal, success_gate(), True)
    for scenes, what in ((ten, "10 scenes of 10"), (unequal, "50 unequal scenes")):
        name = f"success 10 points worse, {what}, correlation .8"
        yield Cell(
            name,
            SuccessWorld(0.10, 0.20, 0.8),
            scenes,
            success_gate(),
            True,
            most=0.01,
            least_covered=0.89,
        )
    margin = success_gate(0.10, mode="non_inferiority")
    name = "margin 10 points, 10 points worse without wins, 50 scenes, correlation .8"
    yield Cell(name, SuccessWorld(0.0, 0.10, 0.8), fifty, margin, True)
    name = "margin 10 points, equal (10 % won and lost), 50 scenes, correlation 0"
    yield Cell(name, SuccessWorld(0.10, 0.10), fifty, margin, False, expected=0.88)
    for icc, expected in ((0.1, 0.88), (0.5, 0.54)):
        name = f"reward +.3 sd, 20 scenes of 10, correlation {icc:g}"
        gate = reward_gate(8.0)
        yield Cell(name, NormalWorld(0.3, icc), twenty, gate, False, expected=expected)
    for n in (25, 50, 100, 200):
        yield Cell(
            f"skewed losses, equal means, {n} pairs",
            SkewedWorld(),
            alone(n),
            reward_gate(20.0),
            True,
        )
        name = f"rare disaster, truly worse, {n} pairs"
        yield Cell(name, DisasterWorld(), alone(n), reward_gate(21.0), True)
    for n in (100, 150, 200):
        name = f"skewed losses, equal means, {n} pairs, range not declared"
        yield Cell(name, SkewedWorld(), alone(n), reward_gate(None), True)
        name = f"rare disaster, truly worse, {n} pairs, range not declared"
        covered = 0.86 if n < 150 else 1 - ALPHA  # with fewer it holds, whatever the bound is
        yield Cell(name, DisasterWorld(), alone(n), reward_gate(None), True, least_covered=covered)
    for width, expected in ((4.0, 0.79), (8.0, 0.48)):
        name = f"reward +.3 sd, 100 pairs, worst loss {width:g} sd"
        yield Cell(name, NormalWorld(0.3), alone(100), reward_gate(width), False, expected=expected)
    for effect, n, expected in ((0.10, 200, 0.80), (0.15, 100, 0.80)):
        world = SuccessWorld(0.15 + effect / 2, 0.15 - effect / 2)
        name = f"success +{100 * effect:.0f} points, 30 % differ, {n} pairs"
        yield Cell(name, world, alone(n), success_gate(), False, expected=expected)

    for share in (0.02, 0.05, 0.10):
        name = f"success, equal, 200 pairs, up to {100 * share:.0f} % of them lost and without a result"
        world = SuccessWorld(0.15, 0.15)
        yield Cell(name, world, alone(200), success_gate(), True, vanish=share)
    name = (
        "margin 10 points, 10 points worse, 200 pairs, up to 10 % of them lost and without a result"
    )
    world = SuccessWorld(0.05, 0.15)
    yield Cell(name, world, alone(200), margin, True, vanish=0.10)
    for share, expected in ((0.02, 0.95), (0.05, 0.82), (0.10, 0.33)):
        name = f"success +15 points, 200 pairs, {100 * share:.0f} % missing at random"
        world = SuccessWorld(0.225, 0.075)
        yield Cell(name, world, alone(200), success_gate(), False, vanish=-share, expected=expected)


CELLS = tuple(_cells())


class Rates(NamedTuple):
    before: float
    after: float
    covered: float
    """Share of the runs whose printed lower bound is not above the true gain."""
    accused: float
    """Share of the runs that are told that the candidate is worse."""
    contradicted: float
    """Share of the ships whose bound is not above what it has to be."""


def rates(cell: Cell, runs: int) -> Rates:
    rng = np.random.default_rng([SEED, *cell.name.encode()])
    truth = _truth(cell.world)
    before = after = covered = accused = contradicted = 0
    for _ in range(runs):
        gains = cell.world.gains(rng, cell.scenes)
        vanished = _vanished(rng, gains, cell.vanish)
        before += uncorrected(np.delete(gains, vanished), cell.gate)
        found = judged(gains, cell.scenes, cell.gate, vanished)
        ships = found.verdict.recommend == "ship"
        lower = found.statistics.judged.lower(cell.gate.alpha)
        margin = cell.gate.rules[0].margin
        if margin is not None:
            lower = found.statistics.judged.lower_for_margin(cell.gate.alpha)
        after += ships
        covered += lower <= truth + 1e-9
        accused += any(reason.startswith("regression") for reason in found.verdict.reasons)
        contradicted += ships and not lower > -(margin or 0.0)
    return Rates(before / runs, after / runs, covered / runs, accused / runs, contradicted / runs)


def _vanished(rng: np.random.Generator, gains: Floats, share: float) -> Ints:
    lost = np.flatnonzero(gains < 0) if share > 0 else np.arange(len(gains))
    rng.shuffle(lost)
    return lost[: round(abs(share) * len(gains))]


def _truth(world: World) -> float:
    if isinstance(world, SuccessWorld):
        return world.win - world.loss
    if isinstance(world, NormalWorld):
        return world.mean
    if isinstance(world, DisasterWorld):
        return world.gain * (1 - world.share) - world.loss * world.share
    return 0.0


# ----------------------------------------------------------------------------- looks and candidates


def looked_at(world: World, pairs: int, gate: Gate, runs: int) -> tuple[float, float]:
    """Share of the runs that ship at one of their looks, and the mean number of pairs that they take."""
    rng = np.random.default_rng([SEED, pairs, gate.looks])
    shipped = used = 0
    for _ in range(runs):
        gains = world.gains(rng, alone(pairs))
        for size in look_sizes(pairs, gate.looks):
            found = judged(gains[:size], alone(size), gate)
            if found.verdict.recommend == "ship":
                shipped += 1
                break
        used += size
    return shipped / runs, used / runs


def best_of(candidates: int, pairs: int, runs: int, *, success: bool) -> tuple[float, float]:
    """Share of the runs in which any of so many equal candidates is called better, before and after correction."""
    rng = np.random.default_rng([SEED, candidates, pairs, success])
    before = after = 0
    for _ in range(runs):
        if success:
            differs = rng.random((pairs, candidates)) < 0.3
            gains = np.where(differs, rng.choice([-1.0, 1.0], (pairs, candidates)), 0.0)
        else:
            gains = rng.normal(size=(pairs, candidates)) - rng.normal(size=(pairs, 1))
        gate = success_gate() if success else reward_gate(None)
        before += any(uncorrected(column, gate) for column in np.ascontiguousarray(gains.T))
        after += float(candidates_better(gains, ALPHA).p_values.min()) <= ALPHA
    return before / runs, after / runs


def noise(rate: float, runs: int) -> float:
    """Three standard errors."""
    return 3 * math.sqrt(max(rate, 0.01) * (1 - rate) / runs)


LOOKED_AT = (
    (
        "success, equal (15 % won and lost), 50, 100, 200 and 400 pairs",
        SuccessWorld(0.15, 0.15),
        400,
        success_gate(looks=4),
    ),
    ("success +10 points, the same looks", SuccessWorld(0.20, 0.10), 400, success_gate(looks=4)),
    (
        "reward, equal, 50, 100 and 200 pairs, worst loss 4 sd",
        NormalWorld(),
        200,
        reward_gate(4.0, looks=3),
    ),
)
CANDIDATES = (5, 10, 20)


def advised(success: bool, runs: int) -> tuple[float, float]:
    """Equal policies: the share that ships when 50 pairs are added again and again, up to 400. After: every run counts,
    because it has baselines of the runs before, and the ledger decides: run t is judged at alpha / (t (t + 1))."""
    rng = np.random.default_rng([SEED, 50, success])
    gate = success_gate() if success else reward_gate(8.0)
    world: World = SuccessWorld(0.15, 0.15) if success else NormalWorld()
    before = after = 0
    for _ in range(runs):
        gains = world.gains(rng, alone(400))
        before += any(uncorrected(gains[:n], gate) for n in range(50, 401, 50))
        for number in range(1, 9):
            pairs = 50 * number
            corrected = msgspec.structs.replace(gate, alpha=ALPHA / (number * (number + 1)))
            if judged(gains[:pairs], alone(pairs), corrected).verdict.recommend == "ship":
                after += 1
                break
    return before / runs, after / runs


def printed(runs: int, show: Callable[[str], object] = print) -> None:
    show("| world | uncorrected test | shipped rule | bound covers |")
    show("|---|---|---|---|")
    for cell in CELLS:
        found = rates(cell, runs)
        show(
            f"| {cell.name} | {_rate(found.before)} | {_rate(found.after)} | {_rate(found.covered)} |"
        )
    show("\n| looks | ships | mean pairs |\n|---|---|---|")
    for name, world, pairs, gate in LOOKED_AT:
        shipped, used = looked_at(world, pairs, gate, runs)
        show(f"| {name} | {_rate(shipped)} | {used:.0f} |")
    show(
        "\n| asking again until it ships, equal policies | uncorrected test | shipped rule |\n|---|---|---|"
    )
    for success, name in ((True, "success"), (False, "reward")):
        before, after = advised(success, runs)
        show(f"| {name}: 50 pairs more each time, up to 400 | {_rate(before)} | {_rate(after)} |")
        for count in CANDIDATES:
            before, after = best_of(count, 100, runs, success=success)
            show(
                f"| {name}: best of {count} candidates, 100 pairs | {_rate(before)} | {_rate(after)} |"
            )


def _rate(share: float) -> str:
    return f"{share:.3f}".lstrip("0") if share < 1 else "1"


if __name__ == "__main__":
    printed(int(sys.argv[1]))
