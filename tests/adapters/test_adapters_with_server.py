"""Adapters, SDK and server together: what went in at one end comes out at the other, and browsers can play it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook import client as sdk
from rollbook.adapters import gymnasium, lerobot
from tests.adapters.lerobot_datasets import TOP, WRIST, Plan, state, write_v3
from tests.adapters.pictures import decode
from tests.adapters.small_envs import CountingEnv
from tests.server.running import RunningServer

pytestmark = pytest.mark.slow


@pytest.fixture
def client(tmp_path: Path) -> Iterator[sdk.Client]:
    folder = tmp_path / "server"
    folder.mkdir()
    with (
        RunningServer(folder) as server,
        sdk.Client(api_key=server.api_key, base_url=server.base_url) as made,
    ):
        yield made


def still(observation: Any) -> Any:
    return np.zeros(3, np.float32)


def test_recordings_and_imports_come_back_from_the_server(
    client: sdk.Client, tmp_path: Path
) -> None:
    gymnasium.record(CountingEnv(), still, seed=1, client=client, policy_version="v4")
    root = write_v3(tmp_path / "pusht", Plan(cameras=(TOP, WRIST)))
    lerobot.upload_dataset(root, [1], client=client, policy_version="teleop")

    (recorded,) = client.episodes(policy_version="v4")
    assert recorded.record.status == "ready"
    assert recorded.record.metadata["outcome"]["reward_total"] == pytest.approx(2.1)
    assert recorded.sensors()["observation/value"].shape == (7, 2)
    assert decode(recorded.video()).numbers == list(range(7))

    (imported,) = client.episodes(policy_version="teleop")
    assert (imported.sensors()["observation.state/value"] == state(12, 7)).all()
    assert decode(imported.video()).numbers == list(range(12, 19))
    for episode in (recorded, imported):
        video = episode.record.artifact("video")
        assert video is not None
        assert video.playable


def test_a_crash_is_a_failed_episode_on_the_server(client: sdk.Client) -> None:
    with pytest.raises(RuntimeError, match="stuck"):
        gymnasium.record(CountingEnv(fails_at=3), still, client=client)
    (episode,) = client.episodes(status="failed")
    assert episode.record.failure_time_s == pytest.approx(0.06)
    assert len(episode.actions()["action/value"]) == 4
