"""WorldCheck: is the environment of today still the one in which the baseline was recorded?

The recorded actions are played again. The world is verified if they lead to the recorded observations and rewards, bit
for bit, if the environment ends at the same step in the same way, and if it describes itself as it did (spec,
arguments, wrappers, limit of steps). Each difference has a word in `changed`:

    spec, wrappers, max_steps, version     what the environment says about itself
    observations, rewards                  what the recorded actions lead to
    ended_at_step, ended_by                when and how the episode ends
    success, collision_count, …            an outcome that the environment now reports otherwise
    seed_ignored                           the same seed leads to different first observations
    error                                  the recorded actions cannot be played
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.environment_description import (
    STEP_LIMIT_KEY,
    TRUNCATED_BY_KEY,
    EnvironmentDescription,
    changes_of_spec,
)
from rollbook.contracts.evals import LONGEST_ERROR
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.contracts.reported_outcome import KnownOutcome
from rollbook.contracts.streams import CLOCK_FIELD, split_key
from rollbook.errors import ConfigurationError
from rollbook.evals.baselines import Arrays, Baseline
from rollbook.evals.policies.policy import (
    Action,
    Observation,
    ReplayEpisode,
    StepContext,
    as_policy,
)
from rollbook.evals.worlds.environments import (
    Environment,
    EnvironmentFactory,
    env_version_of,
    open_environment,
    reset,
)
from rollbook.evals.worlds.played_episode import REWARD_KEY, PlayedEpisode, play
from rollbook.evals.worlds.situations import observation_digest, probe

_BY_ENVIRONMENT = ("terminated", "truncated")


class RecordedActions:
    """A policy that repeats the recorded actions of the baseline, step by step."""

    def __init__(self, actions: Mapping[str, NDArray[Any]]) -> None:
        self._actions = {
            k: v for k, v in actions.items() if split_key(k)[1] != CLOCK_FIELD and v.ndim
        }
        self.steps = min((len(values) for values in self._actions.values()), default=0)

    def act(self, observation: Observation, context: StepContext) -> Action:
        return {key: values[context.step] for key, values in self._actions.items()}


@dataclass(frozen=True, slots=True)
class WorldCheck:
    step_limit: int | None
    """Steps that the candidate may take, because the baseline could not take more; None for no limit."""
    recorded_steps: int = 0
    verified: bool | None = None
    """None: the recording does not say enough."""
    changed: tuple[str, ...] | None = None
    """None: nothing was compared."""
    deterministic: bool | None = None
    """Whether the recorded actions led to the recorded observations."""
    outcome: KnownOutcome | None = None
    """Of the recorded actions, if they led to what was recorded."""
    start: str | None = None
    """Digest of the first observation."""
    probes: str | None = None
    """Digest of what the probes of the situation led to."""
    error: str | None = None
    """Why the recorded actions could not be played."""

    @classmethod
    def skipped(cls, baseline: Baseline) -> WorldCheck:
        """Nothing is played and nothing is compared."""
        recording = _Recording.of(baseline)
        return cls(recording.step_limit, recording.steps)

    def with_change(self, word: str) -> WorldCheck:
        return replace(self, verified=False, changed=(*(self.changed or ()), word))


def check_world(factory: EnvironmentFactory, baseline: Baseline) -> WorldCheck:
    """Plays the recorded actions, and the probes that tell situations apart, in one environment."""
    recording = _Recording.of(baseline)
    try:
        with open_environment(factory, _episode(baseline)) as environment:
            now = EnvironmentDescription.of(environment)
            said = recording.changes_in_words(now, env_version_of(environment))
            played = recording.play_in(environment)
            start = played.start if played else _start(environment, baseline.seed)
            probes = probe(environment, baseline.seed)
        done = recording.changes_in_deeds(played) if played else []
        noisy = bool(done) and not _plays_again(factory, recording, played)
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001 - the candidate has not acted yet, so this is no fault of its own
        text = f"{type(error).__name__}: {error}".removesuffix(": ")[:LONGEST_ERROR]
        return WorldCheck(recording.step_limit, recording.steps, False, ("error",), error=text)
    changed = [*(said or ()), *(() if noisy else done)]
    as_recorded = played is not None and not done
    return WorldCheck(
        step_limit=recording.step_limit_after(played),
        recorded_steps=recording.steps,
        verified=False if changed or noisy else recording.says_enough(played) or None,
        changed=None if said is None and played is None else tuple(changed),
        deterministic=_led_to_the_recorded(played, done),
        outcome=played.outcome() if played is not None and as_recorded else None,
        start=start,
        probes=probes,
    )


def _episode(baseline: Baseline) -> ReplayEpisode:
    return ReplayEpisode(id=baseline.id, step_count=None, record=baseline.record)


def _start(environment: Environment, seed: int | None) -> str:
    return observation_digest(reset(environment, seed)[0])


def _plays_again(
    factory: EnvironmentFactory, recording: _Recording, played: PlayedEpisode | None
) -> bool:
    """Whether the recorded actions lead to the same once more. If not, noise is the difference, not a change."""
    with open_environment(factory, _episode(recording.baseline)) as environment:
        again = recording.play_in(environment)
    return again is not None and played is not None and again.repeats(played)


def _led_to_the_recorded(played: PlayedEpisode | None, done: list[str]) -> bool | None:
    if played is None:
        return None
    return False if played.as_recorded is None and done else played.as_recorded


@dataclass(frozen=True, slots=True)
class _Recording:
    """What the baseline's recording says about its world."""

    baseline: Baseline
    actions: RecordedActions
    steps: int
    """Recorded actions that were taken."""
    observations: Arrays
    """One row for each step, with or without the one after the last action."""
    ended_by: str | None
    truncated_by: str | None
    step_limit: int | None
    description: EnvironmentDescription | None

    @classmethod
    def of(cls, baseline: Baseline) -> _Recording:
        metadata = baseline.metadata
        actions = RecordedActions(baseline.actions or {})
        taken = _count(metadata.get("steps"))
        steps = actions.steps if taken is None else min(taken, actions.steps)
        ended_by = _text(metadata.get("ended_by"))
        limit = _count(metadata.get(STEP_LIMIT_KEY))
        return cls(
            baseline=baseline,
            actions=actions,
            steps=steps,
            observations={
                key: rows
                for key, rows in (baseline.sensors or {}).items()
                if key != REWARD_KEY and rows.ndim and len(rows) in (steps, steps + 1)
            },
            ended_by=ended_by,
            truncated_by=_text(metadata.get(TRUNCATED_BY_KEY)),
            step_limit=taken or limit if ended_by == "max_steps" else limit,
            description=EnvironmentDescription.recorded_in(metadata),
        )

    def play_in(self, environment: Environment) -> PlayedEpisode | None:
        """None without recorded actions."""
        if not self.steps:
            return None
        return play(
            environment,
            self.baseline,
            as_policy(self.actions),
            self.steps,
            recorded=self.observations,
        )

    def changes_in_words(
        self, now: EnvironmentDescription, env_version: str | None
    ) -> list[str] | None:
        """What the environment says otherwise about itself; None where the recording says nothing."""
        spec = self.baseline.metadata.get("gymnasium_spec")
        versions = (self.baseline.env_version, env_version)
        if self.description is not None:
            words = now.changes(self.description)
        elif spec is not None:
            words = changes_of_spec(now, spec)
        elif None in versions:
            return None
        else:
            words = []
        return words if None in versions or versions[0] == versions[1] else [*words, "version"]

    def changes_in_deeds(self, played: PlayedEpisode) -> list[str]:
        """What the recorded actions led to, compared with what was recorded."""
        words = ["observations"] if played.as_recorded is False else []
        if not self._has_rewards(played.rewards):
            words.append("rewards")
        end = self._changed_end(played)
        if end is not None:
            words.append(end)
        if end != "ended_at_step":
            words += [each for each in self._changed_outcomes(played) if each not in words]
        return words

    def _has_rewards(self, rewards: list[float]) -> bool:
        stored = (self.baseline.sensors or {}).get(REWARD_KEY)
        if stored is None or stored.shape != (self.steps,) or stored.dtype.kind not in "biuf":
            return True
        again = np.asarray(rewards).astype(stored.dtype)
        return np.array_equal(stored[: len(again)], again, equal_nan=stored.dtype.kind == "f")

    def _changed_end(self, played: PlayedEpisode) -> str | None:
        if self.ended_by in _BY_ENVIRONMENT:
            if not played.ended or len(played.rewards) != self.steps:
                return "ended_at_step"
            by_another_limit = self.truncated_by not in (None, played.truncated_by)
            return "ended_by" if played.ended_by != self.ended_by or by_another_limit else None
        if played.ended and len(played.rewards) < self.steps:
            return "ended_at_step"
        return "ended_by" if played.ended and self.ended_by == "max_steps" else None

    def _changed_outcomes(self, played: PlayedEpisode) -> list[str]:
        """Outcomes that both know and that differ."""
        again = played.outcome()
        return [
            "rewards" if name == "reward_total" else name
            for name in OUTCOMES
            if not _same(again[name], self.baseline.outcome.get(name))
        ]

    def says_enough(self, played: PlayedEpisode | None) -> bool:
        """Whether a world without any difference is known to be the same."""
        if played is None or self.description is None or not played.as_recorded:
            return False
        return played.ended or self.ended_by == "max_steps"

    def step_limit_after(self, played: PlayedEpisode | None) -> int | None:
        """A recording that does not say why it ends was cut off, if the environment does not end there either."""
        cut_off = played is not None and not played.ended and self.ended_by is None
        return self.steps if cut_off and self.step_limit is None else self.step_limit


def _same(again: float | None, recorded: Any) -> bool:
    if again is None or recorded is None:
        return True
    return math.isclose(again, recorded, rel_tol=1e-6, abs_tol=1e-9)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
