"""Replay: one baseline through one policy, open loop: it is shown what was recorded, whatever it does.

Nothing here knows of a server. So its outcomes are known only as far as the policy itself asserts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.evals.baselines import Arrays, Baseline
from rollbook.evals.frames import EpisodeFrames
from rollbook.evals.policies import (
    OUTCOME_KEY,
    Action,
    Policy,
    ReplayEpisode,
    StepContext,
    checked_action,
)
from rollbook.scoring.actions import CLOCK_FIELD, ActionColumns, split_key, stack_actions
from rollbook.scoring.metrics import (
    action_l2_distance,
    compare_actions,
    ood_action_share,
    result_metrics,
)
from rollbook.scoring.observations import Align, ObservationTable, aligned_to, observation_table
from rollbook.scoring.outcomes import candidate_outcome
from rollbook.scoring.reference import ActionReference

DISTANCE_KEY = "/replay/scaled_distance"
"""Per step, beside the actions of a replay episode: one file instead of two is half the uploads."""
STEPS_AT_ONCE = 256
"""That a batched policy is given."""

Frames: TypeAlias = "bool | Mapping[str, str]"
Clock: TypeAlias = "NDArray[np.int64]"


@dataclass(slots=True)
class Replay:
    """What came of one baseline against the candidate."""

    metrics: dict[str, Any]
    """As a result carries them: scoring.metrics.result_metrics makes them."""
    actions: Arrays | None = None
    """What the candidate did, by the keys it used, with their clocks; None when it never acted."""
    per_step: Arrays | None = None
    """How far it was from the baseline at each step."""
    step_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    align: Align = "index"
    clock: str | None = None
    """Whose `_t_ns` gives the steps, when they go by time."""
    frames: Frames = False
    """True: pictures of the video as `/video/rgb`; `{"video": key}` gives them another name."""
    batch: int = STEPS_AT_ONCE
    reference: ActionReference | None = None
    """Of the whole set of baselines; without one each baseline is its own."""


def replay_one(baseline: Baseline, policy: Policy, options: ReplayOptions) -> Replay:
    """What the policy raises is raised. An episode without sensors has no steps, and the policy is not called."""
    table, steps = act_through(baseline, policy, options)
    return _compared(baseline, table, stack_actions(steps), steps, options)


# ------------------------------------------------------------------------------------------ acting


def act_through(
    baseline: Baseline, policy: Policy, options: ReplayOptions
) -> tuple[ObservationTable, list[Action]]:
    """The recorded steps, and what the policy answered to each."""
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
        return list(_in_batches(table, frames, policy, episode, options.batch))
    if policy.chunk is not None:
        return list(_in_chunks(table, frames, policy, episode, policy.chunk))
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


def _in_chunks(
    table: ObservationTable,
    frames: EpisodeFrames,
    policy: Policy,
    episode: ReplayEpisode,
    chunk: int,
) -> Iterator[Action]:
    """The policy sees the first step of each chunk and answers all of them; what lies beyond the end is cut off."""
    for start in range(0, len(table), chunk):
        stop = min(start + chunk, len(table))
        context = _context(table, start, stop, episode)
        answer = policy.act(frames.added_to(table.row(start), start), context)
        yield from _apart(answer, chunk, stop - start, start)


def _in_batches(
    table: ObservationTable,
    frames: EpisodeFrames,
    policy: Policy,
    episode: ReplayEpisode,
    batch: int,
) -> Iterator[Action]:
    """Steps that do not depend on each other: what was recorded comes next, whatever the policy answers."""
    for start in range(0, len(table), batch):
        stop = min(start + batch, len(table))
        context = _context(table, start, stop, episode)
        answer = policy.act_batch(frames.added_to_batch(table.batch(start, stop), start), context)
        yield from _apart(answer, stop - start, stop - start, start)


def _context(table: ObservationTable, start: int, stop: int, episode: ReplayEpisode) -> StepContext:
    at = None if table.t_ns is None else int(table.t_ns[start])
    return StepContext(start, start == 0, stop == len(table), at, episode)


def _apart(answer: Action, rows: int, steps: int, first: int) -> list[Action]:
    """One action per step, of an answer for many. `_outcome` stays with the last."""
    columns = {
        key: _rows(key, value, rows, first) for key, value in answer.items() if value is not None
    }
    said = columns.pop(OUTCOME_KEY, None)
    apart: list[Action] = [
        {key: column[row] for key, column in columns.items()} for row in range(steps)
    ]
    if said is not None:
        apart[-1][OUTCOME_KEY] = said
    return apart


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
    candidate: ActionColumns,
    steps: list[Action],
    options: ReplayOptions,
) -> Replay:
    said = candidate_outcome(steps[-1].get(OUTCOME_KEY)) if steps else {}
    recorded = baseline.actions or {}
    on_steps = recorded if table.t_ns is None else aligned_to(recorded, table.t_ns, options.align)
    comparison = None
    if steps and recorded:
        comparison = compare_actions(on_steps, candidate, options.reference, t_ns=table.t_ns)
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
    """No environment was run, so there is nothing to say about the candidate's."""
    return {
        "env_version": {"baseline": baseline.env_version, "candidate": None},
        "seed": {"baseline": baseline.seed, "candidate": None},
        "env_match": None,
        "deterministic": None,
    }


def with_clocks(arrays: Mapping[str, Any], t_ns: Clock | None) -> Arrays:
    """As recordings have them: every namespace with its times, where they are known."""
    timed: Arrays = dict(arrays)
    if t_ns is not None:
        for key in arrays:
            namespace, _ = split_key(str(key))
            timed.setdefault(f"{namespace}/{CLOCK_FIELD}", t_ns)
    return timed
