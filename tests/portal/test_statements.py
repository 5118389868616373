"""No page asks the database for each row of a list: every page of the portal sends a handful of statements.

The pages are those of the application itself, so a new one cannot be forgotten: it fails here until the ids in its path
can be filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from rollbook.portal.routes import portal_routes
from tests.portal.counted_server import CountedServer
from tests.portal.episodes_world import seed_episodes
from tests.portal.lists_world import seed_lists
from tests.portal.stores_world import small_store
from tests.server.people import Person

MOST_STATEMENTS = 12
PATHS = sorted({each.path for each in portal_routes if "GET" in (each.methods or ())})
QUERIES = {
    "/portal/find": "?q=mug",
    "/portal/gate": "?candidate=pick-act-v4",
    "/portal/episodes": "?policy_version=pick-act-v3&tag=nightly&name=mug&sort=oldest",
    "/portal/side-by-side": "?episode={dropped}&episode={episode_id}",
    "/portal/compare": "?run={eval_run_id}&run={open_run}",
    "/sign-in": "",
    "/invitation": "?token=unknown",
    "/cli/auth": "?code=BCDF-GHJK",
}
NOTHING_THERE = {
    "/invitation",
    "/cli/auth",
    "/portal/episodes/{episode_id}/frames/{array:path}/{index}",
    "/portal/evals/{eval_run_id}/pairs/{baseline_id}/tracks",
}
WITHOUT_SESSION = {"/static/{digest}/{name}"}


@dataclass
class Walk:
    server: CountedServer
    person: Person
    ids: dict[str, str]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    folder = tmp_path_factory.mktemp("counted")
    data, stores = folder / "data", folder / "stores"
    data.mkdir()
    stores.mkdir()
    # another process would deliver webhooks: what it asks does not count here
    server = CountedServer(data, {"store_roots": [str(stores)], "webhook_poll_s": 0})
    server.prepare()
    server.start()
    person = Person(server).sign_in_by_link(server.first_org)
    yield Walk(server, person, _one_of_everything(server, person, stores))
    person.close()
    server.close()


def _one_of_everything(server: CountedServer, person: Person, stores: Path) -> dict[str, str]:
    world = seed_lists(person)
    recorded = seed_episodes(server, server.first_org)
    place = small_store(stores / "store.zarr")
    store = person.call("POST", "/api/stores", json={"place": str(place)}).json()
    hook = {"url": "https://hook.example", "events": ["eval_run.completed"]}
    person.call("PUT", "/api/gates/release", json={"gate": {}})
    revision = {"policy_family": "grasp", "revision_id": "grasp-7", "policy_digest": "d" * 8}
    body = {"policy_revision": {**revision, "produced_at_ms": 1}}
    person.call("POST", "/api/ingest/episode", json=body)
    lineage = re.search(r"/portal/lineage/([^\"]+)", person.get("/portal/find?q=grasp-7").text)
    assert lineage is not None
    return {
        "episode_id": recorded.placed,
        "dropped": recorded.dropped,
        "eval_run_id": world.done_run,
        "open_run": world.open_run,
        "baseline_id": world.episodes[2],
        "scenario_id": world.scenario,
        "store_id": store["id"],
        "row": "0",
        "step": "1",
        "gate_name": "release",
        "webhook_id": person.call("POST", "/api/webhooks", json=hook).json()["id"],
        "user_id": person.get("/api/whoami").json()["user"]["id"],
        "key_id": server.first_org.api_key.split("_")[1],
        "revision_id": lineage[1],
    }


def _filled(path: str, ids: dict[str, str]) -> str:
    plain = path.replace("{array:path}", quote("camera/image", safe="")).replace("{index}", "0")
    query = QUERIES.get(path, "")
    return plain.format(**ids) + query.format(**ids)


@pytest.mark.parametrize("path", [each for each in PATHS if each not in WITHOUT_SESSION])
def test_a_page_sends_a_handful_of_statements(walk: Walk, path: str) -> None:
    at = _filled(path, walk.ids)
    sent = []
    for _ in range(2):  # whatever the server does beside a request, it does not do it twice
        walk.server.statements.clear()
        answer = walk.person.get(at)
        sent.append(list(walk.server.statements))
        expected = (404,) if path in NOTHING_THERE else (200, 303)
        assert answer.status_code in expected, answer.text
    fewest = min(sent, key=len)
    assert len(fewest) <= MOST_STATEMENTS, "\n".join(fewest)


def test_statements_of_another_server_in_this_process_are_not_counted(
    walk: Walk, tmp_path: Path
) -> None:
    another = CountedServer(tmp_path, {"webhook_poll_s": 0})
    another.prepare()
    another.start()
    walk.server.statements.clear()
    Person(another).sign_in_by_link(another.first_org).close()
    another.close()
    assert another.statements
    assert walk.server.statements == []
