"""Episodes of the public client: everything it sends arrives, and is read back through our API.

Its command line, which logs in and out, is in tests/server/accounts/test_device_login.py.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.interop.conftest import Portal
from tests.interop.public_client import robotrace
from tests.server.video.test_video import Clip

REPRODUCED_BY: dict[str, Any] = {
    "policy_version": "pick-place v4+β",
    "env_version": "flat-7@2026.1",
    "git_sha": "0123456789abcdef0123456789abcdef01234567",
    "seed": 2**63 + 11,
}
TYPED: dict[str, Any] = {
    "joints": robotrace.JointState(
        positions=[0.1, -0.2], velocities=[1, 2], efforts=None, names=["shoulder", "elbow"]
    ),
    "pose": robotrace.Pose3D(translation=[1, 2, 3], rotation=[0, 0, 0, 1]),
    "twist": robotrace.Twist(linear=[0.5, 0, 0], angular=[0, 0, 0.25]),
    "imu": robotrace.Imu(
        linear_acceleration=[0, 0, 9.81], angular_velocity=[0, 0, 0], orientation=[0, 0, 0, 1]
    ),
    "battery": robotrace.Battery(percent=87.5, voltage_v=24.1, current_a=-1.5, charging=True),
    "outcome": robotrace.EpisodeOutcome(
        success=True, reward_total=12.5, collision_count=0, time_to_goal_s=7.25
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By name its extension must not say another kind, or the public client refuses it."""
    folder = tmp_path_factory.mktemp("recorded")
    sensors: dict[str, Any] = {"/joint_states/position": np.arange(12.0).reshape(4, 3)}
    actions: dict[str, Any] = {"/cmd_vel/linear": np.ones((4, 3), np.float32)}
    np.savez(folder / "sensors.npz", **sensors)
    with open(folder / "actions.recorded", "wb") as out:
        np.savez(out, **actions)
    return {
        "video": Clip("libx264", frames=6).write(folder),
        "sensors": folder / "sensors.npz",
        "actions": folder / "actions.recorded",
    }


def expect_stored(portal: Portal, episode_id: str, files: dict[str, Path]) -> None:
    """Byte for byte, and as large and with the SHA-256 that we say."""
    listed = {each["kind"]: each for each in portal.episode(episode_id)["artifacts"]}
    assert set(listed) == set(files)
    for kind, path in files.items():
        sent = path.read_bytes()
        assert portal.artifact(episode_id, kind) == sent
        assert listed[kind]["size"] == len(sent)
        assert listed[kind]["sha256"] == hashlib.sha256(sent).hexdigest()


# -------------------------------------------------------------------------------------- log_episode


def test_one_call_logs_every_field_and_all_three_artifacts(
    portal: Portal, robotrace_client: Any, files: dict[str, Path]
) -> None:
    logged = robotrace_client.log_episode(
        name="pick 12 – ‘blue’ cup",
        source="sim",
        robot="arm-7",
        **REPRODUCED_BY,
        **files,
        duration_s=12.25,
        fps=20,
        metadata={"task": {"name": "pick", "tries": [1, 2]}, "note": None},
    )
    assert (logged.status, logged.storage) == ("ready", "r2")
    episode = portal.episode(logged.id)
    for name, value in REPRODUCED_BY.items():
        assert episode[name] == value
    assert episode["name"] == "pick 12 – ‘blue’ cup"
    assert (episode["source"], episode["robot"], episode["status"]) == ("sim", "arm-7", "ready")
    assert (episode["duration_s"], episode["fps"]) == (12.25, 20)
    assert episode["metadata"] == {"task": {"name": "pick", "tries": [1, 2]}, "note": None}
    assert episode["bytes_total"] == sum(path.stat().st_size for path in files.values())
    expect_stored(portal, logged.id, files)
    assert {each["kind"]: each["playable"] for each in episode["artifacts"]}["video"] is True
    found = portal.episodes(policy_version=REPRODUCED_BY["policy_version"])
    assert logged.id in [each["id"] for each in found]


def test_an_episode_may_be_nothing_but_its_metadata(portal: Portal, robotrace_client: Any) -> None:
    logged = robotrace_client.log_episode(metadata={"only": "this"})
    assert logged.upload_urls == {}
    episode = portal.episode(logged.id)
    assert (episode["status"], episode["source"]) == ("ready", "real")
    assert episode["metadata"] == {"only": "this"}
    assert episode["artifacts"] == []


def test_a_failed_run_says_when_it_failed(portal: Portal, robotrace_client: Any) -> None:
    at = {"duration_s": 10.0, "status": "failed"}
    logged = robotrace_client.log_episode(**at, failure_time_s=6.125)
    late = robotrace_client.log_episode(**at, failure_time_s=10.5)
    assert logged.status == "failed"
    assert portal.episode(logged.id)["failure_time_s"] == 6.125
    assert portal.episode(late.id)["failure_time_s"] == 10.0, "moved to the end of the run"


def test_the_modules_own_functions_find_the_server_in_the_environment(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(robotrace.ENV_API_KEY, portal.api_key)
    monkeypatch.setenv(robotrace.ENV_BASE_URL, f"{portal.base_url}/")
    logged = robotrace.log_episode(name="from the environment", status="failed")
    assert portal.episode(logged.id)["status"] == "failed"
    with robotrace.start_episode(artifacts=()) as started:
        pass
    assert portal.episode(started.id)["status"] == "ready"


# ----------------------------------------------------------------------------- start, upload, finalize


def test_an_episode_is_started_uploaded_and_finalized(
    portal: Portal, robotrace_client: Any, files: dict[str, Path]
) -> None:
    episode = robotrace_client.start_episode(name="by hand", metadata={"a": 1}, fps=10)
    assert set(episode.upload_urls) == {"video", "sensors", "actions"}
    assert portal.episode(episode.id)["status"] == "recording"
    for kind, path in files.items():
        assert episode.upload(kind, path) == path.stat().st_size
    episode.finalize(duration_s=3.5, metadata={"b": 2})
    episode.finalize(status="failed")
    read = portal.episode(episode.id)
    assert read["status"] == episode.status == "ready", "finalizing twice changes nothing"
    assert read["metadata"] == {"a": 1, "b": 2}
    assert (read["fps"], read["duration_s"]) == (10, 3.5)
    expect_stored(portal, episode.id, files)


def test_uploading_again_replaces_what_was_there(
    portal: Portal, robotrace_client: Any, files: dict[str, Path], tmp_path: Path
) -> None:
    first = tmp_path / "first.npz"
    first.write_bytes(b"not finished")
    episode = robotrace_client.start_episode(artifacts=["sensors"])
    episode.upload("sensors", first)
    episode.upload("sensors", files["sensors"])
    episode.finalize()
    expect_stored(portal, episode.id, {"sensors": files["sensors"]})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_old_names_of_uploading_still_work(
    portal: Portal, robotrace_client: Any, files: dict[str, Path]
) -> None:
    with robotrace_client.start_episode() as episode:
        for kind, path in files.items():
            getattr(episode, f"upload_{kind}")(path)
    expect_stored(portal, episode.id, files)


def test_a_block_that_ends_well_is_a_finished_episode(
    portal: Portal, robotrace_client: Any, files: dict[str, Path]
) -> None:
    with robotrace_client.start_episode(artifacts=["actions"]) as episode:
        episode.upload("actions", files["actions"])
    assert portal.episode(episode.id)["status"] == "ready"
    expect_stored(portal, episode.id, {"actions": files["actions"]})


def test_a_block_that_raises_is_a_failed_episode_with_the_reason(
    portal: Portal, robotrace_client: Any
) -> None:
    with (
        pytest.raises(RuntimeError, match="gripper"),
        robotrace_client.start_episode(metadata={"kept": True}) as episode,
    ):
        raise RuntimeError("gripper stalled")
    read = portal.episode(episode.id)
    assert read["status"] == "failed"
    assert read["metadata"] == {"kept": True, "failure_reason": "RuntimeError: gripper stalled"}
    assert read["missing_artifacts"] == ["actions", "sensors", "video"]


def test_a_file_that_is_not_there_leaves_a_failed_episode_with_the_reason(
    portal: Portal, robotrace_client: Any, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        robotrace_client.log_episode(name="lost file", sensors=tmp_path / "nowhere.npz")
    (read,) = portal.episodes(name="lost file")
    assert read["status"] == "failed"
    assert read["metadata"]["failure_reason"].startswith("upload error: artifact not found")


# ------------------------------------------------------------------------------- metadata and traces


def test_all_six_types_of_metadata_survive(portal: Portal, robotrace_client: Any) -> None:
    expected = {name: value.to_dict() for name, value in TYPED.items()}
    assert len({value["__type"] for value in expected.values()}) == 6
    logged = robotrace_client.log_episode(metadata={**TYPED, "many": [TYPED["pose"]] * 2})
    read = portal.episode(logged.id)["metadata"]
    assert read == {**expected, "many": [expected["pose"]] * 2}


def test_types_may_come_with_the_finalize_alone(portal: Portal, robotrace_client: Any) -> None:
    episode = robotrace_client.start_episode(artifacts=())
    episode.finalize(metadata={"outcome": TYPED["outcome"]})
    assert portal.episode(episode.id)["metadata"]["outcome"] == TYPED["outcome"].to_dict()


@pytest.mark.parametrize(("flags", "shown"), [(1, "01"), (0, "00")])
def test_an_episode_carries_the_span_it_was_recorded_in(
    portal: Portal, robotrace_client: Any, flags: int, shown: str
) -> None:
    from opentelemetry import trace

    context = trace.SpanContext(0xABC, 0xDEF, False, trace.TraceFlags(flags))
    with trace.use_span(trace.NonRecordingSpan(context)):
        logged = robotrace_client.log_episode(metadata={"a": 1})
    trace_id, span_id = f"{0xABC:032x}", f"{0xDEF:016x}"
    assert portal.episode(logged.id)["metadata"] == {
        "a": 1,
        "otel": {
            "trace_id": trace_id,
            "span_id": span_id,
            "traceparent": f"00-{trace_id}-{span_id}-{shown}",
        },
    }
