"""RolloutRecipeConfig: a selection policy, a horizon, and the number of chains to keep."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rollbook.errors import ConfigurationError
from rollbook.generate.config_checks import invalid_setting
from rollbook.generate.rollout.branching import BranchSchedule
from rollbook.generate.rollout.guards import Guards
from rollbook.generate.rollout.learned_scorers import (
    digest_of_policy,
    learned_scorer,
    revision_of,
    run_policy,
)
from rollbook.generate.rollout.policies import CounterfactualSelectionPolicy
from rollbook.generate.rollout.scorers import SCORERS, Scorer, scorer_named

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
    _Policy.EPSILON_GREEDY: "rri_greedy_target",
}
_DEFAULT_EPSILON = 0.1


class RolloutRecipeConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True
):
    """One rollout policy that runs from every root."""

    name: str
    """Stored as `branch_schedule_id`; also a part of every rollout id."""
    selection_policy: CounterfactualSelectionPolicy
    scorer: str | None = None
    """A built-in scorer, the folder of a training run, or `module:attr` of a user's function; None for the policy's
    default."""
    scorer_policy: str | UnsetType = UNSET
    """Of a run folder: its policy as `REVISION@DIGEST`. It names the policy in digests and stores, where the path
    does not count. Read from the folder unless it is given; a folder with another policy is refused."""
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
    epsilon: float | UnsetType = UNSET
    """Of `epsilon_greedy`: the probability of a choice by chance; 0.1 unless it is given. Other policies have none, and
    so their configs keep the digests that they had before there was this setting."""
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
        self._check_epsilon()
        self._check_scorer()
        _ = self.branches, self.guards  # their constructors check the other settings

    def _check_policy(self) -> None:
        """Accepts a policy by its name, as in a config file."""
        try:
            policy = _Policy(self.selection_policy)
        except ValueError as error:
            known = ", ".join(_Policy)
            raise self._invalid("selection_policy", repr(self.selection_policy), known) from error
        msgspec.structs.force_setattr(self, "selection_policy", policy)

    def _check_epsilon(self) -> None:
        if self.selection_policy is not _Policy.EPSILON_GREEDY:
            if self.epsilon is not UNSET:
                only = f"nothing: {self.selection_policy.value} has no epsilon, {_Policy.EPSILON_GREEDY.value} has one"
                raise self._invalid("epsilon", self.epsilon, only)
        elif self.epsilon is UNSET:
            msgspec.structs.force_setattr(self, "epsilon", _DEFAULT_EPSILON)
        elif not 0 <= self.epsilon <= 1:
            raise self._invalid("epsilon", self.epsilon, "a probability from 0 to 1")

    def _check_scorer(self) -> None:
        """Reads which policy a run folder has, and makes its path independent of the working folder."""
        built_in = self.scorer is None or self.scorer in SCORERS
        if self.scorer_policy is UNSET:
            if self.scorer is None or built_in or not os.path.isdir(self.scorer):
                return
            msgspec.structs.force_setattr(self, "scorer_policy", run_policy(self.scorer))
        elif built_in or not (
            revision_of(self.scorer_policy) and digest_of_policy(self.scorer_policy)
        ):
            expected = "REVISION@DIGEST of a run folder, or nothing"
            raise self._invalid("scorer_policy", repr(self.scorer_policy), expected)
        msgspec.structs.force_setattr(self, "scorer", os.path.abspath(self.scorer_name))

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

    @property
    def stored_scorer_name(self) -> str:
        """The scorer's name in a store: that of a run folder is its policy revision."""
        known = self.scorer_policy
        return self.scorer_name if known is UNSET else revision_of(known)

    def loaded_scorer(self) -> Scorer:
        """Raises if it is not known, cannot be loaded, or is not the policy that the recipe was made with."""
        if self.scorer_policy is UNSET:
            return scorer_named(self.scorer_name)
        return learned_scorer(self.scorer_name, self.scorer_policy)

    def decisive_values(self) -> dict[str, Any]:
        """The settings that determine the rollouts, as plain values: of a run folder its policy, not its path."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        if self.scorer_policy is not UNSET:
            del values["scorer"]
        return values

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
