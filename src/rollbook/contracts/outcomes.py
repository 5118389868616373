"""Outcomes: the results of an episode that policies are compared by, declared once in one table.

Scoring, runner, server and command line read this table. A new outcome is a new name in `Outcome` and a new row in
`OUTCOMES`; docs/statistics.md lists the files that a new outcome needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["success", "reward_total", "collision_count", "time_to_goal_s"]

OUTCOME_KEY = "_outcome"
"""Key of an action under which a policy states the outcome of its episode. It is not an action."""


@dataclass(frozen=True, kw_only=True)
class OutcomeKind:
    """One row of the table."""

    name: Outcome
    """In a result it stands twice: as `<name>_baseline` and `<name>_candidate`."""
    summary_key: str
    """Key of the mean over a run, in the rollup."""
    label: str
    """Word for it in sentences."""
    type: type[bool] | type[int] | type[float]
    higher_is_better: bool
    lowest: float | None = None
    """Smallest possible value."""
    catastrophe: float | None = None
    """A loss of more than this in one episode is a catastrophe, unless the gate sets another limit. None: there is no
    limit unless the gate sets one."""
    recorded_as: tuple[str, ...]
    """Keys of the episode metadata that hold it, the first one found wins. The public client reads the same keys."""
    also_recorded_as: tuple[str, ...] = ()
    """Keys that other recorders use. They are read last, so that the public client and Rollbook never differ."""


_KINDS = (
    OutcomeKind(
        name="success",
        summary_key="success_rate",
        label="success",
        type=bool,
        higher_is_better=True,
        catastrophe=0.0,
        recorded_as=("success", "next.success"),
        also_recorded_as=("successes",),
    ),
    OutcomeKind(
        name="reward_total",
        summary_key="reward_mean",
        label="reward",
        type=float,
        higher_is_better=True,
        recorded_as=("reward_total", "next.reward_sum", "reward"),
        also_recorded_as=("total_reward", "reward_sum"),
    ),
    OutcomeKind(
        name="collision_count",
        summary_key="collision_rate",
        label="collisions",
        type=int,
        higher_is_better=False,
        lowest=0.0,
        catastrophe=0.0,
        recorded_as=("collision_count",),
    ),
    OutcomeKind(
        name="time_to_goal_s",
        summary_key="time_to_goal_s",
        label="time to goal",
        type=float,
        higher_is_better=False,
        lowest=0.0,
        recorded_as=("time_to_goal_s",),
    ),
)

OUTCOMES: Mapping[Outcome, OutcomeKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
