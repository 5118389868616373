"""From a recording to the server: what is sent, what is kept, and what becomes of errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook import client as sdk
from rollbook.adapters import gymnasium as adapter
from rollbook.adapters.destination import BatchResult
from rollbook.errors import AuthError, ConfigurationError, RollbookError
from tests.adapters.small_envs import CountingEnv
from tests.client.faulty_server import FaultyServer


def still(observation: Any) -> Any:
    return np.zeros(3, np.float32)


def test_a_recording_reaches_the_server_whole(client: sdk.Client) -> None:
    infos = [{"is_success": True}] * 7
    run = adapter.record(
        CountingEnv(infos=infos),
        still,
        seed=5,
        client=client,
        robot="arm",
        policy_version="v4",
        git_sha="abc",
        tags=["night"],
        metadata={"note": "mine", "steps": "mine too"},
    )
    assert run.episode is not None
    assert run.episode.id is not None
    found = client.episode(run.episode.id)
    record = found.record
    assert (record.status, record.source, record.name) == ("ready", "sim", "CountingEnv #5")
    assert (record.robot, record.policy_version, record.git_sha) == ("arm", "v4", "abc")
    assert (record.seed, record.fps, record.tags) == (5, 50, ["night"])
    assert record.duration_s == pytest.approx(0.12)
    assert record.metadata["outcome"]["__type"] == "robotrace.EpisodeOutcome"
    assert record.metadata["outcome"]["success"] is True
    assert (record.metadata["note"], record.metadata["steps"]) == ("mine", "mine too")
    assert found.sensors()["observation/value"].shape == (7, 2)
    assert found.actions()["action/value"].shape == (6, 3)
    assert found.video().read_bytes()[4:8] == b"ftyp"
    assert run.encoded.files == {}


def test_the_default_client_is_used_when_none_is_given(wire: FaultyServer) -> None:
    sdk.init(api_key=wire.api_key, base_url=wire.base_url)
    adapter.record(CountingEnv(), still)
    assert len(wire.episodes) == 1


def test_files_are_kept_where_the_caller_wants_them(client: sdk.Client, tmp_path: Path) -> None:
    run = adapter.record(CountingEnv(), still, client=client, output_dir=tmp_path / "kept")
    assert run.episode is not None
    names = ["actions.npz", "sensors.npz", "video.mp4"]
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept == sorted([*names, "episode.json"])
    assert sorted(path.name for path in run.encoded.files.values()) == names


def test_without_a_server_a_folder_is_enough(tmp_path: Path) -> None:
    run = adapter.record(CountingEnv(), still, output_dir=tmp_path / "kept")
    assert run.episode is None
    assert run.encoded.files["sensors"].is_file()


def test_without_a_server_or_a_folder_nothing_runs() -> None:
    env = CountingEnv()
    with pytest.raises(ConfigurationError, match="or pass output_dir="):
        adapter.record(env, still)
    assert env.seeds == []


@pytest.mark.parametrize(
    "about",
    [
        {"polcy_version": "v4"},
        {"name": "x" * 201},
        {"metadata": {"bad": object()}},
        {"source": "dream"},
        {"tags": "night"},
    ],
)
def test_a_mistake_in_what_is_said_is_found_before_anything_runs(
    client: sdk.Client, wire: FaultyServer, about: Any
) -> None:
    env = CountingEnv()
    with pytest.raises((ConfigurationError, ValueError)):
        adapter.record(env, still, client=client, **about)
    assert env.seeds == []
    assert wire.seen == []


def test_a_crash_is_recorded_as_a_failed_episode_and_raised(
    client: sdk.Client, wire: FaultyServer
) -> None:
    with pytest.raises(RuntimeError, match="stuck") as caught:
        adapter.record(CountingEnv(fails_at=3), still, client=client)
    (episode,) = wire.episodes.values()
    assert any(episode["id"] in note for note in caught.value.__notes__)
    assert (episode["status"], episode["failure_time_s"]) == ("failed", pytest.approx(0.06))
    assert episode["metadata"]["failure_reason"] == "RuntimeError: the gripper is stuck"
    assert episode["metadata"]["ended_by"] == "error"
    assert {kind for _, kind in wire.blobs} == {"video", "sensors", "actions"}


def test_an_environment_that_never_began_leaves_no_episode(
    client: sdk.Client, wire: FaultyServer
) -> None:
    class Broken(CountingEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            raise OSError("no simulator")

    with pytest.raises(OSError, match="no simulator"):
        adapter.record(Broken(), still, client=client)
    assert wire.seen == []


def test_a_crash_is_not_hidden_by_an_upload_that_fails(
    client: sdk.Client, wire: FaultyServer
) -> None:
    wire.fail("POST /api/ingest/episode", "answer", times=9)
    with pytest.raises(RuntimeError, match="stuck") as caught:
        adapter.record(CountingEnv(fails_at=3), still, client=client)
    assert any("could not be uploaded" in note for note in caught.value.__notes__)


def test_an_upload_that_fails_is_raised(client: sdk.Client, wire: FaultyServer) -> None:
    wire.fail("PUT /blobs", "answer", status=403, times=9)
    with pytest.raises(RollbookError):
        adapter.record(CountingEnv(), still, client=client)
    (episode,) = wire.episodes.values()
    assert episode["status"] == "failed"


# ------------------------------------------------------------------------------------------- many


def test_every_seed_becomes_an_episode(client: sdk.Client, wire: FaultyServer) -> None:
    seen: list[tuple[int, int, int]] = []
    env = CountingEnv()
    results = adapter.record_many(
        env,
        still,
        seeds=[3, 1, 4],
        client=client,
        name="run {seed}",
        on_progress=lambda done, total, result: seen.append((done, total, result.item)),
    )
    assert [result.error for result in results] == [None] * 3
    assert env.seeds == [3, 1, 4]
    assert seen == [(1, 3, 3), (2, 3, 1), (3, 3, 4)]
    assert [(e["name"], e["seed"]) for e in wire.episodes.values()] == [
        ("run 3", 3),
        ("run 1", 1),
        ("run 4", 4),
    ]


def test_an_environment_made_for_each_seed_is_closed_again(
    client: sdk.Client, tmp_path: Path
) -> None:
    closed: list[int] = []

    class Closing(CountingEnv):
        def close(self) -> None:
            closed.append(len(self.seeds))

    results = adapter.record_many(
        Closing, still, seeds=[1, 2], client=client, output_dir=tmp_path / "kept"
    )
    assert closed == [1, 1]
    assert all(result.run is not None for result in results)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["seed_1", "seed_2"]


def broken_at_two(results: list[int]) -> Any:
    class Sometimes(CountingEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self._fails_at = 1 if seed == 2 else None
            results.append(seed or 0)
            return super().reset(seed=seed)

    return Sometimes()


def test_one_bad_run_does_not_stop_the_others(client: sdk.Client) -> None:
    ran: list[int] = []
    results: list[BatchResult] = adapter.record_many(
        broken_at_two(ran), still, seeds=[1, 2, 3], client=client
    )
    assert ran == [1, 2, 3]
    assert [type(result.error).__name__ for result in results] == [
        "NoneType",
        "RuntimeError",
        "NoneType",
    ]


def test_one_bad_run_stops_the_others_when_asked_to(client: sdk.Client) -> None:
    ran: list[int] = []
    with pytest.raises(RuntimeError, match="stuck"):
        adapter.record_many(
            broken_at_two(ran), still, seeds=[1, 2, 3], client=client, stop_on_error=True
        )
    assert ran == [1, 2]


def test_a_refused_key_stops_at_once_because_it_cannot_get_better(wire: FaultyServer) -> None:
    env = CountingEnv()
    with (
        sdk.Client(api_key="rt_0000000000_" + "c" * 43, base_url=wire.base_url) as stranger,
        pytest.raises(AuthError),
    ):
        adapter.record_many(env, still, seeds=[1, 2, 3], client=stranger)
    assert env.seeds == [1]
