"""Find, and addresses that lead nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import httpx
import pytest

from rollbook.portal.formats import ends
from tests.portal.lists_world import ListsWorld, seed_lists
from tests.server.people import House, Person, join
from tests.server.shared_server import new_organisation

EVIL = "\"'><svg onload=alert(1)><script>alert(1)</script>"
_HIT = re.compile(r'<a class="plain strong clip" href="([^"]+)">')


@pytest.fixture(scope="module")
def owner(sqlite_house: House) -> Iterator[Person]:
    person = Person(sqlite_house.server).sign_in_by_link(new_organisation(sqlite_house.server))
    yield person
    person.close()


@pytest.fixture(scope="module")
def world(owner: Person) -> ListsWorld:
    return seed_lists(owner, count=14)


def find(person: Person, text: str) -> httpx.Response:
    return person.get("/portal/find", params={"q": text})


def hits(person: Person, text: str) -> list[str]:
    answer = find(person, text)
    if answer.status_code == 303:
        return [answer.headers["location"]]
    assert answer.status_code == 200
    return [unescape(each) for each in _HIT.findall(answer.text)]


def test_an_id_of_any_kind_is_opened_at_once(owner: Person, world: ListsWorld) -> None:
    assert hits(owner, f" {world.episodes[3].upper()} ") == [
        f"/portal/episodes/{world.episodes[3]}"
    ]
    assert hits(owner, world.open_run) == [f"/portal/evals/{world.open_run}"]
    assert hits(owner, world.scenario) == [f"/portal/scenarios/{world.scenario}"]


def test_the_beginning_of_an_id_is_enough_where_only_one_begins_so(
    owner: Person, world: ListsWorld
) -> None:
    assert hits(owner, world.open_run[:-4]) == [f"/portal/evals/{world.open_run}"]
    many = hits(owner, world.episodes[0][:6])
    assert len(many) > 5
    assert hits(owner, world.episodes[0][:5]) == [], "fewer than six characters are a name"


def test_an_id_is_found_as_lists_write_it(owner: Person, world: ListsWorld) -> None:
    """Without its middle; ids that were made together begin alike."""
    for each in world.episodes[:3]:
        assert each[:8] == world.episodes[0][:8]
        assert hits(owner, ends(each)) == [f"/portal/episodes/{each}"]
    assert hits(owner, ends(world.done_run)) == [f"/portal/evals/{world.done_run}"]
    assert hits(owner, f"{world.done_run[:24]}…") == [f"/portal/evals/{world.done_run}"]
    assert hits(owner, f"{world.done_run[:8]}…zzzz") == []


def test_a_run_without_a_name_is_called_as_in_the_list_of_runs(
    owner: Person, world: ListsWorld
) -> None:
    for _ in range(2):
        body = {"candidate_policy_version": "unnamed-7", "baseline_episode_ids": world.episodes[:1]}
        assert owner.call("POST", "/api/ingest/eval-run", json=body).status_code == 201
    page = find(owner, "unnamed-7").text
    assert page.count(">unnamed-7, replayed</a>") == 2
    assert "without a name" not in page


def test_names_are_found_by_any_part(owner: Person, world: ListsWorld) -> None:
    assert hits(owner, "NIGHTLY, bins") == [f"/portal/evals/{world.done_run}"]
    assert hits(owner, "on the edge") == [f"/portal/scenarios/{world.scenario}"]
    assert hits(owner, "Cloth fold") == [f"/portal/episodes/{world.episodes[5]}"]
    assert set(hits(owner, "slot 3")) == {
        f"/portal/episodes/{world.episodes[0]}",
        f"/portal/episodes/{world.episodes[13]}",
    }


def test_versions_and_robots_lead_to_their_episodes(owner: Person, world: ListsWorld) -> None:
    assert hits(owner, "ur5e-02") == ["/portal/episodes?robot=ur5e-02"]
    assert hits(owner, "tabletop-bins@2.3.1") == [
        "/portal/episodes?env_version=tabletop-bins%402.3.1"
    ]
    assert "/portal/episodes?policy_version=pick-act-v4" in hits(owner, "pick-act-v4")


def test_revisions_and_lineage_digests_are_found(owner: Person, world: ListsWorld) -> None:
    revision = {"policy_family": "grasp", "revision_id": "grasp-77", "policy_digest": "d" * 8}
    body = {
        "policy_revision": {**revision, "produced_at_ms": 1},
        "metadata": {"rollout": {"lineage_digest": "beef" * 16}},
    }
    made = owner.call("POST", "/api/ingest/episode", json=body).json()["episode_id"]
    [found] = [each for each in hits(owner, "grasp-7") if "lineage" in each]
    assert found.startswith("/portal/lineage/")
    assert hits(owner, "beefbeefbeef") == [f"/portal/episodes/{made}"]
    assert hits(owner, "beef" * 16) == [f"/portal/episodes/{made}"]


def test_a_key_is_found_by_its_prefix_and_its_secret_is_never_shown(
    sqlite_house: House, owner: Person
) -> None:
    key = owner.call("POST", "/api/keys", json={"scope": "admin"}).json()["api_key"]
    prefix = "_".join(key.split("_")[:2])
    assert hits(owner, prefix) == ["/portal/api-keys"]
    assert hits(owner, key) == ["/portal/api-keys"]
    viewer = join(sqlite_house.server, owner, "viewer@find.example", "viewer")
    page = find(viewer, key)
    assert page.status_code == 200
    assert "Nothing found" in page.text
    assert key not in page.text
    viewer.close()


def test_nothing_of_another_organisation_is_found(
    sqlite_house: House, owner: Person, world: ListsWorld
) -> None:
    stranger = sqlite_house.other_owner
    for text in (world.episodes[0], world.open_run, world.scenario, "Nightly, bins", "ur5e-02"):
        answer = find(stranger, text)
        assert answer.status_code == 200, text
        assert "Nothing found" in answer.text
    key = owner.call("POST", "/api/keys", json={"scope": "read"}).json()["api_key"]
    assert hits(stranger, key) == []


@pytest.mark.parametrize("text", ["", " ", "\x00", "%", "_" * 6, "''; --", EVIL, "ø" * 200])
def test_strange_texts_find_nothing_and_are_text(
    owner: Person, world: ListsWorld, text: str
) -> None:
    answer = find(owner, text)
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text
    assert "<svg onload" not in answer.text
    assert _HIT.findall(answer.text) == []


def test_a_text_that_is_too_long_is_refused(owner: Person) -> None:
    assert find(owner, "x" * 201).status_code == 400


def test_a_name_cannot_become_a_script_among_the_hits(owner: Person, world: ListsWorld) -> None:
    for _ in range(2):
        owner.call("POST", "/api/ingest/episode", json={"name": EVIL, "policy_version": EVIL})
    page = find(owner, "onload").text
    assert len(_HIT.findall(page)) == 2
    assert "<script>alert" not in page
    assert "<svg onload" not in page


# ------------------------------------------------------------------------------- nothing at this path


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize(
    "path", ["/portal/nowhere", "/nowhere", "/portal/episodes/a/b/c/d", "/apix"]
)
def test_a_browser_at_an_unknown_path_gets_a_page(owner: Person, path: str) -> None:
    answer = owner.get(path, headers=BROWSER)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "There is nothing here" in answer.text
    assert "unsafe" not in answer.headers["content-security-policy"]
    stranger = httpx.get(f"{owner.base_url}{path}", headers=BROWSER)
    assert (stranger.status_code, "There is nothing here" in stranger.text) == (404, True)


def test_a_program_at_an_unknown_path_gets_json(owner: Person) -> None:
    for path, headers in (
        ("/nowhere", {}),
        ("/api/nowhere", BROWSER),
        ("/portal/x", {"Accept": "*/*"}),
    ):
        answer = httpx.get(f"{owner.base_url}{path}", headers=headers)
        assert answer.status_code == 404
        assert answer.json()["code"] == "not_found"


def test_a_form_that_is_opened_as_a_page_says_so(owner: Person) -> None:
    answer = owner.get("/portal/first-key", headers=BROWSER)
    assert answer.status_code == 405
    assert "only takes a form" in answer.text
