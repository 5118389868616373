"""Sequential: the bet in closed form is the bet by integration, and pays when it should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad

from rollbook.scoring.paired_tests import log_e_value
from rollbook.scoring.watched_bets import e_value_of


def e_value(wins: int, losses: int) -> float:
    return e_value_of(float(log_e_value(wins, losses)))


@pytest.mark.parametrize(
    ("wins", "losses"), [(0, 0), (1, 0), (0, 4), (7, 0), (12, 5), (5, 12), (30, 29)]
)
def test_the_closed_form_is_the_integral(wins: int, losses: int) -> None:
    bet, _ = quad(lambda share: 2 * share**wins * (1 - share) ** losses, 0.5, 1)
    assert e_value(wins, losses) == pytest.approx(bet * 2.0 ** (wins + losses), rel=1e-9)


def test_a_bet_begins_at_one_and_takes_seven_wins() -> None:
    assert e_value(0, 0) == pytest.approx(1.0)
    assert e_value(6, 0) < 20 <= e_value(7, 0)


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_a_bet_on_the_wrong_policy_is_not_expected_to_win(share: float) -> None:
    """Its mean over all that can happen in ten pairs is at most one: that is what makes it safe to look."""
    wins = np.arange(11)
    chance = [math.comb(10, int(k)) * share**k * (1 - share) ** (10 - k) for k in wins]
    assert np.dot(chance, np.exp(log_e_value(wins, 10 - wins))) <= 1 + 1e-12


def test_the_next_pair_is_a_fair_bet_when_policies_are_equal() -> None:
    for wins, losses in [(0, 0), (3, 1), (2, 9)]:
        before = e_value(wins, losses)
        after = (e_value(wins + 1, losses) + e_value(wins, losses + 1)) / 2
        assert after <= before * (1 + 1e-12)


def test_extremes_stay_numbers() -> None:
    assert math.isfinite(e_value(100_000, 0))
    assert e_value(0, 100_000) < 1e-4
    assert e_value(0, 100_000) >= 0


def test_many_bets_at_once_are_the_same_bets() -> None:
    wins, losses = np.array([0, 3, 9]), np.array([4, 3, 0])
    together = np.exp(log_e_value(wins, losses))
    assert together == pytest.approx([e_value(*each) for each in zip(wins, losses, strict=True)])
