"""The learning environment: steps per CPU second over 20 rows, and the memory of the scenes that stay prepared.

The peer scores every candidate and keeps four scenes, as the environment did at first (docs/decisions/0037).
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np

from benchmarks.stores import scratch
from benchmarks.timing import Claim
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.environment import CounterfactualEnv
from rollbook.generate.kept_scenes import DEFAULT_BUDGET_BYTES, SCENES
from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store
from rollbook.generate.sources.splits import SplitConfig

_ROWS = 20
_HORIZON = 3
_TEN_TIMES = 40.0
"""The environment made 4 steps per CPU second at first. What made it faster has made the peer faster too."""
_FEW = 4
"""Scenes that the environment kept at first."""


def main(scale: float = 1.0) -> list[Claim]:
    rows = max(6, int(_ROWS * scale))
    edge = 0.25 if scale >= 1 else 1.0
    with scratch() as folder:
        sources = Path(folder) / "sources"
        make_source_store(
            sources,
            MakeSourcesConfig(
                scenes=rows,
                seed=1,
                scene=SceneConfig(max_edge_m=edge),
                splits=SplitConfig(train=1.0, val=0.0, test=0.0),
            ),
        )
        table = {
            "source": {"store_dir": str(sources)},
            "store": {"store_dir": str(Path(folder) / "not-written")},
            "target_source": "actor_visible_selector",
        }
        config = RolloutDatasetWriterConfig.from_table(table, folder=Path(folder))
        try:
            return _measured(config, rows)
        finally:
            SCENES.clear()
            SCENES.budget_bytes = DEFAULT_BUDGET_BYTES


def _measured(config: RolloutDatasetWriterConfig, rows: int) -> list[Claim]:
    env = CounterfactualEnv(config, horizon=_HORIZON)
    _steps_per_second(env, 2)  # compiles the kernels
    SCENES.clear()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cold = _steps_per_second(env, rows)
    _prepare_all(env)
    warm = _steps_per_second(env, 2 * rows)
    kept, nbytes = len(SCENES), SCENES.nbytes
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    full = _steps_per_second(CounterfactualEnv(config, horizon=_HORIZON, score="all"), rows)
    peer = CounterfactualEnv(
        config, horizon=_HORIZON, score="all", scene_budget_bytes=_FEW * nbytes // kept
    )
    old = _steps_per_second(peer, rows)
    within = SCENES.nbytes / SCENES.budget_bytes
    for name, speed in (
        ("all candidates scored, four scenes kept", old),
        ("all candidates scored, scenes kept", full),
        ("the chosen one scored, while scenes are being prepared", cold),
        ("the chosen one scored, scenes kept", warm),
    ):
        print(f"{name:56} {speed:6.1f} steps per CPU second, {rows} rows")
    print(
        f"{kept} scenes kept: {nbytes / 1e6:.0f} MB counted, the process grew by {grown / 1e6:.0f} MB; "
        f"with a budget of {SCENES.budget_bytes / 1e6:.0f} MB {SCENES.nbytes / 1e6:.0f} MB are kept"
    )
    return [
        Claim("environment: a step beside full scoring with four scenes", warm / old, 6.0, "x"),
        Claim("environment: steps per CPU second", warm, _TEN_TIMES, "steps"),
        Claim("environment: kept scenes beside their budget", within, 1.0, "x", at_most=True),
    ]


def _prepare_all(env: CounterfactualEnv) -> None:
    """Every usable target of every row, so that nothing is left to prepare."""
    for row in env.rows:
        scene = env._scene(row)
        prepared = scene.row(env._indices[row])
        for target in prepared.targets:
            if target.label_valid:
                scene.task(prepared, target)


def _steps_per_second(env: CounterfactualEnv, episodes: int) -> float:
    """Random valid actions from drawn rows."""
    rng, steps = np.random.default_rng(0), 0
    start = time.process_time()
    for number in range(episodes):
        _, info = env.reset(seed=number)
        while info["ended"] is None:
            *_, info = env.step(int(rng.choice(np.flatnonzero(info["action_mask"]))))
            steps += 1
    return steps / (time.process_time() - start)


if __name__ == "__main__":
    for claim in main():
        print(claim)
