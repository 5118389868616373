"""Several candidates tested together: equal ones are rarely called better, and copies cost nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.scoring.bounds.flip_bound import FlipBound
from rollbook.scoring.letters import letters
from rollbook.scoring.max_t import candidates_better, candidates_differ

Floats = NDArray[np.float64]


def gains(seed: int, clusters: int, candidates: int, shift: float = 0.0) -> Floats:
    """Candidates that share the noise of their baseline; the first one is better."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(clusters, candidates)) + rng.normal(size=(clusters, 1))
    table[:, 0] += shift
    return table


@pytest.mark.parametrize("clusters", [10, 40])
def test_a_single_candidate_has_the_p_value_of_the_sign_flips(clusters: int) -> None:
    table = gains(3, clusters, 1, 0.6)
    alone = FlipBound(table[:, 0], np.ones(clusters)).p_better()
    found = candidates_better(table, 0.05)
    assert found.p_values[0] == pytest.approx(alone, rel=1e-9 if clusters == 10 else 0.25)
    assert found.levels[0] == pytest.approx(0.05, rel=0.1)


def test_the_best_of_twenty_equal_candidates_is_called_better_in_one_run_of_twenty() -> None:
    tables = [gains(seed, 12, 20) for seed in range(300)]
    alone = [
        min(candidates_better(each[:, [k]], 0.05).p_values[0] for k in range(20))
        for each in tables[:40]
    ]
    together = [candidates_better(each, 0.05).p_values.min() for each in tables]
    assert np.mean(np.array(alone) <= 0.05) > 0.2
    assert np.mean(np.array(together) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_copies_of_a_candidate_cost_nothing() -> None:
    table = gains(5, 13, 1, 0.9)
    alone = candidates_better(table, 0.05)
    copied = candidates_better(np.repeat(table, 8, axis=1), 0.05)
    assert copied.p_values == pytest.approx(np.full(8, alone.p_values[0]))


def test_p_values_follow_the_ranking_and_not_the_order_or_the_scale() -> None:
    table = gains(7, 13, 6, 1.0) + np.linspace(0, 0.5, 6)
    found = candidates_better(table, 0.05)
    by_t = np.argsort(-found.t)
    assert (np.diff(found.p_values[by_t]) >= 0).all()
    shuffled = [3, 0, 5, 1, 4, 2]
    again = candidates_better(1e-200 * table[:, shuffled], 0.05)
    assert again.p_values == pytest.approx(found.p_values[shuffled])


def test_leaving_out_the_best_makes_the_next_tests_less_strict() -> None:
    table = gains(11, 40, 10)
    table[:, :5] += 3.0
    found = candidates_better(table, 0.05)
    assert (found.p_values[:5] <= 0.05).all()
    assert (found.levels >= found.joint_levels - 1e-12).all()
    assert found.levels[5:].max() > found.joint_levels[5:].max()


def test_candidates_without_a_difference_are_neither_better_nor_apart() -> None:
    table = np.zeros((20, 3))
    assert candidates_better(table, 0.05).p_values.tolist() == [1.0, 1.0, 1.0]
    assert not candidates_differ(table, 0.05).any()
    twins = np.repeat(gains(1, 20, 1, 2.0), 2, axis=1)
    assert not candidates_differ(twins, 0.05).any()


def test_too_few_clusters_show_nothing() -> None:
    assert candidates_better(np.full((3, 2), 5.0), 0.05).p_values.min() > 0.05


def test_a_worse_candidate_is_told_apart_from_the_others() -> None:
    table = gains(2, 60, 3)
    table[:, 2] -= 3.0
    apart = candidates_differ(table, 0.05)
    assert apart[2].tolist() == [True, True, False]
    assert apart[:2, :2].any() == apart[0, 1]


# ------------------------------------------------------------------------------------------- letters


def test_the_best_has_an_a_and_one_between_two_groups_has_both_letters() -> None:
    apart = np.zeros((3, 3), bool)
    apart[0, 1] = apart[1, 0] = True
    assert letters(apart, [1, 2, 0]) == ["b", "a", "ab"]


@given(st.data(), st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_two_candidates_share_a_letter_exactly_when_they_are_not_told_apart(
    data: st.DataObject, count: int
) -> None:
    apart = np.zeros((count, count), bool)
    for first in range(count):
        for second in range(first):
            apart[first, second] = apart[second, first] = data.draw(st.booleans())
    order = data.draw(st.permutations(range(count)))
    found = letters(apart, order)
    assert "a" in found[order[0]]
    for first in range(count):
        for second in range(count):
            if first != second:
                shared = bool(set(found[first]) & set(found[second]))
                assert shared == (not apart[first, second])
