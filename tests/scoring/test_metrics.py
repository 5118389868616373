"""Compatible metrics equal the public client's own; the better ones say what they compared and what they could not."""

from __future__ import annotations

import json
import math
import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts.evals import RESULT_KEYS
from rollbook.errors import InvalidValue
from rollbook.scoring.actions import stack_actions
from rollbook.scoring.metrics import (
    action_l2_distance,
    compare_actions,
    ood_action_share,
    result_metrics,
)
from rollbook.scoring.reference import ActionReference

public: Any = import_module("robotrace.evals")

# ------------------------------------------------------------------------------ as the public client

BASELINE_KEYS = ("arm/value", "/cmd_vel/linear", "arm/aux", "/bare", "flat", "arm/_t_ns")
CANDIDATE_KEYS = (*BASELINE_KEYS, "arm", "/cmd_vel", "bare", "", "made/up")
SHAPES: list[tuple[int, ...]] = [(), (1,), (2,), (3,), (2, 2), (0,)]
LENGTHS = st.sampled_from([7, 0, 1, 4, 5, 9])
SEEDS = st.integers(0, 2**32)
"""What is drawn is which keys there are and what each is like; numbers come from a seed, or it takes minutes."""


def a_shape(rng: np.random.Generator) -> tuple[int, ...]:
    return (2,) if rng.random() < 0.7 else SHAPES[rng.integers(len(SHAPES))]


def values(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    drawn = rng.normal(0.0, rng.choice([0.0, 1e-12, 1.0, 50.0]), shape)
    if kind == "bool":
        return drawn > 0
    if kind == "words":
        return np.full(shape, "words")
    if kind == "holes":
        return np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf]), drawn)
    return np.abs(drawn).astype(kind) if kind == "uint8" else drawn.astype(kind)


NUMBER_KINDS = ("float64", "float64", "float32", "int64", "uint8", "holes")
BASELINE_KINDS = st.sampled_from([*NUMBER_KINDS, "bool", "words"])
CANDIDATE_KINDS = st.sampled_from([*NUMBER_KINDS, "bool"])


@st.composite
def baselines(draw: st.DrawFn) -> dict[str, np.ndarray[Any, Any]]:
    rng, rows = np.random.default_rng(draw(SEEDS)), draw(LENGTHS)
    keys = draw(st.dictionaries(st.sampled_from(BASELINE_KEYS), BASELINE_KINDS, min_size=2))
    return {
        key: values(rng, kind, (rows + rng.choice([0, 0, 2]), *a_shape(rng)))
        for key, kind in keys.items()
    }


@st.composite
def candidates(draw: st.DrawFn) -> list[dict[str, Any]]:
    rng = np.random.default_rng(draw(SEEDS))
    found: list[dict[str, Any]] = [{} for _ in range(draw(LENGTHS))]
    keys = draw(st.dictionaries(st.sampled_from(CANDIDATE_KEYS), CANDIDATE_KINDS, min_size=2))
    gaps, lists, said = (draw(st.booleans()) for _ in range(3))
    for key, kind in keys.items():
        shape = a_shape(rng)
        for step in found:
            fate = rng.choice(["there", "missing", "none", "other"]) if gaps else "there"
            other = a_shape(rng) if fate == "other" else shape
            value = values(rng, kind, other)
            if fate != "missing":
                step[key] = None if fate == "none" else value.tolist() if lists else value
    if found and said:
        found[-1]["_outcome"] = {"success": True}
    return found


def theirs(metric: Any, baseline: Any, steps: Any) -> tuple[bool, float | None]:
    """Whether the public function has an answer at all, and which."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return True, metric(baseline, steps, np=np)
    except (ValueError, TypeError):
        return False, None


def same(ours: float | None, other: float | None) -> bool:
    if ours is None or other is None:
        return ours is other
    return (
        math.isclose(ours, other, rel_tol=1e-9, abs_tol=1e-9)
        or ours == other
        or (math.isnan(ours) and math.isnan(other))
    )


@settings(max_examples=300, deadline=None)
@given(baseline=baselines(), steps=candidates())
def test_action_l2_distance_is_the_public_clients(baseline: Any, steps: Any) -> None:
    defined, expected = theirs(public.metric_action_l2_distance, baseline, steps)
    ours = action_l2_distance(baseline, stack_actions(steps))
    assert not defined or same(ours, expected), (ours, expected)


@settings(max_examples=300, deadline=None)
@given(baseline=baselines(), steps=candidates())
def test_ood_action_share_is_the_public_clients(baseline: Any, steps: Any) -> None:
    defined, expected = theirs(public.metric_ood_action_share, baseline, steps)
    ours = ood_action_share(baseline, stack_actions(steps))
    assert not defined or same(ours, expected), (ours, expected)


def test_a_deviation_of_exactly_three_is_not_out_of_distribution() -> None:
    still = {"arm/value": np.zeros((5, 1))}
    at, beyond = stack_actions([{"arm/value": [3.0]}]), stack_actions([{"arm/value": [3.1]}])
    assert (ood_action_share(still, at), ood_action_share(still, beyond)) == (0.0, 1.0)


def test_a_namespace_stands_for_its_field_only_where_the_field_is_not_named() -> None:
    recorded = {"arm/value": np.zeros((3, 2))}
    steps: list[dict[str, Any]] = [
        {"arm": [3.0, 4.0]},
        {"arm": [9.0, 9.0], "arm/value": [0.0, 0.0]},
        {"arm": None},
    ]
    assert action_l2_distance(recorded, stack_actions(steps)) == 2.5


def test_words_where_numbers_were_recorded_are_refused_by_name() -> None:
    recorded = {"arm/value": np.zeros((5, 1))}
    answered = stack_actions([{"arm/value": "left"}])
    for metric in (action_l2_distance, ood_action_share, compare_actions):
        with pytest.raises(InvalidValue, match="arm/value"):
            metric(recorded, answered)


# ---------------------------------------------------------------------------------- in better units


def recorded(steps: int = 200, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {
        "arm/value": rng.normal(0.0, [1.0, 1000.0], (steps, 2)),
        "arm/_t_ns": np.arange(steps) * 50_000_000,
        "grip/value": (np.arange(steps) % 10 == 0).astype(np.float64),
        "base/value": np.full((steps, 1), 7.0),
    }


def replayed(arrays: dict[str, Any], **change: Any) -> list[dict[str, Any]]:
    keys = [key for key in arrays if not key.endswith("_t_ns")]
    return [{key: arrays[key][i] for key in keys} | change for i in range(len(arrays[keys[0]]))]


def test_the_same_actions_have_no_distance_and_are_in_distribution() -> None:
    baseline = recorded()
    found = compare_actions(baseline, stack_actions(replayed(baseline))).as_metrics()
    assert found["scaled_distance"] == {"mean": 0.0, "p50": 0.0, "p95": 0.0, "max": 0.0}
    assert found["steps_compared"] == 200
    assert found["top"] == []
    assert found["ood_share"] < 0.02
    assert found["reference"] == "episode"


def test_every_channel_counts_in_its_own_unit() -> None:
    """One unit off in a channel that moves by 1 is as far as 1000 off in one that moves by 1000."""
    baseline = recorded(5000)
    distances = []
    for off in ([1.0, 0.0], [0.0, 1000.0]):
        moved = {**baseline, "arm/value": baseline["arm/value"] + off}
        steps = [{"arm/value": row} for row in moved["arm/value"]]
        found = compare_actions(baseline, stack_actions(steps)).as_metrics()
        distances.append(found["scaled_distance"]["mean"])
    assert distances[0] == pytest.approx(math.sqrt(0.5), rel=0.05)
    assert distances[1] == pytest.approx(distances[0], rel=0.05)


def test_a_channel_that_never_moved_has_no_unit_and_is_counted_apart() -> None:
    baseline = recorded()
    same_but_for_noise = compare_actions(
        baseline, stack_actions([{"base/value": [7.0 + 1e-7]}] * 200)
    ).as_metrics()
    assert same_but_for_noise["constant_channels"] == 1
    assert same_but_for_noise["constant_changed_steps"] == 0
    assert same_but_for_noise["steps_compared"] == 0
    assert same_but_for_noise["scaled_distance"]["mean"] is None
    moved = compare_actions(baseline, stack_actions([{"base/value": [7.5]}] * 200)).as_metrics()
    assert moved["constant_changed_steps"] == 200
    assert moved["ood_share"] is None


def test_a_gripper_that_is_mostly_open_has_a_unit() -> None:
    baseline = recorded()
    found = compare_actions(baseline, stack_actions([{"grip/value": 0.0}] * 200)).as_metrics()
    assert found["constant_channels"] == 0
    assert 0 < found["scaled_distance"]["mean"] < 1
    assert found["scaled_distance"]["p50"] == 0.0
    assert found["ood_share"] == 0.0


def test_steps_that_are_not_numbers_are_counted_and_out_of_distribution() -> None:
    baseline = recorded()
    steps = replayed(baseline)
    steps[3]["arm/value"] = np.array([np.nan, 0.0])
    steps[4]["arm/value"] = np.array([np.inf, 0.0])
    comparison = compare_actions(baseline, stack_actions(steps))
    found = comparison.as_metrics()
    assert (found["nonfinite_steps"], found["steps_compared"]) == (2, 198)
    assert np.isnan(comparison.per_step[[3, 4]]).all()
    assert comparison.ood[[3, 4]].all()


def test_holes_in_the_recording_are_left_out_and_counted_apart() -> None:
    """Channel by channel: a step with one of two is still compared, by the other."""
    baseline = recorded()
    baseline["arm/value"][5] = np.nan
    baseline["arm/value"][6, 0] = np.nan
    comparison = compare_actions(baseline, stack_actions([{"arm/value": [0.0, 0.0]}] * 200))
    found = comparison.as_metrics()
    assert (found["nonfinite_steps"], found["baseline_nonfinite_steps"]) == (0, 2)
    assert found["steps_compared"] == 199
    assert np.isnan(comparison.per_step[5])
    assert np.isfinite(comparison.per_step[6])


def test_keys_that_could_not_be_paired_are_named() -> None:
    baseline = recorded()
    steps = [{"arm/value": [0.0, 0.0, 0.0], "extra/value": 1.0, "base/value": [7.0]}] * 200
    found = compare_actions(baseline, stack_actions(steps)).as_metrics()
    assert found["unpaired"] == {
        "baseline_only": ["grip/value"],
        "candidate_only": ["extra/value"],
        "shape": ["arm/value"],
    }
    assert (found["unpaired_count"], found["paired_keys"]) == (3, 1)


def test_the_names_of_unpaired_keys_are_capped_and_their_number_is_not() -> None:
    steps = [{f"k{i}/value": 1.0 for i in range(100)}]
    found = compare_actions(recorded(), stack_actions(steps)).as_metrics()
    assert len(found["unpaired"]["candidate_only"]) == 20
    assert found["unpaired_count"] == 103


def test_the_most_divergent_steps_come_with_their_time() -> None:
    baseline = recorded()
    steps = replayed(baseline)
    for step, off in ((10, 3.0), (20, 9.0), (30, 6.0)):
        steps[step]["arm/value"] = baseline["arm/value"][step] + [off, 0.0]
    top = compare_actions(baseline, stack_actions(steps)).as_metrics()["top"]
    assert [each["step"] for each in top] == [20, 30, 10]
    assert [each["t_ns"] for each in top] == [1_000_000_000, 1_500_000_000, 500_000_000]
    assert top[0]["distance"] > top[1]["distance"] > top[2]["distance"] > 0


def test_what_is_usual_in_the_set_is_not_out_of_distribution_of_one_episode() -> None:
    """An episode in which the arm only went left says little about the right."""
    rng = np.random.default_rng(1)
    left = {"arm/value": rng.uniform(-1, 0, (300, 1))}
    right = {"arm/value": rng.uniform(0, 1, (300, 1))}
    answered = stack_actions([{"arm/value": [0.9]}] * 300)
    alone = compare_actions(left, answered).as_metrics()
    among = compare_actions(left, answered, ActionReference.of([left, right])).as_metrics()
    assert (alone["ood_share"], among["ood_share"]) == (1.0, 0.0)
    assert (among["reference"], among["reference_episodes"]) == ("set", 2)


def test_a_key_that_the_set_never_had_goes_by_its_own_episode() -> None:
    baseline = recorded()
    other = ActionReference.of([{"elsewhere/value": np.zeros((9, 1))}])
    found = compare_actions(baseline, stack_actions(replayed(baseline)), other).as_metrics()
    assert found["steps_compared"] == 200


def test_a_wild_value_is_still_a_number() -> None:
    baseline = recorded()
    found = compare_actions(baseline, stack_actions([{"arm/value": [1e300, 0.0]}] * 3)).as_metrics()
    assert math.isfinite(found["scaled_distance"]["max"])
    assert found["ood_share"] == 1.0


@settings(max_examples=150, deadline=None)
@given(baseline=baselines(), steps=candidates())
def test_whatever_is_compared_can_be_sent(baseline: Any, steps: Any) -> None:
    with np.errstate(all="raise"):
        found = compare_actions(baseline, stack_actions(steps)).as_metrics()
    json.dumps(found, allow_nan=False)
    assert found["steps_compared"] + found["nonfinite_steps"] <= len(steps)


def test_without_steps_there_is_nothing_to_compare() -> None:
    nothing = stack_actions([])
    assert action_l2_distance(recorded(), nothing) is None
    assert ood_action_share(recorded(), nothing) is None
    assert compare_actions(recorded(), nothing).as_metrics()["steps_compared"] == 0
    assert compare_actions({}, nothing).as_metrics()["paired_keys"] == 0


# -------------------------------------------------------------------------------------------- the blob


def test_an_unknown_outcome_is_null_and_not_measured_whatever_the_baselines_was() -> None:
    blob = result_metrics(
        baseline={"success": True, "reward_total": 4.0},
        candidate={"reward_total": 5.0},
        evidence={"reward_total": "closed_loop"},
        l2=float("nan"),
        ood=0.25,
        step_count=3,
        alignment="index",
    )
    assert set(RESULT_KEYS) <= blob.keys()
    assert blob["success_baseline"] is True
    assert blob["success_candidate"] is None
    assert blob["action_l2_distance"] is None
    assert blob["evidence"] == {
        "success": "not_measured",
        "reward_total": "closed_loop",
        "collision_count": "not_measured",
        "time_to_goal_s": "not_measured",
        "actions": "open_loop",
    }
    assert blob["alignment"] == "index"
    json.dumps(blob, allow_nan=False)
