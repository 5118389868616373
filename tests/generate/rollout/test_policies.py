"""Selection: who may be taken, who is, in which order, and whether the recorded chances are the real ones."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.generate.geometry.poses import look_at
from rollbook.generate.rollout.guards import Guards, GuardView
from rollbook.generate.rollout.policies import (
    CounterfactualSelectionPolicy,
    Selection,
    select_branches,
    temperature_logits,
)
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.records import RolloutChain, RolloutZarrRecord
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records

Array = NDArray[Any]
Policy = CounterfactualSelectionPolicy
GREEDY = (Policy.FARTHEST_FROM_HISTORY, Policy.FARTHEST_FROM_REFERENCE, Policy.ORACLE_GREEDY)
DRAWN = (
    Policy.RANDOM,
    Policy.RANDOM_VALID,
    Policy.TEMPERATURE_SOFTMAX,
    Policy.EPSILON_GREEDY,
)
NAN = math.nan


def view(
    places: Any,
    *,
    looking: Any = None,
    strategy: Any = None,
    bearing: Any = None,
    history: Any = (),
) -> GuardView:
    """Cameras on a plane at these x, y, looking along +x unless said otherwise."""
    eyes = np.column_stack([np.asarray(places, np.float64).reshape(-1, 2), np.ones(len(places))])
    angles = np.deg2rad(np.zeros(len(eyes)) if looking is None else looking)
    ahead = np.column_stack([np.cos(angles), np.sin(angles), np.zeros(len(eyes))])
    return GuardView(
        poses=look_at(eyes, eyes + ahead),
        strategy_id=np.asarray([0] * len(eyes) if strategy is None else strategy, np.int32),
        target_bearing_deg=None if bearing is None else np.asarray(bearing, np.float64),
        history=np.asarray(history, np.float64).reshape(-1, 3),
    )


def line(count: int, **columns: Any) -> GuardView:
    """A metre apart, along x."""
    return view([(x, 0) for x in range(count)], **columns)


def select(
    policy: Policy, scores: Any, count: int = 1, *, seed: int = 0, **options: Any
) -> list[Selection]:
    values = np.asarray(scores, np.float64)
    given: dict[str, Any] = {
        "tie_break": None,
        "temperature": 1.0,
        "epsilon": 0.25,
        "guards": Guards(),
        "shell": line(len(values)),
        **options,
    }
    valid = given.pop("valid", np.ones(len(values), np.bool_))
    rng = given.pop("rng", None) or np.random.default_rng(seed)
    return select_branches(policy, values, np.asarray(valid), count, rng, **given)


def rows(selections: list[Selection]) -> list[int]:
    return [each.shell_index for each in selections]


# -------------------------------------------------------------------------------- what always holds


@st.composite
def shells(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 12))
    number = st.one_of(
        st.floats(-2, 2), st.sampled_from([0.0, NAN, math.inf, -math.inf, 1e-30, 3e38, -3e38])
    )
    coordinate = st.tuples(st.integers(-3, 3), st.integers(-3, 3))
    each: dict[str, Any] = {"min_size": count, "max_size": count}
    return {
        "scores": draw(st.lists(number, **each)),
        "valid": draw(st.lists(st.booleans(), **each)),
        "count": draw(st.integers(1, 5)),
        "temperature": draw(st.sampled_from([1e-300, 1e-3, 0.5, 1.0, 20.0])),
        "epsilon": draw(st.sampled_from([0.0, 1e-300, 1e-9, 0.1, 1 - 1e-9, 1.0]) | st.floats(0, 1)),
        "robust": draw(st.booleans()),
        "tie_break": draw(st.none() | st.lists(number, **each)),
        "guards": Guards(
            min_history_distance_m=draw(st.sampled_from([0.0, 1.5, 50.0])),
            min_sibling_distance_m=draw(st.sampled_from([0.0, 1.5, 50.0])),
            require_sibling_strategy_diversity=draw(st.booleans()),
        ),
        "shell": view(
            draw(st.lists(coordinate, **each)),
            strategy=draw(st.lists(st.integers(0, 3), **each)),
            history=[(0, 0, 1)],
        ),
        "seed": draw(st.integers(0, 2**32)),
    }


@settings(max_examples=150, deadline=None)
@given(policy=st.sampled_from(Policy), shell=shells())
def test_what_is_recorded_is_a_distribution_over_eligible_candidates(
    policy: Policy, shell: dict[str, Any]
) -> None:
    eligible = np.asarray(shell["valid"]) & np.isfinite(shell["scores"])
    taken = select(policy, **shell)
    assert len(taken) == 0 if not eligible.any() else 1 <= len(taken) <= shell["count"]
    assert len(set(rows(taken))) == len(taken)
    if policy in DRAWN:
        assert len(taken) == min(shell["count"], eligible.sum())
    for each in taken:
        chance, logs = each.probabilities, each.log_probabilities
        assert chance.dtype == logs.dtype == each.logits.dtype == np.float32
        assert eligible[each.shell_index]
        assert chance[each.shell_index] > 0
        assert abs(chance.sum(dtype=np.float64) - 1) <= 1e-6
        assert not chance[~eligible].any()
        assert (np.isneginf(logs) == (chance == 0)).all()
        assert np.isneginf(each.logits[~eligible]).all()
        assert not np.isnan(each.logits).any()
        assert (logs <= 0).all()
        np.testing.assert_allclose(np.exp(logs), chance, rtol=1e-5, atol=1e-37)
        assert each.log_probability == logs[each.shell_index]
        some = chance[chance > 0].astype(np.float64)
        assert each.entropy == pytest.approx(-(some * np.log(some)).sum(), abs=1e-5)
        assert math.copysign(1, each.entropy) == 1
        assert 0 <= each.entropy <= math.log(len(some)) + 1e-12


@settings(max_examples=60, deadline=None)
@given(policy=st.sampled_from(Policy), shell=shells())
def test_the_same_generator_state_takes_the_same_branches(
    policy: Policy, shell: dict[str, Any]
) -> None:
    first, again = select(policy, **shell), select(policy, **shell)
    assert rows(first) == rows(again)
    for one, two in zip(first, again, strict=True):
        for name in ("logits", "probabilities", "log_probabilities"):
            assert getattr(one, name).tobytes() == getattr(two, name).tobytes()


@settings(max_examples=60, deadline=None)
@given(policy=st.sampled_from(Policy), shell=shells())
def test_siblings_keep_their_distance_unless_nothing_else_was_left(
    policy: Policy, shell: dict[str, Any]
) -> None:
    guards, around = shell["guards"], shell["shell"]
    left = np.asarray(shell["valid"]) & np.isfinite(shell["scores"])
    passing = guards.far_from_history(around)
    for place, each in enumerate(select(policy, **shell)):
        if (left & passing).any():
            assert passing[each.shell_index]
        else:
            assert policy in DRAWN or place == 0
        left[each.shell_index] = False
        passing &= guards.apart_from(around, each.shell_index)


@pytest.mark.parametrize("policy", Policy)
def test_a_shell_without_an_eligible_candidate_ends_the_chain(policy: Policy) -> None:
    assert select(policy, []) == []
    assert select(policy, [NAN, math.inf, -math.inf], 2) == []
    assert select(policy, [1.0, 2.0], 2, valid=[False, False]) == []


@pytest.mark.parametrize("policy", Policy)
def test_scores_that_are_not_finite_are_never_taken(policy: Policy) -> None:
    taken = select(policy, [NAN, 1.0, math.inf, 2.0, 9.0], 5, valid=[True] * 4 + [False])
    assert sorted(rows(taken)) == [1, 3]


# ------------------------------------------------------------------------------------------- greedy


@pytest.mark.parametrize("policy", GREEDY)
def test_greedy_takes_the_best_first_and_is_certain(policy: Policy) -> None:
    scores = [0.1, 0.7, NAN, 0.9, 0.3]
    taken = select(policy, scores, 3)
    assert rows(taken) == [3, 1, 4]
    for each in taken:
        hot = np.arange(5) == each.shell_index
        np.testing.assert_array_equal(each.probabilities, hot)
        np.testing.assert_array_equal(each.log_probabilities, np.where(hot, 0, -np.inf))
        logits = np.array([0.1, 0.7, -np.inf, 0.9, 0.3], np.float32)
        np.testing.assert_array_equal(each.logits, logits)
        assert (each.log_probability, each.entropy) == (0.0, 0.0)


def test_equal_scores_are_told_apart_by_the_tie_break() -> None:
    for seed in range(20):
        taken = select(
            Policy.ORACLE_GREEDY,
            [0.0, 0.0, -0.0, 1.0, 0.0],
            5,
            seed=seed,
            tie_break=[0.2, NAN, 0.8, -5.0, 0.5],
        )
        assert rows(taken) == [3, 2, 4, 0, 1]


@pytest.mark.parametrize("tie_break", [None, [0.5] * 4, [NAN] * 4])
def test_what_is_equal_in_everything_is_drawn_by_lot(tie_break: Any) -> None:
    draws = 2000
    rng = np.random.default_rng(3)
    first = [
        rows(select(Policy.ORACLE_GREEDY, [0.0] * 4, tie_break=tie_break, rng=rng))[0]
        for _ in range(draws)
    ]
    counts = np.bincount(first, minlength=4)
    assert ((counts - draws / 4) ** 2 / (draws / 4)).sum() < 16.3  # chi square, 3 df, p = 0.001


def test_greedy_takes_fewer_rather_than_break_a_guard() -> None:
    guards = Guards(min_sibling_distance_m=1.5)
    assert rows(select(Policy.ORACLE_GREEDY, [3, 2, 1], 3, guards=guards)) == [0, 2]


def test_greedy_takes_its_best_when_no_candidate_passes() -> None:
    guards = Guards(min_history_distance_m=10)
    shell = line(3, history=[(0, 0, 1)])
    assert rows(select(Policy.ORACLE_GREEDY, [1, 3, 2], 2, guards=guards, shell=shell)) == [1]


# -------------------------------------------------------------------------------------------- drawn


def chi_square(counts: Array, chances: Array) -> float:
    possible = chances > 0
    expected = chances[possible] * counts.sum()
    return float(((counts[possible] - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("policy", DRAWN)
def test_draws_come_as_often_as_their_probability_says(policy: Policy) -> None:
    scores = [0.0, 0.4, NAN, 1.0, 0.2, 0.1]
    rng = np.random.default_rng(11)
    first, second = np.zeros(6, int), np.zeros((6, 6), int)
    kept: dict[int, Array] = {}
    for _ in range(3000):
        one, two = select(policy, scores, 2, rng=rng)
        first[one.shell_index] += 1
        second[one.shell_index, two.shell_index] += 1
        kept[-1], kept[one.shell_index] = one.probabilities, two.probabilities
    assert chi_square(first, kept[-1].astype(np.float64)) < 18.5  # 4 df, p = 0.001
    assert first[2] == 0
    for row in (0, 1, 3, 4, 5):
        assert chi_square(second[row], kept[row].astype(np.float64)) < 18.5
        assert second[row, row] == 0


@pytest.mark.parametrize("policy", [Policy.RANDOM, Policy.RANDOM_VALID])
def test_random_policies_are_uniform_over_what_remains(policy: Policy) -> None:
    taken = select(policy, [5.0, 1e9, -3.0, NAN, 0.0], 4)
    assert sorted(rows(taken)) == [0, 1, 2, 4]
    for place, each in enumerate(taken):
        some = each.probabilities > 0
        np.testing.assert_allclose(each.probabilities[some], 1 / (4 - place))
        assert each.entropy == pytest.approx(math.log(4 - place))
        assert (each.logits[some] == 0).all()
        assert not some[rows(taken)[:place]].any()


def test_each_sibling_records_the_distribution_of_its_own_draw() -> None:
    one, two, three = select(Policy.TEMPERATURE_SOFTMAX, [0.0, 1.0, 2.0, 3.0], 3)
    rest = np.ones(4, np.bool_)
    logits = temperature_logits([0.0, 1.0, 2.0, 3.0], rest, 1.0)
    for each in (one, two, three):
        weights = np.where(rest, np.exp(logits), 0)
        np.testing.assert_allclose(each.probabilities, weights / weights.sum(), rtol=1e-6)
        np.testing.assert_array_equal(each.logits, np.where(rest, logits, -np.inf).astype("f4"))
        rest[each.shell_index] = False


def test_guards_leave_their_mark_on_the_recorded_distribution() -> None:
    shell = line(4, history=[(0, 0, 1)])
    guards = Guards(min_history_distance_m=1.5, min_sibling_distance_m=0.5)
    taken = select(Policy.RANDOM_VALID, [0.0] * 4, 4, guards=guards, shell=shell)
    assert set(rows(taken)[:2]) == {2, 3}
    np.testing.assert_allclose(taken[0].probabilities, [0, 0, 0.5, 0.5])
    np.testing.assert_allclose(taken[2].probabilities, [0.5, 0.5, 0, 0])  # nothing else was left


def test_all_equal_scores_are_drawn_uniformly() -> None:
    for scores in ([0.0] * 6, [0.1] * 3, [7.3] * 5):
        each = select(Policy.TEMPERATURE_SOFTMAX, scores, temperature=0.01)[0]
        np.testing.assert_allclose(each.probabilities, 1 / len(scores))


def test_where_most_scores_are_equal_the_temperature_still_counts() -> None:
    """The quartiles are equal; by the standard deviation, a third of the one that stands out, it is 1/3 ahead."""
    each = select(Policy.TEMPERATURE_SOFTMAX, [0.0] * 9 + [1e-3], temperature=10.0)[0]
    ahead = math.exp(10 / 3 / 10)
    np.testing.assert_allclose(each.probabilities[-1], ahead / (9 + ahead), rtol=1e-6)
    np.testing.assert_allclose(each.probabilities[:-1], 1 / (9 + ahead), rtol=1e-6)


def test_a_low_temperature_is_greedy_and_a_high_one_uniform() -> None:
    scores = [0.0, 1.0, 2.0, 3.0, 5.0]
    cold = select(Policy.TEMPERATURE_SOFTMAX, scores, temperature=1e-3)[0]
    hot = select(Policy.TEMPERATURE_SOFTMAX, scores, temperature=1e6)[0]
    np.testing.assert_array_equal(cold.probabilities, [0, 0, 0, 0, 1])
    np.testing.assert_allclose(hot.probabilities, 0.2, rtol=1e-4)


# ---------------------------------------------------------------------------------------- epsilon greedy


def test_epsilon_is_shared_by_all_and_the_rest_belongs_to_the_best() -> None:
    [each] = select(Policy.EPSILON_GREEDY, [0.1, NAN, 0.9, 0.3, 0.2], epsilon=0.2)
    np.testing.assert_array_equal(
        each.probabilities, np.array([0.05, 0, 0.85, 0.05, 0.05]).astype("f4")
    )
    np.testing.assert_array_equal(each.logits, each.log_probabilities)
    taken = each.probabilities[each.shell_index].astype(np.float64)
    assert each.log_probability == pytest.approx(math.log(taken), rel=1e-6)


def test_epsilon_0_is_greedy_and_epsilon_1_is_uniform() -> None:
    scores = [0.1, 0.7, NAN, 0.9]
    best, all_alike = (select(Policy.EPSILON_GREEDY, scores, epsilon=each)[0] for each in (0, 1))
    assert best.probabilities.tolist() == [0, 0, 0, 1]
    assert (best.shell_index, best.log_probability, best.entropy) == (3, 0, 0)
    np.testing.assert_allclose(all_alike.probabilities, [1 / 3, 1 / 3, 0, 1 / 3])


def test_the_second_branch_goes_to_the_best_of_what_remains() -> None:
    one, two, three = select(Policy.EPSILON_GREEDY, [1.0, 3.0, 2.0, 0.0], 3, epsilon=0.0)
    assert rows([one, two, three]) == [1, 2, 0]
    assert two.probabilities.tolist() == [0, 0, 1, 0]


def test_candidates_that_are_equally_good_share_what_belongs_to_the_best() -> None:
    [each] = select(Policy.EPSILON_GREEDY, [5.0, 5.0, 1.0, 1.0], epsilon=0.2)
    np.testing.assert_allclose(each.probabilities, [0.45, 0.45, 0.05, 0.05])
    [told_apart] = select(
        Policy.EPSILON_GREEDY, [5.0, 5.0, 1.0, 1.0], epsilon=0.2, tie_break=[0.1, 0.3, 9, NAN]
    )
    np.testing.assert_allclose(told_apart.probabilities, [0.05, 0.85, 0.05, 0.05])


@pytest.mark.parametrize("epsilon", [-0.1, 1.1, NAN, math.inf])
def test_an_epsilon_that_is_no_probability_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigurationError, match=r"epsilon is .*, expected a probability"):
        select(Policy.EPSILON_GREEDY, [1.0, 2.0], epsilon=epsilon)


# ---------------------------------------------------------------------------------- temperature logits


def test_robust_logits_are_measured_in_quartiles_from_the_median() -> None:
    scores, valid = [0.0, 1.0, 2.0, 3.0, 100.0, NAN, 9.0], [True] * 6 + [False]
    logits = temperature_logits(scores, valid, 0.5)
    expected = [-2, -1, 0, 1, 98, -math.inf, -math.inf]  # median 2, quartiles 1 and 3
    np.testing.assert_allclose(logits, expected)
    np.testing.assert_allclose(
        temperature_logits(scores, valid, 0.5, robust=False),
        [0, 2, 4, 6, 200, -math.inf, -math.inf],
    )


def test_fewer_than_four_scores_are_measured_in_standard_deviations() -> None:
    spread = math.sqrt(2 / 3)  # of 1, 2, 3 as a whole population
    np.testing.assert_allclose(
        temperature_logits([1.0, 2.0, 3.0], [True] * 3, 1.0), [-1 / spread, 0, 1 / spread]
    )
    assert np.isneginf(temperature_logits([NAN, 1.0], [True, False], 1.0)).all()


@settings(max_examples=80, deadline=None)
@given(
    scores=hnp.arrays(np.float64, st.integers(2, 15), elements=st.floats(-1, 1)),
    factor=st.floats(1e-3, 1e3),
    offset=st.floats(-10, 10),
)
def test_robust_logits_do_not_depend_on_unit_and_zero(
    scores: Array, factor: float, offset: float
) -> None:
    valid = np.ones(len(scores), np.bool_)
    low, high = np.quantile(scores, [0.25, 0.75])
    assume(min(float(high - low), float(scores.std())) > 0.05)
    np.testing.assert_allclose(
        temperature_logits(factor * scores + offset, valid, 0.7),
        temperature_logits(scores, valid, 0.7),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.parametrize("temperature", [0.0, -1.0, NAN, math.inf])
def test_a_temperature_that_cannot_be_is_refused(temperature: float) -> None:
    with pytest.raises(ConfigurationError, match="selection_temperature is"):
        select(Policy.TEMPERATURE_SOFTMAX, [1.0, 2.0], temperature=temperature)


# ------------------------------------------------------------------------------------------- guards


@pytest.mark.parametrize(
    ("guards", "shell", "expected"),
    [
        (Guards(), line(3), [0, 1, 2]),
        (Guards(min_history_distance_m=2), line(3, history=[(0, 0, 1)]), [2]),
        (Guards(min_history_distance_m=2), line(3), [0, 1, 2]),
        (Guards(min_sibling_distance_m=1), line(3), [0, 1, 2]),
        (Guards(min_sibling_distance_m=1.01), line(3), [0, 2]),
        (Guards(min_sibling_yaw_deg=30), line(3, looking=[170, -170, 130]), [0, 2]),
        (Guards(min_sibling_yaw_deg=15), line(3, looking=[170, -170, 160]), [0, 1]),
        (
            Guards(min_sibling_target_bearing_deg=30),
            line(4, bearing=[-175, 170, NAN, 10]),
            [0, 3],
        ),
        (Guards(require_sibling_strategy_diversity=True), line(4, strategy=[2, 2, 0, 2]), [0, 2]),
    ],
)
def test_each_guard_turns_away_what_is_too_much_alike(
    guards: Guards, shell: GuardView, expected: list[int]
) -> None:
    scores = np.arange(len(shell), 0, -1.0)
    assert rows(select(Policy.ORACLE_GREEDY, scores, 4, guards=guards, shell=shell)) == expected


def test_the_bearing_guard_needs_a_target() -> None:
    with pytest.raises(ConfigurationError, match="there is no target"):
        select(Policy.RANDOM, [1.0, 2.0], 2, guards=Guards(min_sibling_target_bearing_deg=5))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_history_distance_m", -0.1),
        ("min_sibling_distance_m", NAN),
        ("min_sibling_distance_m", math.inf),
        ("min_sibling_yaw_deg", 181.0),
        ("min_sibling_target_bearing_deg", -1.0),
    ],
)
def test_guards_that_cannot_be_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"guards.{field} is"):
        Guards(**{field: value})


# -------------------------------------------------------------------------------------------- input


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"count": 0}, "count"),
        ({"scores": [1.0, 2.0], "shell": line(3)}, "scores"),
        ({"scores": [1.0, 1e39]}, r"scores\[1\]"),
        ({"valid": [True]}, "valid"),
        ({"valid": [1, 0]}, "valid"),
        ({"tie_break": [1.0]}, "tie_break"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue, match=f"selection: {field} is"):
        select(Policy.ORACLE_GREEDY, **{"scores": [1.0, 2.0], **changed})


def test_a_guard_view_is_one_shell() -> None:
    with pytest.raises(InvalidValue, match="strategy_id is of shape"):
        line(3, strategy=[1, 2])
    with pytest.raises(InvalidValue, match="target_bearing_deg is of shape"):
        line(3, bearing=[1.0])


def test_a_policy_may_be_given_by_its_name() -> None:
    named: Any = "temperature_softmax"
    by_name = select(named, [0.0, 1.0, 5.0])[0]
    assert (
        by_name.probabilities.tolist()
        == select(Policy(named), [0.0, 1.0, 5.0])[0].probabilities.tolist()
    )
    with pytest.raises(ValueError, match="not_a_policy"):
        select(Policy("not_a_policy"), [1.0])


# -------------------------------------------------------------------------------------------- store


def reselected(record: RolloutZarrRecord, policy: Policy) -> RolloutZarrRecord:
    """The same shell, with two branches chosen by the policy."""
    step = record.result.chains[0].steps[0]
    shell = step.candidates
    gains = np.full(len(shell), NAN)
    metric = step.metric_vectors["target_root_gain"]
    gains[shell.mask_valid] = metric[shell.mask_valid] if len(metric) == len(shell) else metric
    assert shell.strategy_id is not None
    seen = GuardView(
        shell.shell_poses.astype(np.float64), shell.strategy_id, None, np.zeros((0, 3))
    )
    taken = select(policy, gains, 2, valid=shell.mask_valid, shell=seen, temperature=0.3)
    chains = tuple(
        RolloutChain(
            steps=(
                replace(
                    step,
                    selected_shell_index=each.shell_index,
                    temperature=0.3,
                    selection_logits=each.logits,
                    selection_probabilities=each.probabilities,
                    selection_log_probabilities=each.log_probabilities,
                ),
            ),
            parent_chain=0 if sibling else None,
            fork_step_index=0 if sibling else None,
        )
        for sibling, each in enumerate(taken)
    )
    return replace(record, result=replace(record.result, chains=chains, policy=str(policy)))


def test_a_store_accepts_what_every_policy_records(tmp_path: Path) -> None:
    policies = list(Policy) * 2
    made = make_records(len(policies), horizon=1, candidates=(8, 30), unlabelled_fraction=0.2)
    records = [reselected(record, policy) for record, policy in zip(made, policies, strict=True)]
    write_rollout_zarr_store(tmp_path / "s.zarr", records, selected_depth_enabled=False)
    result = validate_rollout_zarr_store(tmp_path / "s.zarr", deep=True)
    assert result.errors == []
    assert result.num_rollouts == 2 * len(policies)
