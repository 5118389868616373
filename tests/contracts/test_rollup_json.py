"""Rollup: typed for us, and for everybody else the JSON that it has always been."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from rollbook.contracts.decision import (
    MetricMeans,
    OutcomeSummary,
    PlainSummary,
    Rollup,
    SuccessSummary,
    read_summary,
)
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.errors import MalformedJson
from rollbook.scoring import rollup
from tests.scoring.result_rows import successes
from tests.scoring.test_rollup import GATES, RUNS

METRIC = """baseline candidate delta delta_is_better n_pairs n_total n_repeats crashes unusable evidence role
    paired_delta interval interval_level p_value p_worse method clusters missing worst_loss worst_loss_declared iqm
    probability_of_improvement catastrophes note"""
SUMMARY = """success_rate reward_mean collision_rate time_to_goal_s ood_action_share better_count metric_total
    recommend action_l2_distance action_change counts decision"""


def test_the_json_has_its_keys_in_their_order() -> None:
    summary = rollup(successes(3, 1, 4)).to_wire()
    assert list(summary) == SUMMARY.split()
    assert list(summary["success_rate"]) == [
        *METRIC.split(),
        *("wins", "losses", "mid_p", "wilson", "bayes"),
    ]
    for name in OUTCOMES.keys() - {"success"}:
        assert list(summary[OUTCOMES[name].summary_key]) == METRIC.split()
    assert list(summary["ood_action_share"]) == METRIC.split()[:4]


def test_only_a_sequential_run_has_bets_and_only_a_store_knows_regret() -> None:
    blob = {"regret": 1.0, "best_total": 2.0}
    looked_at = rollup(successes(3, 1, 4, counterfactual=blob), Gate(design="sequential"))
    keys = SUMMARY.split()
    assert list(looked_at.to_wire()) == [*keys[:-2], "regret", "counts", "sequential", "decision"]


@settings(max_examples=60, deadline=None)
@given(RUNS, GATES)
def test_what_is_sent_reads_back_as_it_was(results: list[EvalResult], gate: Gate) -> None:
    found = rollup(results, gate)
    text = msgspec.json.encode(found)
    assert json.loads(text) == found.to_wire()
    assert Rollup.from_wire(json.loads(text)) == found
    assert read_summary(found.to_wire()) == found


def test_there_is_one_field_for_every_outcome() -> None:
    keys = [kind.summary_key for kind in OUTCOMES.values()]
    assert list(Rollup.__struct_fields__[: len(keys)]) == keys
    assert list(PlainSummary.__struct_fields__[: len(keys)]) == keys
    found = rollup(successes(1, 0, 0))
    assert list(found.outcomes) == keys
    assert all(isinstance(each, OutcomeSummary) for each in found.outcomes.values())
    assert isinstance(found.outcomes["success_rate"], SuccessSummary)


def test_the_summary_of_another_server_is_read_as_far_as_it_goes() -> None:
    plain = {
        "success_rate": {"baseline": 0.5, "candidate": 1, "delta": 0.5, "delta_is_better": True},
        "reward_mean": None,
        "better_count": 1,
        "metric_total": 1,
        "recommend": "ship",
        "colour": "blue",
    }
    found = read_summary(plain)
    assert type(found) is PlainSummary
    assert found.outcomes == {
        "success_rate": MetricMeans(baseline=0.5, candidate=1.0, delta=0.5, delta_is_better=True)
    }
    assert (found.recommend, found.better_count) == ("ship", 1)


def test_keys_of_a_later_version_are_ignored() -> None:
    wire = rollup(successes(3, 1, 4)).to_wire()
    wire["weather"] = "fine"
    wire["success_rate"]["weather"] = "fine"
    assert read_summary(wire) == rollup(successes(3, 1, 4))


@pytest.mark.parametrize("summary", [None, 3, [], {"success_rate": 3}, {"recommend": 3}])
def test_what_is_no_summary_is_none(summary: object) -> None:
    assert read_summary(summary) is None


def test_a_rollup_that_is_not_whole_is_refused_with_the_place() -> None:
    wire: dict[str, Any] = rollup(successes(3, 1, 4)).to_wire()
    wire["decision"]["needed_n"] = "many"
    with pytest.raises(MalformedJson, match=r"\$\.decision\.needed_n"):
        Rollup.from_wire(wire)
    found = read_summary(wire)
    assert type(found) is PlainSummary, "its means can still be shown"
