"""Power: the known numbers of pairs, and an honest None."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rollbook.scoring.intervals import tango_statistic
from rollbook.scoring.paired_tests import e_value, mcnemar_exact
from rollbook.scoring.power import (
    MOST_PAIRS,
    non_inferiority_power,
    pairs_for_e_value,
    pairs_for_mean,
    pairs_for_non_inferiority,
    pairs_for_superiority,
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
    assert 0.8 * coarse <= pairs <= coarse


@pytest.mark.parametrize(("margin", "least"), [(0.05, 52), (0.10, 25), (0.15, 16), (0.20, 11)])
def test_without_a_pair_that_differs_there_is_still_a_floor(margin: float, least: int) -> None:
    assert pairs_for_non_inferiority(0.0, 0.0, margin) == least


@pytest.mark.parametrize(("n", "win", "loss"), [(7, 0.85, 0.1), (30, 0.3, 0.1), (80, 0.1, 0.1)])
def test_powers_are_the_shares_of_tables_that_pass(n: int, win: float, loss: float) -> None:
    better = not_worse = 0.0
    for wins in range(n + 1):
        losses = np.arange(n + 1 - wins)
        cells = np.stack([np.full_like(losses, wins), losses, n - wins - losses], axis=1)
        chances = stats.multinomial.pmf(cells, n, [win, loss, 1 - win - loss])
        for lost, chance in zip(losses.tolist(), chances.tolist(), strict=True):
            if chance > 1e-12:
                better += chance * (mcnemar_exact(wins, lost).better <= 0.05)
                not_worse += chance * (tango_statistic(wins, lost, n, -0.1) > 1.6448536269514722)
    assert superiority_power(n, win, loss) == pytest.approx(better, abs=1e-6)
    assert non_inferiority_power(n, win, loss, 0.1) == pytest.approx(not_worse, abs=1e-6)


def test_where_it_is_not_better_no_number_of_pairs_will_do() -> None:
    assert pairs_for_superiority(0.1, 0.1) is None
    assert pairs_for_superiority(0.0, 0.0) is None
    assert pairs_for_e_value(0.1, 0.2) is None
    assert pairs_for_mean(0.0, 1.0) is None
    assert pairs_for_mean(-1.0, 1.0) is None
    assert pairs_for_non_inferiority(0.0, 0.2, 0.1) is None
    assert pairs_for_non_inferiority(0.1, 0.1, 0.0) is None


def test_more_pairs_than_anyone_runs_are_not_promised() -> None:
    assert pairs_for_superiority(0.1001, 0.1) is None
    assert pairs_for_mean(1e-6, 1.0) is None
    assert pairs_for_mean(1e-300, 1e300) is None
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
    assert e_value(round(pairs * 0.25), 0) >= 18
    assert pairs_for_e_value(1.0, 0.0) == 7
