"""PlayedEpisode: what is noted of one run of an environment, with a candidate or with the recorded actions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.environment_description import EnvironmentDescription, truncated_by
from rollbook.contracts.outcomes import OUTCOME_KEY
from rollbook.contracts.reported_outcome import KnownOutcome, ReportedOutcome
from rollbook.contracts.streams import CLOCK_FIELD, ONLY_FIELD, split_key
from rollbook.errors import InvalidValue
from rollbook.evals.baselines import Arrays, Baseline
from rollbook.evals.policies.policy import Action, Observation, Policy, ReplayEpisode, StepContext
from rollbook.evals.worlds.environments import (
    Environment,
    action_for,
    declared_fps,
    env_version_of,
    observed,
    reset,
    step,
)
from rollbook.evals.worlds.situations import REWARD, observation_digest

REWARD_KEY = f"{REWARD}/{ONLY_FIELD}"


@dataclass(slots=True)
class PlayedEpisode:
    fps: float | None
    env_version: str | None
    description: EnvironmentDescription
    start: str
    """Digest of the first observation."""
    names: Mapping[str, str]
    """Keys of observations that were recorded under other names than the environment's own."""
    types: Mapping[str, np.dtype[Any]]
    recorded: Arrays = field(default_factory=dict)
    """Observations to compare with, row by row."""
    actions: list[Action] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    ended_by: str = "max_steps"
    """`terminated`, `truncated` or, if the environment has not ended, `max_steps`."""
    as_recorded: bool | None = None
    """Whether no observation differs from `recorded`, as far as either goes; None if none could be compared."""
    _observations: int = 0
    _hashes: dict[str, Any] = field(default_factory=dict)
    _reported: ReportedOutcome = field(default_factory=ReportedOutcome)

    @classmethod
    def begin(
        cls, environment: Environment, baseline: Baseline, first: Any, recorded: Arrays
    ) -> PlayedEpisode:
        sensors = baseline.sensors or {}
        fps = baseline.record.fps if baseline.record is not None else None
        return cls(
            fps=fps or declared_fps(environment),
            env_version=env_version_of(environment),
            description=EnvironmentDescription.of(environment),
            start=observation_digest(first),
            names=_names(sensors, [name for name, _ in observed(first)]),
            types={key: array.dtype for key, array in sensors.items()},
            recorded=recorded,
        )

    def see(self, observation: Any, info: Mapping[str, Any]) -> Observation:
        """Notes an observation. Returns it as the policy sees it: with the keys and types of the recording."""
        seen: Observation = {}
        for name, value in observed(observation):
            key = self.names.get(name, f"{name}/{ONLY_FIELD}")
            shown = _as_type(value, self.types.get(key, value.dtype))
            data = shown.tobytes()
            self._hashes.setdefault(key, hashlib.sha256()).update(data)
            self._compare(key, data)
            seen[key] = shown
            if (now := self.t_ns) is not None:
                seen[f"{split_key(key)[0]}/{CLOCK_FIELD}"] = np.int64(now)
        self._observations += 1
        self._reported.note(info, len(self.rewards))
        if REWARD_KEY in self.types:
            # a reward is recorded at the end of its step, so here the reward of the step before is known
            seen[REWARD_KEY] = np.float64(self.rewards[-1] if self.rewards else np.nan)
        return seen

    def _compare(self, key: str, data: bytes) -> None:
        rows = self.recorded.get(key)
        if rows is None or self.as_recorded is False or self._observations >= len(rows):
            return
        row = rows[
            self._observations : self._observations + 1
        ]  # a single text would lose its padding
        self.as_recorded = row.tobytes() == data

    @property
    def t_ns(self) -> int | None:
        if self.fps is None:
            return None
        return round(len(self.rewards) * 1e9 / self.fps)

    @property
    def ended(self) -> bool:
        """Whether the environment has ended the episode."""
        return self.ended_by != "max_steps"

    @property
    def truncated_by(self) -> str | None:
        """Which limit ended it, if one did."""
        if self.ended_by != "truncated":
            return None
        return truncated_by(len(self.rewards), self.description.max_steps)

    def outcome(self) -> KnownOutcome:
        return self._reported.outcome(self.rewards, self.fps)

    def observations(self) -> dict[str, str]:
        """Digests of everything that was observed."""
        return {key: each.hexdigest() for key, each in self._hashes.items()}

    def repeats(self, other: PlayedEpisode) -> bool:
        """Whether both runs had the same observations, rewards and end."""
        return (
            self.observations() == other.observations()
            and np.array_equal(self.rewards, other.rewards, equal_nan=True)
            and self.ended_by == other.ended_by
        )


def play(
    environment: Environment,
    baseline: Baseline,
    policy: Policy,
    max_steps: int,
    *,
    recorded: Arrays | None = None,
) -> PlayedEpisode:
    """One run from the baseline's seed. Errors of the policy and of the environment are raised."""
    episode = ReplayEpisode(id=baseline.id, step_count=None, record=baseline.record)
    observation, info = reset(environment, baseline.seed)
    log = PlayedEpisode.begin(environment, baseline, observation, recorded or {})
    seen = log.see(observation, info)
    policy.reset(episode)
    waiting: list[Action] = []
    while len(log.rewards) < max_steps:
        number = len(log.rewards)
        if not waiting:
            context = StepContext(number, number == 0, number + 1 == max_steps, log.t_ns, episode)
            waiting = split_chunk(policy.act(seen, context), policy.chunk)
        action = waiting.pop(0)
        taken = step(environment, action_for(environment, action))
        observation, reward, terminated, truncated, info = taken
        log.actions.append(action)
        log.rewards.append(reward)
        seen = log.see(observation, info)
        if terminated or truncated:
            log.ended_by = "terminated" if terminated else "truncated"
            break
    return log


def _as_type(value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A text keeps its length: one that is longer than every recorded text would be cut off."""
    too_long = dtype.kind == value.dtype.kind == "U" and value.dtype.itemsize > dtype.itemsize
    return value if too_long else value.astype(dtype, copy=False)


def _names(sensors: Arrays, found: list[str]) -> dict[str, str]:
    """Names that differ from those of the adapter. A single observation may have been recorded under another name."""
    keys = [k for k in sensors if split_key(k)[1] != CLOCK_FIELD and split_key(k)[0] != REWARD]
    if not keys or any(f"{name}/{ONLY_FIELD}" in keys for name in found):
        return {}
    if len(found) == len(keys) == 1:
        return {found[0]: keys[0]}
    raise InvalidValue(
        record="the environment",
        field="its observation",
        value=", ".join(found)[:200],
        expected=f"what the baseline recorded: {', '.join(keys)[:200]}",
    )


def split_chunk(answer: Action, chunk: int | None) -> list[Action]:
    """All actions of a chunk are taken before the policy is called again."""
    if chunk is None:
        return [answer]
    columns = {key: np.asarray(value) for key, value in answer.items() if key != OUTCOME_KEY}
    for key, column in columns.items():
        if not column.ndim or len(column) != chunk:
            raise InvalidValue(
                record="the policy's action",
                field=key,
                value=f"of shape {column.shape}",
                expected=f"{chunk} rows, one for each step of the chunk",
            )
    return [{key: column[i] for key, column in columns.items()} for i in range(chunk)]
