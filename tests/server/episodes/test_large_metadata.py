"""Large metadata: answers about many episodes leave it out and say so, and the memory of the server stays small."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook.client import AsyncClient, Client
from rollbook.errors import ConfigurationError
from rollbook.evals.baselines import look_up
from tests.server.fixtures import StartServer
from tests.server.running import RunningServer

LARGE = 3_900_000
COUNT = 60
MOST_MEMORY = 250 << 20
MOST_ANSWERED = 9 << 20
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    server = running_server()
    server.prepare()
    server.start()
    return server


@pytest.fixture(scope="module")
def http(server: RunningServer) -> httpx.Client:
    return server.client()


@pytest.fixture(scope="module")
def large(http: httpx.Client) -> list[str]:
    """Ids of episodes with large metadata, the newest first."""
    text = b"x" * LARGE

    def create(number: int) -> str:
        body = b'{"name": "e%02d", "metadata": {"log": "%s", "kind": "large"}}' % (number, text)
        made = http.post("/api/ingest/episode", content=body, headers=JSON)
        return str(made.raise_for_status().json()["episode_id"])

    with ThreadPoolExecutor(4) as pool:
        return sorted(pool.map(create, range(COUNT)), reverse=True)


def peak_bytes(server: RunningServer) -> int:
    """The greatest resident size that the server ever had."""
    assert server.process is not None
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    return int(peak) << 10


def test_large_bodies_sent_at_the_same_time_do_not_add_up(
    server: RunningServer, http: httpx.Client
) -> None:
    """Four bytes of JSON become 32 bytes of memory here."""
    body = b'{"metadata": {"a": [%s0.5]}}' % (b"0.5," * (LARGE // 4))

    def create(_: int) -> int:
        return http.post("/api/ingest/episode", content=body, headers=JSON).status_code

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(create, range(6))) == {201}
    assert peak_bytes(server) < MOST_MEMORY


def test_a_list_of_large_episodes_is_small_and_says_what_it_leaves_out(
    server: RunningServer, http: httpx.Client, large: list[str]
) -> None:
    listed = http.get("/api/episodes", params={"limit": COUNT, "metadata.kind": "large"})
    looked_up = http.post("/api/episodes/lookup", json={"ids": large})
    for answer in (listed, looked_up):
        assert len(answer.content) < MOST_ANSWERED
        episodes = answer.raise_for_status().json()["episodes"]
        assert sorted(each["id"] for each in episodes) == sorted(large)
        assert {(str(each["metadata"]), each["metadata_truncated"]) for each in episodes} == {
            ("{}", True)
        }
    whole = http.get(f"/api/episodes/{large[0]}").json()
    assert len(whole["metadata"]["log"]) == LARGE
    assert "metadata_truncated" not in whole
    assert peak_bytes(server) < MOST_MEMORY


@pytest.mark.slow
def test_many_large_episodes_are_finalized_at_once_and_keep_their_metadata(
    server: RunningServer, http: httpx.Client, large: list[str]
) -> None:
    some = large[-30:]
    more = [{"episode_id": each, "status": "ready", "metadata": {"more": 1}} for each in some]
    answer = http.post("/api/ingest/episodes/finalize", json={"episodes": more})
    assert {each["status"] for each in answer.raise_for_status().json()["results"]} == {"ready"}
    whole = http.get(f"/api/episodes/{large[-1]}").json()["metadata"]
    assert (len(whole["log"]), whole["kind"], whole["more"]) == (LARGE, "large", 1)
    assert peak_bytes(server) < MOST_MEMORY


@pytest.fixture
def client(server: RunningServer, tmp_path: Path) -> Iterator[Client]:
    options: dict[str, Any] = {"cache": tmp_path / "cache", "verbose": False}
    with Client(api_key=server.api_key, base_url=server.base_url, **options) as client:
        yield client


def test_the_sdk_reads_metadata_that_a_list_left_out(client: Client, large: list[str]) -> None:
    [found] = client.episodes(name="e07")
    assert found.metadata_truncated
    assert found.record.metadata == {}
    assert len(found.metadata["log"]) == LARGE
    assert found.record.metadata is found.metadata


def test_the_async_sdk_says_how_to_read_metadata_that_a_list_left_out(
    server: RunningServer, large: list[str], tmp_path: Path
) -> None:
    async def read() -> int:
        options: dict[str, Any] = {"cache": tmp_path / "cache", "verbose": False}
        async with AsyncClient(
            api_key=server.api_key, base_url=server.base_url, **options
        ) as client:
            [found] = [each async for each in client.episodes(name="e08")]
            with pytest.raises(ConfigurationError, match=r"await read_metadata\(\)"):
                _ = found.metadata
            assert (await found.read_metadata())["kind"] == "large"
            return len(found.metadata["log"])

    assert asyncio.run(read()) == LARGE


def test_a_replay_knows_all_metadata_of_its_baseline(client: Client, large: list[str]) -> None:
    [ticket] = look_up(client, large[:1])
    assert ticket.record is not None
    assert ticket.record.metadata_truncated
    assert len(ticket.fetch(client, ()).metadata["log"]) == LARGE
