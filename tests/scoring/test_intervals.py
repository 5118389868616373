"""Intervals: known values, agreement with scipy, and honesty where there is little to go by."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rollbook.scoring.bootstrap import bca_interval
from rollbook.scoring.intervals import (
    deviation,
    mean_interval,
    rate_upper_bound,
    student_interval,
    tango_interval,
    tango_statistic,
    wilson_interval,
)
from rollbook.scoring.paired_tests import success_belief

TABLES = st.integers(1, 400).flatmap(
    lambda n: st.tuples(st.integers(0, n), st.integers(0, n), st.just(n)).filter(
        lambda table: table[0] + table[1] <= table[2]
    )
)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        ((9, 3, 30), -0.0288, 0.4117),
        ((0, 0, 20), -0.161, 0.161),
        ((3, 0, 20), -0.035, 0.360),
        ((6, 2, 100), -0.019, 0.108),
    ],
)
def test_tangos_interval_has_its_published_values(
    table: tuple[int, int, int], low: float, high: float
) -> None:
    digits = 4 if table == (9, 3, 30) else 3
    assert tuple(round(bound, digits) for bound in tango_interval(*table)) == (low, high)


def test_tangos_one_sided_bound_is_for_not_being_worse_only() -> None:
    """It is above zero for three wins of three, where the exact test still says one in eight."""
    assert tango_interval(3, 0, 20, level=0.90)[0] == pytest.approx(0.013, abs=5e-4)


@given(TABLES)
def test_at_no_difference_tangos_statistic_is_mcnemars(table: tuple[int, int, int]) -> None:
    wins, losses, n = table
    expected = (wins - losses) / math.sqrt(wins + losses) if wins + losses else 0.0
    assert tango_statistic(wins, losses, n, 0.0) == pytest.approx(expected, abs=1e-12)


@given(TABLES)
def test_tangos_interval_holds_its_estimate_and_is_mirrored(table: tuple[int, int, int]) -> None:
    wins, losses, n = table
    low, high = tango_interval(wins, losses, n)
    assert -1 <= low <= (wins - losses) / n <= high <= 1
    assert low < high
    assert (-high, -low) == pytest.approx(tango_interval(losses, wins, n), abs=1e-9)


@pytest.mark.parametrize(("margin", "least"), [(0.05, 52), (0.10, 25), (0.15, 16), (0.20, 11)])
def test_without_one_pair_that_differs_it_still_takes_many(margin: float, least: int) -> None:
    assert tango_interval(0, 0, least, 0.90)[0] > -margin
    assert tango_interval(0, 0, least - 1, 0.90)[0] <= -margin


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilsons_interval_is_scipys(counts: tuple[int, int]) -> None:
    hits, n = counts
    theirs = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson_interval(hits, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_nothing_seen_still_allows_three_in_n() -> None:
    assert rate_upper_bound(0, 30) == 0.1
    assert rate_upper_bound(0, 2) == 1.0
    exact = stats.binomtest(2, 30, alternative="less").proportion_ci(0.95, "exact").high
    assert rate_upper_bound(2, 30) == pytest.approx(exact)
    assert rate_upper_bound(5, 5) == 1.0


def test_students_interval_is_scipys() -> None:
    values = np.random.default_rng(1).normal(2, 3, 20)
    theirs = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    ours = student_interval(float(values.mean()), deviation(values), 20)
    assert ours == pytest.approx((theirs.low, theirs.high))
    assert mean_interval(values).interval == pytest.approx(ours)


def test_the_method_follows_the_number_of_pairs() -> None:
    values = np.random.default_rng(2).normal(size=60)
    assert [mean_interval(values[:n]).method for n in (7, 8, 49, 50)] == [
        *("too_few", "student_t", "student_t", "student_t+bca")
    ]
    assert mean_interval(values[:7]).interval is None


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
def test_pairs_that_all_differ_alike_have_no_interval_of_width_zero(value: float) -> None:
    same = np.full(30, value) * (1 + np.linspace(0, 1e-15, 30))
    assert mean_interval(same).method == "no_variation"
    assert mean_interval(same).interval is None


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e299])
def test_huge_and_tiny_differences_have_the_same_interval_times_their_size(scale: float) -> None:
    values = np.random.default_rng(3).normal(1, 1, 60)
    expected = mean_interval(values).interval
    found = mean_interval(values * scale).interval
    assert expected is not None
    assert found is not None
    assert found == pytest.approx(tuple(bound * scale for bound in expected), rel=1e-6)


SAMPLES = {
    "bell": np.random.default_rng(4).normal(0.1, 1, 60),
    "few kinds": np.random.default_rng(5).choice([0.0, 1.0, -1.0], 80, p=[0.7, 0.2, 0.1]),
    "rare disasters": 1 - np.random.default_rng(6).lognormal(0, 1.2, 200),
    "one outlier": np.append(np.random.default_rng(7).normal(size=59), 8.0),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_bootstrap_is_scipys_without_its_noise(name: str) -> None:
    values = SAMPLES[name]
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=40_000, batch=2_000, method="BCa", rng=1
    ).confidence_interval
    ours = bca_interval(values)
    assert ours is not None
    width = theirs.high - theirs.low
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.02 * width)


def test_the_joined_interval_is_the_wider_of_both_on_each_side() -> None:
    values = SAMPLES["rare disasters"]
    student = student_interval(float(values.mean()), deviation(values), len(values))
    resampled = bca_interval(values)
    assert resampled is not None
    joined = mean_interval(values).interval
    assert joined == pytest.approx(
        (min(student[0], resampled[0]), max(student[1], resampled[1])), rel=1e-6
    )


@pytest.mark.parametrize(
    ("table", "better", "not_worse"), [((3, 0, 20), 0.967, 0.991), ((0, 0, 20), 0.5, 0.906)]
)
def test_the_bayesian_view_has_its_known_values(
    table: tuple[int, int, int], better: float, not_worse: float
) -> None:
    belief = success_belief(*table, margin=0.05)
    assert belief.p_better == pytest.approx(better, abs=1e-3)
    assert belief.p_not_worse == pytest.approx(not_worse, abs=2e-3)


def test_the_bayesian_view_is_what_draws_would_give() -> None:
    draws = np.random.default_rng(8).dirichlet([20.5, 7.5, 4.5, 8.5], 200_000)
    delta = draws[:, 1] - draws[:, 2]
    belief = success_belief(7, 4, 39, margin=0.05)
    # 20 + 7 + 4 + 8 pairs, and a half for each kind
    assert belief.p_better == pytest.approx(float(np.mean(delta > 0)), abs=5e-3)
    assert belief.p_not_worse == pytest.approx(float(np.mean(delta > -0.05)), abs=5e-3)
