"""The list of eval runs: what was decided, filters that stand in the address, and pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.portal.runs_world import EVIL, Plan, RunsWorld, baselines, finished, runs_world
from tests.server.campaigns import campaigner
from tests.server.people import House, Person

LINK = re.compile(r'href="/portal/evals/([^"/?]+)"')


@pytest.fixture(scope="module")
def world(sqlite_house: House) -> RunsWorld:
    return runs_world(campaigner(sqlite_house.server), pairs=40)


@pytest.fixture(scope="module")
def owner(world: RunsWorld) -> Iterator[Person]:
    person = world.team.owner()
    yield person
    person.close()


def listed(owner: Person, query: str = "") -> list[str]:
    answer = owner.get(f"/portal/evals{query}")
    assert answer.status_code == 200, answer.text
    return LINK.findall(answer.text)


def test_every_run_is_listed_the_newest_first_with_what_was_decided(
    world: RunsWorld, owner: Person
) -> None:
    page = owner.get("/portal/evals").text
    assert LINK.findall(page) == [*world.ids.values()][::-1]
    row = {each: page.split(f"/portal/evals/{run}")[0] for each, run in world.ids.items()}
    for kind, decided in (
        ("ship", "dec ship"),
        ("underpowered", "dec hold"),
        ("regression", "dec regress"),
        ("running", "dec run"),
        ("cancelled", "dec cancelled"),
    ):
        assert row[kind].rpartition('class="dec ')[2].startswith(decided.removeprefix("dec ")), kind
    assert "8 of 20" in page
    assert "better on success" in page


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        ("?candidate=pick-act-v4", {"ship"}),
        ("?baseline=cable-diff-v1", {"running"}),
        ("?decision=ship", {"ship", "again"}),
        ("?status=cancelled", {"cancelled"}),
        ("?status=running&decision=hold", set()),
        ("?since=2100-01-01", set()),
        ("?before=2000-01-01", set()),
        ("?candidate=&decision=&since=&status=cancelled", {"cancelled"}),
        ("?candidate=%00", set()),
    ],
)
def test_filters_stand_in_the_address(
    world: RunsWorld, owner: Person, query: str, kinds: set[str]
) -> None:
    assert set(listed(owner, query)) == {world.ids[kind] for kind in kinds}


@pytest.mark.parametrize(
    "query", ["?decision=perhaps", "?since=yesterday", "?status=done", "?cursor=x", "?colour=red"]
)
def test_a_filter_that_cannot_be_read_is_named_on_a_page(owner: Person, query: str) -> None:
    answer = owner.get(f"/portal/evals{query}")
    assert answer.status_code == 400
    assert query[1:].partition("=")[0] in answer.text


def test_pages_follow_one_another_and_keep_the_filters(world: RunsWorld, owner: Person) -> None:
    seen: list[str] = []
    path = "/portal/evals?limit=2&status=completed"
    while path:
        page = owner.get(path).text
        seen += LINK.findall(page)
        following = re.search(r'rel="next" href="([^"]+)"', page)
        path = f"{following[1].replace('&amp;', '&')}&limit=2" if following else ""
    ended = {run for kind, run in world.ids.items() if kind not in ("running", "cancelled")}
    assert len(seen) == len(ended)
    assert set(seen) == ended


def test_names_from_others_are_text(owner: Person) -> None:
    page = owner.get("/portal/evals").text
    assert EVIL not in page
    assert "<svg onload" not in page


def test_an_organisation_without_runs_reads_how_to_make_one(sqlite_house: House) -> None:
    owner = campaigner(sqlite_house.server).owner()
    page = owner.get("/portal/evals").text
    assert "No eval run yet" in page
    assert "No run matches" in owner.get("/portal/evals?candidate=x").text
    owner.close()


def test_both_databases_find_the_same_runs(house: House) -> None:
    team = campaigner(house.server, house.server.first_org)
    plan = Plan(seed=11)
    run_id = finished(team, baselines(team, 26), plan, candidate="both-databases", name="Both")
    today = "candidate=both-databases&since=2020-01-01&before=2100-01-01&status=completed"
    for query in (f"?{today}&decision=hold", f"?{today}&decision=ship"):
        found = listed(house.owner, query)
        decided = team.get(f"/api/eval-runs/{run_id}")["decision"]
        assert found == ([run_id] if query.endswith(decided) else [])
    page = house.owner.get(f"/portal/evals/{run_id}?show=lost&metric=success&sort=-label")
    assert page.status_code == 200
    team.http.delete(f"/api/eval-runs/{run_id}")
