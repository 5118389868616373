"""Paired tests: agreement with scipy, exact where there are few pairs, the same for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from rollbook.scoring.bounds.flip_bound import RANDOM_SETS, sign_flip
from rollbook.scoring.paired_tests import (
    holm,
    interquartile_mean,
    mcnemar_exact,
    mcnemar_mid_p,
    probability_of_improvement,
)


@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_is_the_binomial_test_of_the_pairs_that_differ(wins: int, losses: int) -> None:
    better, worse = mcnemar_exact(wins, losses)
    if wins + losses == 0:
        assert (better, worse) == (1.0, 1.0)
        return
    n = wins + losses
    assert better == pytest.approx(stats.binomtest(wins, n, 0.5, "greater").pvalue)
    assert worse == pytest.approx(stats.binomtest(wins, n, 0.5, "less").pvalue)


def test_it_takes_five_wins_of_five() -> None:
    assert mcnemar_exact(5, 0).better == pytest.approx(0.03125)
    assert mcnemar_exact(4, 0).better > 0.05
    assert mcnemar_exact(3, 0).better == pytest.approx(0.125)


def test_mid_p_counts_half_of_what_was_seen() -> None:
    assert mcnemar_mid_p(3, 0) == pytest.approx(0.0625)
    assert mcnemar_mid_p(0, 0) == 0.5
    expected = stats.binom.sf(7, 10, 0.5) - 0.5 * stats.binom.pmf(8, 10, 0.5)
    assert mcnemar_mid_p(8, 2) == pytest.approx(expected)


def scipys(gains: NDArray[np.float64], alternative: str, resamples: int) -> float:
    found: Any = stats.permutation_test(
        (gains,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        alternative=alternative,
        n_resamples=resamples,
        rng=1,
    )
    return float(found.pvalue)


@pytest.mark.parametrize("n", [2, 5, 9, 13])
def test_few_signs_are_flipped_in_every_way_there_is(n: int) -> None:
    gains = np.random.default_rng(n).normal(0.4, 1, n)
    better, worse = sign_flip(gains)
    assert better == pytest.approx(scipys(gains, "greater", 2**13))
    assert worse == pytest.approx(scipys(gains, "less", 2**13))


@pytest.mark.parametrize("n", [14, 40, 123])
def test_many_signs_are_flipped_at_random(n: int) -> None:
    gains = np.random.default_rng(n).normal(0.2, 1, n)
    better, worse = sign_flip(gains, seed=3)
    assert better == pytest.approx(scipys(gains, "greater", 9_999), abs=0.02)
    assert worse == pytest.approx(scipys(gains, "less", 9_999), abs=0.02)


def test_ties_count_for_both_sides_whatever_rounding_does() -> None:
    """Tenths do not add up exactly; the same sum in another order has to stay the same sum."""
    gains = np.array([0.1, 0.2, -0.3, 0.1, 0.2])
    whole = np.array([1.0, 2.0, -3.0, 1.0, 2.0])
    assert sign_flip(gains) == sign_flip(whole)


def test_pairs_without_a_difference_have_no_sign() -> None:
    gains = np.random.default_rng(1).normal(size=10)
    assert sign_flip(np.concatenate([gains, np.zeros(500)])) == sign_flip(gains)
    assert sign_flip(np.zeros(30)) == (1.0, 1.0)
    assert sign_flip(np.zeros(0)) == (1.0, 1.0)


def test_a_seed_gives_the_same_flips_again() -> None:
    gains = np.random.default_rng(2).normal(0.1, 1, 50)
    assert sign_flip(gains, seed=5) == sign_flip(gains, seed=5)
    assert sign_flip(gains, seed=5) != sign_flip(gains, seed=6)


def test_random_flips_never_claim_more_than_they_can_know() -> None:
    assert sign_flip(np.ones(500)).better == 1 / (RANDOM_SETS + 1)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_the_size_of_the_unit_does_not_matter(scale: float) -> None:
    gains = np.random.default_rng(9).normal(0.3, 1, 11)
    assert sign_flip(gains * scale) == sign_flip(gains)


def test_holm_has_its_textbook_values() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx(
        {"a": 0.03, "b": 0.06, "c": 0.06}
    )
    assert holm({"only": 0.04}) == {"only": 0.04}
    assert holm({}) == {}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_never_makes_a_claim_easier_nor_changes_the_order(p_values: list[float]) -> None:
    named = {str(place): p for place, p in enumerate(p_values)}
    adjusted = holm(named)
    assert all(named[name] <= adjusted[name] <= 1 for name in named)
    order = sorted(named, key=lambda name: named[name])
    assert [adjusted[name] for name in order] == sorted(adjusted.values())


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_the_interquartile_mean_is_scipys_trimmed_mean(values: list[float]) -> None:
    column = np.array(values)
    assert interquartile_mean(column) == pytest.approx(
        float(stats.trim_mean(column, 0.25)), abs=1e-6
    )


def test_no_difference_is_half_an_improvement() -> None:
    assert probability_of_improvement(np.array([1.0, 0.0, -2.0, 3.0])) == 0.625
