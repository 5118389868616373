"""Recording: one call or many, files or arrays, and what the server has afterwards."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.client import EpisodeOutcome, JointState
from rollbook.client.ingest import warn_of_lost_revisions
from rollbook.contracts.npz import write_npz
from rollbook.contracts.policy import PolicyRevision
from rollbook.errors import AuthError, ConfigurationError, ConflictError, NotFoundError
from tests.client.conftest import AnyServer, MakeClient
from tests.client.faulty_server import FaultyServer

AnyClient = Callable[..., Any]
CREATE = "POST /api/ingest/episode "
CLOCK = np.arange(4, dtype=np.int64) * 20_000_000


@pytest.fixture
def sensors(tmp_path: Path) -> Path:
    path = tmp_path / "sensors.npz"
    write_npz(path, {"state/value": np.arange(4.0), "state/_t_ns": CLOCK})
    return path


def test_one_call_records_a_whole_episode(
    server: AnyServer, any_client_of: AnyClient, sensors: Path, tmp_path: Path
) -> None:
    client = any_client_of(server)
    actions = tmp_path / "actions.npz"
    write_npz(actions, {"action/value": np.ones((4, 2)), "action/_t_ns": CLOCK})
    logged = client.log_episode(
        name="pick 12",
        source="sim",
        robot="arm-3",
        policy_version="v4",
        env_version="lab-2",
        git_sha="abc123",
        seed=7,
        sensors=sensors,
        actions=str(actions),
        duration_s=0.08,
        fps=50,
        metadata={"task": {"name": "pick"}},
        tags=["night", "left"],
    )
    assert logged.status == "ready"
    found = client.episode(logged.id)
    facts = ("name", "source", "robot", "policy_version", "env_version", "git_sha", "seed", "fps")
    assert [getattr(found, fact) for fact in facts] == [
        "pick 12",
        "sim",
        "arm-3",
        "v4",
        "lab-2",
        "abc123",
        7,
        50,
    ]
    assert (found.status, found.duration_s, sorted(found.tags)) == (
        "ready",
        0.08,
        ["left", "night"],
    )
    assert found.metadata == {"task": {"name": "pick"}}
    assert found.bytes_total == sensors.stat().st_size + actions.stat().st_size
    digests = {each.kind: each.sha256 for each in found.artifacts}
    assert digests == {
        "sensors": hashlib.sha256(sensors.read_bytes()).hexdigest(),
        "actions": hashlib.sha256(actions.read_bytes()).hexdigest(),
    }


def test_arrays_are_recorded_directly_and_come_back_as_they_were(
    server: AnyServer, any_client_of: AnyClient
) -> None:
    client = any_client_of(server)
    positions = np.linspace(0, 1, 28).reshape(4, 7)
    logged = client.log_episode(
        sensors={"/joint_states/position": positions, "mode": ["idle", "reach", "grasp", "lift"]},
        actions={"action": np.ones((4, 2), np.float32)},
        t_ns=CLOCK,
    )
    found = client.episode(logged.id)
    sensors = found.sensors()
    np.testing.assert_array_equal(sensors["/joint_states/position"], positions)
    assert sensors["mode/value"].tolist() == ["idle", "reach", "grasp", "lift"]
    assert sensors["mode/_t_ns"].tolist() == CLOCK.tolist()
    assert found.actions()["action/value"].dtype == np.float32


def test_an_episode_without_files_is_metadata_alone(
    server: AnyServer, any_client_of: AnyClient
) -> None:
    client = any_client_of(server)
    logged = client.log_episode(policy_version="v1", metadata={"reward": 1.5})
    found = client.episode(logged.id)
    assert (found.status, found.artifacts, found.name) == ("ready", [], None)


def test_an_episode_is_started_filled_and_finalized(
    server: AnyServer, any_client_of: AnyClient, sensors: Path
) -> None:
    client = any_client_of(server)
    episode = client.start_episode(name="long run", artifacts=["sensors"])
    assert episode.status == "recording"
    assert list(episode.upload_urls) == ["sensors"]
    assert client.episode(episode.id).status == "recording"
    assert episode.upload("sensors", sensors) == sensors.stat().st_size
    episode.finalize(duration_s=2.5, metadata={"note": "fine"})
    episode.finalize(status="failed")  # too late, and no harm
    found = client.episode(episode.id)
    assert (found.status, found.duration_s, found.metadata) == ("ready", 2.5, {"note": "fine"})


def test_the_size_that_a_caller_states_counts(server: AnyServer, any_client_of: AnyClient) -> None:
    client = any_client_of(server)
    episode = client.start_episode(artifacts=["actions"])
    episode.upload("actions", {"a": [1, 2]}, t_ns=[0, 1])
    episode.finalize(bytes_total=12_345)
    assert client.episode(episode.id).bytes_total == 12_345


def test_uploading_again_before_the_end_replaces_what_was_there(
    server: AnyServer, any_client_of: AnyClient
) -> None:
    client = any_client_of(server)
    with client.start_episode(artifacts=["actions"]) as episode:
        episode.upload("actions", {"a": [1, 2]}, t_ns=[0, 1])
        episode.upload("actions", {"a": [3, 4, 5]}, t_ns=[0, 1, 2])
    assert client.episode(episode.id).actions()["a/value"].tolist() == [3, 4, 5]


def test_a_failed_run_says_when_it_failed(server: AnyServer, any_client_of: AnyClient) -> None:
    client = any_client_of(server)
    logged = client.log_episode(status="failed", duration_s=10, failure_time_s=3.25)
    found = client.episode(logged.id)
    assert (found.status, found.failure_time_s) == ("failed", 3.25)


def test_typed_values_keep_their_type(server: AnyServer, any_client_of: AnyClient) -> None:
    client = any_client_of(server)
    state, outcome = JointState([0.1, 0.2]), EpisodeOutcome(success=True, reward_total=2.0)
    with client.start_episode(metadata={"start": state}, artifacts=[]) as episode:
        episode.finalize(metadata={"outcome": outcome, "count": np.int64(3)})
    metadata = client.episode(episode.id).metadata
    assert metadata == {"start": state.to_dict(), "outcome": outcome.to_dict(), "count": 3}


# ------------------------------------------------------------------------------- context manager


def test_a_clean_block_ends_ready_and_an_exception_ends_failed(
    server: AnyServer, any_client_of: AnyClient
) -> None:
    client = any_client_of(server)
    with client.start_episode(artifacts=[]) as fine:
        pass
    assert client.episode(fine.id).status == "ready"
    broken = client.start_episode(artifacts=[])
    with pytest.raises(ZeroDivisionError, match="by zero"), broken:
        _ = 1 / 0
    found = client.episode(broken.id)
    assert found.status == "failed"
    assert found.metadata["failure_reason"] == "ZeroDivisionError: division by zero"


def test_what_was_finalized_inside_a_block_is_left_alone(
    server: AnyServer, any_client_of: AnyClient
) -> None:
    client = any_client_of(server)
    with client.start_episode(artifacts=[]) as episode:
        episode.finalize(status="failed", failure_time_s=1.0)
    assert client.episode(episode.id).status == "failed"


def test_a_failure_to_finalize_is_not_swallowed(
    server: AnyServer, any_client_of: AnyClient
) -> None:
    client = any_client_of(server)
    episode = client.start_episode(artifacts=[])
    with pytest.raises(ConflictError, match="archived"), episode:
        client.archive_episode(episode.id)


def test_an_exception_of_the_program_counts_more_than_ours(
    server: AnyServer, any_client_of: AnyClient, caplog: pytest.LogCaptureFixture
) -> None:
    client = any_client_of(server)
    episode = client.start_episode(artifacts=[])
    client.archive_episode(episode.id)
    with caplog.at_level(logging.WARNING, "rollbook.client"), pytest.raises(KeyError), episode:
        raise KeyError("of the program")
    assert "archived" in caplog.text


def test_a_server_that_ignores_policy_revisions_is_named_once(
    wire: FaultyServer, any_client_of: AnyClient, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_lost_revisions.cache_clear()
    wire.change(CREATE, lambda made: {k: v for k, v in made.items() if k != "policy_revision_kept"})
    client = any_client_of(wire)
    mine = PolicyRevision(
        policy_family="grasp", revision_id="r7", policy_digest="d7", produced_at_ms=5
    )
    with caplog.at_level(logging.WARNING, "rollbook.client"):
        client.log_episode(policy_version="v1")
        assert not caplog.records
        for _ in range(2):
            client.log_episode(policy_version="v1", policy_revision=mine)
    [told] = caplog.messages
    assert wire.base_url in told
    assert "does not keep policy revisions" in told


# --------------------------------------------------------------------------------- what is refused


def test_an_upload_comes_too_late_or_has_no_place(
    server: AnyServer, any_client_of: AnyClient, sensors: Path
) -> None:
    client = any_client_of(server)
    episode = client.start_episode(artifacts=["actions"])
    with pytest.raises(ConfigurationError, match="without sensors"):
        episode.upload("sensors", sensors)
    with pytest.raises(ConfigurationError, match="no artifact 'lidar'"):
        episode.upload("lidar", sensors)
    episode.finalize()
    with pytest.raises(ConfigurationError, match="the episode is finalized"):
        episode.upload("actions", sensors)


def test_a_wrong_key_is_an_auth_error_that_does_not_show_it(
    server: AnyServer, any_client_of: AnyClient
) -> None:
    secret = "rt_0000000000_" + "z" * 43
    with pytest.raises(AuthError) as found:
        any_client_of(server, api_key=secret).log_episode()
    assert found.value.status_code == 401
    assert secret not in str(found.value)
    assert secret not in repr(found.value)


def test_nobody_sees_the_episodes_of_somebody_else(
    server: AnyServer, any_client_of: AnyClient
) -> None:
    mine, other = any_client_of(server), any_client_of(server, api_key=server.other_api_key)
    logged = mine.log_episode(policy_version="secret")
    recorded = mine.episode(logged.id)
    for verb in ("episode", "delete_episode", "archive_episode", "restore_episode"):
        with pytest.raises(NotFoundError):
            getattr(other, verb)(logged.id)
    assert list(other.episodes(policy_version="secret")) == []
    assert mine.episode(recorded.id).status == "ready"


def test_a_file_that_the_server_got_otherwise_is_not_finalized(
    wire: FaultyServer, any_client_of: AnyClient, sensors: Path
) -> None:
    client = any_client_of(wire)
    episode = client.start_episode(artifacts=["sensors"])
    episode.upload("sensors", sensors)
    wire.blobs[episode.id, "sensors"].write_bytes(b"something else")
    with pytest.raises(ConflictError, match="sensors"):
        episode.finalize()


def test_a_failed_upload_ends_the_episode_as_failed_and_is_raised(
    wire: FaultyServer, client_of: MakeClient, sensors: Path
) -> None:
    wire.fail("PUT /blobs", "answer", status=413, times=99)
    with pytest.raises(Exception, match="upload sensors"):
        client_of(wire).log_episode(sensors=sensors)
    [episode] = wire.episodes.values()
    assert episode["status"] == "failed"
    assert episode["metadata"]["failure_reason"].startswith("upload error: cannot upload sensors")


def test_the_address_of_a_new_episode_is_printed_when_wanted(
    wire: FaultyServer, client_of: MakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = client_of(wire, verbose=True).log_episode()
    assert capsys.readouterr().out == f"[rollbook] → {wire.base_url}/portal/episodes/{logged.id}\n"
    client_of(wire).log_episode()  # not on a terminal
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("quiet", "printed"), [("", True), ("1", False), ("yes", False)])
def test_on_a_terminal_it_is_printed_unless_quiet(
    wire: FaultyServer, quiet: str, printed: bool
) -> None:
    terminal, inside = os.openpty()
    access = {"ROLLBOOK_API_KEY": wire.api_key, "ROLLBOOK_BASE_URL": wire.base_url}
    program = "import rollbook.client; rollbook.client.log_episode()"
    subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **access, "ROLLBOOK_QUIET": quiet},
        stdout=inside,
        check=True,
    )
    os.write(inside, b"the end")
    shown = os.read(terminal, 10_000).decode()
    os.close(inside)
    os.close(terminal)
    assert (f"{wire.base_url}/portal/episodes/" in shown) == printed


def test_a_server_without_storage_takes_metadata_only(
    wire: FaultyServer, client_of: MakeClient, sensors: Path
) -> None:
    wire.change(CREATE, lambda made: {**made, "storage": "unconfigured", "upload_urls": []})
    client = client_of(wire)
    assert client.log_episode(name="metadata").status == "ready"
    with pytest.raises(ConfigurationError, match="stores no files"):
        client.log_episode(sensors=sensors)
