"""RolloutLog: the record of one run of an environment, written while it runs.

There is one observation and one frame more than there are actions: the last ones show the result of the last action. A
reward carries the time of the end of its step, when it becomes known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.gymnasium_spaces import SpaceColumn, SpooledRows, TextRows
from rollbook.client.video import VideoWriter, picture
from rollbook.contracts.reported_outcome import ReportedOutcome, finite_sum
from rollbook.contracts.streams import CLOCK_FIELD, ONLY_FIELD
from rollbook.contracts.typed_metadata import EpisodeOutcome
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from gymnasium import Env

REWARD = "reward"


@dataclass
class RolloutLog:
    fps: float
    observation: tuple[SpaceColumn, ...]
    action: tuple[SpaceColumn, ...]
    video: VideoWriter | None
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    _rows: dict[str, SpooledRows | TextRows] = field(default_factory=dict)
    _reported: ReportedOutcome = field(default_factory=ReportedOutcome)

    def __post_init__(self) -> None:
        self._rows = {column.name: column.rows() for column in (*self.observation, *self.action)}

    def add_observation(self, env: Env[Any, Any], observation: Any, info: dict[str, Any]) -> None:
        for column in self.observation:
            column.add_to(self._rows[column.name], observation)
        self._reported.note(info, self.steps)
        if self.video is not None:
            self.video.add(picture(env.render(), "what render() returned"))

    def add_action(self, action: Any) -> None:
        for column in self.action:
            column.add_to(self._rows[column.name], action)

    def add_step(self, reward: Any, terminated: Any, truncated: Any) -> None:
        number = np.asarray(reward)
        if number.size != 1 or number.dtype.kind not in "biuf":
            message = f"the reward is {reward!r}; a recording needs one number for each step"
            raise ConfigurationError(message=message)
        self.rewards.append(float(number.item()))
        self.terminated, self.truncated = bool(terminated), bool(truncated)

    @property
    def steps(self) -> int:
        return len(self.rewards)

    def sensors(self) -> dict[str, NDArray[Any]]:
        arrays = self._streams(self.observation)
        if self.rewards:
            arrays[f"{REWARD}/{ONLY_FIELD}"] = np.array(self.rewards, np.float64)
            arrays[f"{REWARD}/{CLOCK_FIELD}"] = self._clock(1, self.steps)
        return arrays

    def actions(self) -> dict[str, NDArray[Any]]:
        return self._streams(self.action)

    def _streams(self, columns: tuple[SpaceColumn, ...]) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        for column in columns:
            rows = self._rows[column.name]
            if len(rows):
                arrays[f"{column.name}/{ONLY_FIELD}"] = rows.array()
                arrays[f"{column.name}/{CLOCK_FIELD}"] = self._clock(0, len(rows))
        return arrays

    def _clock(self, first: int, count: int) -> NDArray[np.int64]:
        """Each time is computed from its index, so that rounding errors do not add up."""
        ticks = np.arange(first, first + count, dtype=np.float64)
        return np.rint(ticks * 1e9 / self.fps).astype(np.int64)

    @property
    def reward_total(self) -> float | None:
        """None without steps, and where the sum is not a finite number."""
        return finite_sum(self.rewards)

    def outcome(self) -> EpisodeOutcome:
        """What the environment does not report is None."""
        return EpisodeOutcome(**self._reported.outcome(self.rewards, self.fps))  # type: ignore[arg-type]

    def close(self) -> None:
        for rows in self._rows.values():
            rows.close()
