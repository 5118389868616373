"""Per-token staleness: ages, weights and keep flags; the artifacts stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.rl.provenance import EnvironmentPackageKey, RolloutTerminationReason
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.staleness import (
    StalenessMode,
    StalenessPolicy,
    TokenStaleness,
    token_staleness,
)
from rollbook.digest import digest_of
from rollbook.errors import InvalidNumber, InvalidValue, MissingColumn

HIGHEST = 2**31 - 1


def rollouts(*versions: Sequence[int] | None) -> RolloutTable:
    """One artifact per list of token versions; None for one token and no such column."""
    flat = [version for each in versions for version in each or [0]]
    samples: dict[str, Any] = {
        "token_id": np.arange(len(flat)),
        "logprob": np.zeros(len(flat)),
        "reward": np.zeros(len(flat)),
        "advantage": np.zeros(len(flat)),
    }
    if None not in versions:
        samples["policy_version"] = np.array(flat, np.int32)
    made_by = PolicyRevision(
        policy_family="family", revision_id="r", policy_digest="d", produced_at_ms=0
    )
    return RolloutTable.from_columns(
        artifact_id=[f"a{row}" for row in range(len(versions))],
        worker_id=["w"] * len(versions),
        environment=[EnvironmentPackageKey(environment_ref="env", version="1")] * len(versions),
        task_id=["task"] * len(versions),
        source_policy_revision=[made_by] * len(versions),
        offsets=np.cumsum([0, *(len(each or [0]) for each in versions)]),
        samples=samples,
        termination_reason=[RolloutTerminationReason.COMPLETED] * len(versions),
        created_at_ms=[0] * len(versions),
    )


def measured(mode: StalenessMode, **options: Any) -> TokenStaleness:
    """Context, ahead by one, just made, at the bound, one past it, three past it."""
    table = rollouts([-1, 11, 10], [8, 7, 5])
    return token_staleness(table, 10, StalenessPolicy(max_age=2, mode=mode, **options))


def test_ages_are_counted_in_versions_and_absent_for_context_and_tokens_ahead() -> None:
    assert measured("drop").age.tolist() == [-1, -1, 0, 2, 3, 5]
    assert measured("drop").age.dtype == np.int32


def test_drop_leaves_stale_tokens_and_those_ahead_out() -> None:
    result = measured("drop")
    assert result.keep.tolist() == [True, False, True, True, False, False]
    assert result.weight.tolist() == [1, 0, 1, 1, 0, 0]


def test_mask_keeps_every_token_and_gives_stale_ones_no_weight() -> None:
    result = measured("mask")
    assert result.keep.all()
    assert result.weight.tolist() == [1, 0, 1, 1, 0, 0]


def test_down_weight_decays_with_every_version_past_the_bound() -> None:
    result = measured("down_weight")
    assert result.keep.all()
    assert result.weight.tolist() == [1, 0, 1, 1, 0.5, 0.125]
    assert result.weight.dtype == np.float32
    slower = measured("down_weight", decay=0.9)
    assert slower.weight.tolist()[4:] == [np.float32(0.9), np.float32(0.9**3)]


def test_a_weight_too_small_for_binary32_is_zero() -> None:
    table = rollouts([0])
    policy = StalenessPolicy(max_age=0, mode="down_weight")
    assert token_staleness(table, HIGHEST, policy).weight.tolist() == [0]


@pytest.mark.parametrize("mode", ["drop", "mask", "down_weight"])
def test_counts_do_not_depend_on_the_mode(mode: StalenessMode) -> None:
    result = measured(mode)
    assert result.counts == {"fresh": 2, "stale": 2, "context": 1, "ahead": 1}
    assert result.mean_age == 2.5


def test_without_sampled_tokens_there_is_no_mean_age() -> None:
    policy = StalenessPolicy(max_age=0, mode="mask")
    assert token_staleness(rollouts([-1], [9]), 8, policy).mean_age is None
    empty = token_staleness(rollouts(), 8, policy)
    assert empty.mean_age is None
    assert sum(empty.counts.values()) == 0


def test_the_artifacts_are_not_touched() -> None:
    table = rollouts([-1, 3], [1])
    token_staleness(table, 3, StalenessPolicy(max_age=0, mode="drop"))
    table.verify()


def test_the_arrays_cannot_be_written_to() -> None:
    result = measured("drop")
    for array in (result.age, result.weight, result.keep, result.standing):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_the_recipe_names_everything_the_result_depends_on() -> None:
    recipe = measured("down_weight", decay=1).recipe
    assert recipe == {"target_version": 10, "max_age": 2, "mode": "down_weight", "decay": 1.0}
    assert digest_of("test", recipe) == digest_of("test", measured("down_weight", decay=1.0).recipe)
    assert digest_of("test", recipe) != digest_of("test", measured("mask", decay=1.0).recipe)


def test_a_table_without_versions_is_refused() -> None:
    with pytest.raises(MissingColumn) as caught:
        token_staleness(rollouts(None), 1, StalenessPolicy(max_age=0, mode="drop"))
    assert caught.value.fields == {"column": "policy_version", "purpose": "per-token staleness"}


@pytest.mark.parametrize("target", [-1, 2**31, 1.0, True])
def test_a_target_that_is_no_version_is_refused(target: Any) -> None:
    with pytest.raises(InvalidNumber):
        token_staleness(rollouts([0]), target, StalenessPolicy(max_age=0, mode="drop"))


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"max_age": -1}, InvalidNumber),
        ({"max_age": 2**31}, InvalidNumber),
        ({"mode": "wait"}, InvalidValue),
        ({"decay": 1.01}, InvalidNumber),
        ({"decay": -0.1}, InvalidNumber),
        ({"decay": float("nan")}, InvalidNumber),
        ({"decay": "half"}, InvalidValue),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(
    fields: dict[str, Any], refusal: type[Exception]
) -> None:
    sensible: dict[str, Any] = {"max_age": 1, "mode": "drop"}
    with pytest.raises(refusal):
        StalenessPolicy(**sensible | fields)


VERSIONS = st.one_of(st.integers(-1, 6), st.integers(HIGHEST - 2, HIGHEST))


@settings(deadline=None)
@given(
    versions=st.lists(st.lists(VERSIONS, min_size=1, max_size=6), max_size=4),
    target=st.one_of(st.integers(0, 6), st.integers(HIGHEST - 2, HIGHEST)),
    max_age=st.one_of(st.integers(0, 4), st.just(HIGHEST)),
    mode=st.sampled_from(["drop", "mask", "down_weight"]),
    decay=st.floats(0, 1),
)
def test_every_token_gets_what_one_alone_would_get(
    versions: list[list[int]], target: int, max_age: int, mode: StalenessMode, decay: float
) -> None:
    policy = StalenessPolicy(max_age=max_age, mode=mode, decay=decay)
    result = token_staleness(rollouts(*versions), target, policy)
    flat = [version for each in versions for version in each]
    expected = [alone(version, target, policy) for version in flat]
    assert result.age.tolist() == [age for age, _, _ in expected]
    np.testing.assert_array_almost_equal_nulp(
        result.weight, np.array([weight for _, weight, _ in expected], np.float32)
    )
    assert result.keep.tolist() == [keep for _, _, keep in expected]
    assert sum(result.counts.values()) == len(flat)


def alone(version: int, target: int, policy: StalenessPolicy) -> tuple[int, float, bool]:
    if version == -1:
        return -1, 1.0, True
    if version > target:
        return -1, 0.0, policy.mode != "drop"
    age = target - version
    if age <= policy.max_age:
        return age, 1.0, True
    if policy.mode == "down_weight":
        return age, policy.decay ** (age - policy.max_age), True
    return age, 0.0, policy.mode != "drop"
