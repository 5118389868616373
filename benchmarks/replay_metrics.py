"""Metrics of one replayed episode: ours against the public client's own functions, from the same answers of a policy.

Both start from a list with one dict per step, because that is what a policy leaves behind. The limit is the same
arithmetic over columns that were already stacked.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.timing import Claim, best
from rollbook.scoring.actions import stack_actions
from rollbook.scoring.metrics import action_l2_distance, compare_actions, ood_action_share
from rollbook.scoring.reference import ActionReference

public: Any = import_module("robotrace.evals")

_STEPS = 20_000
_WIDTHS = {"arm/value": 7, "/cmd_vel/linear": 3}


def recorded(steps: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        key: rng.normal(size=(steps, width)).astype(np.float32) for key, width in _WIDTHS.items()
    }
    return arrays | {"arm/_t_ns": np.arange(steps) * 20_000_000}


def answers(steps: int) -> list[dict[str, Any]]:
    """As a policy gives them: an array of its own for every key of every step."""
    drawn = recorded(steps, 1)
    return [{key: drawn[key][step].copy() for key in _WIDTHS} for step in range(steps)]


def theirs(baseline: Any, steps: Any) -> tuple[Any, Any]:
    return (
        public.metric_action_l2_distance(baseline, steps, np=np),
        public.metric_ood_action_share(baseline, steps, np=np),
    )


def ours(baseline: Any, steps: Any) -> tuple[Any, Any]:
    columns = stack_actions(steps)
    return action_l2_distance(baseline, columns), ood_action_share(baseline, columns)


def plain_numpy(baseline: Any, stacked: dict[str, Any]) -> tuple[float, float]:
    squares, far = 0.0, False
    for key, candidate in stacked.items():
        base = baseline[key].astype(np.float64)
        difference = base - candidate
        squares = squares + np.einsum("ij,ij->i", difference, difference)
        z = np.abs((candidate - base.mean(axis=0)) / base.std(axis=0))
        far = far | (z > 3.0).any(axis=1)
    return float(np.sqrt(squares).mean()), float(np.mean(far))


def main(scale: float = 1.0) -> list[Claim]:
    count = max(50, int(_STEPS * scale))
    baseline, steps = recorded(count, 0), answers(count)
    stacked = {
        key: array.astype(np.float64) for key, array in stack_actions(steps).arrays().items()
    }
    reference = ActionReference.of([baseline])
    for mine in (ours(baseline, steps), plain_numpy(baseline, stacked)):
        assert np.allclose(mine, theirs(baseline, steps), rtol=1e-9, atol=1e-9)
    seconds = best(
        {
            "public client": lambda: theirs(baseline, steps),
            "ours": lambda: ours(baseline, steps),
            "  of that stacking": lambda: stack_actions(steps),
            "ours, in better units": lambda: compare_actions(
                baseline, stack_actions(steps), reference
            ).as_metrics(),
            "limit: plain NumPy": lambda: plain_numpy(baseline, stacked),
        },
        repeats=5,
    )
    print(f"metrics of one episode: {count} steps, {len(_WIDTHS)} keys")
    for name, spent in seconds.items():
        print(f"  {name:22} {spent * 1e3:9.2f} ms  {seconds['public client'] / spent:7.1f} x")
    ratio = seconds["public client"] / seconds["ours"]
    return [Claim("metrics of a replay vs the public client's", ratio, 10, "x")]
