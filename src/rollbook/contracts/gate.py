"""Gate: what has to be shown before a candidate ships, written down before anything is measured.

It is data: stored with the run when that is created, and digested, so that nobody can move the bar afterwards.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import msgspec

from rollbook.contracts.evals import OUTCOMES, Evidence
from rollbook.digest import digest_of
from rollbook.errors import ConfigurationError

Outcome: TypeAlias = Literal["success", "reward_total", "collision_count", "time_to_goal_s"]
Role: TypeAlias = Literal["primary", "guard", "info"]
Mode: TypeAlias = Literal["superiority", "non_inferiority"]
Design: TypeAlias = Literal["fixed", "sequential"]

SUCCESS_MARGIN = 0.10


class MetricRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one outcome has to do with the decision."""

    metric: Outcome
    role: Role
    """`primary`: one of these has to be better. `guard`: must not be worse. `info`: is shown, and decides nothing."""
    margin: float | None = None
    """How much worse than the baseline is still accepted, in the metric's own unit; None where a guard only asks that
    nothing points to a loss."""
    catastrophe: float | None = None
    """A loss in a single episode of more than this counts as a catastrophe, whatever the average says. None is: a
    success that became a failure, a collision more; for reward and time there is none unless it is said here."""
    most_catastrophes: int | None = None
    """Hold when there are more. None: they are counted and shown, and hold on a critical scenario alone, for in noisy
    episodes chance makes some of them for equal policies too."""
    required: bool = False
    """Hold when it was not measured. One that is not required, and that no pair has, is left out and named."""

    def __post_init__(self) -> None:
        for name in ("margin", "catastrophe"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise _wrong(f"rules[{self.metric}].{name}", value, "a number that is not negative")
        if self.most_catastrophes is not None and self.most_catastrophes < 0:
            named = f"rules[{self.metric}].most_catastrophes"
            raise _wrong(named, self.most_catastrophes, "a number that is not negative")


_DEFAULT_RULES = (
    MetricRule(metric="success", role="primary", margin=SUCCESS_MARGIN, required=True),
    MetricRule(metric="reward_total", role="primary"),
    MetricRule(metric="collision_count", role="guard", catastrophe=0.0),
    MetricRule(metric="time_to_goal_s", role="info"),
)


class Gate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`Gate()` is the default: a better success rate or reward, success not more than 10 points worse, no more
    collisions, 25 pairs or more."""

    version: Literal["gate.v1"] = "gate.v1"
    mode: Mode = "superiority"
    """`non_inferiority` is for changes that should change nothing: a refactoring, a smaller number format."""
    design: Design = "fixed"
    """`sequential` may be looked at after every episode and stopped early; `fixed` finds more with the same number.
    Only success can be shown to be better while one looks."""
    alpha: float = 0.05
    n_min: int = 25
    min_used_share: float = 0.9
    """Of the pairs, those that have to have been measured on both sides."""
    evidence: tuple[Evidence, ...] = ("closed_loop", "counterfactual")
    """What a metric that decides may stand on."""
    rules: tuple[MetricRule, ...] = _DEFAULT_RULES
    seed: int = 0
    """Of resamples and random sign flips, so that the same results give the same decision."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:
            raise _wrong("alpha", self.alpha, "a number between 0 and 0.5")
        if not 1 <= self.n_min <= 1_000_000:
            raise _wrong("n_min", self.n_min, "a number from 1 to 1000000")
        if not 0 < self.min_used_share <= 1:
            raise _wrong("min_used_share", self.min_used_share, "a share above 0, at most 1")
        if not -(2**63) <= self.seed < 2**63:
            raise _wrong("seed", self.seed, "a whole number of 64 bits")
        self._check_rules()
        for allowed in ("open_loop", "not_measured"):
            if allowed in self.evidence:
                raise _wrong("evidence", allowed, "a kind that says whether an outcome is better")

    def _check_rules(self) -> None:
        roles = {rule.metric: rule.role for rule in self.rules}
        names = [rule.metric for rule in self.rules]
        primaries = [rule for rule in self.rules if rule.role == "primary"]
        if len(roles) != len(names):
            raise _wrong("rules", names, "every metric at most once")
        if not primaries:
            raise _wrong("rules", names, "at least one metric with the role primary")
        if roles.get("time_to_goal_s", "info") != "info" and roles.get("success", "info") == "info":
            # it only exists where the goal was reached: fewer and easier successes would make it better
            raise _wrong("rules", names, "success as primary or guard where time_to_goal_s decides")
        if self.mode == "non_inferiority" and all(rule.margin is None for rule in primaries):
            raise _wrong("rules", names, "a primary with a margin for the mode non_inferiority")
        looks_often = self.mode == "superiority" and self.design == "sequential"
        if looks_often and roles.get("success") != "primary":
            raise _wrong("rules", names, "success as a primary for the design sequential")

    @classmethod
    def for_reward(cls) -> Gate:
        """Where there is a true reward and no such thing as success, as in a rollout store."""
        return cls(rules=(MetricRule(metric="reward_total", role="primary", required=True),))

    def rule(self, metric: str) -> MetricRule:
        """A metric that has none is information."""
        for rule in self.rules:
            if rule.metric == metric:
                return rule
        assert metric in OUTCOMES
        return MetricRule(metric=metric, role="info")  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, Any]:
        """As it goes through JSON: lists, not tuples."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return plain

    @property
    def digest(self) -> str:
        """Of the gate as it reads back from JSON, where a margin of 0 and one of 0.0 are the same."""
        return digest_of("rollbook.gate", gate_from(self.as_dict()).as_dict())


def gate_from(value: object) -> Gate:
    """From JSON or TOML; what is missing is as in `Gate()`."""
    try:
        return msgspec.convert(value, Gate)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, ConfigurationError):
            raise cause from None
        raise ConfigurationError(message=f"the gate is not right: {error}") from error


def _wrong(field: str, value: object, expected: str) -> ConfigurationError:
    return ConfigurationError(message=f"gate.{field} is {value!r}, expected {expected}")
