"""One baseline through one policy: whatever either of them is like, the outcome is defined."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from rollbook.contracts.evals import RESULT_KEYS
from rollbook.contracts.npz import read_npz
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.errors import InvalidValue
from rollbook.evals.baselines import Baseline
from rollbook.evals.open_loop import DISTANCE_KEY, Replay, replay_one
from rollbook.evals.options import ReplayOptions
from rollbook.evals.policies.policy import as_policy
from rollbook.evals.workers import encoded
from tests.evals.replay_policies import Batched, Chunked, Counting, follow, shifted

STEPS = 10


def baseline(steps: int = STEPS, **changes: Any) -> Baseline:
    position = np.linspace(0, 1, steps * 2, dtype=np.float32).reshape(steps, 2)
    t_ns = np.arange(steps, dtype=np.int64) * 100_000_000
    fields: dict[str, Any] = {
        "id": "ep-1",
        "record": EpisodeRecord(id="ep-1", status="ready", seed=7, env_version="table-2"),
        "sensors": {"/arm/position": position, "/arm/_t_ns": t_ns},
        "actions": {"/arm/command": position.copy(), "/arm/_t_ns": t_ns},
        "outcome": {"success": True, "reward_total": 3.0},
    }
    return Baseline(**{**fields, **changes})


def replay(policy: Any, given: Baseline | None = None, **options: Any) -> Replay:
    return replay_one(
        given or baseline(), as_policy(policy), ReplayOptions(policy_callable=policy, **options)
    )


def test_a_policy_that_does_the_same_is_at_no_distance() -> None:
    found = replay(follow)
    assert found.metrics["action_l2_distance"] == 0.0
    assert found.metrics["step_count"] == found.step_count == STEPS
    assert found.metrics["actions"]["scaled_distance"]["max"] == 0.0
    assert found.metrics["evidence"]["actions"] == "open_loop"
    assert set(RESULT_KEYS) <= found.metrics.keys()


def test_an_outcome_that_nobody_knows_is_null_and_never_the_baselines() -> None:
    metrics = replay(shifted).metrics
    assert metrics["success_baseline"] is True
    assert metrics["success_candidate"] is None
    assert metrics["evidence"]["success"] == "not_measured"
    assert metrics["action_l2_distance"] == pytest.approx(math.sqrt(0.5))


def test_what_the_policy_asserts_is_said_to_be_asserted() -> None:
    metrics = replay(Counting()).metrics
    assert metrics["success_candidate"] is True
    assert metrics["reward_total_candidate"] == STEPS
    assert metrics["evidence"]["reward_total"] == "asserted"
    assert metrics["collision_count_candidate"] is None


def test_candidate_actions_and_distances_are_kept_with_their_times() -> None:
    given = baseline()
    found = replay(shifted, given)
    assert found.actions is not None
    assert found.per_step is not None
    assert found.actions.keys() == {"/arm/command", "/arm/_t_ns"}
    assert found.per_step.keys() == {DISTANCE_KEY, "/replay/_t_ns"}
    assert len(found.per_step[DISTANCE_KEY]) == STEPS
    back = read_npz(encoded(found.actions))
    np.testing.assert_array_equal(back["/arm/command"], given.sensors["/arm/position"] + 0.5)  # type: ignore[index]


@pytest.mark.parametrize("policy", [Batched, Batched()])
def test_batches_give_what_single_steps_give(policy: Any) -> None:
    one_by_one = replay(shifted).metrics
    assert replay(policy, batch=3).metrics == one_by_one
    assert replay(policy, batch=100).metrics == one_by_one


def test_chunks_are_acted_out_and_cut_off_at_the_end() -> None:
    calls: list[int] = []

    class Policy(Chunked):
        def act(self, obs: Any, context: Any) -> Any:  # type: ignore[override]
            calls.append(context.step)
            return super().act(obs)

    found = replay(Policy)
    assert calls == [0, 4, 8]
    assert found.step_count == STEPS
    position = baseline().sensors["/arm/position"]  # type: ignore[index]
    np.testing.assert_array_equal(found.actions["/arm/command"][:5], position[[0, 0, 0, 0, 4]])  # type: ignore[index]


def test_a_batch_or_chunk_of_the_wrong_length_fails_and_says_what_was_expected() -> None:
    class Short:
        def act_batch(self, obs: Any) -> Any:
            return {"/arm/command": obs["/arm/position"][:-1]}

    with pytest.raises(ValueError, match="expected 10 rows"):
        replay(Short)


# ----------------------------------------------------------------------------- baselines of all kinds


def never_called(obs: Any) -> Any:
    raise AssertionError("there is nothing to act on")


@pytest.mark.parametrize("sensors", [None, {}, {"/arm/position": np.zeros((0, 2))}])
def test_without_sensors_the_policy_is_not_called_and_the_row_is_complete(sensors: Any) -> None:
    found = replay(never_called, baseline(sensors=sensors))
    assert found.step_count == found.metrics["step_count"] == 0
    assert found.metrics["action_l2_distance"] is None
    assert found.metrics["actions"] is None
    assert found.actions is None


def test_without_actions_there_is_nothing_to_compare_with() -> None:
    metrics = replay(follow, baseline(actions=None)).metrics
    assert metrics["action_l2_distance"] is None
    assert metrics["step_count"] == STEPS


def test_an_array_without_steps_is_the_same_at_every_step() -> None:
    given = baseline()
    sensors = {**given.sensors, "/scene/gravity": np.float32(9.81)}  # type: ignore[dict-item]
    seen: list[float] = []

    def policy(obs: Any) -> Any:
        seen.append(float(obs["/scene/gravity"]))
        return follow(obs)

    found = replay(policy, baseline(sensors=sensors))
    assert found.step_count == STEPS
    assert seen == [pytest.approx(9.81)] * STEPS


def test_one_step_is_first_and_last() -> None:
    assert replay(Counting(), baseline(1)).metrics["reward_total_candidate"] == 1.0


def test_mixed_rates_pair_by_index_or_by_time_as_asked() -> None:
    fast, slow = np.arange(100, dtype=np.int64) * 10**7, np.arange(3, dtype=np.int64) * 4 * 10**8
    sensors = {
        "/imu/value": np.arange(100.0),
        "/imu/_t_ns": fast,
        "/camera/value": np.arange(3.0),
        "/camera/_t_ns": slow,
    }
    given = baseline(sensors=sensors, actions={"/imu/value": np.arange(100.0), "/imu/_t_ns": fast})

    def policy(obs: Any) -> Any:
        return {"/imu/value": obs["/imu/value"]}

    assert replay(policy, given).step_count == 3
    by_time = replay(policy, given, align="hold")
    assert by_time.step_count == 100
    assert by_time.metrics["alignment"] == "hold"
    assert by_time.metrics["action_l2_distance"] == 0.0


# ------------------------------------------------------------------------------- policies of all kinds


def as_json(found: Replay) -> str:
    """What crosses the wire has to be JSON, and JSON has no NaN."""
    return json.dumps(found.metrics, allow_nan=False)


def test_nan_is_counted_and_never_breaks_the_result() -> None:
    def policy(obs: Any) -> Any:
        return {"/arm/command": obs["/arm/position"] * np.nan}

    found = replay(policy)
    as_json(found)
    assert found.metrics["action_l2_distance"] is None
    assert found.metrics["actions"]["nonfinite_steps"] == STEPS


def test_keys_that_were_never_recorded_are_named_and_compared_with_nothing() -> None:
    found = replay(lambda obs: {**follow(obs), "/gripper/force": 1.0, "note": "closing"})
    as_json(found)
    assert found.metrics["action_l2_distance"] == 0.0
    assert found.metrics["actions"]["unpaired"]["candidate_only"] == ["/gripper/force", "note"]


def test_no_keys_at_all_are_no_actions() -> None:
    found = replay(lambda obs: {})
    as_json(found)
    assert found.metrics["step_count"] == STEPS
    assert found.metrics["action_l2_distance"] is None
    assert found.metrics["actions"]["unpaired"]["baseline_only"] == ["/arm/command"]


def test_a_wrong_shape_is_not_compared_and_is_named() -> None:
    found = replay(lambda obs: {"/arm/command": np.zeros(5)})
    as_json(found)
    assert found.metrics["action_l2_distance"] is None
    assert found.metrics["actions"]["unpaired"]["shape"] == ["/arm/command"]


@pytest.mark.parametrize("value", ["left", object(), {"x": 1}, [[1], [2, 3]]])
def test_a_value_that_is_no_number_fails_the_row_and_names_the_key(value: Any) -> None:
    with pytest.raises(InvalidValue, match="/arm/command"):
        replay(lambda obs: {"/arm/command": value})


@pytest.mark.parametrize(
    "outcome", [{"success": "yes"}, {"reward_total": math.nan}, 3, {"collision_count": -1}]
)
def test_an_outcome_that_makes_no_sense_fails_the_row_and_names_the_field(outcome: Any) -> None:
    with pytest.raises(InvalidValue, match="_outcome"):
        replay(lambda obs: {**follow(obs), "_outcome": outcome})


def test_numpy_values_in_an_outcome_are_numbers() -> None:
    def policy(obs: Any) -> Any:
        outcome = {"success": np.bool_(True), "time_to_goal_s": np.float32(2.5)}
        return {**follow(obs), "_outcome": outcome}

    found = replay(policy)
    as_json(found)
    assert found.metrics["success_candidate"] is True
    assert found.metrics["time_to_goal_s_candidate"] == 2.5


def test_keys_that_no_file_can_hold_are_left_out_of_the_artifact() -> None:
    arrays = {"/arm/command": np.zeros((2, 2)), "../up": np.zeros(2), 3: np.zeros(2)}
    assert read_npz(encoded(arrays)).keys() == {"/arm/command"}  # type: ignore[arg-type]
