"""Wherever a closed loop on a store is reported, the counterfactual figure of the same chains stands beside it."""

from __future__ import annotations

from html import escape

from rollbook.cli.replays.replay_report import markdown, report_lines
from rollbook.portal.evals.eval_judgement import judgement
from rollbook.report.page import report_page
from rollbook.report.run_report import RunReport
from rollbook.scoring import rollup
from tests.scoring.test_counterfactual_relation import pair

FOUND = rollup([pair(n, 0.1, 0.2 + n / 90, 0.5 + n / 70) for n in range(12)])
REPORT = RunReport(
    candidate="v2", baseline="v1", total=12, summary=FOUND.to_wire(), results=[], run_id=None
)
SAID = (
    "+0.479 in the recorded states of 12 pairs, 0.317 more than closed loop (95 % interval +0.31 to +0.325); "
    "rank correlation over pairs 1.00; the closed loop decides"
)


def test_a_terminal_and_a_pull_request_say_it() -> None:
    assert f"  counterfactual: {SAID}" in report_lines(FOUND.to_wire())
    assert f"- **counterfactual**: {SAID}" in markdown(REPORT)


def test_the_page_says_it() -> None:
    assert f"<dt>counterfactual</dt><dd>{escape(SAID)}</dd>" in report_page(REPORT)


def test_the_portal_says_it() -> None:
    found = judgement(REPORT, FOUND, (), 0, "/portal/evals/x")
    assert found.relation == f"Counterfactual: {SAID}."
