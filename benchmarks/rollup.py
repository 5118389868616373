"""Rollup: 10 000 episodes to their decision, bootstrap included; beside it scipy's bootstrap of the same numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.timing import Claim, best
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.scoring.bootstrap import bca_interval
from rollbook.scoring.decision import judge
from rollbook.scoring.result_columns import ResultColumns
from rollbook.scoring.run_rollup import measured, rollup

EPISODES = 10_000
RESAMPLES = 10_000
LIMIT_S = 2.0
EVIDENCE = dict.fromkeys(OUTCOMES, "closed_loop")


def run_of(episodes: int) -> list[EvalResult]:
    rng = np.random.default_rng(1)
    success = rng.random((episodes, 2)) < [0.80, 0.81]
    reward = rng.normal([10.0, 10.03], 2.0, (episodes, 2))
    collisions = rng.poisson(0.3, (episodes, 2))
    seconds = rng.gamma(20, 1, (episodes, 2))
    results = []
    for place in range(episodes):
        metrics: dict[str, object] = {"evidence": EVIDENCE, "action_l2_distance": 0.1}
        for side, name in enumerate(("baseline", "candidate")):
            won = bool(success[place, side])
            metrics[f"success_{name}"] = won
            metrics[f"reward_total_{name}"] = float(reward[place, side])
            metrics[f"collision_count_{name}"] = int(collisions[place, side])
            metrics[f"time_to_goal_s_{name}"] = float(seconds[place, side]) if won else None
        results.append(EvalResult(f"ep-{place:05}", None, "complete", metrics))
    return results


def scipys(gains: NDArray[np.float64], resamples: int) -> tuple[float, float]:
    found = stats.bootstrap(
        (gains,), np.mean, method="BCa", n_resamples=resamples, batch=200, rng=1
    ).confidence_interval
    return float(found.low), float(found.high)


def main(scale: float = 1.0) -> list[Claim]:
    episodes = max(100, int(EPISODES * scale))
    resamples = max(200, int(RESAMPLES * scale))
    results = run_of(episodes)
    gains = ResultColumns.of(results).outcomes["reward_total"]
    differences = gains.candidate - gains.baseline
    few = results[:10]
    two_hundred = ResultColumns.of(results[:200])
    gate = Gate()

    def judged() -> object:
        facts, statistics = measured(two_hundred, gate)
        return judge(statistics, gate, facts)

    seconds = best(
        {
            "rollup": lambda: rollup(results),
            "our bootstrap of one outcome": lambda: bca_interval(differences),
            f"scipy's, {resamples} resamples": lambda: scipys(differences, resamples),
        },
        repeats=3,
    )
    seconds |= best(
        {"rollup of 10 episodes": lambda: rollup(few), "judging 200": judged}, repeats=20
    )
    ours, theirs = bca_interval(differences), scipys(differences, resamples)
    assert ours is not None
    print(f"rollup: {episodes} episodes, four outcomes, CPU time")
    for name, spent in seconds.items():
        print(f"  {name:32} {spent * 1e3:10.2f} ms")
    print(f"  95 % of the reward's delta: ours {ours[0]:.4f} to {ours[1]:.4f}", end="")
    print(f", scipy's {theirs[0]:.4f} to {theirs[1]:.4f}")
    faster = seconds[f"scipy's, {resamples} resamples"] / seconds["our bootstrap of one outcome"]
    return [
        Claim("rollup with bootstrap", seconds["rollup"], LIMIT_S, "s", at_most=True),
        Claim("bootstrap of a mean vs scipy's", faster, 5, "x"),
        Claim("rollup of 10 episodes", seconds["rollup of 10 episodes"] * 1e3, 10, "ms", True),
    ]


if __name__ == "__main__":
    for claim in main():
        print(claim)
