"""Gate: the rules that a candidate has to pass before it ships, written down before anything is measured.

A gate is data. The server stores it with its digest when the run is created, so that nobody can change the rules
afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Literal, TypeAlias

import msgspec

from rollbook.contracts.evals import MEASURED, Evidence
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.digest import digest_of
from rollbook.errors import ConfigurationError

Role: TypeAlias = Literal["primary", "guard", "info"]
Mode: TypeAlias = Literal["superiority", "non_inferiority"]
Design: TypeAlias = Literal["fixed", "sequential"]
Missing: TypeAlias = Literal["lost", "ignore"]
Tails: TypeAlias = Literal["gaffke", "proven", "scenes"]
LedgerUse: TypeAlias = Literal["print", "decide"]

SUCCESS_MARGIN = 0.10
MOST_LOOKS = 4
LOOK_LEVELS = (0.05, 0.0304, 0.0218, 0.0169)
"""Level of each look at an alpha of .05, for a plan of one to four looks in which each look doubles the pairs."""
FOUND_CLUSTERS = "auto"
NO_CLUSTERS = "none"


class MetricRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of one outcome in the decision."""

    metric: Outcome
    role: Role
    """`primary`: at least one of these has to be better. `guard`: must not be worse. `info`: only shown."""
    margin: float | None = None
    """Largest loss that is accepted, in the unit of the metric. None: hold on any statistically significant loss."""
    catastrophe: float | None = None
    """A loss of more than this in a single episode is a catastrophe, whatever the average is. None: the default of the
    outcome, which is a success that became a failure or one more collision; reward and time have no default."""
    most_catastrophes: int | None = None
    """Hold when there are more. None: they are counted and shown, and hold only on a critical scenario, because equal
    policies have some by chance in noisy episodes."""
    required: bool = False
    """Hold when it was not measured. An outcome that is not required and that no pair has is listed in `left_out`."""

    def __post_init__(self) -> None:
        for name in ("margin", "catastrophe"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise _invalid(
                    f"rules[{self.metric}].{name}", value, "a number that is not negative"
                )
        if self.most_catastrophes is not None and self.most_catastrophes < 0:
            named = f"rules[{self.metric}].most_catastrophes"
            raise _invalid(named, self.most_catastrophes, "a number that is not negative")


class SliceGuard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A slice that is shown to be worse holds the candidate, whatever the average is."""

    by: str
    """What the pairs are divided by: `task`, `scene`, `robot`, `env_version`, `tag`, or a key of the metadata."""
    metric: Outcome = "success"
    margin: float = 0.0
    """A slice vetoes when its loss is shown to be larger than this. All slices of the gate are tested together, at the
    level of the gate (Holm)."""
    least_pairs: int = 10
    """Slices with fewer pairs are shown and cannot veto."""

    def __post_init__(self) -> None:
        if not self.by.strip():
            raise _invalid("guard_slices.by", self.by, "a text that is not blank")
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise _invalid("guard_slices.margin", self.margin, "a number that is not negative")
        if self.least_pairs < 1:
            raise _invalid("guard_slices.least_pairs", self.least_pairs, "a number from 1")


_DEFAULT_RULES = (
    MetricRule(metric="success", role="primary", margin=SUCCESS_MARGIN, required=True),
    MetricRule(metric="reward_total", role="primary"),
    MetricRule(metric="collision_count", role="guard", catastrophe=0.0),
    MetricRule(metric="time_to_goal_s", role="info"),
)


class Gate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`Gate()` is the default: success rate or reward is better, success is not more than 10 points worse, collisions
    are not more, and there are 25 pairs or more."""

    version: Literal["gate.v1", "gate.v2"] = "gate.v2"
    """The fields of a `gate.v1` have the same meaning; those that it does not have are the defaults."""
    mode: Mode = "superiority"
    """`non_inferiority` is for changes that should make no difference, such as a refactoring or a smaller number
    format."""
    design: Design = "fixed"
    """A `sequential` run may be looked at after every episode and stopped early. A `fixed` run detects more with the
    same number of pairs. In a sequential run success can be shown to be better, and the reward if `reward_range` is
    declared."""
    alpha: float = 0.05
    """The level of the tests: 0.05 ships at most one of twenty candidates that are not better."""
    n_min: int = 25
    """Hold when there are fewer pairs."""
    cluster: str = FOUND_CLUSTERS
    """Pairs that share this label are alike and are tested together: `scene`, `task`, or a key of the metadata. `auto`:
    the scene where the pairs have one, else the task. `none`: every pair counts alone."""
    least_clusters: int = 10
    """Hold when there are fewer clusters. A margin may need more."""
    missing: Missing = "lost"
    """`lost`: a missing outcome counts as the worst case, so that losing results never helps. `ignore`: up to
    `1 - min_used_share` of the pairs may be missing, which a candidate can exploit."""
    min_used_share: float = 0.9
    """With `missing = "ignore"`: the share of the pairs that have to be measured on both sides."""
    evidence: tuple[Evidence, ...] = MEASURED
    """Kinds of evidence that are accepted for an outcome that decides."""
    rules: tuple[MetricRule, ...] = _DEFAULT_RULES
    reward_range: tuple[float, float] | None = None
    """Lowest and highest reward that an episode can have. Its width is the worst loss of a pair; a reward outside it
    holds. None: the range that was seen counts, there have to be 150 pairs, and the decision says that a larger loss
    was not ruled out."""
    tails: Tails = "gaffke"
    """How rare large losses are bounded. `gaffke`: strongest, with a level that is conjectured for outcomes of more
    than two values. `proven`: by bets, weaker. `scenes`: whole clusters may be lost too; needs more than 50 of them."""
    looks: int = 1
    """How often the run is judged: 1 to 4 times, each time with twice as many pairs as before. The level of each look
    is lower, so that equal policies ship no more often than with one look."""
    ledger: LedgerUse = "print"
    """The server counts the runs on overlapping baselines. `print`: the corrected level is shown. `decide`: run number
    t is judged at alpha / (t (t + 1))."""
    accept_unverified_environment: bool = False
    """Whether outcomes count although nobody checked that the environment is the recorded one. A baseline without
    recorded actions cannot be checked."""
    accept_retried: bool = False
    """Whether outcomes count although pairs were replayed again after the policy had failed, or the runner had
    ended, in them."""
    guard_slices: tuple[SliceGuard, ...] = ()
    seed: int = 0
    """Seed of the random sign flips, so that the same results give the same decision."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:
            raise _invalid("alpha", self.alpha, "a number between 0 and 0.5")
        if not 1 <= self.n_min <= 1_000_000:
            raise _invalid("n_min", self.n_min, "a number from 1 to 1000000")
        if not self.cluster.strip():
            raise _invalid(
                "cluster", self.cluster, "auto, none, scene, task or a key of the metadata"
            )
        if not 2 <= self.least_clusters <= 1_000_000:
            raise _invalid("least_clusters", self.least_clusters, "a number from 2 to 1000000")
        if not 1 <= self.looks <= MOST_LOOKS:
            raise _invalid("looks", self.looks, f"a number from 1 to {MOST_LOOKS}")
        if self.looks > 1 and self.design == "sequential":
            raise _invalid(
                "looks", self.looks, "1 for the design sequential, which may be looked at any time"
            )
        if self.reward_range is not None:
            low, high = self.reward_range
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise _invalid(
                    "reward_range", list(self.reward_range), "two numbers, the lower one first"
                )
        if not 0 < self.min_used_share <= 1:
            raise _invalid("min_used_share", self.min_used_share, "a share above 0, at most 1")
        if not -(2**63) <= self.seed < 2**63:
            raise _invalid("seed", self.seed, "a whole number of 64 bits")
        self._check_rules()
        for allowed in ("open_loop", "not_measured"):
            if allowed in self.evidence:
                raise _invalid("evidence", allowed, "a kind that says whether an outcome is better")

    def _check_rules(self) -> None:
        roles = {rule.metric: rule.role for rule in self.rules}
        names = [rule.metric for rule in self.rules]
        primaries = [rule for rule in self.rules if rule.role == "primary"]
        if len(roles) != len(names):
            raise _invalid("rules", names, "every metric at most once")
        if not primaries:
            raise _invalid("rules", names, "at least one metric with the role primary")
        if roles.get("time_to_goal_s", "info") != "info" and roles.get("success", "info") == "info":
            # A time exists only where the goal was reached: fewer and easier successes would improve it.
            raise _invalid(
                "rules", names, "success as primary or guard where time_to_goal_s decides"
            )
        if self.mode == "non_inferiority" and all(rule.margin is None for rule in primaries):
            raise _invalid("rules", names, "a primary with a margin for the mode non_inferiority")
        needs_success = self.mode == "superiority" and self.design == "sequential"
        bounded = self.reward_range is not None and roles.get("reward_total") == "primary"
        if needs_success and roles.get("success") != "primary" and not bounded:
            expected = "success as a primary for the design sequential, or reward_total with a reward_range"
            raise _invalid("rules", names, expected)

    @property
    def look_level(self) -> float:
        """The level of each look."""
        if self.alpha == LOOK_LEVELS[0]:
            return LOOK_LEVELS[self.looks - 1]
        return self.alpha / self.looks

    @classmethod
    def for_reward(cls, reward_range: tuple[float, float] | None = None) -> Gate:
        """A gate on the reward alone, for rollout stores, where nothing is a success or a failure."""
        rules = (MetricRule(metric="reward_total", role="primary", required=True),)
        return cls(rules=rules, reward_range=reward_range)

    @classmethod
    def for_baselines(cls, known: Collection[str]) -> Gate:
        """The gate of a run that was given none. `known` are the outcomes that a baseline of the run has.

        If no baseline has a success and some have a reward, the reward has to be better and collisions, where they are
        known, must not be more. In every other case it is `Gate()`.
        """
        if "success" in known or "reward_total" not in known:
            return cls()
        guards = (each for each in _DEFAULT_RULES if each.role == "guard" and each.metric in known)
        return cls(rules=(*cls.for_reward().rules, *guards))

    def rule(self, metric: Outcome) -> MetricRule:
        """The rule of this metric; a metric without one has the role `info`."""
        default = MetricRule(metric=metric, role="info")
        return next((rule for rule in self.rules if rule.metric == metric), default)

    def as_dict(self) -> dict[str, Any]:
        """As JSON values: lists, not tuples."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return plain

    @property
    def digest(self) -> str:
        """Digest of the gate as read back from JSON, so that a margin of 0 and one of 0.0 have the same digest."""
        return digest_of("rollbook.gate", gate_from(self.as_dict()).as_dict())


def gate_from(value: object) -> Gate:
    """Read a gate from decoded JSON or TOML. Missing fields have the values of `Gate()`."""
    try:
        return msgspec.convert(value, Gate)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, ConfigurationError):
            raise cause from None
        hint = f"; metrics are {', '.join(OUTCOMES)}" if str(error).endswith(".metric`") else ""
        raise ConfigurationError(message=f"the gate is not right: {error}{hint}") from error


def _invalid(field: str, value: object, expected: str) -> ConfigurationError:
    return ConfigurationError(message=f"gate.{field} is {value!r}, expected {expected}")
