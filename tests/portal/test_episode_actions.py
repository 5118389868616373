"""What is done to the episodes that were selected in the list."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import httpx
import pytest

from tests.portal.lists_world import ListsWorld, seed_lists
from tests.server.people import House, Person
from tests.server.shared_server import new_organisation


@pytest.fixture
def owner(sqlite_house: House) -> Iterator[Person]:
    person = Person(sqlite_house.server).sign_in_by_link(new_organisation(sqlite_house.server))
    yield person
    person.close()


@pytest.fixture
def world(owner: Person) -> ListsWorld:
    return seed_lists(owner, count=8)


def send(person: Person, action: str, *ids: str, **fields: str) -> httpx.Response:
    sent = {"csrf_token": person.csrf, "episode": list(ids), **fields}
    headers = {"Origin": person.base_url}
    return person.http.post(f"/portal/episodes/{action}", data=sent, headers=headers)


def episode(person: Person, episode_id: str) -> dict[str, object]:
    found: dict[str, object] = person.get(f"/api/episodes/{episode_id}").json()
    return found


def events(person: Person, subject: str) -> list[str]:
    log = person.get("/api/audit").json()["events"]
    return [each["event"] for each in log if each["subject"] == subject]


def test_archiving_says_how_many_and_can_be_undone(owner: Person, world: ListsWorld) -> None:
    ids = world.episodes[5:7]
    page = send(owner, "archive", *ids, back="source=sim")
    assert "2 episodes archived." in page.text
    assert 'class="chip on" href="/portal/episodes"' in page.text, "the list is the one before"
    assert [episode(owner, each)["status"] for each in ids] == ["archived", "archived"]
    assert events(owner, ids[0])[0] == "episode.archived"
    undone = send(owner, "restore", *ids)
    assert "2 episodes restored." in undone.text
    assert [episode(owner, each)["status"] for each in ids] == ["ready", "ready"]


def test_one_that_fails_does_not_stop_the_others(owner: Person, world: ListsWorld) -> None:
    first, second, gone = (
        world.episodes[5],
        world.episodes[6],
        "01890000-0000-7000-8000-0000deadbeef",
    )
    send(owner, "archive", first)
    page = send(owner, "tag", first, gone, second, add="kept, looked at").text
    assert "Tags of 1 episode changed." in page
    assert "there is no such episode any more" in page
    assert "archived" in unescape(page).split("Tags of 1 episode changed.")[1].split("</div>")[0]
    assert episode(owner, second)["tags"] == ["nightly", "kept", "looked at"]
    assert events(owner, second)[0] == "episode.tagged"
    assert "episode.tagged" not in events(owner, first)


def test_tagging_asks_which_tags(owner: Person, world: ListsWorld) -> None:
    page = send(owner, "tag", world.episodes[4], world.episodes[6]).text
    assert "Tag 2 episodes" in page
    assert '<option value="drop">' in page
    done = send(owner, "tag", world.episodes[4], remove="drop, nightly").text
    assert "Tags of 1 episode changed." in done
    assert episode(owner, world.episodes[4])["tags"] == []


def test_a_tag_that_is_too_long_is_refused_in_words(owner: Person, world: ListsWorld) -> None:
    page = send(owner, "tag", world.episodes[6], add="x" * 101).text
    assert "Tags of 0 episodes changed." in page
    assert episode(owner, world.episodes[6])["tags"] == ["nightly"]


def test_deleting_says_what_else_goes_and_is_typed(owner: Person, world: ListsWorld) -> None:
    in_open_run, scenario = world.episodes[0], world.episodes[2]
    asked = send(owner, "delete", in_open_run, scenario).text
    assert "Delete 1 episode?" in asked
    assert "1 stays" in asked
    assert "Cable task, wide seeds" in asked
    assert "Also the scenario Cube on the edge" in asked
    assert "Nightly, bins and racks" in asked
    again = send(owner, "delete", scenario, confirm="yes").text
    assert "Nothing was deleted" in again
    assert episode(owner, scenario)["id"] == scenario


def test_deleting_does_the_others_and_says_which_are_refused_and_why(
    owner: Person, world: ListsWorld
) -> None:
    in_open_run, free, held = world.episodes[0], world.episodes[6], world.episodes[5]
    assert owner.call("POST", f"/api/episodes/{held}/hold", json={"reason": "a claim"}).is_success
    page = send(owner, "delete", in_open_run, free, held, confirm="delete").text
    assert "1 episode deleted." in page
    failed = unescape(page).split("1 episode deleted.")[1].split("</ul>")[0]
    assert world.open_run in failed
    assert "legal hold" in failed
    assert owner.get(f"/api/episodes/{free}").status_code == 404
    assert events(owner, free)[0] == "episode.deleted"
    assert episode(owner, held)["id"] == held


def test_a_refused_deletion_leaves_nothing_behind(owner: Person, world: ListsWorld) -> None:
    """The replay of a candidate that is on hold is still named by its result."""
    replay, baseline = world.episodes[6], world.episodes[0]
    result = {"baseline_episode_id": baseline, "status": "complete", "metrics": {}}
    path = f"/api/ingest/eval-run/{world.open_run}/result"
    sent = owner.call("POST", path, json={**result, "candidate_episode_id": replay})
    assert sent.status_code == 200, sent.text
    owner.call("POST", f"/api/episodes/{replay}/hold", json={"reason": "a claim"})
    assert "0 episodes deleted." in send(owner, "delete", replay, confirm="delete").text
    results = owner.get(f"/api/eval-runs/{world.open_run}/results").json()["results"]
    assert replay in [each["candidate_episode_id"] for each in results]


def test_baselines_are_a_command_and_a_file(owner: Person, world: ListsWorld) -> None:
    ids = world.episodes[3:5]
    page = send(owner, "baselines", *ids).text
    assert "--baseline-episodes @picked.txt" in page
    file = send(owner, "baselines", *ids, file="1")
    assert file.headers["content-disposition"] == 'attachment; filename="picked.txt"'
    assert file.headers["content-type"].startswith("text/plain")
    assert file.text.split() == ids
    assert "Still recording: 1 of them" in send(owner, "baselines", world.episodes[-1]).text


def test_side_by_side_is_a_link_to_the_first_four(owner: Person, world: ListsWorld) -> None:
    answer = send(owner, "side-by-side", *world.episodes[:6])
    assert answer.status_code == 303
    wanted = "&".join(f"episode={each}" for each in world.episodes[:4])
    assert answer.headers["location"] == f"/portal/side-by-side?{wanted}"


@pytest.mark.parametrize("action", ["archive", "tag", "delete", "baselines"])
def test_without_a_selection_nothing_happens_and_the_page_says_so(
    owner: Person, action: str
) -> None:
    answer = send(owner, action)
    assert answer.status_code == 400
    assert "no episode is selected" in answer.text


def test_too_many_at_a_time_are_refused(owner: Person, world: ListsWorld) -> None:
    many = [f"01890000-0000-7000-8000-{number:012d}" for number in range(201)]
    answer = send(owner, "archive", *many, world.episodes[6])
    assert answer.status_code == 400
    assert episode(owner, world.episodes[6])["status"] == "ready"


@pytest.mark.parametrize("back", ["//evil.example", "sort=upwards", "<script>", "after=zzz"])
def test_a_wrong_way_back_is_the_whole_list(owner: Person, world: ListsWorld, back: str) -> None:
    page = send(owner, "archive", world.episodes[6], back=back)
    assert page.status_code in (200, 400)
    assert "<script>" not in re.sub(r'<script type="module" src="[^"]+">', "", page.text)
    assert "evil.example" not in page.text
    assert episode(owner, world.episodes[6])["status"] == "archived"
