"""Two runs of a small environment, in folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rollbook.adapters import gymnasium
from tests.adapters.small_envs import CountingEnv


def make(folder: Path) -> Path:
    for seed in (1, 2):
        gymnasium.encode_rollout(
            CountingEnv(), _still, folder / "runs" / f"seed_{seed}", seed=seed, record_video=False
        )
    return folder / "runs"


def _still(observation: Any) -> Any:
    return np.zeros(3, np.float32)
