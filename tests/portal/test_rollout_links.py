"""From an episode to the rollout of a store that it was logged from, and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.client import Client
from rollbook.evals.store_episodes import log_chains
from tests.portal.stores_world import StoresWorld, small_store, start_stores_world
from tests.server.fixtures import StartServer


@pytest.fixture(scope="module")
def world(
    running_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoresWorld]:
    made = start_stores_world(running_server, tmp_path_factory.mktemp("stores"))
    yield made
    made.close()


def page_body(text: str) -> str:
    return text.partition("<main")[2]


def test_an_episode_leads_to_its_rollout_while_the_store_is_registered(world: StoresWorld) -> None:
    place: Path = small_store(world.root / "chains.zarr", 6, features=4)
    with Client(base_url=world.server.base_url, api_key=world.server.api_key) as client:
        ids = log_chains(client, place, limit=3)
    path = f"/portal/episodes/{ids[2]}"
    assert "rollout 2 of" not in world.owner.get(path).text, "the store is not registered yet"
    made = world.register(place, name='<b>"chains"')
    text = world.owner.get(path).text
    assert f'href="/portal/stores/{made["id"]}/rollouts/2"' in text
    assert "rollout 2 of &lt;b&gt;&#34;chains&#34;" in text
    rollouts = f"/portal/stores/{made['id']}/rollouts"
    assert f'href="{path}"' in world.owner.get(f"{rollouts}/2").text
    assert "/portal/episodes/" not in page_body(world.owner.get(f"{rollouts}/5").text)


@pytest.mark.parametrize(
    "rollout",
    [
        "text",
        {"store_content_sha256": 7, "rollout_row_id": 0},
        {"store_content_sha256": "{content}", "rollout_row_id": -1},
        {"store_content_sha256": "{content}", "rollout_row_id": 10**9},
        {"store_content_sha256": "{content}", "rollout_row_id": True},
        {"store_content_sha256": "{content}", "rollout_row_id": "0"},
    ],
)
def test_metadata_that_names_no_rollout_leads_nowhere(world: StoresWorld, rollout: object) -> None:
    place = world.root / "named.zarr"
    if not place.exists():
        world.register(small_store(place, 3))
    [store] = [
        each
        for each in world.owner.get("/api/stores").json()["stores"]
        if each["name"] == place.name
    ]
    if isinstance(rollout, dict) and rollout["store_content_sha256"] == "{content}":
        rollout = {**rollout, "store_content_sha256": store["content_sha256"]}
    body = {"metadata": {"rollout": rollout}}
    made = world.owner.call("POST", "/api/ingest/episode", json=body).json()
    page = world.owner.get(f"/portal/episodes/{made['episode_id']}")
    assert page.status_code == 200
    assert "/rollouts/" not in page.text
