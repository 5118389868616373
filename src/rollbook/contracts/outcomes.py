"""Outcomes: the results of an episode that policies are compared by, declared once in one table.

Scoring, runner, server and command line read this table. A new outcome is a new name in `Outcome` and a new row in
`OUTCOMES`; docs/explain/statistics.md lists the files that a new outcome needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["success", "reward_total", "collision_count", "time_to_goal_s"]

_LARGE, _HUGE = 1e3, 1e9

_PLURALS = {"is": "are", "was": "were", "has": "have"}

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
    is_plural: bool = False
    """Whether the label is a plural: "collisions are"."""
    type: type[bool] | type[int] | type[float]
    higher_is_better: bool
    lowest: float | None = None
    """Smallest possible value."""
    catastrophe: float | None = None
    """A loss of more than this in one episode is a catastrophe, unless the gate sets another limit. None: there is no
    limit unless the gate sets one."""
    unit: str = ""
    """Of a difference, after its number. Differences of success are in points, which are percent of all pairs."""
    recorded_as: tuple[str, ...]
    """Keys of the episode metadata that hold it, the first one found wins. The public client reads the same keys."""
    also_recorded_as: tuple[str, ...] = ()
    """Keys that other recorders use. They are read last, so that the public client and Rollbook never differ."""

    def change_text(self, delta: float) -> str:
        """A difference for people: "+5.1 points", "−0.25", "0 s"."""
        shown = f"{100 * delta:+.1f}" if self.type is bool else _short(delta, "+")
        return ("0" if float(shown.replace(",", "")) == 0 else _with_minus(shown)) + self.unit

    def range_text(self, low: float, high: float) -> str:
        """An interval of differences for people: "+5.1 to +29.2 points"."""
        first, last = (self.change_text(each).removesuffix(self.unit) for each in (low, high))
        return f"{first} to {last}{self.unit}"

    def does(self, verb: Literal["is", "was", "has"]) -> str:
        """The label with its verb: "success is", "collisions are"."""
        return f"{self.label} {_PLURALS[verb] if self.is_plural else verb}"

    def amount_text(self, amount: float) -> str:
        """A limit for people: "10 points", "0.25"."""
        return (f"{100 * amount:g}" if self.type is bool else f"{amount:g}") + self.unit

    def value_text(self, value: float) -> str:
        """A mean for people: "62.5 %", "1.25", "3.1 s"."""
        return (
            f"{100 * value:.1f} %" if self.type is bool else _with_minus(_short(value)) + self.unit
        )


def _short(value: float, sign: str = "") -> str:
    """Three digits, or all digits before the point."""
    whole = _LARGE <= abs(value) < _HUGE
    return f"{value:{sign},.0f}" if whole else f"{value:{sign}.3g}"


def _with_minus(number: str) -> str:
    return number.replace("-", "−")


_KINDS = (
    OutcomeKind(
        name="success",
        summary_key="success_rate",
        label="success",
        type=bool,
        higher_is_better=True,
        catastrophe=0.0,
        unit=" points",
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
        is_plural=True,
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
        unit=" s",
        recorded_as=("time_to_goal_s",),
    ),
)

OUTCOMES: Mapping[Outcome, OutcomeKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
