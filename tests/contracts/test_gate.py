"""Gate: data that is checked, digested, and cannot ask for something that makes no sense."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rollbook.contracts.gate import Gate, MetricRule, gate_from
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.errors import ConfigurationError


def test_the_default_asks_for_better_success_or_reward_and_guards_collisions() -> None:
    gate = Gate()
    assert {name: gate.rule(name).role for name in OUTCOMES} == {
        "success": "primary",
        "reward_total": "primary",
        "collision_count": "guard",
        "time_to_goal_s": "info",
    }
    assert (gate.n_min, gate.min_used_share, gate.alpha) == (25, 0.9, 0.05)
    assert gate.rule("success").margin == 0.10
    assert gate.evidence == ("closed_loop", "counterfactual")


def test_a_metric_without_a_rule_is_information() -> None:
    assert Gate.for_reward().rule("success").role == "info"


@pytest.mark.parametrize(
    ("known", "gate"),
    [
        ((), Gate()),
        (("success",), Gate()),
        (("success", "reward_total", "collision_count"), Gate()),
        (("collision_count", "time_to_goal_s"), Gate()),
        (("reward_total",), Gate.for_reward()),
    ],
)
def test_the_default_follows_the_outcomes_that_baselines_have(
    known: tuple[str, ...], gate: Gate
) -> None:
    assert Gate.for_baselines(known) == gate


def test_collisions_guard_the_reward_where_baselines_count_them() -> None:
    gate = Gate.for_baselines({"reward_total", "collision_count"})
    assert gate.rule("reward_total") == Gate.for_reward().rule("reward_total")
    assert gate.rule("collision_count") == Gate().rule("collision_count")


@pytest.mark.parametrize(
    "gate", [Gate(), Gate.for_reward(), Gate(mode="non_inferiority", design="sequential")]
)
def test_a_gate_survives_json(gate: Gate) -> None:
    again = gate_from(json.loads(json.dumps(gate.as_dict())))
    assert again == gate
    assert again.digest == gate.digest


def test_a_whole_number_for_a_share_is_the_same_gate() -> None:
    whole = Gate(rules=(MetricRule(metric="success", role="primary", margin=0),), min_used_share=1)
    assert gate_from(json.loads(json.dumps(whole.as_dict()))).digest == whole.digest


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "non_inferiority"},
        {"design": "sequential"},
        {"alpha": 0.04},
        {"n_min": 26},
        {"min_used_share": 0.95},
        {"evidence": ("closed_loop",)},
        {"rules": Gate.for_reward().rules},
        {"seed": 1},
    ],
)
def test_whatever_changes_changes_the_digest(change: dict[str, Any]) -> None:
    assert msgspec.structs.replace(Gate(), **change).digest != Gate().digest


def test_what_is_missing_is_as_in_the_default() -> None:
    assert gate_from({}) == Gate()
    assert gate_from({"n_min": 50}) == Gate(n_min=50)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"alpha": 0}, "alpha"),
        ({"alpha": 0.5}, "alpha"),
        ({"n_min": 0}, "n_min"),
        ({"n_min": "many"}, "n_min"),
        ({"min_used_share": 1.5}, "min_used_share"),
        ({"seed": 2**63}, "seed"),
        ({"evidence": ["open_loop"]}, "evidence"),
        ({"evidence": ["hearsay"]}, "evidence"),
        ({"version": "gate.v3"}, "version"),
        ({"colour": "green"}, "colour"),
        ({"rules": []}, "primary"),
        ({"rules": [{"metric": "success", "role": "guard"}]}, "primary"),
        ({"rules": [{"metric": "success", "role": "primary"}] * 2}, "at most once"),
        ({"rules": [{"metric": "charm", "role": "primary"}]}, "rules"),
        ({"rules": [{"metric": "success", "role": "primary", "margin": -1}]}, "margin"),
        ({"rules": [{"metric": "success", "role": "primary", "catastrophe": -1}]}, "catastrophe"),
        (
            {"rules": [{"metric": "success", "role": "primary", "most_catastrophes": -1}]},
            "most_catastrophes",
        ),
        ([], "gate"),
    ],
)
def test_a_wrong_gate_is_refused_and_the_field_is_named(value: object, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        gate_from(value)


def test_a_margin_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="margin"):
        MetricRule(metric="success", role="primary", margin=float("nan"))


@pytest.mark.parametrize("role", ["primary", "guard"])
def test_time_to_goal_decides_only_beside_success(role: str) -> None:
    time = {"metric": "time_to_goal_s", "role": role}
    reward = {"metric": "reward_total", "role": "primary"}
    with pytest.raises(ConfigurationError, match="success as primary or guard"):
        gate_from({"rules": [time, reward]})
    gate_from({"rules": [time, reward, {"metric": "success", "role": "guard"}]})


def test_not_being_worse_needs_a_margin() -> None:
    with pytest.raises(ConfigurationError, match="margin"):
        gate_from({"mode": "non_inferiority", "rules": Gate.for_reward().as_dict()["rules"]})


def test_only_success_can_be_shown_while_one_looks() -> None:
    with pytest.raises(ConfigurationError, match="success as a primary"):
        gate_from({"design": "sequential", "rules": Gate.for_reward().as_dict()["rules"]})
