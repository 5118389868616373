"""TokenStaleness: the age of each token relative to a target version, and its weight in training.

A rollout that is sampled during a weight update holds tokens of several versions. Artifacts are never changed, because
their digests must stay true; the export for trainers takes weights and keep flags from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.record import Record, checked_choice, checked_int, checked_type
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.digest import Plain
from rollbook.errors import InvalidNumber, MissingColumn

StalenessMode = Literal["drop", "mask", "down_weight"]
_MODES = get_args(StalenessMode)
_HIGHEST_VERSION = np.iinfo(np.int32).max
_CONTEXT_VERSION = -1


class StalenessPolicy(Record, frozen=True, kw_only=True):
    """What happens to tokens that are more than `max_age` versions old."""

    max_age: int
    mode: StalenessMode
    """`drop` leaves them out, `mask` keeps them as context with weight 0, `down_weight` lowers their weight."""
    decay: float = 0.5
    """`down_weight` multiplies the weight by this number for every version above `max_age`."""

    def __post_init__(self) -> None:
        self._check_ints("staleness policy", "max_age", highest=_HIGHEST_VERSION)
        checked_choice(self.mode, _MODES, "staleness policy", "mode")
        checked_type(self.decay, (float, int), "staleness policy", "decay")
        if not 0 <= self.decay <= 1:
            raise InvalidNumber(
                record="staleness policy",
                field="decay",
                value=repr(self.decay),
                expected="a number from 0 to 1",
            )


class TokenStanding(IntEnum):
    FRESH = 0
    STALE = 1
    CONTEXT = 2
    """No policy sampled it: it has no age and is never stale."""
    AHEAD = 3
    """A version newer than the target sampled it: it has no age, and its weight is 0."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenStaleness:
    """One entry per sample of the table, in the order of the table."""

    policy: StalenessPolicy
    target_version: int
    standing: NDArray[np.uint8]
    """The TokenStanding of each token."""
    age: NDArray[np.int32]
    """Age in versions. -1 for context and for tokens ahead of the target, which have no age."""
    weight: NDArray[np.float32]
    keep: NDArray[np.bool_]

    @property
    def counts(self) -> Mapping[str, int]:
        """Tokens by standing: `fresh`, `stale`, `context`, `ahead`."""
        found = np.bincount(self.standing, minlength=len(TokenStanding)).tolist()
        return {standing.name.lower(): found[standing] for standing in TokenStanding}

    @property
    def mean_age(self) -> float | None:
        """Mean over the tokens that have an age; None when there are none."""
        ages = self.age[self.age >= 0]
        return float(ages.mean(dtype=np.float64)) if len(ages) else None

    @property
    def recipe(self) -> dict[str, Plain]:
        """The options that the arrays were made with. An export includes them in its digest."""
        return {
            "target_version": self.target_version,
            "max_age": self.policy.max_age,
            "mode": self.policy.mode,
            "decay": float(self.policy.decay),
        }


def token_staleness(
    table: RolloutTable, target_version: int, policy: StalenessPolicy
) -> TokenStaleness:
    """Compare the `policy_version` of every sample with the target version."""
    checked_type(table, RolloutTable, "token staleness", "table")
    checked_type(policy, StalenessPolicy, "token staleness", "policy")
    checked_int(target_version, "token staleness", "target_version", _HIGHEST_VERSION)
    version = table.samples.get("policy_version")
    if version is None:
        raise MissingColumn(column="policy_version", purpose="per-token staleness")
    context = version == _CONTEXT_VERSION
    ahead = version > target_version
    age = np.where(context | ahead, -1, target_version - version.astype(np.int64)).astype(np.int32)
    stale = age > policy.max_age
    standing = np.full(len(version), TokenStanding.FRESH, np.uint8)
    standing[stale] = TokenStanding.STALE
    standing[context] = TokenStanding.CONTEXT
    standing[ahead] = TokenStanding.AHEAD
    weight = np.ones(len(version), np.float32)
    weight[ahead] = 0
    weight[stale] = _stale_weights(age[stale], policy)
    keep = ~(stale | ahead) if policy.mode == "drop" else np.ones(len(version), np.bool_)
    for array in (standing, age, weight, keep):
        array.flags.writeable = False
    return TokenStaleness(policy, target_version, standing, age, weight, keep)


def _stale_weights(ages: NDArray[np.int32], policy: StalenessPolicy) -> NDArray[np.float32]:
    if policy.mode != "down_weight":
        return np.zeros(len(ages), np.float32)
    with np.errstate(under="ignore"):
        weights: NDArray[np.float64] = np.power(float(policy.decay), ages - policy.max_age)
        return weights.astype(np.float32)
