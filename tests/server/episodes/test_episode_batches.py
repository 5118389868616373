"""Many episodes at once: all or none are made, and those that are looked up come with URLs that need no redirect."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from typing import Any

import httpx
import pytest

from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import Database
from rollbook.server.episodes.batches import SMALL_BYTES
from rollbook.server.queries import EpisodeFilter
from tests.server.campaigns import Campaigner, campaigner
from tests.server.fixtures import StartServer
from tests.server.running import RunningServer
from tests.server.shared_server import new_organisation, shared_server
from tests.server.tenants import new_organisation as organisation_in

OCTETS = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


@pytest.fixture
def team(server: RunningServer) -> Campaigner:
    return campaigner(server)


def create(team: Campaigner, *episodes: dict[str, Any]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = team.post("/api/ingest/episodes", {"episodes": list(episodes)})[
        "episodes"
    ]
    return made


def test_each_is_as_if_it_had_been_made_alone(team: Campaigner) -> None:
    one = {
        "name": "first",
        "policy_version": "v1",
        "seed": 2**70,
        "tags": ["night"],
        "metadata": {"task": {"name": "pick"}},
    }
    made = create(team, one, {"source": "replay", "request_uploads": ["actions", "video"]})
    assert [each["status"] for each in made] == ["recording", "recording"]
    assert [each["kind"] for each in made[1]["upload_urls"]] == ["actions", "video"]
    alone = team.get(f"/api/episodes/{team.post('/api/ingest/episode', one)['episode_id']}")
    batched = team.get(f"/api/episodes/{made[0]['episode_id']}")
    differing = {name for name in alone if alone[name] != batched[name]}
    assert differing == {"id", "created_at", "updated_at"}
    both = {"metadata.task.name": "pick", "status": "recording"}
    for query in ({"tag": "night"}, {"metadata.task.name": "pick"}, both):
        found = team.get("/api/episodes", **query)["episodes"]
        assert {each["id"] for each in found} == {alone["id"], batched["id"]}
    second = team.get(f"/api/episodes/{made[1]['episode_id']}")
    assert sorted(second["missing_artifacts"]) == ["actions", "video"]


def test_both_databases_keep_every_value_as_it_was_given(shared_database: Database) -> None:
    org = organisation_in(shared_database)
    values = {
        "name": 'quoted " and \\ and ä\n',
        "seed": -(2**70),
        "fps": 29.97,
        "tags": ["a"],
        "metadata": {"large": 1e22, "whole": 10**30, "text": "\u2028", "none": None, "deep": [{}]},
    }
    slot = ("video", f"{org.org_id}/video", "video/mp4")
    [batched, _] = org.write(lambda scope: scope.create_episodes([(values, [slot]), ({}, ())]))
    alone = org.episode(**values)
    found = org.read(lambda scope: scope.episode(batched.id))
    assert found == batched
    assert replace(batched, artifacts=()) == replace(
        alone,
        id=batched.id,
        created_at_us=batched.created_at_us,
        updated_at_us=batched.updated_at_us,
    )
    assert repr(batched.metadata) == repr(values["metadata"])
    assert org.read(lambda scope: scope.quota_usage()).episodes == 3
    tagged = org.read(lambda scope: scope.episodes(EpisodeFilter(tags=("a",)))).episodes
    assert {each.id for each in tagged} == {alone.id, batched.id}


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"source": "dream"}, 400),
        ({"name": "x" * 201}, 400),
        ({"name": "nul\x00"}, 400),
        ({"metadata": {"__type": "robotrace.Battery", "percent": 400}}, 400),
        ({"request_uploads": ["smell"]}, 400),
    ],
    ids=str,
)
def test_one_that_is_wrong_keeps_all_from_being_made(
    team: Campaigner, wrong: dict[str, Any], status: int
) -> None:
    body = {"episodes": [{"name": "fine"}, wrong, {"name": "fine too"}]}
    answer = team.http.post("/api/ingest/episodes", json=body)
    assert (answer.status_code, "episodes[1]" in answer.json()["error"]) == (status, True)
    assert team.get("/api/episodes")["episodes"] == []


def test_a_batch_counts_against_the_quota_as_a_whole(server: RunningServer) -> None:
    team = campaigner(server, new_organisation(server, quota_episodes=3))
    team.baselines(2)
    assert team.refused("/api/ingest/episodes", {"episodes": [{}, {}]}) == (403, "quota_exceeded")
    assert len(team.get("/api/episodes")["episodes"]) == 2
    assert len(create(team, {})) == 1


@pytest.mark.parametrize("count", [0, 1001])
def test_none_and_too_many_are_refused(team: Campaigner, count: int) -> None:
    body: dict[str, Any] = {"episodes": [{}] * count}
    assert team.refused("/api/ingest/episodes", body) == (400, "invalid_value")


# ----------------------------------------------------------------------------------------- look up


def recorded(team: Campaigner, content: bytes = b"bytes") -> tuple[str, str]:
    """An episode with sensors, and the URL that they were put to."""
    [made] = create(team, {"request_uploads": ["sensors", "actions"]})
    url = made["upload_urls"][0]["url"]
    httpx.put(url, content=content, headers=OCTETS).raise_for_status()
    path = f"/api/ingest/episode/{made['episode_id']}/finalize"
    team.post(path, {"status": "ready", "metadata": {"success": True}})
    return made["episode_id"], url


def test_episodes_are_found_in_the_order_asked_for_with_urls_of_what_is_there(
    team: Campaigner, server: RunningServer
) -> None:
    first, second = recorded(team, b"one")[0], recorded(team, b"two")[0]
    [foreign] = campaigner(server).baselines(1)
    strangers = [foreign, new_id(), "nul\x00"]
    answer = team.post("/api/episodes/lookup", {"ids": [second, *strangers, first, second]})
    assert [each["id"] for each in answer["episodes"]] == [second, first]
    assert answer["missing"] == strangers
    for found, content in zip(answer["episodes"], (b"two", b"one"), strict=True):
        urls = found.pop("download_urls")
        assert found == team.get(f"/api/episodes/{found['id']}")
        assert set(urls) == {"sensors"}
        assert httpx.get(urls["sensors"], follow_redirects=False).content == content
    assert team.post("/api/episodes/lookup", {"ids": []}) == {"episodes": [], "missing": []}
    too_many = {"ids": ["x"] * 1001}
    assert team.refused("/api/episodes/lookup", too_many) == (400, "invalid_value")


def test_bytes_that_were_put_in_the_place_of_an_artifact_have_no_url(team: Campaigner) -> None:
    episode_id, url = recorded(team, b"as checked")
    httpx.put(url, content=b"something else", headers=OCTETS).raise_for_status()
    [found] = team.post("/api/episodes/lookup", {"ids": [episode_id]})["episodes"]
    assert found["download_urls"] == {}
    [after] = team.post("/api/episodes/lookup", {"ids": [episode_id]})["episodes"]
    assert after["missing_artifacts"] == ["actions", "sensors"]


def test_small_artifacts_come_along_and_large_ones_have_a_url(
    team: Campaigner, server: RunningServer
) -> None:
    large = bytes(SMALL_BYTES + 1)
    ids = [recorded(team, each)[0] for each in (b"one", large)]
    [foreign] = campaigner(server).baselines(1)
    asked = [(ids[1], "sensors"), (foreign, "sensors"), (ids[0], "sensors"), (ids[0], "video")]
    wanted = [{"episode_id": each, "kind": kind} for each, kind in asked]
    answers = team.post("/api/episodes/artifacts", {"artifacts": wanted})["artifacts"]
    assert [(each["episode_id"], each["kind"]) for each in answers] == asked
    first, strange, small, missing = answers
    assert first["data"] is None
    assert httpx.get(first["url"]).content == large
    assert (b64decode(small["data"]), small["url"]) == (b"one", None)
    assert all(each["data"] is None and each["url"] is None for each in (strange, missing))


def test_no_more_comes_along_than_an_answer_can_hold(team: Campaigner) -> None:
    ids = [recorded(team, bytes([number]) * SMALL_BYTES)[0] for number in range(18)]
    wanted = [{"episode_id": each, "kind": "sensors"} for each in ids]
    answers = team.post("/api/episodes/artifacts", {"artifacts": wanted})["artifacts"]
    assert [each["data"] is not None for each in answers] == [True] * 16 + [False] * 2
    assert httpx.get(answers[-1]["url"]).content == bytes([17]) * SMALL_BYTES


def test_bytes_that_were_put_in_the_place_of_a_small_artifact_do_not_come(team: Campaigner) -> None:
    episode_id, url = recorded(team, b"as checked")
    httpx.put(url, content=b"other data", headers=OCTETS).raise_for_status()
    wanted = [{"episode_id": episode_id, "kind": "sensors"}]
    [told] = team.post("/api/episodes/artifacts", {"artifacts": wanted})["artifacts"]
    assert (told["data"], told["url"]) == (None, None)


def test_a_thousand_go_into_one_call(team: Campaigner) -> None:
    ids = [each["episode_id"] for each in create(team, *({"seed": 1} for _ in range(1000)))]
    assert len(set(ids)) == 1000
    assert len(team.post("/api/episodes/lookup", {"ids": ids})["episodes"]) == 1000
