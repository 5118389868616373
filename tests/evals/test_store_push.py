"""Pushing chains to a server: with depth and revision, continued after a kill, each chain once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import pytest

from rollbook.client import Client
from rollbook.errors import ChecksumMismatch, ConfigurationError
from rollbook.evals.store_baselines import StoreBaselines
from rollbook.evals.store_episodes import LoggedChains, chosen_chains, log_chains, push_chains
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.writer import write_rollout_zarr_store
from rollbook.train.artifacts import chains_table
from tests.command import rollbook
from tests.evals.small_stores import small_store
from tests.server.fixtures import StartServer, running_server
from tests.server.shared_server import new_organisation, shared_server
from tests.store.synthetic import make_records
from tests.store.test_collection import write_store

__all__ = ["running_server"]

DEPTH = (24, 32)


@dataclass(frozen=True)
class Place:
    """An organisation of its own on a server that other tests use too."""

    base_url: str
    api_key: str


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> Place:
    shared = shared_server(running_server)
    return Place(shared.base_url, new_organisation(shared).api_key)


@pytest.fixture
def client(server: Place, tmp_path: Path) -> Iterator[Client]:
    with Client(api_key=server.api_key, base_url=server.base_url, cache=tmp_path / "cache") as made:
        yield made


@pytest.fixture(scope="module")
def with_depth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("push") / "depth.zarr"
    height, width = DEPTH
    write_rollout_zarr_store(
        path,
        make_records(3, seed=8, depth=DEPTH, features=2, candidates=5, horizon=3),
        selected_depth_height_px=height,
        selected_depth_width_px=width,
    )
    return path


def pushed(client: Client, path: Path, **options: object) -> LoggedChains:
    return push_chains(client, [StoreBaselines(path)], **options)  # type: ignore[arg-type]


def versions(client: Client, version: str, status: str) -> list[str]:
    return [each.id for each in client.episodes(policy_version=version, status=status)]


def test_the_depth_that_was_seen_is_the_video(client: Client, with_depth: Path) -> None:
    (episode_id,) = log_chains(client, with_depth, rows=[1])
    episode = client.episode(episode_id)
    reader = RolloutZarrStoreReader(with_depth)
    limits = episode.metadata["depth_video"]
    path = episode.video()
    assert path is not None
    with av.open(str(path)) as file:
        frames = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)]
    steps = range(*StoreBaselines(with_depth).states(1).indices(reader.num_steps))
    assert [time for time, _ in frames] == [float(at) for at in range(len(steps))]
    for step, (_, frame) in zip(steps, frames, strict=True):
        image = reader.selected_depth(step)
        assert image is not None
        depth = np.where(image["valid_mask"], image["depth_m"].astype(float), np.nan)
        assert limits["near_m"] <= np.nanmin(depth)
        assert np.nanmax(depth) <= limits["far_m"]
        assert frame.shape == (*DEPTH, 3)
        brightness = frame.mean(axis=2)[image["valid_mask"]]
        seen = depth[image["valid_mask"]]
        assert np.corrcoef(brightness, seen)[0, 1] < -0.8, "near is bright"


def test_without_video_or_without_depth_there_is_none(client: Client, with_depth: Path) -> None:
    (episode_id,) = log_chains(client, with_depth, policy_version="blind", rows=[0], video=False)
    (other_id,) = log_chains(client, small_store(3), rows=[0])
    for each in (episode_id, other_id):
        episode = client.episode(each)
        assert "depth_video" not in episode.metadata
        assert {artifact.kind for artifact in episode.record.artifacts or ()} == {
            "sensors",
            "actions",
        }


def test_an_episode_and_an_artifact_of_one_chain_name_the_same_revision(client: Client) -> None:
    path = small_store(3)
    table = chains_table(RolloutZarrStoreReader(path))
    for row, episode_id in enumerate(log_chains(client, path, policy_version=None)):
        revision = client.episode(episode_id).record.policy_revision
        assert revision == table[row].source_policy_revision


KILLED = """
import os, signal, sys
from rollbook.client import Client
from rollbook.evals import store_episodes
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
url, key, path = sys.argv[1:]
store_episodes.finalize_episodes = die
store_episodes.log_chains(Client(api_key=key, base_url=url), path, policy_version="killed", policy="random_valid")
"""


def test_a_killed_push_is_continued_in_the_same_episodes(client: Client, server: Place) -> None:
    path = small_store(9, seed=21)
    died = subprocess.run(
        [sys.executable, "-c", KILLED, server.base_url, server.api_key, path],
        check=False,
        capture_output=True,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    left = versions(client, "killed", "recording")
    assert len(left) == 3
    (chains,) = chosen_chains([RolloutZarrStoreReader(path)], policy="random_valid")
    done = push_chains(client, [chains], policy_version="killed")
    assert (sorted(done.ids), done.new) == (sorted(left), 3)
    assert versions(client, "killed", "recording") == []
    again = push_chains(client, [chains], policy_version="killed")
    assert (again.ids, again.new) == (done.ids, 0)


def test_two_pushes_at_once_log_each_chain_once(
    server: Place, client: Client, tmp_path: Path
) -> None:
    path = small_store(6, seed=22)

    def push(number: int) -> list[str]:
        cache = tmp_path / str(number)
        with Client(api_key=server.api_key, base_url=server.base_url, cache=cache) as own:
            return pushed(own, path, tags=["at once"]).ids

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(push, range(2))
    assert first == second
    assert sorted(first) == sorted(each.id for each in client.episodes(tag="at once"))


def test_a_chain_whose_episode_is_gone_is_logged_again(client: Client) -> None:
    path = small_store(3, seed=23)
    first = pushed(client, path)
    client.delete_episode(first.ids[0])
    client.archive_episode(first.ids[1])
    again = pushed(client, path)
    assert again.new == 2
    assert again.ids[2] == first.ids[2]
    assert not {*again.ids[:2]} & {*first.ids}
    assert pushed(client, path).new == 0


def test_one_flipped_byte_is_not_sent(client: Client, with_depth: Path, tmp_path: Path) -> None:
    for number, table in enumerate(("q_h/actor_features", "selected_depth/depth_m")):
        place = tmp_path / f"{number}.zarr"
        shutil.copytree(with_depth, place)
        (chunk, *_) = sorted(each for each in (place / table).rglob("*") if each.suffix != ".json")
        chunk = (
            chunk if chunk.is_file() else next(each for each in chunk.rglob("*") if each.is_file())
        )
        data = bytearray(chunk.read_bytes())
        data[10] ^= 1
        chunk.write_bytes(data)
        with pytest.raises(ChecksumMismatch, match=table):
            log_chains(client, place, policy_version=None, tags=["flipped"])
    assert not list(client.episodes(tag="flipped"))


def test_chains_of_several_stores_are_one_push(client: Client, tmp_path: Path) -> None:
    stores = [
        RolloutZarrStoreReader(write_store(tmp_path, name, 2, policies=(name,)))
        for name in ("random_valid", "oracle_greedy")
    ]
    told: list[tuple[int, int]] = []
    done = push_chains(
        client,
        chosen_chains(stores, limit=3),
        on_logged=lambda finished, total: told.append((finished, total)),
    )
    assert [len(each) for each in chosen_chains(stores, limit=3)] == [2, 1]
    assert (done.new, told) == (3, [(2, 3), (3, 3)])
    assert [len(each) for each in chosen_chains(stores, policy="oracle_greedy")] == [2]
    with pytest.raises(ConfigurationError, match="no chains of 'x', only of: oracle_greedy, rand"):
        chosen_chains(stores, policy="x")
    with pytest.raises(ConfigurationError, match="chains of 2 policies"):
        push_chains(client, chosen_chains(stores), policy_version="both")


def test_the_command_pushes_and_says_what_was_there(
    server: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROLLBOOK_API_KEY", server.api_key)
    monkeypatch.setenv("ROLLBOOK_BASE_URL", server.base_url)
    path = small_store(6, seed=24)
    first = rollbook("store", "push", path, "--policy", "random_valid", "--tag", "a", "--tag", "b")
    assert first.returncode == 0, first.stderr
    assert f"2 chains are episodes of {server.base_url}\n" in first.stdout
    told = json.loads(rollbook("store", "push", path, "--json").stdout)
    assert (told["chains"], told["new"], told["already_there"]) == (6, 4, 2)
    assert len(set(told["episode_ids"])) == 6
    mixed = rollbook("store", "push", path, "--policy-version", "v")
    assert (mixed.returncode, "Choose one policy with --policy," in mixed.stderr) == (2, True)
