"""Simulated runs: two policies in one plausible world, as often as one likes, straight into columns.

An episode has a difficulty that both policies meet. Success, reward, collisions and time to goal follow from it, from
how good the policy is, and from luck; so the four outcomes are correlated, and the pairs are worth pairing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import ndtri

from rollbook.contracts.evals import EVIDENCE
from rollbook.contracts.outcomes import Outcome
from rollbook.scoring.result_columns import Floats, OutcomeColumn, ResultColumns

BASELINE_SUCCESS = 0.8
_SHARED = 0.6
"""Of the variance of whether an episode succeeds, what is the episode's own."""


def simulated_runs(n: int, delta: float, runs: int, seed: int) -> Iterator[ResultColumns]:
    """Runs of n pairs in which the candidate's success rate is higher by `delta`."""
    rng = np.random.default_rng([seed, n, round(1000 * delta) % 2**32])
    for _ in range(runs):
        difficulty = rng.normal(size=n)
        yield columns_of(
            _outcomes(rng, difficulty, BASELINE_SUCCESS),
            _outcomes(rng, difficulty, BASELINE_SUCCESS + delta),
        )


def _outcomes(rng: np.random.Generator, difficulty: Floats, rate: float) -> dict[Outcome, Floats]:
    n = len(difficulty)
    skill = float(ndtri(rate) - ndtri(BASELINE_SUCCESS))
    luck = rng.normal(size=n)
    latent = np.sqrt(_SHARED) * -difficulty + np.sqrt(1 - _SHARED) * luck + ndtri(rate)
    ease = 0.35 * skill + 0.5 * luck - 0.5 * difficulty
    success = (latent > 0).astype(np.float64)
    seconds = 20 * np.exp(-0.1 * ease + 0.1 * rng.normal(size=n))
    return {
        "success": success,
        "reward_total": 10 + 2 * ease + rng.normal(size=n),
        "collision_count": rng.poisson(0.3 * np.exp(-0.5 * ease)).astype(np.float64),
        "time_to_goal_s": np.where(success == 1, seconds, np.nan),
    }


def columns_of(baseline: dict[Outcome, Floats], candidate: dict[Outcome, Floats]) -> ResultColumns:
    """As `ResultColumns.of` would make them of complete results that were measured in a closed loop."""
    n = len(baseline["success"])
    closed_loop = np.full(n, EVIDENCE.index("closed_loop"), np.int8)
    no = np.zeros(n, bool)
    return ResultColumns(
        ids=tuple(f"{i:06}" for i in range(n)),
        complete=~no,
        failed=no,
        outcomes={
            name: OutcomeColumn(baseline[name], candidate[name], closed_loop, 0)
            for name in baseline
        },
        env_mismatch=no,
        nondeterministic=no,
        metrics=({},) * n,
        repeated=0,
    )


def first_pairs(columns: ResultColumns, count: int) -> ResultColumns:
    """What was there when so many pairs had run."""
    sides = [
        {name: getattr(column, side)[:count] for name, column in columns.outcomes.items()}
        for side in ("baseline", "candidate")
    ]
    return columns_of(*sides)
