"""Episodes: the words on the wire, typed metadata, and what metadata may hold."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.contracts import typed_metadata as typed
from rollbook.contracts.episode import (
    ARTIFACT_KINDS,
    CONTENT_TYPES,
    EPISODE_SOURCES,
    FILE_NAMES,
    FINAL_STATUSES,
    ArtifactKind,
    check_typed_metadata,
    fits_slot,
)
from rollbook.contracts.typed_metadata import (
    TYPED_METADATA,
    Battery,
    EpisodeOutcome,
    Imu,
    JointState,
    Pose3D,
    Twist,
    plain_metadata,
    typed_values,
)
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.errors import InvalidValue

public = import_module("robotrace.types")
EXAMPLES: dict[str, dict[str, Any]] = {
    "JointState": {"positions": [0.1, 2.0], "names": ["a", "b"]},
    "Pose3D": {"translation": [1.0, 2.0, 3.0], "rotation": [0.0, 0.0, 0.0, 1.0]},
    "Twist": {"linear": [1.0, 0.0, 0.0], "angular": [0.0, 0.0, 0.5]},
    "Imu": {"linear_acceleration": [0.0, 0.0, 9.8], "angular_velocity": [0.0, 0.0, 0.0]},
    "Battery": {"percent": 80.0, "charging": False},
    "EpisodeOutcome": {"success": True, "collision_count": 2, "time_to_goal_s": 3.5},
}


def test_the_words_of_the_wire() -> None:
    assert ARTIFACT_KINDS == ("video", "sensors", "actions")
    assert EPISODE_SOURCES == ("real", "sim", "replay")
    assert FINAL_STATUSES == ("ready", "failed")
    assert CONTENT_TYPES["video"] == "video/mp4"
    assert {CONTENT_TYPES["sensors"], CONTENT_TYPES["actions"]} == {"application/octet-stream"}
    assert list(FILE_NAMES.values()) == ["video.mp4", "sensors.npz", "actions.npz"]
    assert [name.split(".")[1] for name in TYPED_METADATA] == list(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_typed_value_is_the_same_on_the_wire_as_the_public_client_sends_it(name: str) -> None:
    ours, theirs = getattr(typed, name), getattr(public, name)
    assert ours(**EXAMPLES[name]).to_dict() == theirs(**EXAMPLES[name]).to_dict()
    check_typed_metadata({"state": theirs(**EXAMPLES[name]).to_dict()})


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("JointState", {"positions": []}, "positions"),
        ("JointState", {"positions": None}, "positions"),
        ("JointState", {"positions": "12"}, "positions"),
        ("JointState", {"positions": [1.0, "2"]}, "positions[1]"),
        ("JointState", {"positions": [1.0, float("nan")]}, "positions[1]"),
        ("JointState", {"positions": [1.0, True]}, "positions[1]"),
        ("JointState", {"velocities": [1.0]}, "velocities"),
        ("JointState", {"efforts": [1.0, 2.0, 3.0]}, "efforts"),
        ("JointState", {"names": ["only one"]}, "names"),
        ("JointState", {"names": ["a", 2]}, "names"),
        ("Pose3D", {"translation": [1.0, 2.0]}, "translation"),
        ("Pose3D", {"rotation": [0.0, 0.0, 1.0]}, "rotation"),
        ("Pose3D", {"rotation": None}, "rotation"),
        ("Twist", {"linear": 3}, "linear"),
        ("Imu", {"orientation": [1.0, 0.0, 0.0]}, "orientation"),
        ("Battery", {"percent": 101}, "percent"),
        ("Battery", {"percent": -1}, "percent"),
        ("Battery", {"charging": "yes"}, "charging"),
        ("Battery", {"voltage_v": 10**400}, "voltage_v"),
        ("EpisodeOutcome", {"success": 1}, "success"),
        ("EpisodeOutcome", {"collision_count": 1.5}, "collision_count"),
        ("EpisodeOutcome", {"collision_count": -1}, "collision_count"),
        ("EpisodeOutcome", {"time_to_goal_s": -0.1}, "time_to_goal_s"),
    ],
)
def test_a_wrong_shape_is_refused_when_it_is_made_and_when_it_comes_in(
    name: str, change: dict[str, Any], field: str
) -> None:
    wrong = {**EXAMPLES[name], **change}
    with pytest.raises(InvalidValue) as made:
        getattr(typed, name)(**wrong)
    assert (made.value.record, made.value.field) == (name, field)
    nested = {"runs": [{"state": {"__type": f"robotrace.{name}", **wrong}}]}
    with pytest.raises(InvalidValue) as came:
        check_typed_metadata(nested)
    assert came.value.field == f"runs[0].state.{field}"


def test_numpy_values_are_taken_as_the_numbers_they_are() -> None:
    state = JointState(np.array([1, 2], np.float32), names=("a", "b"))
    assert state.to_dict()["positions"] == [1.0, 2.0]
    outcome = EpisodeOutcome(np.bool_(True), np.float32(0.5), np.int64(3))  # type: ignore[arg-type]
    assert outcome.to_dict() | {"__type": ""} == {
        "__type": "",
        "success": True,
        "reward_total": 0.5,
        "collision_count": 3,
        "time_to_goal_s": None,
    }


def test_a_typed_value_cannot_change_after_it_was_checked() -> None:
    positions = [1.0, 2.0]
    state = JointState(positions)
    positions.append(3.0)
    assert state.positions == (1.0, 2.0)


def test_an_unknown_type_passes_and_a_type_that_is_no_text_is_just_data() -> None:
    check_typed_metadata({"a": {"__type": "robotrace.Lidar", "x": 1}, "b": {"__type": ["?"]}})


def test_a_typed_object_may_stand_at_the_top() -> None:
    with pytest.raises(InvalidValue) as found:
        check_typed_metadata({"__type": "robotrace.Battery", "percent": 200})
    assert found.value.field == "percent"


def test_metadata_becomes_what_json_can_say() -> None:
    given = {
        "pose": Pose3D([0, 0, 0], [0, 0, 0, 1]),
        "nested": {"twist": [Twist([0, 0, 0], [0, 0, 0])], 3: (1, 2)},
        "array": np.arange(3),
        "scalar": np.float32(0.5),
        "flag": np.bool_(False),
        "imu": Imu([0, 0, 0], [0, 0, 0]),
        "battery": Battery(),
        "nothing": None,
    }
    plain = plain_metadata(given)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["nested"]["3"] == [1, 2]
    assert plain["array"] == [0, 1, 2]
    assert plain["flag"] is False
    assert plain["nested"]["twist"][0]["__type"] == "robotrace.Twist"


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"a": {"b": [1, float("inf")]}}, "a.b[1]"),
        ({"a": np.array([np.nan])}, "a[0]"),
        ({"a": object()}, "a"),
        ({"a": b"bytes"}, "a"),
        ({"a": {1, 2}}, "a"),
    ],
)
def test_what_json_cannot_say_is_refused_by_its_path(metadata: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as found:
        plain_metadata(metadata)
    assert found.value.field == field


def test_bottomless_metadata_is_refused_rather_than_followed() -> None:
    bottomless: dict[str, Any] = {}
    bottomless["again"] = bottomless
    for check in (plain_metadata, check_typed_metadata):
        with pytest.raises(InvalidValue, match="levels"):
            check(bottomless)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(), below, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_plain_json_passes_unchanged(metadata: dict[str, Any]) -> None:
    assert plain_metadata(metadata) == metadata
    check_typed_metadata({key: value for key, value in metadata.items() if key != "__type"})


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("run.mp4", {"video"}),
        ("RUN.MOV", {"video"}),
        ("a.npz", {"sensors", "actions"}),
        ("a.parquet", {"sensors", "actions"}),
        ("a.csv", {"video", "sensors", "actions"}),
        ("noname", {"video", "sensors", "actions"}),
    ],
)
def test_the_slots_a_file_fits_by_its_name(name: str, fits: set[ArtifactKind]) -> None:
    assert {kind for kind in ARTIFACT_KINDS if fits_slot(name, kind)} == fits


def test_an_episode_of_a_later_server_is_read_as_far_as_it_is_known() -> None:
    body = {
        "id": "e",
        "status": "ready",
        "seed": 10**30,
        "artifacts": [{"kind": "lidar", "size": 3}, {"kind": "video", "size": 5, "new": 1}],
        "invented": True,
    }
    episode = msgspec.convert(body, EpisodeRecord)
    assert episode.seed == 10**30
    video = episode.artifact("video")
    assert video is not None
    assert video.size == 5
    assert episode.artifact("sensors") is None


def test_typed_values_are_found_with_their_paths_and_broken_ones_are_left_out() -> None:
    metadata = {
        "arm": {"left": JointState([0.0, 1.0]).to_dict()},
        "cells": [Battery(percent=50.0).to_dict(), 7],
        "broken": {"__type": "robotrace.Battery", "percent": "half"},
        "later": {"__type": "robotrace.NotYetKnown"},
        "odd": {"__type": 5},
    }
    found = dict(typed_values(metadata))
    assert list(found) == ["arm.left", "cells[0]"]
    assert found["arm.left"] == JointState((0.0, 1.0))
    assert found["cells[0]"] == Battery(percent=50.0)
