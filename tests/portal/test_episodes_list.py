"""The list of episodes as a page: filters, order and pages are in the address, and whatever people wrote is text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import pytest

from tests.portal.lists_world import ListsWorld, seed_lists
from tests.server.people import House, Person, join
from tests.server.shared_server import new_organisation

_ROW = re.compile(r'<a class="plain strong clip" href="/portal/episodes/([^"]+)">([^<]*)</a>')
EVIL = "\"'><svg onload=alert(1)><script>alert(1)</script>"


@pytest.fixture(scope="module")
def owner(sqlite_house: House) -> Iterator[Person]:
    person = Person(sqlite_house.server).sign_in_by_link(new_organisation(sqlite_house.server))
    yield person
    person.close()


@pytest.fixture(scope="module")
def world(owner: Person) -> ListsWorld:
    return seed_lists(owner)


def listed(page: str) -> list[str]:
    return [episode_id for episode_id, _ in _ROW.findall(page)]


def link(page: str, rel: str) -> str:
    found = re.search(rf'rel="{rel}" href="([^"]+)"', page)
    assert found is not None
    return unescape(found[1])


def test_pages_lead_forwards_and_back(owner: Person, world: ListsWorld) -> None:
    first = owner.get("/portal/episodes").text
    assert listed(first) == world.episodes[::-1][:50]
    second = owner.get(link(first, "next")).text
    assert listed(second) == world.episodes[::-1][50:]
    assert 'rel="next"' not in second
    assert listed(owner.get(link(second, "prev")).text) == listed(first)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?policy_version=pick-act-v4&status=failed", range(7, 59, 21)),
        ("?tag=nightly&tag=drop&source=real", (10, 22, 34, 46, 58)),
        ("?robot=ur5e-02&metadata.task.name=t2", (2, 22, 42)),
        ("?seed=12", (12,)),
        ("?name=SLOT%203&sort=oldest", (0, 13, 26, 39, 52)),
    ],
)
def test_filters_are_in_the_address(
    owner: Person, world: ListsWorld, query: str, expected: range
) -> None:
    page = owner.get(f"/portal/episodes{query}").text
    wanted = [world.episodes[number] for number in expected]
    assert listed(page) == (wanted if "oldest" in query else wanted[::-1])
    assert f"{len(wanted)} match" in page


def test_a_chip_takes_its_filter_away_and_keeps_the_others(
    owner: Person, world: ListsWorld
) -> None:
    page = owner.get("/portal/episodes?robot=ur5e-02&source=real&sort=oldest").text
    chips = [unescape(each) for each in re.findall(r'class="chip on" href="([^"]+)"', page)]
    assert chips == [
        "/portal/episodes?source=real&sort=oldest",
        "/portal/episodes?robot=ur5e-02&sort=oldest",
    ]


def test_the_empty_fields_of_a_form_do_not_stay_in_the_address(
    owner: Person, world: ListsWorld
) -> None:
    sent = "?name=&robot=ur5e-02&seed=&metadata_path=task.name&metadata_value=t2&created_after="
    answer = owner.get(f"/portal/episodes{sent}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/portal/episodes?robot=ur5e-02&metadata.task.name=t2"


@pytest.mark.parametrize(
    "query",
    [
        *("?nonsense=1", "?sort=upwards", "?after=x", "?before=%00", "?status=lost", "?seed=one"),
        *("?created_after=yesterday", "?robot=a&robot=b", "?after=x&before=y", "?cursor=x"),
        *("?limit=100000", "?sort=newest&sort=oldest", "?metadata.=1", "?" + "tag=a&" * 300),
        f"?{EVIL}=1",
        f"?sort={EVIL}",
    ],
)
def test_a_wrong_address_says_what_is_wrong_and_shows_the_list(
    owner: Person, world: ListsWorld, query: str
) -> None:
    answer = owner.get(f"/portal/episodes{query}")
    if query.startswith("?tag=a"):
        assert answer.status_code == 200  # the same tag again changes nothing
        return
    assert answer.status_code == 400
    assert 'class="note problem" role="alert"' in answer.text
    assert len(listed(answer.text)) == 50
    assert "<script>alert" not in answer.text
    assert "<svg onload" not in answer.text


def test_values_that_cannot_be_stored_match_nothing(owner: Person, world: ListsWorld) -> None:
    page = owner.get("/portal/episodes?robot=%00")
    assert (page.status_code, listed(page.text)) == (200, [])
    assert "No episode matches" in page.text


def test_sorting_is_a_link_and_the_column_says_its_order(owner: Person, world: ListsWorld) -> None:
    page = owner.get("/portal/episodes?sort=longest&source=real").text
    assert re.search(r'<th scope="col" class="num" aria-sort="descending"><a [^>]*>Length ↓', page)
    lengths = [float(each) for each in re.findall(r'<td class="num hide">([\d.]+) s</td>', page)]
    assert lengths == sorted(lengths, reverse=True)
    assert len(lengths) == 15


def test_whatever_people_wrote_is_text(sqlite_house: House) -> None:
    owner = Person(sqlite_house.server).sign_in_by_link(new_organisation(sqlite_house.server))
    body = {
        **dict.fromkeys(("name", "robot", "policy_version", "env_version", "git_sha"), EVIL),
        "tags": [EVIL],
        "metadata": {"reward_total": EVIL},
    }
    made = owner.call("POST", "/api/ingest/episode", json=body)
    assert made.status_code == 201, made.text
    for path in ("/portal/episodes", "/portal", "/portal/episodes?sort=a-z"):
        page = owner.get(path).text
        assert "<script>alert" not in page
        assert "<svg onload" not in page
        assert "&lt;script&gt;alert" in page
    for name in ("name", "robot", "policy_version", "env_version", "git_sha", "tag"):
        page = owner.get("/portal/episodes", params={name: EVIL}).text
        assert listed(page) == [made.json()["episode_id"]]
        assert "<script>alert" not in page
        assert "<svg onload" not in page
    owner.close()


def test_a_viewer_sees_no_button_for_what_they_may_not_do(
    sqlite_house: House, owner: Person, world: ListsWorld
) -> None:
    viewer = join(sqlite_house.server, owner, "viewer@lists.example", "viewer")
    page = viewer.get("/portal/episodes").text
    assert "Use as baselines" in page
    assert "Delete…" not in page
    assert "/portal/episodes/archive" not in page
    viewer.close()


def test_an_organisation_without_episodes_is_told_how_to_record_one(sqlite_house: House) -> None:
    owner = Person(sqlite_house.server).sign_in_by_link(new_organisation(sqlite_house.server))
    page = owner.get("/portal/episodes").text
    assert "Nothing recorded yet" in page
    made = owner.call("POST", "/api/ingest/episode", json={}).json()["episode_id"]
    owner.call("POST", f"/api/episodes/{made}/archive")
    page = owner.get("/portal/episodes").text
    assert "All episodes are archived" in page
    assert "/portal/episodes?with_archived=true" in page
    owner.close()
