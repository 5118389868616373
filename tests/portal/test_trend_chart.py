"""The trend of versions as a drawing."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from rollbook.portal.charts.trend import VersionValue, trend


def drawn(*values: VersionValue, **options: object) -> ET.Element:
    return ET.fromstring(trend(values, "{:.2f}".format, "Success", **options))  # type: ignore[arg-type]


def circles(chart: ET.Element) -> list[ET.Element]:
    return list(chart.iter("circle"))


def test_nothing_is_drawn_without_values() -> None:
    assert trend([], str, "Success") == ""


def test_the_newest_is_filled_and_the_others_are_hollow() -> None:
    chart = drawn(VersionValue("v1", 0.5, 0.4, 0.6), VersionValue("v2", 0.7, 0.6, 0.8))
    assert [each.get("class") for each in circles(chart)] == ["base", "cand"]
    heights = [float(each.get("cy", "")) for each in circles(chart)]
    assert heights[0] > heights[1], "more is higher"


@pytest.mark.parametrize("value", [0.0, -3.5, 1e300])
def test_one_version_without_a_range_stands_in_the_middle(value: float) -> None:
    chart = drawn(VersionValue("only", value, value, value))
    [dot] = circles(chart)
    assert dot.get("cx") == "54.00%"


def labels(chart: ET.Element) -> list[str | None]:
    return [each.text for each in chart.iter("text") if each.get("text-anchor") == "middle"]


def test_many_versions_have_few_labels_and_the_newest_has_one() -> None:
    values = [VersionValue(f"arm-v{each:03}", 0.5, 0.1, 0.9) for each in range(50)]
    shown = labels(drawn(*values, within=(0.0, 1.0)))
    assert len(shown) <= 8
    assert shown[-1] == "v049", "what all versions begin with is left out"


@pytest.mark.parametrize(
    ("versions", "shown"),
    [
        (["pick-act-v1", "pick-act-v2.1"], ["v1", "v2.1"]),
        (["a", "b"], ["a", "b"]),
        (["arm-", "arm-x"], ["arm-", "arm-x"]),
        (["same", "same"], ["same", "same"]),
        (["a very long name of a version", "x"], ["…f a version", "x"]),
    ],
)
def test_labels_tell_versions_apart(versions: list[str], shown: list[str]) -> None:
    values = [VersionValue(each, 0.5, 0.4, 0.6) for each in versions]
    assert labels(drawn(*values)) == shown


def test_texts_are_escaped() -> None:
    chart = drawn(VersionValue('"><svg onload=x>', 0.5, 0.4, 0.6))
    assert [each.tag for each in chart.iter() if each.tag == "svg"] == ["svg"]
