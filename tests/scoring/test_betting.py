"""Bounds by bets: proven, whatever the world, as long as no pair loses more than the worst loss."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rollbook.scoring.bounds.betting import betting_bound, betting_chance, watched_capital
from rollbook.scoring.bounds.gain_bounds import GainBounds
from rollbook.scoring.bounds.tail_bound import tail_chance
from rollbook.scoring.paired_tests import mcnemar_exact

GAINS = arrays(np.float64, st.integers(1, 60), elements=st.floats(-2, 2, width=32))


@given(GAINS)
def test_the_bound_lies_between_the_worst_loss_and_the_largest_gain(gains: np.ndarray) -> None:
    lower = betting_bound(gains, 2.0, 0.05)
    assert -2.0 <= lower <= max(-2.0, float(gains.max()))


@given(GAINS, st.floats(-1.9, 1.9))
def test_a_delta_below_the_bound_is_rejected_and_no_other(gains: np.ndarray, delta: float) -> None:
    lower = betting_bound(gains, 2.0, 0.05)
    if abs(lower - delta) > 1e-9:
        assert (betting_chance(gains, 2.0, 0.05, delta) <= 0.05) == (delta < lower)


@given(GAINS, st.sampled_from([1e-150, 1e-3, 7.0, 1e150]))
def test_the_unit_of_the_gains_makes_no_difference(gains: np.ndarray, unit: float) -> None:
    # gains whose squares are too small for a float are no gains in any unit
    gains = np.round(gains, 3)
    lower = betting_bound(gains, 2.0, 0.05)
    assert betting_bound(unit * gains, unit * 2.0, 0.05) == pytest.approx(
        unit * lower, rel=1e-9, abs=1e-9 * unit
    )
    assert watched_capital(unit * gains, unit * 2.0) == pytest.approx(
        watched_capital(gains, 2.0), rel=1e-9, abs=1e-9
    )


@given(GAINS, st.integers(1, 60))
def test_a_bet_never_depends_on_a_later_pair(gains: np.ndarray, count: int) -> None:
    whole, part = watched_capital(gains, 2.0), watched_capital(gains[:count], 2.0)
    assert part == pytest.approx(whole[:count], rel=1e-12, abs=1e-12)


def test_without_a_gain_nothing_is_shown() -> None:
    assert betting_bound(np.zeros(0), 2.0, 0.05) == -2.0
    assert -2.0 < betting_bound(np.zeros(50), 2.0, 0.05) < 0
    assert betting_bound(np.zeros(50), 0.0, 0.05) <= 0


def test_pairs_alone_are_clusters_of_one_and_a_cluster_counts_once() -> None:
    gains = np.random.default_rng(5).normal(0.4, 1, 80).clip(-3)
    alone = betting_bound(gains, 3.0, 0.05)
    assert betting_bound(gains, 3.0, 0.05, np.ones(80)) == alone
    copies = betting_bound(10 * gains, 3.0, 0.05, np.full(80, 10.0))
    assert copies == pytest.approx(alone), "ten copies of each pair say no more than the pairs"


def test_equal_policies_and_rare_disasters_are_called_better_in_few_runs() -> None:
    """1 000 runs each; a share of .05 has a standard error of .007."""
    rng = np.random.default_rng(11)
    worlds = {
        "bell": (rng.normal(0, 1, (1000, 100)).clip(-4, 4), 4.0),
        "success": (rng.choice([-1.0, 0.0, 1.0], (1000, 100), p=[0.15, 0.7, 0.15]), 1.0),
        "skewed": (1 - rng.exponential(1, (1000, 100)).clip(None, 9), 8.0),
        "disaster": (np.where(rng.random((1000, 100)) < 0.02, -20.0, 0.2), 21.0),
    }
    for name, (runs, worst) in worlds.items():
        fixed = np.mean([betting_chance(run, worst, 0.05) <= 0.05 for run in runs])
        ever = np.mean([watched_capital(run, worst).max() >= math.log(20) for run in runs])
        assert fixed <= 0.05 + 3 * 0.007, name
        assert ever <= 0.05 + 3 * 0.007, name
    disaster = worlds["disaster"][0]
    assert np.mean(disaster.mean(axis=1) > 0) > 0.1, "in many runs no disaster is seen"


def test_for_rewards_the_proven_bound_is_nearly_as_strong_as_the_conjectured_one() -> None:
    rng = np.random.default_rng(3)
    runs = rng.normal(0.3, 1, (300, 200)).clip(-8)
    proven = np.mean([betting_chance(run, 8.0, 0.05) <= 0.05 for run in runs])
    conjectured = np.mean([tail_chance(run, 8.0) <= 0.05 for run in runs])
    assert proven > 0.9
    assert conjectured - proven < 0.05


def test_one_lost_pair_takes_most_of_the_capital() -> None:
    gains = np.full(400, 0.2)
    before = watched_capital(gains, 21.0)[-1]
    gains[250] = -20.0
    assert watched_capital(gains, 21.0)[-1] < before - 1
    assert betting_bound(gains, 21.0, 0.05) < 0 < betting_bound(np.full(400, 0.2), 21.0, 0.05)


def test_the_proven_rule_tests_success_by_mcnemar_and_bets_for_a_margin() -> None:
    gains = np.repeat([1.0, -1.0, 0.0], [12, 2, 46])
    proven = GainBounds(gains, 1.0, is_success=True, tails="proven")
    assert proven.p_better == pytest.approx(mcnemar_exact(12, 2).better)
    assert proven.p_not_worse(0.1) == betting_chance(gains, 1.0, 0.05, -0.1)
    assert proven.lower(0.05) >= 0
