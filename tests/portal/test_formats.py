"""Numbers, sizes and times as pages write them."""

from __future__ import annotations

import pytest

from rollbook.portal import formats


@pytest.mark.parametrize(
    ("value", "digits", "written"),
    [
        (1234.5, 1, "1,234.5"),
        (-0.004, 2, "0.00"),
        (-0.5, 1, "−0.5"),
        (None, 2, "–"),
        (float("nan"), 2, "–"),
        (float("inf"), 2, "–"),
    ],
)
def test_numbers(value: float | None, digits: int, written: str) -> None:
    assert formats.number(value, digits) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.142, "+14.2"), (-0.076, "−7.6"), (0.0, "0.0"), (0.0001, "0.0"), (None, "–")],
)
def test_differences_of_rates_are_points(value: float | None, written: str) -> None:
    assert formats.points(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (597_000, "597 kB"),
        (2_600_000, "2.6 MB"),
        (999_950, "1.0 MB"),
    ],
)
def test_sizes(value: int, written: str) -> None:
    assert formats.size(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(12.04, "12.0 s"), (119.6, "120 s"), (725, "12 min 05 s"), (7300, "2 h 01 min"), (None, "–")],
)
def test_durations(value: float | None, written: str) -> None:
    assert formats.seconds(value) == written


def test_small_probabilities_are_not_written_as_zero() -> None:
    assert [formats.p_value(p) for p in (0.0, 0.0314159, 0.5, None)] == [
        "≤ 0.0001",
        "0.031",
        "0.5",
        "–",
    ]


def test_a_time_says_its_zone_and_is_escaped_markup() -> None:
    text = str(formats.moment(1_700_000_000_000_000))
    assert (
        text
        == '<time datetime="2023-11-14T22:13:20.000+00:00" title="2023-11-14 22:13 UTC">2023-11-14 22:13 UTC</time>'
    )


def test_a_place_on_a_timeline_has_milliseconds_and_a_rate_no_needless_digits() -> None:
    assert [formats.exact_seconds(each) for each in (5.64, 0.0, None)] == [
        "5.640 s",
        "0.000 s",
        "–",
    ]
    assert [formats.plain(each) for each in (25.0, 29.97, float("nan"))] == ["25", "29.97", "–"]
