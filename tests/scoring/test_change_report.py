"""Changes of actions as a report tells them: what did not change is not called changed, and its evidence is named."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import Any

from rollbook.cli.replays.replay_report import report_lines, summary_lines
from rollbook.scoring import rollup
from tests.scoring.result_rows import at, row, successes


def section(lines: list[str], key: str) -> str:
    """The line with this key and the indented lines below it, as one line."""
    first = next(place for place, each in enumerate(lines) if key in each)
    below = takewhile(lambda each: each.startswith(" " * 6), lines[first + 1 :])
    return " ".join(each.strip() for each in (lines[first], *below))


def change_line(distance: float, ood: float | None) -> str:
    actions: dict[str, Any] = {
        "scaled_distance": {"mean": distance, "p95": distance},
        "ood_share": ood,
    }
    summary = rollup([row(0, evidence={"actions": "open_loop"}, actions=actions)])
    return section(summary_lines(summary), "action_change")


def test_actions_that_are_the_same_are_unchanged() -> None:
    assert change_line(0.0, 0.0).endswith("open_loop, unchanged")
    assert change_line(0.0, None).endswith("open_loop, unchanged")


def test_any_change_is_one_even_where_its_digits_are_not_shown() -> None:
    for distance, ood in ((1e-6, 0.0), (0.0, 0.01), (2.0, 0.5)):
        line = change_line(distance, ood)
        assert line.endswith("open_loop, changed, which is neither better nor worse")


def test_a_report_says_how_many_situations_its_pairs_are_of() -> None:
    results = [at(each, place % 5) for place, each in enumerate(successes(20, 0, 0))]
    success = section(summary_lines(rollup(results)), "success_rate")
    assert "n 5/5 closed_loop" in success
    assert "20 pairs of 5 situations" in success


def test_the_summary_of_another_server_is_shown_without_statistics() -> None:
    means = {"baseline": 0.5, "candidate": 0.75, "delta": 0.25, "delta_is_better": True}
    plain = {"success_rate": means, "better_count": 1, "metric_total": 1, "recommend": "ship"}
    lines = report_lines(plain)
    (line,) = [each for each in lines if "success_rate" in each]
    assert line.endswith("baseline    0.500  candidate    0.750  Δ   +0.250")
    assert lines[-1] == "Recommend: ship  (1/1 metrics better)"


def test_a_summary_of_unknown_shape_is_shown_as_it_is() -> None:
    summary = {"success_rate": "very good"}
    assert json.loads("\n".join(report_lines(summary))) == summary
