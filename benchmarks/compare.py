"""Comparison: 20 candidates on 1 000 baselines, ranked together, for success and for rewards that all differ."""

from __future__ import annotations

import numpy as np

from benchmarks.timing import Claim, best
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate
from rollbook.scoring.candidate_ranking import rank_candidates

CANDIDATES, PAIRS = 20, 1_000
LIMIT_S = 5.0


def runs_of(candidates: int, pairs: int) -> list[list[EvalResult]]:
    rng = np.random.default_rng(1)
    success, reward = rng.random(pairs) < 0.6, rng.normal(10.0, 1.0, pairs)
    runs = []
    for _ in range(candidates):
        won = np.where(rng.random(pairs) < 0.7, success, rng.random(pairs) < 0.6)
        earned = reward + rng.normal(0.05, 1.0, pairs)
        runs.append(
            [
                EvalResult(
                    f"ep-{place:05}",
                    None,
                    "complete",
                    {
                        "success_baseline": bool(success[place]),
                        "success_candidate": bool(won[place]),
                        "reward_total_baseline": float(reward[place]),
                        "reward_total_candidate": float(earned[place]),
                        "evidence": {"success": "closed_loop", "reward_total": "closed_loop"},
                        "repro": {"verified": True},
                    },
                )
                for place in range(pairs)
            ]
        )
    return runs


def main(scale: float = 1.0) -> list[Claim]:
    pairs = max(50, int(PAIRS * scale))
    runs = runs_of(CANDIDATES, pairs)
    gate = Gate(reward_range=(0.0, 20.0))
    seconds = best(
        {
            "success": lambda: rank_candidates(runs, gate, "success", {}),
            "reward": lambda: rank_candidates(runs, gate, "reward_total", {}),
        },
        repeats=1 if scale < 1 else 2,
    )
    print(f"comparison: {CANDIDATES} candidates, {pairs} pairs, CPU time")
    for name, spent in seconds.items():
        print(f"  {name:32} {spent:10.2f} s")
    return [
        Claim(f"comparison by {name}", spent, LIMIT_S, "s", at_most=True)
        for name, spent in seconds.items()
    ]
