"""Environments small enough to know every number of."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tests.adapters.pictures import BLUE, RED, numbered


class CountingEnv(gymnasium.Env[Any, Any]):
    """Observes how many steps were taken, always in the same array; is red until the last step, and then blue."""

    def __init__(
        self,
        length: int = 6,
        render_mode: str | None = "rgb_array",
        truncates: bool = False,
        infos: list[dict[str, Any]] | None = None,
        fails_at: int | None = None,
    ) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 50}
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Box(-1, 1, (3,), np.float32)
        self._length = length
        self._truncates = truncates
        self._infos = infos
        self._fails_at = fails_at
        self._step = 0
        self._buffer = np.zeros(2)
        self.seeds: list[int | None] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self._step = 0
        return self._observed(), self._info()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._step == self._fails_at:
            raise RuntimeError("the gripper is stuck")
        self._step += 1
        over = self._step == self._length
        reward = self._step * 0.1
        return (
            self._observed(),
            reward,
            over and not self._truncates,
            over and self._truncates,
            self._info(),
        )

    def render(self) -> NDArray[np.uint8]:
        return numbered(self._step, BLUE if self._step == self._length else RED)

    def _observed(self) -> NDArray[np.float64]:
        self._buffer[:] = self._step, self._step / 3
        return self._buffer

    def _info(self) -> dict[str, Any]:
        return {} if self._infos is None else self._infos[self._step]


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Two steps in any space; what is observed is what the space gives for a seed."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space = observation
        self.action_space = action
        self.observation_space.seed(1)
        self.seen: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = [self.observation_space.sample()]
        return self.seen[-1], {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.seen.append(self.observation_space.sample())
        return self.seen[-1], 1, len(self.seen) == 3, False, {}
