"""RolloutRecipeConfig: a selection policy, a horizon, and the number of chains to keep."""

from __future__ import annotations

from functools import cached_property

import msgspec

from rollbook.errors import ConfigurationError
from rollbook.generate.config_checks import invalid_setting
from rollbook.generate.rollout.branching import BranchSchedule
from rollbook.generate.rollout.guards import Guards
from rollbook.generate.rollout.policies import CounterfactualSelectionPolicy

_Policy = CounterfactualSelectionPolicy
_MOST = 32_767
"""The largest value that a store can hold."""
_DEFAULT_SCORERS = {
    _Policy.FARTHEST_FROM_HISTORY: "farthest_from_history",
    _Policy.FARTHEST_FROM_REFERENCE: "farthest_from_reference",
    _Policy.RANDOM: "random_valid",
    _Policy.RANDOM_VALID: "random_valid",
    _Policy.ORACLE_GREEDY: "rri_greedy_target",
    _Policy.TEMPERATURE_SOFTMAX: "rri_greedy_target",
}


class RolloutRecipeConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True
):
    """One rollout policy that runs from every root."""

    name: str
    """Stored as `branch_schedule_id`; also a part of every rollout id."""
    selection_policy: CounterfactualSelectionPolicy
    scorer: str | None = None
    """A built-in scorer, or `module:attr` of a user's function; None for the policy's default."""
    horizon: int = 2
    """Most steps of a chain."""
    branch_factor: int = 1
    """Actions kept at every node."""
    beam_width: int | None = None
    """Most chains kept after every step; None for all."""
    branch_factor_schedule: tuple[int, ...] | None = None
    """Actions kept at each step; the last entry repeats."""
    stochastic_branch_factors: tuple[int, ...] | None = None
    """Branch counts of which one is drawn per node."""
    stochastic_branch_probabilities: tuple[float, ...] | None = None
    selection_temperature: float = 1.0
    min_history_distance_m: float = 0.0
    min_sibling_distance_m: float = 0.0
    min_sibling_yaw_deg: float = 0.0
    min_sibling_target_bearing_deg: float = 0.0
    require_sibling_strategy_diversity: bool = False
    seed: int | None = 0
    """Recipes with equal seeds get equal candidates as long as they choose the same ones."""

    def __post_init__(self) -> None:
        self._check_policy()
        if not self.name or not self.name.replace("_", "").replace("-", "").isalnum():
            raise self._invalid("name", repr(self.name), "letters, digits, - and _")
        for field in ("horizon", "branch_factor", "beam_width"):
            value = getattr(self, field)
            if value is not None and not 1 <= value <= _MOST:
                raise self._invalid(field, value, f"at least 1 and at most {_MOST}")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise self._invalid("seed", self.seed, "a whole number of 64 bits")
        if self.scorer == "":
            raise self._invalid("scorer", "''", "a name, or none at all for the policy's own")
        if not 0 < self.selection_temperature < float("inf"):
            raise self._invalid("selection_temperature", self.selection_temperature, "more than 0")
        _ = self.branches, self.guards  # their constructors check the other settings

    def _check_policy(self) -> None:
        """Accepts a policy by its name, as in a config file."""
        try:
            policy = _Policy(self.selection_policy)
        except ValueError as error:
            known = ", ".join(_Policy)
            raise self._invalid("selection_policy", repr(self.selection_policy), known) from error
        msgspec.structs.force_setattr(self, "selection_policy", policy)

    def _invalid(self, field: str, value: object, expected: str) -> ConfigurationError:
        return invalid_setting(f"recipe {self.name!r}: {field}", value, expected)

    @cached_property
    def branches(self) -> BranchSchedule:
        return BranchSchedule(
            branch_factor=self.branch_factor,
            branch_factor_schedule=self.branch_factor_schedule,
            stochastic_branch_factors=self.stochastic_branch_factors,
            stochastic_branch_probabilities=self.stochastic_branch_probabilities,
        )

    @cached_property
    def guards(self) -> Guards:
        return Guards(
            min_history_distance_m=self.min_history_distance_m,
            min_sibling_distance_m=self.min_sibling_distance_m,
            min_sibling_yaw_deg=self.min_sibling_yaw_deg,
            min_sibling_target_bearing_deg=self.min_sibling_target_bearing_deg,
            require_sibling_strategy_diversity=self.require_sibling_strategy_diversity,
        )

    @property
    def scorer_name(self) -> str:
        return self.scorer or _DEFAULT_SCORERS[self.selection_policy]

    @staticmethod
    def default_suite() -> tuple[RolloutRecipeConfig, ...]:
        """Random choice, greedy oracle, oracle with look-ahead, and a softmax over the oracle's scores."""
        return (
            RolloutRecipeConfig(name="random_valid", selection_policy=_Policy.RANDOM_VALID),
            RolloutRecipeConfig(name="oracle_greedy", selection_policy=_Policy.ORACLE_GREEDY),
            RolloutRecipeConfig(
                name="oracle_lookahead",
                selection_policy=_Policy.ORACLE_GREEDY,
                branch_factor=2,
                beam_width=2,
            ),
            RolloutRecipeConfig(
                name="temperature_softmax",
                selection_policy=_Policy.TEMPERATURE_SOFTMAX,
                branch_factor=2,
                beam_width=2,
            ),
        )

    @staticmethod
    def diverse_suite() -> tuple[RolloutRecipeConfig, ...]:
        """Three chains from every root that go to different places."""
        random = RolloutRecipeConfig(
            name="random_valid_diverse",
            selection_policy=_Policy.RANDOM_VALID,
            branch_factor=3,
            beam_width=3,
            require_sibling_strategy_diversity=True,
            min_sibling_distance_m=0.2,
            min_sibling_yaw_deg=20.0,
            min_sibling_target_bearing_deg=20.0,
        )
        return (
            random,
            msgspec.structs.replace(
                random, name="oracle_lookahead_diverse", selection_policy=_Policy.ORACLE_GREEDY
            ),
            msgspec.structs.replace(
                random,
                name="temperature_softmax_diverse",
                selection_policy=_Policy.TEMPERATURE_SOFTMAX,
                selection_temperature=1.25,
                stochastic_branch_factors=(2, 3),
                stochastic_branch_probabilities=(0.5, 0.5),
            ),
        )
