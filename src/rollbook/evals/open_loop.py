"""Open loop: replays one baseline with one policy. The policy sees the recorded observations, whatever it does.

No environment is run, so an outcome is known only if the policy asserts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.outcomes import OUTCOME_KEY
from rollbook.contracts.streams import CLOCK_FIELD
from rollbook.evals.baselines import Arrays, Baseline
from rollbook.evals.frames import EpisodeFrames
from rollbook.evals.options import STEPS_AT_ONCE, ReplayOptions
from rollbook.evals.policies.policy import (
    Action,
    Policy,
    ReplayEpisode,
    StepContext,
    checked_action,
)
from rollbook.evals.worlds.situations import recorded_repro
from rollbook.scoring.actions import key_parts, stack_actions
from rollbook.scoring.metrics import (
    action_l2_distance,
    compare_actions,
    ood_action_share,
    result_metrics,
)
from rollbook.scoring.observations import ObservationTable, aligned_to, observation_table
from rollbook.scoring.outcomes import candidate_outcome
from rollbook.scoring.reference import ActionReference

DISTANCE_KEY = "/replay/scaled_distance"
"""The distance at each step. It is stored with the actions, in one file, to halve the number of uploads."""

_BYTES_AT_ONCE = 8 << 20
_FRAMES_AT_ONCE = 8
"""Limits of one message to a policy in another process."""

Clock: TypeAlias = "NDArray[np.int64]"


@dataclass(slots=True)
class Replay:
    """The candidate's actions on one baseline, and the metrics that compare them."""

    metrics: dict[str, Any]
    """The metrics of an EvalResult, from scoring.metrics.result_metrics."""
    actions: Arrays | None = None
    """The candidate's actions by its own keys, with their clocks; None when it never acted."""
    per_step: Arrays | None = None
    """The distance to the baseline at each step."""
    step_count: int = 0


def replay_one(
    baseline: Baseline,
    policy: Policy,
    options: ReplayOptions,
    reference: ActionReference | None = None,
) -> Replay:
    """Errors of the policy are raised. A baseline without sensors has no steps, and the policy is not called.

    `reference` describes the actions of all baselines; without it each baseline is its own reference.
    """
    table, steps = act_through(baseline, policy, options)
    return _compared(baseline, table, steps, options, reference)


# ------------------------------------------------------------------------------------------ acting


def act_through(
    baseline: Baseline, policy: Policy, options: ReplayOptions
) -> tuple[ObservationTable, list[Action]]:
    """The recorded steps, and the answer of the policy to each."""
    table = observation_table(baseline.sensors, align=options.align, clock=options.clock)
    if not len(table):
        return table, []
    with EpisodeFrames.of(baseline, table, options.frames) as frames:
        return table, _answers(baseline, table, frames, policy, options)


def _answers(
    baseline: Baseline,
    table: ObservationTable,
    frames: EpisodeFrames,
    policy: Policy,
    options: ReplayOptions,
) -> list[Action]:
    episode = ReplayEpisode(baseline.id, len(table), baseline.record)
    policy.reset(episode)
    if policy.batched:
        batch = options.batch or STEPS_AT_ONCE
        return list(_in_batches(table, frames, policy, episode, batch))
    if policy.chunk is not None:
        return list(_in_chunks(table, frames, policy, episode, policy.chunk))
    if policy.takes_steps:
        return list(_in_portions(table, frames, policy))
    return list(_one_by_one(table, frames, policy, episode))


def _one_by_one(
    table: ObservationTable,
    frames: EpisodeFrames,
    policy: Policy,
    episode: ReplayEpisode,
) -> Iterator[Action]:
    plain = policy.plain
    if plain is not None:
        for step in range(len(table)):
            yield checked_action(plain(frames.added_to(table.row(step), step)), step)
        return
    last, t_ns = len(table) - 1, None if table.t_ns is None else table.t_ns.tolist()
    for step in range(len(table)):
        observation = frames.added_to(table.row(step), step)
        at = None if t_ns is None else t_ns[step]
        yield policy.act(observation, StepContext(step, step == 0, step == last, at, episode))


def _in_portions(
    table: ObservationTable, frames: EpisodeFrames, policy: Policy
) -> Iterator[Action]:
    """As one by one, for a policy in another process: many steps go there in one message."""
    size = sum(array.nbytes // max(1, len(array)) for array in table.arrays.values())
    size += sum(array.nbytes for array in table.still.values())
    portion = max(1, min(STEPS_AT_ONCE, _BYTES_AT_ONCE // max(1, size)))
    if frames.shown:
        portion = min(portion, _FRAMES_AT_ONCE)
    t_ns = None if table.t_ns is None else table.t_ns.tolist()
    for start in range(0, len(table), portion):
        stop = min(start + portion, len(table))
        observations = frames.added_to_batch(table.batch(start, stop), start)
        at = None if t_ns is None else t_ns[start:stop]
        yield from policy.act_steps(observations, start, len(table) - 1, at)


def _in_chunks(
    table: ObservationTable,
    frames: EpisodeFrames,
    policy: Policy,
    episode: ReplayEpisode,
    chunk: int,
) -> Iterator[Action]:
    """The policy sees the first step of each chunk and answers all its steps. Answers beyond the end are dropped."""
    for start in range(0, len(table), chunk):
        stop = min(start + chunk, len(table))
        context = _context(table, start, stop, episode)
        answer = policy.act(frames.added_to(table.row(start), start), context)
        yield from _split_by_step(answer, chunk, stop - start, start)


def _in_batches(
    table: ObservationTable,
    frames: EpisodeFrames,
    policy: Policy,
    episode: ReplayEpisode,
    batch: int,
) -> Iterator[Action]:
    """Steps can be batched because the next observation is the recorded one, whatever the policy answers."""
    for start in range(0, len(table), batch):
        stop = min(start + batch, len(table))
        context = _context(table, start, stop, episode)
        answer = policy.act_batch(frames.added_to_batch(table.batch(start, stop), start), context)
        yield from _split_by_step(answer, stop - start, stop - start, start)


def _context(table: ObservationTable, start: int, stop: int, episode: ReplayEpisode) -> StepContext:
    at = None if table.t_ns is None else int(table.t_ns[start])
    return StepContext(start, start == 0, stop == len(table), at, episode)


def _split_by_step(answer: Action, rows: int, steps: int, first: int) -> list[Action]:
    """One action for each step of an answer for many. `_outcome` stays with the last."""
    columns = {
        key: _rows(key, value, rows, first) for key, value in answer.items() if value is not None
    }
    said = columns.pop(OUTCOME_KEY, None)
    actions: list[Action] = [
        {key: column[row] for key, column in columns.items()} for row in range(steps)
    ]
    if said is not None:
        actions[-1][OUTCOME_KEY] = said
    return actions


def _rows(key: str, value: Any, rows: int, first: int) -> Any:
    if key == OUTCOME_KEY:
        return value
    column = np.asarray(value)
    if not column.ndim or len(column) != rows:
        raise ValueError(
            f"the policy returned {key!r} of shape {column.shape} at step {first}, expected {rows} rows, one per step"
        )
    return column


# --------------------------------------------------------------------------------------- comparing


def _compared(
    baseline: Baseline,
    table: ObservationTable,
    steps: list[Action],
    options: ReplayOptions,
    reference: ActionReference | None,
) -> Replay:
    candidate = stack_actions(steps)
    said = candidate_outcome(steps[-1].get(OUTCOME_KEY)) if steps else {}
    recorded = baseline.actions or {}
    on_steps = recorded if table.t_ns is None else aligned_to(recorded, table.t_ns, options.align)
    comparison = None
    if steps and recorded:
        comparison = compare_actions(on_steps, candidate, reference, t_ns=table.t_ns)
    metrics = result_metrics(
        baseline=baseline.outcome,
        candidate=said,
        evidence={},
        l2=action_l2_distance(on_steps, candidate),
        ood=ood_action_share(recorded, candidate),
        step_count=len(steps),
        actions=None if comparison is None else comparison.as_metrics(),
        alignment=options.align,
        repro=_not_repeated(baseline),
    )
    distances = None
    if comparison is not None:
        distances = with_clocks({DISTANCE_KEY: comparison.per_step}, table.t_ns)
    return Replay(
        metrics, with_clocks(candidate.arrays(), table.t_ns) or None, distances, len(steps)
    )


def _not_repeated(baseline: Baseline) -> dict[str, Any]:
    """No environment was run, so the candidate has no environment version and no seed."""
    return {
        "env_version": {"baseline": baseline.env_version, "candidate": None},
        "seed": {"baseline": baseline.seed, "candidate": None},
        "env_match": None,
        "deterministic": None,
        **recorded_repro(baseline),
    }


def with_clocks(arrays: Mapping[str, Any], t_ns: Clock | None) -> Arrays:
    """Adds the clock of each namespace, as recordings have it, where times are known."""
    timed: Arrays = dict(arrays)
    if t_ns is not None:
        for key in arrays:
            namespace, _ = key_parts(str(key))
            timed.setdefault(f"{namespace}/{CLOCK_FIELD}", t_ns)
    return timed
