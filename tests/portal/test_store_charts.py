"""The charts of a store: lengths and places are those of the numbers, and every text is escaped."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from rollbook.contracts.reasons import INVALID_REASON_CODES, TARGET_INVALID_REASON_CODES
from rollbook.portal.charts.bars import Bar, bar, bars
from rollbook.portal.charts.histogram import histogram, histogram_axis
from rollbook.portal.charts.step_lines import StepLine, step_lines
from rollbook.portal.store_words import REASONS, reason_words, without_codes

HOSTILE = "\"'><svg onload=alert(1)>"


def widths(text: str, kind: str) -> list[float]:
    return [float(each) for each in re.findall(rf'width="([\d.]+)%"[^>]*class="{kind}"', text)]


def test_bars_are_as_long_as_their_share() -> None:
    text = str(bars([Bar("all", 400, 1.0), Bar("half", 200, 0.5, accent=True)], whole=400))
    assert widths(text, "fillm") == [100.0]
    assert widths(text, "filla") == [50.0]
    assert "200 <" in text
    assert "50 %" in text


def test_a_small_share_is_not_written_as_nothing() -> None:
    shares = {0.0: "0 %", 0.0015: "&lt; 1 %", 0.006: "1 %", 1.0: "100 %"}
    for share, words in shares.items():
        assert f">{words}<" in str(bars([Bar("some", 8, share)])), share
    assert ">&lt; 0.1 %<" in str(bars([Bar("some", 8, 0.0001)], digits=1))


def test_bars_without_a_whole_are_compared_with_the_longest() -> None:
    assert widths(str(bars([Bar("a", 10), Bar("b", 5), Bar("c", 0)])), "fillm") == [100.0, 50.0]


@pytest.mark.parametrize(("value", "longest"), [(1.0, 0.0), (-1.0, 2.0), (0.0, 0.0)])
def test_a_bar_of_nothing_has_no_length(value: float, longest: float) -> None:
    assert widths(str(bar(value, longest)), "fillm") == []


def test_a_histogram_shows_the_mean_where_it_is() -> None:
    text = str(histogram([1, 0, 100, 3], 0.0, 2.0, 0.5, "gain"))
    assert text.count('class="fillm"') == 3
    assert 'x1="25.00%"' in text
    assert "25.0%" in str(histogram_axis(0.0, 2.0)) or "50.0%" in str(histogram_axis(0.0, 2.0))


@pytest.mark.parametrize("bins", [[], [0, 0]])
def test_an_empty_histogram_is_an_axis(bins: list[int]) -> None:
    assert "fillm" not in str(histogram(bins, 0.0, 0.0, None, "gain"))
    assert histogram_axis(0.0, 0.0)


def test_lines_begin_at_the_root_and_end_where_a_value_is_missing() -> None:
    text = str(step_lines([StepLine("a", [0.5, 1.0]), StepLine("b", [0.25, None])], "return"))
    assert text.count('class="run s6"') == 2
    assert text.count('class="run s1"') == 1
    assert step_lines([], "return") == step_lines([StepLine("a", [None])], "return") == ""
    assert ">−0." in str(step_lines([StepLine("a", [-0.5])], "return"))


def test_names_that_end_at_one_place_stand_apart() -> None:
    text = str(step_lines([StepLine(f"p{i}", [0.5]) for i in range(3)], "return"))
    places = sorted(float(y) for y in re.findall(r'y="([\d.]+)" class="k"', text))
    assert all(below - above >= 13.9 for above, below in pairwise(places))


def test_no_text_of_a_store_becomes_markup() -> None:
    texts = [
        bars([Bar(HOSTILE, 1, title=HOSTILE)]),
        histogram([1], 0, 1, 0.5, HOSTILE),
        step_lines([StepLine(HOSTILE, [1.0])], HOSTILE),
    ]
    assert not any("<svg onload" in str(each) for each in texts)


def test_every_reason_against_a_candidate_or_a_target_has_words() -> None:
    codes = {*INVALID_REASON_CODES, *TARGET_INVALID_REASON_CODES} - {"VALID"}
    assert codes <= set(REASONS)
    assert reason_words("PATH_SEGMENT_COLLISION") == "path hits something"
    assert reason_words("OF_A_LATER_RELEASE") == "of a later release"
    assert without_codes("4 of 5: DEPTH_NO_HIT") == "4 of 5: sees nothing"
