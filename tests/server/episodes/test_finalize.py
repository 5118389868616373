"""A batch that is finalized: its artifacts are checked, then everything is written. Each episode stands for itself."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import httpx
import pytest

from rollbook.errors import QuotaExceeded
from rollbook.server.db.engine import Database
from rollbook.server.queries import EpisodeFilter, EpisodeRow, Finalization
from tests.server.campaigns import Campaigner, campaigner
from tests.server.fixtures import StartServer
from tests.server.running import RunningServer
from tests.server.shared_server import new_organisation, shared_server
from tests.server.tenants import Organisation
from tests.server.tenants import new_organisation as organisation_in

OCTETS = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


@pytest.fixture
def team(server: RunningServer) -> Campaigner:
    return campaigner(server)


def uploaded(team: Campaigner, *contents: bytes) -> list[str]:
    """Episodes that are still recording, each with these bytes as its actions."""
    wanted = [{"request_uploads": ["actions"]}] * len(contents)
    made = team.post("/api/ingest/episodes", {"episodes": wanted})["episodes"]
    for each, content in zip(made, contents, strict=True):
        url = each["upload_urls"][0]["url"]
        httpx.put(url, content=content, headers=OCTETS).raise_for_status()
    return [each["episode_id"] for each in made]


def ready(episode_id: str, content: bytes | None = None, **more: Any) -> dict[str, Any]:
    body = {"episode_id": episode_id, "status": "ready", **more}
    if content is None:
        return body
    claim = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    return {**body, "artifacts": {"actions": claim}}


def finalize(team: Campaigner, *episodes: dict[str, Any]) -> list[tuple[str, str]]:
    """Of each its id, and its status or why not."""
    answer = team.post("/api/ingest/episodes/finalize", {"episodes": list(episodes)})
    return [(each["episode_id"], each.get("code") or each["status"]) for each in answer["results"]]


def test_each_is_as_if_it_had_been_finalized_alone(team: Campaigner) -> None:
    alone, one, other = uploaded(team, b"same", b"same", b"other")
    about: dict[str, Any] = {"duration_s": 2.0, "metadata": {"success": True}, "tags": ["night"]}
    claim = ready(alone, b"same", **about)
    del claim["episode_id"]
    team.post(f"/api/ingest/episode/{alone}/finalize", claim)
    sent = (ready(one, b"same", **about), ready(other, b"other"))
    assert finalize(team, *sent) == [(one, "ready"), (other, "ready")]
    first, second = (team.get(f"/api/episodes/{each}") for each in (alone, one))
    differing = {name for name in first if first[name] != second[name]}
    assert differing <= {"id", "created_at", "updated_at", "finalized_at", "artifacts"}
    [as_alone], [as_batched] = first["artifacts"], second["artifacts"]
    assert {as_alone["sha256"]} == {as_batched["sha256"]} == {hashlib.sha256(b"same").hexdigest()}
    found = team.get("/api/episodes", tag="night")["episodes"]
    assert {each["id"] for each in found} == {alone, one}


def test_what_is_wrong_with_one_stands_in_its_place_and_holds_no_other_back(
    team: Campaigner,
) -> None:
    good, wrong, archived, silent = uploaded(team, b"good", b"cut", b"old", b"fine")
    team.post(f"/api/episodes/{archived}/archive")
    typed = {"__type": "robotrace.Battery", "percent": 400}
    done = finalize(
        team,
        ready(wrong, b"whole"),
        ready(good, b"good"),
        ready(archived, b"old"),
        ready("nobody"),
        ready(silent, metadata={"battery": typed}),
        ready(silent),
    )
    assert done == [
        (wrong, "artifact_mismatch"),
        (good, "ready"),
        (archived, "episode_archived"),
        ("nobody", "not_found"),
        (silent, "invalid_value"),
        (silent, "ready"),
    ]
    assert team.get(f"/api/episodes/{wrong}")["status"] == "recording"
    assert team.get(f"/api/episodes/{silent}")["metadata"] == {}
    refused = team.http.get(f"/api/episodes/{wrong}/artifact/actions")
    assert (refused.status_code, refused.json()["code"]) == (409, "artifact_refused")


def test_the_quota_ends_where_it_is_full_and_not_with_the_batch(server: RunningServer) -> None:
    team = campaigner(server, new_organisation(server, quota_bytes=10))
    large, small, none = uploaded(team, b"12345678", b"123", b"12")
    sent = (ready(large, b"12345678"), ready(small, b"123"), ready(none, b"12"))
    done = finalize(team, *sent)
    assert done == [(large, "ready"), (small, "quota_exceeded"), (none, "ready")]
    assert team.get(f"/api/episodes/{small}")["status"] == "recording"
    assert finalize(team, ready(large, b"12345678"), ready(small, b"123")) == done[:2]


def test_one_that_comes_twice_ends_with_both(team: Campaigner) -> None:
    [twice] = uploaded(team, b"bytes")
    first = ready(twice, b"bytes", metadata={"a": 1, "b": 1})
    second = ready(twice, b"bytes", metadata={"b": 2}, duration_s=3.0)
    assert finalize(team, first, second) == [(twice, "ready")] * 2
    found = team.get(f"/api/episodes/{twice}")
    assert (found["metadata"], found["duration_s"]) == ({"a": 1, "b": 2}, 3.0)
    assert finalize(team) == []


# ----------------------------------------------------------------------------------- both databases


@pytest.fixture
def org(shared_database: Database) -> Organisation:
    return organisation_in(shared_database)


def nothing_against(_: int) -> None:
    return


def made_with_actions(org: Organisation, **values: Any) -> EpisodeRow:
    slot = ("actions", f"{org.org_id}/{len(values)}/actions", "application/octet-stream")
    return org.write(lambda scope: scope.create_episode(values, [slot]))


def test_both_databases_write_what_one_alone_would_have(org: Organisation) -> None:
    changes = {"status": "failed", "failure_time_s": 9.0, "duration_s": 2.5, "metadata": {"x": 2}}
    one = made_with_actions(org, metadata={"x": 1, "y": [1]}, tags=["a"])
    other, alone = org.episode(), org.episode(metadata={"x": 1, "y": [1]}, tags=["a"])
    found = {"actions": {"status": "stored", "size": 7, "sha256": "ab", "etag": "e"}}
    finalizations = [
        Finalization(one.id, changes, found),
        Finalization("nobody", changes),
        Finalization(other.id, {}),
    ]
    batched, nobody, plain = org.write(
        lambda s: s.finalize_episodes(finalizations, nothing_against)
    )
    expected = org.write(lambda scope: scope.finalize_episode(alone.id, changes))
    assert isinstance(batched, EpisodeRow)
    assert isinstance(plain, EpisodeRow)
    assert isinstance(expected, EpisodeRow)
    assert nobody is None
    assert org.read(lambda scope: scope.episode_heads([one.id, other.id])) == [batched, plain]
    whole = org.read(lambda scope: scope.episodes_of([one.id, other.id]))
    assert [each.metadata for each in whole] == [expected.metadata, {}]
    times = ("id", "created_at_us", "updated_at_us", "finalized_at_us")
    same = {name: getattr(expected, name) for name in times}
    assert replace(whole[0], artifacts=(), **same) == expected
    assert (batched.artifacts[0].size, plain.status) == (7, "ready")
    for value, ids in ((1, set()), (2, {one.id, alone.id})):
        wanted = EpisodeFilter(metadata={"x": value})
        page = org.read(lambda scope, wanted=wanted: scope.episodes(wanted))  # type: ignore[misc]
        assert {each.id for each in page.episodes} == ids
    assert org.read(lambda scope: scope.quota_usage()).bytes == 7


def test_of_one_that_is_refused_nothing_is_written(org: Organisation) -> None:
    one, other = made_with_actions(org), made_with_actions(org, name="other")
    told: list[int] = []

    def allow(more: int) -> None:
        told.append(more)
        if more > 5:
            raise QuotaExceeded(what="bytes", limit=5, wanted=more)

    stored = {"actions": {"status": "stored", "size": 4}}
    finalizations = [Finalization(each, {"status": "ready"}, stored) for each in (one.id, other.id)]
    done = org.write(lambda scope: scope.finalize_episodes(finalizations, allow))
    assert [type(each) for each in done] == [EpisodeRow, QuotaExceeded]
    assert told == [4, 8]
    assert org.read(lambda scope: scope.episode(other.id)) == other
    assert org.read(lambda scope: scope.quota_usage()).bytes == 4


def test_a_finalize_that_changes_nothing_leaves_the_row_alone(org: Organisation) -> None:
    one = made_with_actions(org)
    finalization = Finalization(
        one.id, {"status": "ready"}, {"actions": {"status": "stored", "size": 1}}
    )
    [first] = org.write(lambda scope: scope.finalize_episodes([finalization], nothing_against))
    again = Finalization(one.id, {"status": "failed"}, {})
    [second] = org.write(lambda scope: scope.finalize_episodes([again], nothing_against))
    assert first == second
