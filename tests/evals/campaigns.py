"""Small campaigns: baselines that move as they sense, and what a server says about a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollbook.client import Client
from rollbook.evals import EvalResult, EvalRun, create_run, run_against
from rollbook.evals.server_calls import results_of

STEPS = 10


def recording(start: float = 1.0, steps: int = STEPS) -> dict[str, Any]:
    """Sensors, actions and clock, as `log_episode` takes them."""
    position = start + np.arange(steps * 2, dtype=np.float32).reshape(steps, 2) / 10
    return {
        "sensors": {"/arm/position": position},
        "actions": {"/arm/command": position},
        "t_ns": np.arange(steps, dtype=np.int64) * 100_000_000,
    }


def log_baseline(client: Client, number: int, *, start: float = 1.0, **changes: Any) -> str:
    fields: dict[str, Any] = {
        "name": f"baseline {number}",
        "source": "sim",
        "policy_version": "v3",
        "seed": number,
        "fps": 10.0,
        "metadata": {"success": number % 2 == 0, "reward_total": float(number)},
        **recording(start),
        **changes,
    }
    made = client.log_episode(**fields).id
    assert made is not None
    return made


@dataclass
class Campaign:
    client: Client
    ids: list[str]

    def run(self, *, ids: list[str] | None = None, **options: Any) -> EvalRun:
        asked = {"candidate_policy_version": "v4", "baseline_policy_version": "v3", **options}
        return create_run(baseline_episode_ids=ids or self.ids, client=self.client, **asked)

    def against(self, policy: Any, **options: Any) -> list[EvalResult]:
        run = options.pop("run", None) or self.run()
        return run_against(run, policy_callable=policy, **options)

    def rows(self, run: EvalRun) -> dict[str, EvalResult]:
        """As the server has them."""
        return {each.baseline_episode_id: each for each in results_of(self.client, run.id)}

    def statuses(self, run: EvalRun) -> list[str]:
        rows = self.rows(run)
        return [rows[each].status for each in run.baseline_episode_ids]


def journal_files(home: Path, run: EvalRun) -> list[str]:
    folder = home / "runs" / run.id
    return sorted(each.suffix for each in folder.iterdir()) if folder.exists() else []
