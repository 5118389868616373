"""What a set of recordings says about each channel, however it was put together."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from rollbook.scoring.reference import MOST_ROWS, ActionReference


def one(values: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {"arm/value": np.asarray(values)}


def test_units_and_range_are_those_of_a_bell_curve() -> None:
    values = np.random.default_rng(0).normal(5.0, 2.0, (20_000, 1))
    spread = ActionReference.of_one(one(values)).spread("arm/value", 1)
    assert spread is not None
    assert spread.location[0] == pytest.approx(5.0, abs=0.1)
    assert spread.scale[0] == pytest.approx(2.0, rel=0.05)
    assert (spread.low[0], spread.high[0]) == pytest.approx((-1.2, 11.2), abs=0.5)


def test_a_few_wild_steps_set_neither_unit_nor_range() -> None:
    values = np.random.default_rng(0).normal(0.0, 1.0, (2000, 1))
    values[:5] = 1e6
    spread = ActionReference.of_one(one(values)).spread("arm/value", 1)
    assert spread is not None
    assert spread.scale[0] == pytest.approx(1.0, rel=0.1)
    assert spread.high[0] < 10


@pytest.mark.parametrize("constant", [0.0, 7.0, -1e12, 1e-12])
def test_a_channel_that_never_moved_is_constant_whatever_it_was(constant: float) -> None:
    spread = ActionReference.of_one(one(np.full((50, 1), constant))).spread("arm/value", 1)
    assert spread is not None
    assert spread.constant.all()
    assert np.isnan(spread.low).all()


def test_small_numbers_are_no_constants() -> None:
    values = np.random.default_rng(0).normal(0.0, 1e-12, (50, 1))
    spread = ActionReference.of_one(one(values)).spread("arm/value", 1)
    assert spread is not None
    assert not spread.constant.any()
    assert 0 < spread.scale[0] < 1e-11


def test_rounding_is_no_movement() -> None:
    values = np.full((50, 1), 1e6)
    values[::2] += 1e-9
    spread = ActionReference.of_one(one(values)).spread("arm/value", 1)
    assert spread is not None
    assert spread.constant.all()


def test_a_rare_event_has_the_range_of_all_that_was_seen() -> None:
    values = np.zeros((5000, 1))
    values[7] = 1.0
    spread = ActionReference.of_one(one(values)).spread("arm/value", 1)
    assert spread is not None
    assert (spread.low[0], spread.high[0]) == (0.0, 1.0)
    assert spread.scale[0] > 0


def test_holes_are_left_out_and_a_channel_of_holes_is_unknown() -> None:
    values = np.random.default_rng(0).normal(0.0, 1.0, (100, 2))
    values[::3, 0] = np.nan
    values[5, 0] = np.inf
    values[:, 1] = np.nan
    spread = ActionReference.of_one(one(values)).spread("arm/value", 2)
    assert spread is not None
    assert spread.scale[0] == pytest.approx(1.0, rel=0.3)
    assert np.isnan(spread.location[1])
    assert not spread.constant.any()


def test_four_steps_have_a_unit_and_no_range() -> None:
    spread = ActionReference.of_one(one([[0.0], [1.0], [2.0], [3.0]])).spread("arm/value", 1)
    assert spread is not None
    assert np.isfinite(spread.scale).all()
    assert np.isnan(spread.low).all()


def test_any_order_of_merging_gives_the_same() -> None:
    rng = np.random.default_rng(3)
    episodes = [one(rng.normal(i, 1 + i, (9_000, 2))) for i in range(4)]
    parts = [ActionReference.of_one(each) for each in episodes]
    expected = ActionReference.of(episodes).spread("arm/value", 2)
    assert expected is not None
    for order in itertools.permutations(parts):
        a, b, c, d = order
        found = a.merged(b).merged(c.merged(d)).spread("arm/value", 2)
        assert found is not None
        np.testing.assert_array_equal(found.scale, expected.scale)
        np.testing.assert_array_equal(found.low, expected.low)


def test_what_is_kept_is_bounded_and_stands_for_all() -> None:
    rng = np.random.default_rng(4)
    episodes = (one(rng.normal(i % 2 * 10, 1.0, (1000, 1))) for i in range(100))
    reference = ActionReference.of(episodes)
    rows = reference.rows["arm/value", 1]
    assert (reference.episodes, rows.steps, len(rows.values)) == (100, 100_000, MOST_ROWS)
    assert np.mean(rows.values > 5) == pytest.approx(0.5, abs=0.02)


def test_a_key_recorded_in_two_shapes_is_two() -> None:
    reference = ActionReference.of([one(np.ones((9, 2))), one(np.ones((9, 3)))])
    assert reference.spread("arm/value", 2) is not None
    assert reference.spread("arm/value", 3) is not None
    assert reference.spread("arm/value", 4) is None


def test_clocks_words_truth_values_and_keys_without_a_namespace_are_no_actions() -> None:
    baseline = {
        "arm/_t_ns": np.arange(9),
        "arm/name": np.full(9, "x"),
        "arm/on": np.ones(9, bool),
        "flat": np.ones(9),
        "arm/still": np.array(3.0),
    }
    assert not ActionReference.of([baseline]).rows
