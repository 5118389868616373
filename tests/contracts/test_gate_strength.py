"""Which gates are weaker than another: every field counts, and doubt counts as weaker."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts.gate import Gate, MetricRule, Role, SliceGuard
from rollbook.contracts.gate_strength import COMPARISONS, RULE_COMPARISONS, weaker_fields
from rollbook.contracts.outcomes import OUTCOMES

SLICE = SliceGuard(by="task")
LOCKED = Gate(
    n_min=40,
    least_clusters=20,
    reward_range=(0.0, 10.0),
    tails="proven",
    ledger="decide",
    guard_slices=(SLICE,),
    rules=(
        MetricRule(metric="success", role="primary", margin=0.1, required=True),
        MetricRule(metric="collision_count", role="guard", catastrophe=1.0, most_catastrophes=2),
    ),
)


def test_every_field_of_a_gate_and_of_a_rule_is_compared() -> None:
    assert {*COMPARISONS, "rules"} == set(Gate.__struct_fields__)
    assert {*RULE_COMPARISONS, "metric"} == set(MetricRule.__struct_fields__)


def rule(metric: str, **changes: Any) -> tuple[MetricRule, ...]:
    return tuple(
        msgspec.structs.replace(each, **changes) if each.metric == metric else each
        for each in LOCKED.rules
    )


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("mode", {"mode": "non_inferiority"}),
        ("design", {"design": "sequential"}),
        ("alpha", {"alpha": 0.06}),
        ("alpha", {"alpha": 0.04}),  # collisions and slices are then found worse less often
        ("n_min", {"n_min": 39}),
        ("cluster", {"cluster": "none"}),
        ("cluster", {"cluster": "task"}),
        ("least_clusters", {"least_clusters": 19}),
        ("missing", {"missing": "ignore"}),
        ("evidence", {"evidence": ("closed_loop", "counterfactual", "asserted")}),
        ("reward_range", {"reward_range": None}),
        ("reward_range", {"reward_range": (1.0, 10.0)}),
        ("reward_range", {"reward_range": (0.0, 9.0)}),
        ("tails", {"tails": "gaffke"}),
        ("ledger", {"ledger": "print"}),
        ("accept_unverified_environment", {"accept_unverified_environment": True}),
        ("accept_retried", {"accept_retried": True}),
        ("guard_slices", {"guard_slices": ()}),
        ("guard_slices", {"guard_slices": (SliceGuard(by="task", margin=0.1),)}),
        ("guard_slices", {"guard_slices": (SLICE, SliceGuard(by="robot"))}),
        ("seed", {"seed": 1}),
        ("rules[success].margin", {"rules": rule("success", margin=0.2)}),
        ("rules[success].margin", {"rules": rule("success", margin=None)}),
        ("rules[success].required", {"rules": rule("success", required=False)}),
        ("rules[collision_count].role", {"rules": rule("collision_count", role="info")}),
        ("rules[collision_count].role", {"rules": rule("collision_count", role="primary")}),
        ("rules[collision_count].margin", {"rules": rule("collision_count", margin=1.0)}),
        ("rules[collision_count].catastrophe", {"rules": rule("collision_count", catastrophe=2.0)}),
        (
            "rules[collision_count].most_catastrophes",
            {"rules": rule("collision_count", most_catastrophes=None)},
        ),
        (
            "rules[reward_total].role",
            {"rules": (*LOCKED.rules, MetricRule(metric="reward_total", role="primary"))},
        ),
    ],
)
def test_a_weaker_value_is_named(field: str, changes: dict[str, Any]) -> None:
    assert weaker_fields(msgspec.structs.replace(LOCKED, **changes), LOCKED) == [field]


@pytest.mark.parametrize(
    "changes",
    [
        {"n_min": 41},
        {"least_clusters": 21},
        {"evidence": ("closed_loop",)},
        {"reward_range": (-1.0, 11.0)},
        {"looks": 4},
        {"min_used_share": 0.1},  # nothing may be missing, so the share is not used
        {"rules": rule("success", margin=0.05)},
        {"rules": rule("collision_count", catastrophe=0.0, most_catastrophes=0, required=True)},
        {"rules": (*LOCKED.rules, MetricRule(metric="reward_total", role="guard"))},
    ],
)
def test_a_stricter_value_is_accepted(changes: dict[str, Any]) -> None:
    assert weaker_fields(msgspec.structs.replace(LOCKED, **changes), LOCKED) == []


def test_a_lower_alpha_is_stricter_where_nothing_is_held_for_being_significantly_worse() -> None:
    locked = Gate.for_reward()
    assert weaker_fields(msgspec.structs.replace(locked, alpha=0.01), locked) == []


def test_clusters_are_weaker_than_single_pairs_where_a_loss_holds_when_it_is_shown() -> None:
    """A guard over ten scenes sees less than one over their hundred pairs."""
    alone, guarded = Gate.for_reward(), Gate(cluster="none")
    assert weaker_fields(msgspec.structs.replace(guarded, cluster="task"), guarded) == ["cluster"]
    locked = msgspec.structs.replace(alone, cluster="none")
    assert weaker_fields(msgspec.structs.replace(locked, cluster="task"), locked) == []


def test_a_copy_of_a_guarded_slice_is_weaker_because_all_of_them_share_one_level() -> None:
    locked = Gate(guard_slices=(SliceGuard(by="task", margin=0.1),))
    stricter = Gate(guard_slices=(SliceGuard(by="task", margin=0.05),))
    assert weaker_fields(stricter, locked) == []
    copies = Gate(guard_slices=(SliceGuard(by="task", margin=0.05),) * 50)
    assert weaker_fields(copies, locked) == ["guard_slices"]


def test_another_order_of_primaries_is_weaker_where_the_first_one_has_to_be_better() -> None:
    rules = tuple(MetricRule(metric=name, role="primary") for name in ("success", "reward_total"))
    fixed = Gate(rules=rules, reward_range=(0.0, 1.0))
    turned = msgspec.structs.replace(fixed, rules=rules[::-1])
    assert weaker_fields(turned, fixed) == [], "either of them has to be better"
    locked, turned = (
        msgspec.structs.replace(each, design="sequential") for each in (fixed, turned)
    )
    assert weaker_fields(turned, locked) == ["rules"]


def test_a_range_that_only_the_author_declares_is_weaker() -> None:
    """Without one, 150 pairs are needed; an author could declare what was seen."""
    declared = msgspec.structs.replace(Gate.for_reward(), reward_range=(0.0, 1.0))
    assert weaker_fields(declared, Gate.for_reward()) == ["reward_range"]


ROLES: st.SearchStrategy[Role] = st.sampled_from(get_args(Role))
LIMITS = st.none() | st.floats(0, 1)


@st.composite
def gates(draw: st.DrawFn) -> Gate:
    rules = [
        MetricRule(
            metric=metric,
            role="primary" if metric == "success" else draw(ROLES),
            margin=draw(LIMITS),
            catastrophe=draw(LIMITS),
            most_catastrophes=draw(st.none() | st.integers(0, 3)),
            required=draw(st.booleans()),
        )
        for metric in OUTCOMES
    ]
    return Gate(
        alpha=draw(st.sampled_from([0.01, 0.05, 0.1])),
        n_min=draw(st.integers(1, 50)),
        cluster=draw(st.sampled_from(["auto", "none", "task"])),
        missing=draw(st.sampled_from(["lost", "ignore"])),
        min_used_share=draw(st.sampled_from([0.5, 0.9])),
        tails=draw(st.sampled_from(["gaffke", "proven", "scenes"])),
        reward_range=draw(st.none() | st.sampled_from([(0.0, 1.0), (-1.0, 2.0)])),
        ledger=draw(st.sampled_from(["print", "decide"])),
        accept_retried=draw(st.booleans()),
        guard_slices=draw(st.sampled_from([(), (SLICE,)])),
        rules=tuple(rules),
    )


@given(gates(), gates(), gates())
@settings(max_examples=60, deadline=None)
def test_a_gate_is_not_weaker_than_itself_and_strength_is_handed_on(
    first: Gate, second: Gate, third: Gate
) -> None:
    assert weaker_fields(first, first) == []
    if not weaker_fields(first, second) and not weaker_fields(second, third):
        assert weaker_fields(first, third) == []
