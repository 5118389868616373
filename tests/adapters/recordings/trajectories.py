"""A small file of trajectories, as the package `imitation` saves them: two trajectories of 3 and 4 steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def arrays(lengths: tuple[int, ...] = (3, 4)) -> dict[str, Any]:
    steps, rng = sum(lengths), np.random.default_rng(1)
    return {
        "obs": rng.normal(size=(steps + len(lengths), 3)).astype(np.float32),
        "acts": rng.integers(0, 2, steps),
        "infos": np.array([{"step": i} for i in range(steps)], object),
        "terminal": np.ones(len(lengths), bool),
        "indices": np.cumsum(lengths)[:-1],
        "rews": np.arange(float(steps)),
    }


def make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "final.npz"
    np.savez_compressed(path, **arrays())
    return path
