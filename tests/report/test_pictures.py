"""Pictures of a run: well-formed, nothing outside the drawing, no colour without a claim, and small at any size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.contracts.outcomes import Outcome
from rollbook.report.belief_chart import belief_chart
from rollbook.report.confidence_sequence import BoundsOverPairs, confidence_sequence_chart
from rollbook.report.difference_chart import MOST_DRAWN, difference_chart
from rollbook.report.interval_forest import ForestRow, interval_bar, interval_forest
from rollbook.report.pair_differences import PairDifferences
from rollbook.scoring.bounds.betting import watched_bounds

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def parsed(picture: str) -> ElementTree.Element:
    """The picture as XML. Every place along x in percent, and along y in units, is inside the drawing."""
    root = ElementTree.fromstring(picture)
    height = float(root.attrib["height"])
    assert not re.search(r"\b(nan|inf)\b", picture, re.IGNORECASE)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"]
    for each in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            place = each.attrib.get(name, "0")
            if place.endswith("%"):
                assert 0 <= float(place[:-1]) <= 100
        for name in ("y", "y1", "y2", "cy"):
            assert -1 <= float(each.attrib.get(name, 0)) <= height + 1
        for point in each.attrib.get("points", "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 1000
            assert -1 <= y <= height + 1
    return root


def kinds(picture: ElementTree.Element) -> set[str]:
    return {each.attrib.get("class", "") for each in picture.iter()}


def circles(picture: ElementTree.Element) -> list[ElementTree.Element]:
    return [each for each in picture.iter() if each.tag.endswith("circle")]


def differences(
    deltas: Sequence[float] | NDArray[np.float64],
    clusters: Sequence[str] | None = None,
    metric: Outcome = "reward_total",
) -> PairDifferences:
    candidate = np.array(deltas, float)
    return PairDifferences(
        metric,
        tuple(f"ep-{place}" for place in range(len(candidate))),
        np.zeros(len(candidate)),
        candidate,
        None if clusters is None else tuple(clusters),
        None if clusters is None else "scene",
    )


@given(st.lists(st.tuples(NUMBERS, st.sampled_from("abcdefgh")), min_size=1, max_size=40))
@settings(max_examples=30, deadline=None)
def test_every_pair_is_a_dot_inside_the_drawing(rows: list[tuple[float, str]]) -> None:
    deltas, clusters = zip(*rows, strict=True)
    assert len(circles(parsed(difference_chart(differences(deltas))))) == len(rows)
    assert len(circles(parsed(difference_chart(differences(deltas, clusters))))) == len(rows)


def test_clusters_have_colours_and_the_worst_cluster_is_at_the_left() -> None:
    picture = parsed(difference_chart(differences([1, 2, -5, -6], ["fine", "fine", "bad", "bad"])))
    places = {
        (each.findtext("{*}title") or each.findtext("title") or ""): each
        for each in picture.iter("g")
    }
    bad, fine = (
        next(words for words in places if f"scene {name}:" in words) for name in ("bad", "fine")
    )
    assert "mean −5.5 in 2 pairs" in bad
    lines = [
        next(each for each in places[name].iter() if "x1" in each.attrib) for name in (bad, fine)
    ]
    assert float(lines[0].attrib["x1"][:-1]) < float(lines[1].attrib["x1"][:-1])
    assert lines[0].attrib["class"] != lines[1].attrib["class"]


def test_ten_thousand_pairs_are_thinned_and_the_picture_says_so() -> None:
    rng = np.random.default_rng(0)
    picture = difference_chart(differences(rng.normal(size=10_000)))
    assert len(circles(parsed(picture))) == MOST_DRAWN
    assert f"{MOST_DRAWN} of 10,000 pairs are drawn" in picture
    assert len(picture) < 150_000


def test_texts_from_others_are_escaped() -> None:
    evil = '<script>alert("1")</script>'
    pairs = differences([1.0, -1.0], [evil, evil])
    forest = interval_forest("success", [ForestRow(evil, 3, 0.1, (-0.2, 0.3))])
    for picture in (difference_chart(pairs), forest):
        assert "<script" not in picture
        parsed(picture)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_intervals_lie_inside_the_forest(rows: list[tuple[float, float, float]]) -> None:
    made = [
        ForestRow(f"slice {place}", 9, sorted(each)[1], (min(each), max(each)))
        for place, each in enumerate(rows)
    ]
    assert len(circles(parsed(interval_forest("reward_total", made)))) == len(rows)
    parsed(interval_bar("reward_total", made[0], margin=3.0))


def test_a_difference_has_a_colour_only_if_it_was_shown() -> None:
    row = ForestRow("all", 50, 0.1, (-0.1, 0.3))
    assert not {"bar better", "bar worse"} & kinds(parsed(interval_forest("success", [row])))
    shown = ForestRow("all", 50, 0.2, (0.1, 0.3), "better")
    assert "bar better" in kinds(parsed(interval_forest("success", [shown])))


def test_a_slice_without_an_interval_is_a_ring_alone() -> None:
    picture = parsed(interval_forest("success", [ForestRow("rare", 2, -1.0, None)]))
    assert "ring not" in kinds(picture)
    assert not [each for each in kinds(picture) if each.startswith("bar")]


@given(
    hits=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    misses=st.tuples(st.integers(0, 300), st.integers(1, 300)),
)
@settings(max_examples=30, deadline=None)
def test_beliefs_are_drawn_for_any_counts(hits: tuple[int, int], misses: tuple[int, int]) -> None:
    baseline, candidate = ((h, h + m) for h, m in zip(hits, misses, strict=True))
    picture = belief_chart(baseline, candidate)
    assert (picture == "") == (not baseline[1])
    if picture:
        assert {"curve", "hollow"} <= kinds(parsed(picture))


def sequence(gains: NDArray[np.float64]) -> BoundsOverPairs:
    low, high = watched_bounds(gains, 1.0, 0.05)
    counted = np.arange(1.0, len(gains) + 1)
    return BoundsOverPairs("success", counted, np.cumsum(gains) / counted, low, high, 0.9)


@pytest.mark.parametrize("pairs", [1, 2, 30, 10_000])
def test_a_confidence_sequence_is_drawn_for_any_number_of_pairs(pairs: int) -> None:
    gains = np.random.default_rng(pairs).choice([-1.0, 0.0, 1.0], pairs)
    picture = confidence_sequence_chart(sequence(gains))
    assert "band" in kinds(parsed(picture))
    assert len(picture) < 20_000


def test_a_confidence_sequence_contains_the_true_difference_after_every_pair() -> None:
    """Both bounds, at all 200 pairs, in 200 runs: each may be wrong in one of twenty runs."""
    rng = np.random.default_rng(7)
    wrong_low = wrong_high = narrow = 0
    for _ in range(200):
        gains = rng.choice([-1.0, 0.0, 1.0], 200, p=[0.1, 0.6, 0.3])
        low, high = watched_bounds(gains, 1.0, 0.05)
        assert (np.diff(low) >= 0).all()
        assert (np.diff(high) <= 0).all()
        wrong_low += bool((low > 0.2 + 1e-9).any())
        wrong_high += bool((high < 0.2 - 1e-9).any())
        narrow += bool(high[-1] - low[-1] < 0.6)
    limit = 200 * 0.05 + 3 * np.sqrt(200 * 0.05 * 0.95)
    assert wrong_low <= limit
    assert wrong_high <= limit
    assert narrow > 150, "a range that contains everything would also pass"


def test_no_line_runs_through_the_words_of_a_forest() -> None:
    rows = [ForestRow(f"flat {number}", 3, 0.1 * number, None) for number in range(5)]
    picture = parsed(interval_forest("reward_total", rows, 0.2))
    words = [
        float(each.attrib["y"])
        for each in picture.iter()
        if "label" in each.attrib.get("class", "")
    ]
    upright = [
        (float(each.attrib["y1"]), float(each.attrib["y2"]))
        for each in picture.iter()
        if each.tag.endswith("line") and each.attrib.get("x1") == each.attrib.get("x2")
    ]
    assert len(words) == 5
    assert {"zero", "margin"} <= kinds(picture)
    assert upright
    assert not [y for y in words for top, bottom in upright if top < y + 3 and y - 11 < bottom]
