"""The picture of how many pairs a new run takes."""

from __future__ import annotations

from rollbook.portal.charts.power_curve import power_curve
from rollbook.scoring.power import POWER, pairs_for_superiority, superiority_power


def test_the_size_that_is_marked_has_the_chance_that_is_asked_for() -> None:
    needed = pairs_for_superiority(0.2, 0.08, 0.025)
    assert needed is not None
    drawn = power_curve(lambda pairs: superiority_power(pairs, 0.2, 0.08, 0.025), needed, POWER)
    assert f"with {needed:,} pairs" in drawn
    said = int(drawn.partition("new run: ")[2].partition("%")[0])
    assert 100 * POWER <= said <= 100 * POWER + 3


def test_a_chance_outside_of_0_to_1_stays_inside_of_the_picture() -> None:
    drawn = power_curve(lambda pairs: 1.0000001 if pairs > 5 else -0.1, 10, POWER)
    heights = [
        float(point.split(",")[1])
        for point in drawn.partition('points="')[2].partition('"')[0].split()
    ]
    assert 10 <= min(heights) <= max(heights) <= 124
