"""Baselines as they would come from a server, recorded with the Gymnasium adapter; and environments to run again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rollbook.adapters.gymnasium import encode_rollout
from rollbook.contracts.npz import read_npz
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.evals.baselines import Baseline
from rollbook.scoring.outcomes import outcome_of


def recorded(
    env: gymnasium.Env[Any, Any], policy: Callable[..., Any], seed: int, **options: Any
) -> Baseline:
    with tempfile.TemporaryDirectory() as folder:
        encoded = encode_rollout(env, policy, Path(folder) / "run", seed=seed, **options)
        arrays = {kind: read_npz(path) for kind, path in encoded.files.items() if kind != "video"}
    metadata = plain_metadata(encoded.metadata)
    return Baseline(
        id=f"episode-{seed}",
        record=EpisodeRecord(
            id=f"episode-{seed}",
            status="ready",
            env_version=encoded.env_version,
            seed=encoded.seed,
            fps=encoded.fps,
            metadata=metadata,
        ),
        sensors=arrays.get("sensors"),
        actions=arrays.get("actions"),
        outcome={name: each for name, each in outcome_of(metadata).items() if each is not None},
    )


class SlidingEnv(gymnasium.Env[Any, Any]):
    """A point that slides as it is pushed, from a place drawn by the seed; success is to be near 0.

    It says when it hits a wall. With `noise`, its steps differ however it is seeded.
    """

    metadata = {"render_fps": 10}  # noqa: RUF012 - as Gymnasium has it
    env_version = "sliding-1"

    def __init__(self, noise: float = 0.0, says_success: bool = True) -> None:
        self.observation_space = spaces.Dict(
            {"x": spaces.Box(-9, 9, (1,), np.float32), "left": spaces.Discrete(50)}
        )
        self.action_space = spaces.Dict({"push": spaces.Box(-1, 1, (1,), np.float32)})
        self._noise = noise
        self._says_success = says_success
        self._unseeded = np.random.default_rng()
        self.closed = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._x, self._left = float(self.np_random.uniform(1, 4)), 20
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._x += float(action["push"][0]) + self._noise * float(self._unseeded.normal())
        self._left -= 1
        hit = abs(self._x) > 5
        near = abs(self._x) < 0.3
        info = {"collision": hit} | ({"success": near} if self._says_success else {})
        return self._observed(), -abs(self._x), near, self._left == 0, info

    def _observed(self) -> dict[str, Any]:
        return {"x": np.array([self._x], np.float32), "left": self._left}

    def close(self) -> None:
        self.closed = True


def towards(observation: Any) -> Any:
    return {"push": np.clip(-observation["x"], -1, 1) * np.float32(0.5)}


def away(observation: Any) -> Any:
    return {"push": np.ones(1, np.float32)}


def sliding() -> SlidingEnv:
    return SlidingEnv()


def push_towards(obs: dict[str, Any]) -> dict[str, Any]:
    """As a candidate: better than anything that was recorded here."""
    return {"action.push/value": np.clip(-obs["observation.x/value"], -1, 1)}


def push_away(obs: dict[str, Any]) -> dict[str, Any]:
    return {"action.push/value": np.ones(1)}
