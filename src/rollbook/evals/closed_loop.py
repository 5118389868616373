"""Closed loop: runs the environment of a baseline again with the candidate, and measures the outcome.

The environment starts from the baseline's seed. The outcome is read from what the environment reports:

- `success`: the last `success` or `is_success` in an info. Without any, it is unknown.
- `reward_total`: the sum of the rewards; unknown unless all are finite.
- `collision_count`: the last `collision_count` in an info, else the number of steps with a true `collision` or
  `collided`.
- `time_to_goal_s`: for a success, the time of the first step that reported it; needs the rate (`fps`).
- An `outcome` in the last info, with the fields of EpisodeOutcome, replaces all of these.

First the recorded actions are played again. If they lead to the recorded observations, bit for bit, the environment is
deterministic and has the baseline's situation, so a difference is due to the candidate.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.evals import LONGEST_ERROR, EvalResult, Evidence
from rollbook.contracts.gate import Gate
from rollbook.contracts.outcomes import OUTCOME_KEY, OUTCOMES
from rollbook.contracts.streams import CLOCK_FIELD, ONLY_FIELD, split_key
from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.evals.baselines import Arrays, Baseline
from rollbook.evals.environments import (
    Environment,
    EnvironmentFactory,
    action_for,
    close_environment,
    declared_fps,
    env_version_of,
    make_environment,
    observed,
)
from rollbook.evals.policies import (
    Action,
    Observation,
    Policy,
    ReplayEpisode,
    StepContext,
    as_policy,
)
from rollbook.scoring.actions import stack_actions
from rollbook.scoring.metrics import action_l2_distance, ood_action_share, result_metrics
from rollbook.scoring.run_rollup import rollup

MOST_STEPS = 10_000
_REWARD = "reward"
_SUCCESS_KEYS = ("is_success", "success")
_COLLISION_KEYS = ("collision", "collided")

Array = NDArray[Any]
Outcome = dict[str, bool | int | float | None]


@dataclass(frozen=True, slots=True)
class ClosedLoopRun:
    """The candidate in the baseline's environment."""

    outcome: Outcome
    """Measured; None where the environment reports nothing."""
    baseline_outcome: Outcome
    """The outcome of the recorded actions, played again, if they led to the recorded observations. Both sides are then
    measured by the same environment, even if its reward function has changed. Otherwise the recorded outcome."""
    repro: dict[str, Any]
    actions: list[Action]
    ended_by: str
    """`terminated`, `truncated` or `max_steps`."""
    fps: float | None = None

    @property
    def t_ns(self) -> NDArray[np.int64] | None:
        """The time of each action, where the rate is known."""
        if self.fps is None:
            return None
        ticks = np.arange(len(self.actions), dtype=np.float64)
        return np.rint(ticks * 1e9 / self.fps).astype(np.int64)

    @property
    def evidence(self) -> dict[str, Evidence]:
        found: dict[str, Evidence] = {
            name: "not_measured" if value is None else "closed_loop"
            for name, value in self.outcome.items()
        }
        return {**found, "actions": "closed_loop" if self.actions else "not_measured"}


def run_closed_loop(
    factory: EnvironmentFactory,
    baseline: Baseline,
    policy: Policy,
    *,
    repeat: int = 1,
    max_steps: int = MOST_STEPS,
    check_determinism: bool = True,
) -> ClosedLoopRun:
    """Errors of the policy and of the environment are raised.

    The first of `repeat` runs gives the outcome. If another run observes something else, the set-up is not
    deterministic. If the baseline was cut off after a number of steps, the candidate gets the same number.
    """
    if repeat < 1 or max_steps < 1:
        message = f"repeat={repeat}, max_steps={max_steps}; both have to be at least 1"
        raise ConfigurationError(message=message)
    steps = min(max_steps, _recorded_limit(baseline) or max_steps)
    replayed = _replayed(factory, baseline, max_steps) if check_determinism else None
    deterministic = None if replayed is None else replayed.leads_to(baseline)
    runs = [_play(factory, baseline, policy, steps) for _ in range(repeat)]
    if any(run.traces() != runs[0].traces() for run in runs[1:]):
        deterministic = False
    recorded: Outcome = {name: baseline.outcome.get(name) for name in OUTCOMES}
    if replayed is not None:
        again = replayed.outcome()
        if deterministic:
            recorded = {
                name: recorded[name] if again[name] is None else again[name] for name in OUTCOMES
            }
        elif _contradicts(again, recorded):
            deterministic = False
    return ClosedLoopRun(
        outcome=runs[0].outcome(),
        baseline_outcome=recorded,
        repro=_repro(baseline, runs[0].env_version, deterministic),
        actions=runs[0].actions,
        ended_by=runs[0].ended_by,
        fps=runs[0].fps,
    )


def _contradicts(again: Outcome, recorded: Mapping[str, Any]) -> bool:
    """Whether an outcome that both know differs."""
    known = [(again[name], recorded[name]) for name in OUTCOMES if again[name] is not None]
    return any(
        said is not None and not math.isclose(value, said, rel_tol=1e-6, abs_tol=1e-9)
        for value, said in known
        if value is not None
    )


def _recorded_limit(baseline: Baseline) -> int | None:
    metadata = baseline.metadata
    limit = metadata.get("steps") if metadata.get("ended_by") == "max_steps" else None
    return limit if isinstance(limit, int) and limit > 0 else None


def _repro(
    baseline: Baseline, env_version: str | None, deterministic: bool | None
) -> dict[str, Any]:
    versions = (baseline.env_version, env_version)
    return {
        "env_version": {"baseline": versions[0], "candidate": versions[1]},
        "seed": {"baseline": baseline.seed, "candidate": baseline.seed},
        "env_match": None if None in versions else versions[0] == versions[1],
        "deterministic": deterministic,
    }


def closed_loop_metrics(run: ClosedLoopRun, baseline: Baseline) -> dict[str, Any]:
    """The metrics of one result. After the first step the two policies act in different states, so the distance of
    their actions shows only that something changed."""
    candidate, recorded = stack_actions(run.actions), baseline.actions or {}
    return result_metrics(
        baseline=run.baseline_outcome,
        candidate=run.outcome,
        evidence=run.evidence,
        l2=action_l2_distance(recorded, candidate),
        ood=ood_action_share(recorded, candidate),
        step_count=len(run.actions),
        repro=run.repro,
        ended_by=run.ended_by,
    )


# ---------------------------------------------------------------------------------------- one run


@dataclass(slots=True)
class _Episode:
    """What is noted of one run of an environment."""

    fps: float | None
    env_version: str | None
    names: Mapping[str, str]
    """Keys of observations that were recorded under other names than the environment's own."""
    types: Mapping[str, np.dtype[Any]]
    actions: list[Action] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    ended_by: str = "max_steps"
    observations: int = 0
    _hashes: dict[str, Any] = field(default_factory=dict)
    _success: bool | None = None
    _first_success: int | None = None
    _collisions: int | None = None
    _counted: int | None = None
    _said: Mapping[str, Any] = field(default_factory=dict)

    def see(self, observation: Any, info: Mapping[str, Any]) -> Observation:
        """Notes an observation. Returns it as the policy sees it: with the keys and types of the recording."""
        seen: Observation = {}
        for name, value in observed(observation):
            key = self.names.get(name, f"{name}/{ONLY_FIELD}")
            shown = value.astype(self.types.get(key, value.dtype), copy=False)
            self._hashes.setdefault(key, hashlib.sha256()).update(shown.tobytes())
            seen[key] = shown
            if (now := self.t_ns) is not None:
                seen[f"{split_key(key)[0]}/{CLOCK_FIELD}"] = np.int64(now)
        self.observations += 1
        self._note(info)
        if f"{_REWARD}/{ONLY_FIELD}" in self.types:
            # a reward is recorded at the end of its step, so here the reward of the step before is known
            seen[f"{_REWARD}/{ONLY_FIELD}"] = np.float64(
                self.rewards[-1] if self.rewards else np.nan
            )
        return seen

    @property
    def t_ns(self) -> int | None:
        if self.fps is None:
            return None
        return round(len(self.rewards) * 1e9 / self.fps)

    def add_reward(self, reward: Any) -> None:
        number = np.asarray(reward)
        if number.size != 1 or number.dtype.kind not in "biuf":
            raise InvalidValue(
                record="the environment's step",
                field="reward",
                value=repr(reward)[:80],
                expected="one number",
            )
        self.rewards.append(float(number.item()))

    def _note(self, info: Mapping[str, Any]) -> None:
        success = _first_boolean(info, _SUCCESS_KEYS)
        if success is not None:
            self._success = success
            if success and self._first_success is None:
                self._first_success = len(self.rewards)
        collided = _first_boolean(info, _COLLISION_KEYS)
        if collided is not None:
            self._collisions = (self._collisions or 0) + collided
        counted = _number(info.get("collision_count"))
        self._counted = self._counted if counted is None else int(counted)
        said = info.get("outcome")
        self._said = said if isinstance(said, Mapping) else {}

    def outcome(self) -> Outcome:
        total = math.fsum(self.rewards) if np.isfinite(self.rewards).all() else math.nan
        reached = self._first_success if self._success else None
        found: Outcome = {
            "success": self._success,
            "reward_total": total if self.rewards and math.isfinite(total) else None,
            "collision_count": self._collisions if self._counted is None else self._counted,
            "time_to_goal_s": None if reached is None or self.fps is None else reached / self.fps,
        }
        for name, kind in OUTCOMES.items():
            number = _number(self._said.get(name))
            if number is not None:
                found[name] = kind.type(number)
        return {name: found.get(name) for name in OUTCOMES}

    def traces(self) -> dict[str, str]:
        """Digests of everything that was observed."""
        return {key: each.hexdigest() for key, each in self._hashes.items()}

    def leads_to(self, baseline: Baseline) -> bool | None:
        """Whether this run has the recorded observations; None where none were recorded."""
        recorded = baseline.sensors or {}
        shared = {key: each for key, each in self._hashes.items() if key in recorded}
        if not shared:
            return None
        return all(
            len(recorded[key]) == self.observations
            and hashlib.sha256(_bytes_of(recorded[key])).digest() == each.digest()
            for key, each in shared.items()
        )


def _bytes_of(array: Array) -> memoryview:
    """Without a copy, unless the array is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _play(
    factory: EnvironmentFactory, baseline: Baseline, policy: Policy, max_steps: int
) -> _Episode:
    episode = ReplayEpisode(id=baseline.id, step_count=None, record=baseline.record)
    with _open_environment(factory, episode) as environment:
        observation, info = _answered("reset", environment.reset(seed=baseline.seed), 2)
        log = _log(environment, baseline, observation)
        seen = log.see(observation, info)
        policy.reset(episode)
        waiting: list[Action] = []
        while len(log.rewards) < max_steps:
            step = len(log.rewards)
            if not waiting:
                context = StepContext(step, step == 0, step + 1 == max_steps, log.t_ns, episode)
                waiting = _split_chunk(policy.act(seen, context), policy.chunk)
            action = waiting.pop(0)
            stepped = environment.step(action_for(environment, action))
            observation, reward, terminated, truncated, info = _answered("step", stepped, 5)
            log.actions.append(action)
            log.add_reward(reward)
            seen = log.see(observation, info)
            if terminated or truncated:
                log.ended_by = "terminated" if terminated else "truncated"
                break
    return log


def _answered(what: str, answer: Any, parts: int) -> tuple[Any, ...]:
    """Refuses tuples of another length, which older environments return, and plain observations."""
    if isinstance(answer, tuple) and len(answer) == parts and isinstance(answer[-1], Mapping):
        return answer
    found = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__
    expected = "(observation, reward, terminated, truncated, info)"
    raise InvalidValue(
        record="the environment",
        field=f"{what}()",
        value=found,
        expected="(observation, info)" if what == "reset" else expected,
    )


@contextmanager
def _open_environment(factory: EnvironmentFactory, episode: ReplayEpisode) -> Iterator[Environment]:
    environment = make_environment(factory, episode)
    try:
        yield environment
    finally:
        close_environment(environment)


def _log(environment: Environment, baseline: Baseline, first: Any) -> _Episode:
    sensors = baseline.sensors or {}
    fps = baseline.record.fps if baseline.record is not None else None
    return _Episode(
        fps=fps or declared_fps(environment),
        env_version=env_version_of(environment),
        names=_names(sensors, [name for name, _ in observed(first)]),
        types={key: array.dtype for key, array in sensors.items()},
    )


def _names(sensors: Arrays, found: list[str]) -> dict[str, str]:
    """Names that differ from those of the adapter. A single observation may have been recorded under another name."""
    keys = [k for k in sensors if split_key(k)[1] != CLOCK_FIELD and split_key(k)[0] != _REWARD]
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


def _split_chunk(answer: Action, chunk: int | None) -> list[Action]:
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


def _first_boolean(info: Mapping[str, Any], keys: tuple[str, ...]) -> bool | None:
    number = next((_number(info[key]) for key in keys if key in info), None)
    return None if number is None else bool(number)


def _number(value: Any) -> float | None:
    """One finite number or boolean; None for anything else."""
    given = np.asarray(value)
    if given.size != 1 or given.dtype.kind not in "biuf":
        return None
    number = float(given.item())
    return number if math.isfinite(number) else None


# --------------------------------------------------------------------- the baseline, played again


class RecordedActions:
    """A policy that repeats the recorded actions of the baseline, step by step."""

    def __init__(self, actions: Mapping[str, Array]) -> None:
        self._actions = {
            k: v for k, v in actions.items() if split_key(k)[1] != CLOCK_FIELD and v.ndim
        }
        self.steps = min((len(values) for values in self._actions.values()), default=0)

    def act(self, observation: Observation, context: StepContext) -> Action:
        return {key: values[context.step] for key, values in self._actions.items()}


def _replayed(factory: EnvironmentFactory, baseline: Baseline, max_steps: int) -> _Episode | None:
    """None when the baseline has no actions."""
    recorded = RecordedActions(baseline.actions or {})
    if not recorded.steps:
        return None
    return _play(factory, baseline, as_policy(recorded), min(recorded.steps, max_steps))


def calibrate(
    factory: EnvironmentFactory,
    baselines: Iterable[Baseline],
    *,
    policy: Any = None,
    gate: Gate | None = None,
    max_steps: int = MOST_STEPS,
) -> dict[str, Any]:
    """Compares the baseline with itself, to show what a comparison in this set-up gives when nothing has changed.

    Plays the recorded actions again, or runs its `policy` if given. The summary is that of a run; every difference in
    it is noise. `calibration` counts the episodes that had the recorded observations again.
    """
    results = [_against_itself(factory, each, policy, max_steps) for each in baselines]
    verdicts = [each.metrics.get("repro", {}).get("deterministic") for each in results]
    summary = rollup(results, gate).to_wire()
    summary["calibration"] = {
        "replayed": "actions" if policy is None else "policy",
        "deterministic": verdicts.count(True),
        "nondeterministic": verdicts.count(False),
        "unknown": verdicts.count(None),
    }
    return summary


def _against_itself(
    factory: EnvironmentFactory, baseline: Baseline, policy: Any, max_steps: int
) -> EvalResult:
    recorded = RecordedActions(baseline.actions or {})
    limit = max_steps if policy is not None else max(1, min(recorded.steps, max_steps))
    try:
        run = run_closed_loop(
            factory, baseline, as_policy(recorded if policy is None else policy), max_steps=limit
        )
        metrics = closed_loop_metrics(run, baseline)
    except Exception as error:  # noqa: BLE001 - policy or environment failed: a failed result, as in a run
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        return EvalResult(baseline.id, None, "failed", {}, reason[:LONGEST_ERROR])
    return EvalResult(baseline.id, None, "complete", metrics)
