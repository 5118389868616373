"""Rollup: 10 000 pairs in 200 scenes to their decision, all bounds included; beside it a random draw of one bound."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import Claim, best
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.scoring.bounds.tail_bound import tail_bound
from rollbook.scoring.decision import judge
from rollbook.scoring.labels import Labels
from rollbook.scoring.result_columns import ResultColumns
from rollbook.scoring.run_rollup import measured, rollup

EPISODES = 10_000
SCENES = 200
DRAWS = 2_000
LIMIT_S = 2.0
REWARDS = (-10.0, 30.0)
EVIDENCE = dict.fromkeys(OUTCOMES, "closed_loop")


def run_of(episodes: int) -> list[EvalResult]:
    rng = np.random.default_rng(1)
    success = rng.random((episodes, 2)) < [0.80, 0.81]
    reward = rng.normal([10.0, 10.03], 2.0, (episodes, 2))
    collisions = rng.poisson(0.3, (episodes, 2))
    seconds = rng.gamma(20, 1, (episodes, 2))
    results = []
    for place in range(episodes):
        metrics: dict[str, object] = {
            "evidence": EVIDENCE,
            "repro": {"verified": True, "env_changed": []},
            "action_l2_distance": 0.1,
        }
        for side, name in enumerate(("baseline", "candidate")):
            won = bool(success[place, side])
            metrics[f"success_{name}"] = won
            metrics[f"reward_total_{name}"] = float(reward[place, side])
            metrics[f"collision_count_{name}"] = int(collisions[place, side])
            metrics[f"time_to_goal_s_{name}"] = float(seconds[place, side]) if won else None
        results.append(EvalResult(f"ep-{place:05}", None, "complete", metrics))
    return results


def scenes_of(results: list[EvalResult]) -> dict[str, Labels]:
    size = max(1, len(results) // SCENES)
    return {
        each.baseline_episode_id: {"scene": (f"scene {place // size}",)}
        for place, each in enumerate(results)
    }


def drawn_bound(gains: NDArray[np.float64], worst: float, level: float, draws: int) -> float:
    """The tail bound by random exponential weights, as it is defined."""
    rng = np.random.default_rng(1)
    means = np.empty(draws)
    for place in range(draws):
        weights = rng.exponential(size=len(gains) + 1)
        means[place] = (weights[:-1] @ gains - weights[-1] * worst) / weights.sum()
    return float(np.quantile(means, level))


def main(scale: float = 1.0) -> list[Claim]:
    episodes = max(100, int(EPISODES * scale))
    draws = max(200, int(DRAWS * scale))
    results = run_of(episodes)
    scenes = scenes_of(results)
    column = ResultColumns.of(results).outcomes["reward_total"]
    gains = column.candidate - column.baseline
    worst = REWARDS[1] - REWARDS[0]
    few = results[:10]
    two_hundred = ResultColumns.of(results[:200])
    gate = Gate(reward_range=REWARDS)

    def judged() -> object:
        facts, statistics = measured(two_hundred, gate)
        return judge(statistics, gate, facts)

    drawn = f"the same by {draws} draws"
    seconds = best(
        {
            f"rollup in {SCENES} scenes": lambda: rollup(results, gate, labels=scenes),
            "rollup of pairs that count alone": lambda: rollup(results, gate),
            "tail bound of one outcome": lambda: tail_bound(gains, worst, 0.05),
            drawn: lambda: drawn_bound(gains, worst, 0.05, draws),
        },
        repeats=3,
    )
    seconds |= best(
        {"rollup of 10 episodes": lambda: rollup(few), "judging 200": judged}, repeats=20
    )
    print(f"rollup: {episodes} episodes, four outcomes, CPU time")
    for name, spent in seconds.items():
        print(f"  {name:34} {spent * 1e3:10.2f} ms")
    exact, random = tail_bound(gains, worst, 0.05), drawn_bound(gains, worst, 0.05, draws)
    print(f"  reward is at least: {exact:+.5f}, by draws {random:+.5f}")
    faster = seconds[drawn] / seconds["tail bound of one outcome"]
    slowest = max(
        seconds[f"rollup in {SCENES} scenes"], seconds["rollup of pairs that count alone"]
    )
    return [
        Claim("rollup with all bounds", slowest, LIMIT_S, "s", at_most=True),
        Claim("tail bound vs random draws", faster, 3, "x"),
        Claim("rollup of 10 episodes", seconds["rollup of 10 episodes"] * 1e3, 10, "ms", True),
    ]


if __name__ == "__main__":
    for claim in main():
        print(claim)
