"""Recorded sensors become steps: by index as the public client does, or by time, and what was done is stated."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.scoring.observations import aligned_to, observation_table

public: Any = import_module("robotrace.evals")

KEYS = ("/joints/position", "/joints/_t_ns", "imu/value", "flat", "/bare", "imu/name", "/joints/on")


@st.composite
def recordings(draw: st.DrawFn) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shapes: list[tuple[int, ...]] = [(), (3,), (2, 2), (0,)]
    found: dict[str, np.ndarray[Any, Any]] = {}
    for key in draw(st.lists(st.sampled_from(KEYS), unique=True)):
        rows = draw(st.integers(0, 6))
        if key.endswith("name"):
            found[key] = np.array([f"n{i}" for i in range(rows)], "<U4")
        elif key.endswith("on"):
            found[key] = rng.random(rows) > 0.5
        else:
            found[key] = rng.normal(size=(rows, *shapes[draw(st.integers(0, 3))]))
    return found


@settings(max_examples=200, deadline=None)
@given(sensors=recordings())
def test_by_index_the_steps_are_the_public_clients(sensors: Any) -> None:
    expected = public.materialize_observations(sensors, np=np)
    table = observation_table(sensors)
    assert len(table) == len(expected)
    for step, seen in enumerate(expected):
        ours = table.row(step)
        assert list(ours) == list(seen)
        for key, value in seen.items():
            assert ours[key].dtype.kind == value.dtype.kind
            assert ours[key].shape == value.shape
            np.testing.assert_array_equal(ours[key], value)


@settings(max_examples=100, deadline=None)
@given(sensors=recordings(), start=st.integers(0, 3), count=st.integers(0, 9))
def test_a_batch_is_its_rows(sensors: Any, start: int, count: int) -> None:
    table = observation_table(sensors)
    batch = table.batch(start, start + count)
    rows = [table.row(step) for step in range(start, min(start + count, len(table)))]
    for key, stacked in batch.items():
        assert len(stacked) == len(rows)
        for taken, row in zip(stacked, rows, strict=True):
            np.testing.assert_array_equal(taken, row[key])


def two_rates() -> dict[str, np.ndarray[Any, Any]]:
    return {
        "fast/value": np.arange(10.0),
        "fast/_t_ns": np.arange(10) * 10,
        "slow/value": np.array([100.0, 200.0, 300.0]),
        "slow/_t_ns": np.array([5, 42, 80]),
        "frame": np.array("map"),
    }


def test_a_value_without_steps_is_given_to_every_step() -> None:
    table = observation_table(two_rates())
    assert len(table) == 3
    assert [str(row["frame"]) for row in table] == ["map"] * 3
    assert table.batch(0, 3)["frame"].tolist() == ["map"] * 3
    assert table.t_ns is not None
    assert table.t_ns.tolist() == [0, 10, 20]


def test_nearest_takes_the_row_nearest_in_time_at_the_pace_of_the_fastest() -> None:
    table = observation_table(two_rates(), align="nearest")
    assert table.t_ns is not None
    assert table.t_ns.tolist() == list(range(0, 100, 10))
    slow = [float(row["slow/value"]) for row in table]
    assert slow == [100, 100, 100, 200, 200, 200, 200, 300, 300, 300]
    assert [float(row["fast/value"]) for row in table] == list(range(10))
    assert int(table.row(9)["slow/_t_ns"]) == 80
    assert table.largest_gap_ns == {"fast": 0, "slow": 18}


def test_hold_never_shows_what_had_not_arrived_yet() -> None:
    table = observation_table(two_rates(), align="hold")
    assert table.t_ns is not None
    assert table.t_ns.tolist() == list(range(10, 100, 10))
    assert [float(row["slow/value"]) for row in table] == [100] * 4 + [200] * 3 + [300] * 2
    for step, row in enumerate(table):
        assert int(row["slow/_t_ns"]) <= table.t_ns[step]


@pytest.mark.parametrize("clock", ["slow", "slow/_t_ns"])
def test_another_stream_can_give_the_ticks(clock: str) -> None:
    table = observation_table(two_rates(), align="nearest", clock=clock)
    assert [float(value) for value in table.batch(0, 9)["fast/value"]] == [0.0, 4.0, 8.0]


def test_a_clock_that_ran_backwards_is_put_into_order_and_named() -> None:
    sensors = two_rates()
    order = [2, 0, 1]
    sensors["slow/value"], sensors["slow/_t_ns"] = (
        sensors["slow/value"][order],
        sensors["slow/_t_ns"][order],
    )
    table = observation_table(sensors, align="hold")
    straight = observation_table(two_rates(), align="hold")
    np.testing.assert_array_equal(
        table.batch(0, 99)["slow/value"], straight.batch(0, 99)["slow/value"]
    )
    assert list(table.unsorted) == ["slow"]
    assert list(straight.unsorted) == []


def test_a_stream_without_a_clock_goes_by_its_share_of_the_way_and_is_named() -> None:
    sensors = {**two_rates(), "blind/value": np.array([1.0, 2.0])}
    table = observation_table(sensors, align="nearest")
    assert [float(row["blind/value"]) for row in table] == [1.0] * 5 + [2.0] * 5
    assert list(table.without_clock) == ["blind"]


def test_a_stream_longer_than_its_clock_is_used_as_far_as_both_go() -> None:
    sensors = two_rates()
    sensors["slow/value"] = sensors["slow/value"][:2]
    table = observation_table(sensors, align="hold")
    assert float(table.row(len(table) - 1)["slow/value"]) == 200


@pytest.mark.parametrize("align", ["index", "nearest", "hold"])
@pytest.mark.parametrize(
    "sensors", [None, {}, {"frame": np.array(1)}, {"a/_t_ns": np.zeros(0, "i8")}]
)
def test_nothing_recorded_is_no_steps(align: Any, sensors: Any) -> None:
    assert len(observation_table(sensors, align=align)) == 0
    assert list(observation_table(sensors, align=align)) == []


@pytest.mark.parametrize("align", ["index", "nearest", "hold"])
def test_one_row_is_one_step(align: Any) -> None:
    sensors = {"a/value": np.ones((1, 2)), "a/_t_ns": np.array([5])}
    table = observation_table(sensors, align=align)
    assert len(table) == 1
    assert table.row(0)["a/value"].tolist() == [1.0, 1.0]


def test_by_time_something_has_to_have_a_clock() -> None:
    with pytest.raises(InvalidValue, match="align=index needs none"):
        observation_table({"a/value": np.ones(3)}, align="hold")


@pytest.mark.parametrize(
    "clock", [np.array(["a", "b"]), np.ones((2, 2), int), np.array([0.0, np.nan])]
)
def test_a_clock_that_is_none_is_refused_by_name(clock: Any) -> None:
    with pytest.raises(InvalidValue, match="a/_t_ns"):
        observation_table({"a/_t_ns": clock, "a/value": np.ones(2)}, align="hold")


def test_a_clock_nobody_has_and_a_way_nobody_knows_are_refused() -> None:
    with pytest.raises(InvalidValue, match="fast/_t_ns, slow/_t_ns"):
        observation_table(two_rates(), align="hold", clock="medium")
    with pytest.raises(ConfigurationError, match="index, nearest, hold"):
        observation_table(two_rates(), align="sideways")  # type: ignore[arg-type]


def test_a_step_that_is_not_there_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        observation_table(two_rates()).row(3)


def test_recorded_actions_can_be_brought_onto_the_steps_of_the_observations() -> None:
    actions = {
        "arm/value": np.array([[0.0], [1.0]]),
        "arm/_t_ns": np.array([0, 50]),
        "loose/value": np.array([7.0, 8.0]),
        "still": np.array(3),
    }
    found = aligned_to(actions, np.array([0, 20, 40, 60]), "hold")
    assert found["arm/value"].ravel().tolist() == [0.0, 0.0, 0.0, 1.0]
    assert found["loose/value"].tolist() == [7.0, 7.0, 8.0, 8.0]
    assert aligned_to(actions, np.array([0, 20, 40, 60]), "nearest")["arm/_t_ns"].tolist() == [
        0,
        0,
        50,
        50,
    ]
    assert aligned_to(actions, np.array([0, 20]), "index")["arm/value"].shape == (2, 1)
