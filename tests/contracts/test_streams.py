"""Streams: keys, namespaces and clocks of recorded arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.contracts.streams import clocked_streams, split_key
from rollbook.errors import InvalidValue

CLOCK = np.arange(3, dtype=np.int64) * 20_000_000


def test_a_namespace_is_everything_before_the_last_slash() -> None:
    assert split_key("/joint_states/position") == ("/joint_states", "position")
    assert split_key("observation.state/value") == ("observation.state", "value")
    assert split_key("/a/b/c") == ("/a/b", "c")
    assert split_key("action") == ("action", "value")


def test_one_clock_serves_every_namespace() -> None:
    streams = clocked_streams(
        "sensors",
        {"/arm/position": np.zeros((3, 7)), "/arm/velocity": np.ones((3, 7)), "state": [1, 2, 3]},
        CLOCK,
    )
    assert sorted(streams) == [
        "/arm/_t_ns",
        "/arm/position",
        "/arm/velocity",
        "state/_t_ns",
        "state/value",
    ]
    assert streams["/arm/_t_ns"].dtype == np.int64
    assert streams["state/_t_ns"].tolist() == CLOCK.tolist()


def test_namespaces_may_have_clocks_and_rates_of_their_own() -> None:
    streams = clocked_streams(
        "sensors",
        {"/arm/position": np.zeros(3), "/camera/exposure": np.zeros(2)},
        {"/arm": CLOCK, "/camera": [0, 50]},
    )
    assert len(streams["/arm/_t_ns"]) == 3
    assert len(streams["/camera/_t_ns"]) == 2


def test_a_clock_among_the_arrays_counts_most() -> None:
    arrays: dict[str, Any] = {
        "/arm/position": np.zeros(2),
        "/arm/_t_ns": [5, 6],
        "/leg/position": np.zeros(3),
    }
    streams = clocked_streams("sensors", arrays, CLOCK)
    assert streams["/arm/_t_ns"].tolist() == [5, 6]
    assert streams["/leg/_t_ns"].tolist() == CLOCK.tolist()


def test_times_are_taken_as_nanoseconds() -> None:
    times = np.array(["2026-01-01T00:00:00", "2026-01-01T00:00:01"], "M8[s]")
    clock = clocked_streams("sensors", {"a/b": [1, 2]}, times)["a/_t_ns"]
    assert int(clock[1] - clock[0]) == 1_000_000_000


@pytest.mark.parametrize(
    ("arrays", "t_ns", "says"),
    [
        ({}, CLOCK, "at least one array"),
        ({"a/b": [1, 2, 3]}, None, "t_ns="),
        ({"a/b": [1, 2, 3]}, {"c": CLOCK}, "t_ns="),
        ({"a/b": [1, 2]}, CLOCK, "3 rows"),
        ({"a/b": 5}, CLOCK, "3 rows"),
        ({"a/b": [1, 2, 3]}, [0.0, 0.02, 0.04], "whole nanoseconds"),
        ({"a/b": [1, 2, 3]}, [[1, 2, 3]], "whole nanoseconds"),
        ({"a/b": [1, 2, 3]}, 5, "whole nanoseconds"),
        ({"a/b": [1]}, np.array([2**64 - 1], np.uint64), "64 bits"),
        ({"a/b": [1]}, np.array(["NaT"], "M8[ns]"), "NaT"),
        ({"a": [1, 2, 3], "a/value": [1, 2, 3]}, CLOCK, "there twice"),
        ({"a/b": np.array([{}, 1, 2], object)}, CLOCK, "no pickle"),
        (
            {"a/b": [1, 2, 3]},
            [5, 7, 6],
            "clock of a is 6 ns at row 2, expected later than row 1, at 7",
        ),
        ({"a/b": [1, 2, 3]}, [5, 5, 6], "clock of a is 5 ns at row 1, expected later than row 0"),
        ({"a/b": [1, 2]}, np.array([2**63 - 1, -(2**63)]), "at row 1"),
        ({"a/b": [], "a/_t_ns": []}, None, "clock of a is 0 rows long"),
        ({"a/b": np.zeros((0, 2))}, np.zeros(0, int), "clock of a is 0 rows long"),
        ({"a/b": [1j, 2, 3]}, CLOCK, "a/b is complex128, expected real numbers"),
    ],
)
def test_what_has_no_sound_clock_or_shape_is_refused(
    arrays: dict[str, Any], t_ns: NDArray[Any] | None, says: str
) -> None:
    with pytest.raises(InvalidValue, match=says):
        clocked_streams("sensors", arrays, t_ns)
