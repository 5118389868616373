"""The bar of a difference with its interval."""

from __future__ import annotations

import math
import re

import pytest

from rollbook.portal.charts.interval_bar import interval_bar, shared_axis


def test_a_difference_that_was_shown_is_solid_and_others_are_thin() -> None:
    shown = interval_bar(0.14, (0.05, 0.23), shown="better")
    thin = interval_bar(0.1, (-0.07, 0.27))
    assert 'class="up"' in shown
    assert 'class="pt"' in shown
    assert 'class="up"' not in thin
    assert 'class="base"' in thin


@pytest.mark.parametrize(("margin", "left"), [(-0.1, "0.00%"), (0.1, None)])
def test_more_loss_than_the_gate_allows_is_hatched_on_its_side(
    margin: float, left: str | None
) -> None:
    drawn = interval_bar(0.0, (-0.05, 0.05), margin=margin)
    found = re.search(r'<rect x="([\d.]+%)"[^>]*class="margin"', drawn)
    assert found is not None
    assert (found[1] == "0.00%") == (left is not None)


@pytest.mark.parametrize("interval", [None, (math.nan, 1.0), (-math.inf, math.inf)])
def test_without_an_interval_it_says_so(interval: tuple[float, float] | None) -> None:
    drawn = interval_bar(0.1, interval, missing="6 pairs: too few")
    assert "6 pairs: too few" in drawn
    assert "nan" not in drawn
    assert "inf" not in drawn.replace("interval", "")


def test_words_are_escaped() -> None:
    assert "<script>" not in interval_bar(None, None, missing="<script>")
    assert "<b>" not in interval_bar(0.1, (0.0, 0.2), write=lambda value: f"<b>{value}")


def test_bars_that_share_an_axis_can_be_compared() -> None:
    within = shared_axis([(0.1, (-0.2, 0.3)), (None, None), (0.5, None)])
    assert within[0] < -0.2
    assert within[1] > 0.5
