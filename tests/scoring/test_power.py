"""Power: the known numbers of pairs, and an honest None."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rollbook.scoring.bounds.betting import watched_capital
from rollbook.scoring.bounds.flip_bound import FlipBound
from rollbook.scoring.bounds.pair_clusters import PairClusters
from rollbook.scoring.bounds.tail_bound import tail_chance
from rollbook.scoring.paired_tests import log_e_value, mcnemar_exact
from rollbook.scoring.power import (
    MOST_PAIRS,
    clusters_for,
    mean_power,
    non_inferiority_power,
    pairs_for_capital,
    pairs_for_e_value,
    pairs_for_mean,
    pairs_for_non_inferiority,
    pairs_for_superiority,
    pairs_for_tail_bound,
    superiority_power,
)


@pytest.mark.parametrize(
    ("win", "loss", "pairs"),
    [
        (0.10, 0.05, 398),
        (0.15, 0.05, 134),
        (0.20, 0.10, 199),
        (0.25, 0.05, 50),
        (0.30, 0.10, 67),
        (0.35, 0.05, 30),
    ],
)
def test_showing_that_it_is_better_takes_the_known_number_of_pairs(
    win: float, loss: float, pairs: int
) -> None:
    assert pairs_for_superiority(win, loss) == pairs


@pytest.mark.parametrize(
    ("margin", "share", "coarse"),
    [
        *((0.05, 0.02, 150), (0.05, 0.05, 300), (0.05, 0.10, 600)),
        *((0.10, 0.02, 50), (0.10, 0.05, 80), (0.10, 0.10, 150)),
        *((0.15, 0.02, 30), (0.15, 0.05, 40), (0.15, 0.10, 60)),
    ],
)
def test_ruling_out_a_loss_takes_what_simulations_on_a_coarse_grid_said(
    margin: float, share: float, coarse: int
) -> None:
    pairs = pairs_for_non_inferiority(share, share, margin)
    assert pairs is not None
    assert 0.85 * coarse <= pairs <= 1.15 * coarse


@pytest.mark.parametrize(("margin", "least"), [(0.05, 59), (0.10, 29), (0.15, 19), (0.20, 14)])
def test_without_a_pair_that_differs_there_is_still_a_floor(margin: float, least: int) -> None:
    assert pairs_for_non_inferiority(0.0, 0.0, margin) == least


@pytest.mark.parametrize(("n", "win", "loss"), [(7, 0.85, 0.1), (40, 0.1, 0.1)])
def test_powers_are_the_shares_of_tables_that_pass(n: int, win: float, loss: float) -> None:
    better = not_worse = 0.0
    for wins in range(n + 1):
        losses = np.arange(n + 1 - wins)
        cells = np.stack([np.full_like(losses, wins), losses, n - wins - losses], axis=1)
        chances = stats.multinomial.pmf(cells, n, [win, loss, 1 - win - loss])
        for lost, chance in zip(losses.tolist(), chances.tolist(), strict=True):
            if chance > 1e-12:
                better += chance * (mcnemar_exact(wins, lost).better <= 0.05)
                gains = np.repeat([1.0, -1.0, 0.0], [wins, lost, n - wins - lost])
                not_worse += chance * (chance > 1e-6 and tail_chance(gains, 1.0, -0.1) <= 0.05)
    assert superiority_power(n, win, loss) == pytest.approx(better, abs=1e-6)
    assert non_inferiority_power(n, win, loss, 0.1) == pytest.approx(not_worse, abs=2e-3)


def test_where_it_is_not_better_no_number_of_pairs_will_do() -> None:
    assert pairs_for_superiority(0.1, 0.1) is None
    assert pairs_for_superiority(0.0, 0.0) is None
    assert pairs_for_e_value(0.1, 0.2) is None
    assert pairs_for_mean(0.0, 1.0) is None
    assert pairs_for_mean(-1.0, 1.0) is None
    assert pairs_for_non_inferiority(0.0, 0.2, 0.1) is None
    assert pairs_for_non_inferiority(0.1, 0.1, 0.0) is None
    assert pairs_for_tail_bound(0.0, 1.0, 4.0) is None
    assert pairs_for_tail_bound(-0.2, 1.0, 4.0, margin=0.1) is None


def test_more_pairs_than_anyone_runs_are_not_promised() -> None:
    assert pairs_for_superiority(0.1001, 0.1) is None
    assert pairs_for_mean(1e-6, 1.0) is None
    assert pairs_for_mean(1e-300, 1e300) is None
    assert pairs_for_tail_bound(1e-300, 1e300, 1e300) is None
    several = pairs_for_superiority(0.11, 0.10)
    assert several is not None
    assert 10_000 < several < MOST_PAIRS


def test_a_mean_takes_what_students_test_needs() -> None:
    """scipy's noncentral t is the judge."""
    pairs = pairs_for_mean(0.5, 1.0)
    assert pairs is not None

    def power(n: int) -> float:
        bar = stats.t.ppf(0.95, n - 1)
        return float(stats.nct.sf(bar, n - 1, 0.5 * np.sqrt(n)))

    assert power(pairs - 2) < 0.8 <= power(pairs + 1)


def test_the_bet_pays_after_that_many_pairs() -> None:
    pairs = pairs_for_e_value(0.25, 0.0)
    assert pairs is not None
    assert log_e_value(round(pairs * 0.25), 0) >= np.log(18)
    assert pairs_for_e_value(1.0, 0.0) == 7
    rewards = np.random.default_rng(1).normal(0.3, 1, (400, 400)).clip(-4, 4)
    crossed = [np.argmax(watched_capital(run, 4.0) >= np.log(20)) for run in rewards]
    assert pairs_for_capital(0.3, 1.0, 4.0) == pytest.approx(np.mean(crossed), rel=0.15)
    assert pairs_for_capital(-0.3, 1.0, 4.0) is None


@pytest.mark.slow
def test_the_power_of_means_is_that_of_the_bounds() -> None:
    """Both bounds, over pairs and over clusters, on simulated gains; 400 runs have a standard error of .025."""
    rng = np.random.default_rng(8)
    for clusters, size, worst, correlation in ((100, 1, 4.0, 0.0), (20, 5, 3.0, 0.4)):
        shared = np.sqrt(correlation) * rng.normal(size=(400, clusters, 1))
        own = np.sqrt(1 - correlation) * rng.normal(size=(400, clusters, size))
        runs = 0.3 + shared + own
        labels = np.repeat(np.arange(clusters), size).tolist()
        better = not_worse = 0
        for gains in runs.reshape(400, -1):
            found = PairClusters.of(gains, labels)
            flips = FlipBound(found.sums, found.sizes)
            better += flips.p_better() <= 0.05 and tail_chance(gains, worst) <= 0.05
            whole = tail_chance(found.sums, worst, -0.2, found.sizes)
            not_worse += flips.p_better(-0.2) <= 0.05 and whole <= 0.05
        alike = {"size": size, "correlation": correlation}
        assert mean_power(clusters, 0.3, 1.0, worst, **alike) == pytest.approx(
            better / 400, abs=0.08
        )
        assert mean_power(clusters, 0.3, 1.0, worst, margin=0.2, **alike) == pytest.approx(
            not_worse / 400, abs=0.08
        )


def test_success_by_sums_takes_about_as_many_pairs_as_the_exact_test() -> None:
    for win, loss in ((0.15, 0.05), (0.20, 0.10), (0.30, 0.10)):
        gain = win - loss
        by_sums = pairs_for_tail_bound(gain, np.sqrt(win + loss - gain**2), 1.0)
        assert by_sums == pytest.approx(pairs_for_superiority(win, loss), rel=0.08)


def test_a_larger_worst_loss_and_alike_pairs_take_more() -> None:
    takes = [pairs_for_tail_bound(0.3, 1.0, worst) or 0 for worst in (2.0, 4.0, 8.0, 20.0)]
    assert takes == sorted(takes)
    assert takes[0] < 90 < takes[1] < takes[-1] < 400
    pairs = [10 * (clusters_for(0.3, 1.0, 4.0, size=10, correlation=r) or 0) for r in (0, 0.3, 0.8)]
    assert pairs == sorted(pairs)
    assert pairs[0] < 1.3 * takes[1] < pairs[-1]


def test_the_unit_of_the_gains_makes_no_difference() -> None:
    assert pairs_for_tail_bound(0.3, 1.0, 4.0) == pairs_for_tail_bound(3e200, 1e201, 4e201)


def test_odd_numbers_are_answered_too() -> None:
    assert pairs_for_non_inferiority(0.1, 0.1, 1.0) == 1, "nothing can lose more"
    assert pairs_for_capital(1e-200, 1e200, 1.0) is None
