"""The page of a run: what a lead finds on it, from a server's summary and from a printed dry run."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate, SliceGuard
from rollbook.errors import MalformedJson
from rollbook.report.page import report_page
from rollbook.report.run_report import RunReport
from rollbook.scoring import rollup
from tests.scoring.result_rows import crash, row

EVIL = '"><script>alert(1)</script>'


def run(pairs: int = 60, *, scenes: int = 12, name: str = "", **facts: Any) -> RunReport:
    """A run with everything that a page can show."""
    rng = np.random.default_rng(3)
    results: list[EvalResult] = []
    for place in range(pairs):
        if place % 20 == 7:
            results.append(crash(place))
            continue
        won = bool(rng.random() < 0.8)
        results.append(
            row(
                place,
                success=(bool(rng.random() < 0.5), won),
                reward=(float(rng.normal(5)), float(rng.normal(5.5))),
                collisions=(0, int(rng.random() < 0.1)),
                repro={
                    "verified": True,
                    "env_changed": [],
                    "env_version": {"baseline": f"sim-1{name}", "candidate": f"sim-1{name}"},
                    "isolation": "process",
                    "digest": f"{place:064x}",
                },
            )
        )
    labels = {
        each.baseline_episode_id: {
            "scene": (f"flat {number % scenes}{name}",),
            "task": (("pick", "pour", "stack")[number % 3] + name,),
        }
        for number, each in enumerate(results)
    }
    gate = Gate(reward_range=(-5.0, 15.0), guard_slices=(SliceGuard(by="task"),))
    summary = rollup(results, gate, total=pairs + 3, labels=labels, earlier_runs=5)
    return RunReport(
        candidate=f"v4{name}",
        baseline=f"v3{name}",
        total=pairs + 3,
        summary=summary.to_wire(),
        results=results,
        run_id=f"run-1{name}",
        url="https://rollbook.example/portal/evals/run-1",
        labels=labels,
        **facts,
    )


class Words(HTMLParser):
    """Texts and tags of a page. Refuses tags that are closed in another order than they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data + " "


def read(page: str) -> Words:
    words = Words()
    words.feed(page)
    words.close()
    assert words.open == []
    return words


def test_the_sentence_comes_first_and_every_section_is_there() -> None:
    report = run(several_attempts=2, retried=1, altered=1)
    text = " ".join(read(report_page(report)).text.split())
    said = report.sentence.removeprefix("Hold: ").removeprefix("Ship: ")
    assert text.index(said[1:]) < text.index("Numbers")
    assert report.decision is not None
    for expected in (
        "Why it is held",
        *(each.reason for each in report.decision.findings),
        report.decision.next_step or "-",
        "Every pair: success",
        "Every pair: reward",
        "Success rates",
        "Pair after pair",
        "Success by task",
        "Success by scene",
        "A slice that is shown to be worse holds the candidate",
        "Exploratory",
        "The gate",
        report.decision.gate_digest,
        "6th run on these baselines",
        "What is missing",
        "3 without a result",
        "Failed pairs",
        "ValueError: no",
        "played again and gave what was recorded",
        "a process of its own",
        "2 pairs had more than one result",
        "1 baseline deleted since the run was created",
        "evidence digest",
        "rollbook replay audit run-1 --sample 10",
    ):
        assert expected in text, expected


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    page = report_page(run())
    for tag, attributes in read(page).tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "base")
        assert not {"src", "style", "onload", "onclick"} & attributes.keys()
    assert not re.search(r"url\(|@import", page)


def test_texts_from_others_cannot_become_tags() -> None:
    page = report_page(run(name=EVIL))
    assert "<script" not in page
    assert {tag for tag, _ in read(page).tags} == {tag for tag, _ in read(report_page(run())).tags}
    linked = RunReport("c", None, 1, {}, url="javascript:alert(1)")
    assert "javascript" not in report_page(linked)
    assert "rollbook replay audit &#x27;run-1&quot;" in page, "a command can be pasted"


def test_ten_thousand_pairs_are_a_small_page() -> None:
    page = report_page(run(10_000, scenes=200))
    assert len(page) < 500_000
    assert "Of 9,500 pairs, 600 are drawn." in page


def test_a_printed_run_gives_the_same_page() -> None:
    report = run()
    printed = json.dumps(report.as_dict()).encode()
    assert report_page(RunReport.from_json(printed, "run.json")) == report_page(report)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"results": 1}', "\xff", "null"])
def test_a_file_that_is_no_printed_run_is_refused_by_name(text: str) -> None:
    with pytest.raises(MalformedJson, match=r"run\.json.*replay run --json"):
        RunReport.from_json(text.encode("latin-1"), "run.json")


def test_a_run_without_statistics_has_a_page_too() -> None:
    means = {"baseline": 0.5, "candidate": 0.75, "delta": 0.25, "delta_is_better": True}
    plain = {"success_rate": means, "better_count": 1, "metric_total": 1, "recommend": "ship"}
    text = read(report_page(RunReport("v4", None, 3, plain))).text
    assert "No decision was made." in text
    assert "means only" in text
    assert "No decision was made." in read(report_page(RunReport("v4", None, 3, {"a": 1}))).text


def test_foreign_facts_about_a_pair_do_not_stop_the_page() -> None:
    odd = {"verified": ["?"], "env_changed": "yes", "env_version": 3, "isolation": {}, "digest": 5}
    results = [row(place, success=(False, True), repro=odd) for place in range(30)]
    summary = rollup(results).to_wire()
    read(report_page(RunReport("v4", "v3", 30, summary, results)))
