"""Scenarios, the gate and trends as a person sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.portal.pairs_world import HOSTILE, completed_run, scenario
from tests.server.campaigns import Campaigner, campaigner
from tests.server.people import House, Person, join


@pytest.fixture(scope="module")
def team(sqlite_house: House) -> Campaigner:
    return campaigner(sqlite_house.server)


@pytest.fixture(scope="module")
def owner(team: Campaigner) -> Iterator[Person]:
    person = team.owner()
    yield person
    person.close()


def test_an_episode_is_promoted_by_a_form_and_then_blocks_every_candidate(
    team: Campaigner, owner: Person
) -> None:
    [episode] = team.baselines(1, success=True)
    asked = owner.get(f"/portal/episodes/{episode}/promote")
    assert '<option value="warning" selected>' in asked.text
    fields = {"name": "Mug over the edge", "severity": "critical", "description": "It tipped."}
    answer = owner.submit(f"/portal/episodes/{episode}/promote", **fields)
    assert answer.status_code == 303
    page = owner.get(answer.headers["location"])
    assert "<h1>Mug over the edge</h1>" in page.text
    assert "It tipped." in page.text
    gate = owner.get("/portal/gate?candidate=v9")
    assert ">Blocks<" in gate.text
    assert "was not replayed with this candidate yet" in gate.text
    assert "rollbook verify check --candidate v9" in gate.text
    owner.submit(f"{answer.headers['location']}", active="false")
    assert ">Nothing to pass<" in owner.get("/portal/gate?candidate=v9").text


def test_a_name_and_a_note_can_be_changed_and_taken_away(team: Campaigner, owner: Person) -> None:
    [episode] = team.baselines(1)
    made = f"/portal/scenarios/{scenario(team, episode, name='Mug', description='It tipped.')}"
    owner.submit(made, name="Cup", description="It tipped.", severity="warning")
    assert "<h1>Cup</h1>" in owner.get(made).text
    owner.submit(made, active="false")
    assert "It tipped." in owner.get(made).text, "the form that puts it aside has no note"
    owner.submit(made, name="", description=" ", severity="warning")
    page = owner.get(made).text
    assert f"<h1>Episode {episode}</h1>" in page
    assert "It tipped." not in page


def test_the_gate_passes_only_what_was_measured(sqlite_house: House) -> None:
    team = campaigner(sqlite_house.server)
    owner = team.owner()
    won, lost = team.baselines(2, success=True)
    ids = [scenario(team, each, name=name) for each, name in ((won, "won one"), (lost, "lost one"))]
    run_id = completed_run(team, [won, lost], "v2", [(True, True), (True, False)])
    page = owner.get("/portal/gate?candidate=v2").text
    assert "<b>1 of 2</b> critical scenario blocks" in page
    assert page.index("lost one") < page.index("won one")
    assert f"/portal/evals/{run_id}/pairs/{lost}" in page
    history = owner.get(f"/portal/scenarios/{ids[1]}").text
    assert "fails" in history
    assert f"/portal/evals/{run_id}/pairs/{lost}" in history
    completed_run(team, [won, lost], "v3", [(True, True), (True, True)])
    assert ">Passes<" in owner.get("/portal/gate?candidate=v3").text
    listed = owner.get("/portal/scenarios").text
    assert "v3" in listed
    assert "fails" not in listed, "the newest result of both is that of v3"
    owner.close()


def test_a_scenario_that_was_promoted_after_a_decision_is_not_said_to_be_passed_in_it(
    sqlite_house: House,
) -> None:
    team = campaigner(sqlite_house.server)
    owner = team.owner()
    first, later = team.baselines(2, success=True)
    made = scenario(team, first)
    run_id = completed_run(team, [first, later], "v2", [(True, True), (True, False)])
    scenario(team, later)
    page = owner.get(f"/portal/evals/{run_id}").text
    assert "Critical scenarios passed" in page
    assert ">1 of 1<" in page
    owner.submit(f"/portal/scenarios/{made}", severity="warning")
    owner.submit(f"/portal/scenarios/{made}", severity="critical")
    assert "Critical scenarios passed" not in owner.get(f"/portal/evals/{run_id}").text
    owner.close()


def test_a_pass_that_nobody_measured_is_not_shown_as_a_plain_pass(sqlite_house: House) -> None:
    team = campaigner(sqlite_house.server)
    owner = team.owner()
    [episode] = team.baselines(1, success=False)
    scenario(team, episode)
    run_id = team.run([episode], "v2")
    team.result(run_id, episode, success=True)
    team.finalize(run_id)
    page = owner.get("/portal/gate?candidate=v2").text
    assert ">Blocks<" in page
    assert "was not measured in a verified environment" in page
    assert "passes, not measured" in owner.get("/portal/scenarios").text
    owner.close()


def test_removing_a_scenario_is_confirmed_by_a_word_and_keeps_the_episode(
    team: Campaigner, owner: Person
) -> None:
    [episode] = team.baselines(1)
    made = scenario(team, episode, name="to be removed")
    asked = owner.get(f"/portal/scenarios/{made}/remove").text
    assert "Its episode stays" in asked
    refused = owner.submit(f"/portal/scenarios/{made}/remove", confirmation="yes")
    assert refused.status_code == 400
    assert owner.get(f"/portal/scenarios/{made}").status_code == 200
    assert (
        owner.submit(f"/portal/scenarios/{made}/remove", confirmation="remove").status_code == 303
    )
    assert owner.get(f"/portal/scenarios/{made}").status_code == 404
    assert owner.get(f"/api/episodes/{episode}").status_code == 200


def test_what_is_wrong_in_a_form_or_a_link_is_said(team: Campaigner, owner: Person) -> None:
    [episode] = team.baselines(1)
    made = scenario(team, episode)
    for path, fields in (
        (f"/portal/episodes/{episode}/promote", {"severity": "deadly"}),
        (f"/portal/episodes/{episode}/promote", {"name": "n" * 10_000}),
        (f"/portal/scenarios/{made}", {"active": "perhaps"}),
        (f"/portal/scenarios/{made}", {"name": "nul \x00"}),
    ):
        assert owner.submit(path, **fields).status_code == 400, fields
    for path in (
        "/portal/scenarios?active=maybe",
        "/portal/scenarios?cursor=nonsense",
        "/portal/scenarios?what=ever",
        f"/portal/scenarios/{made}?cursor=nonsense",
        f"/portal/gate?candidate={'v' * 10_000}",
        "/portal/trends?metric=luck",
        "/portal/trends?cursor=x",
    ):
        assert owner.get(path).status_code == 400, path
    assert owner.get("/portal/gate?candidate=%00").status_code == 200
    assert owner.get("/portal/trends?candidate_prefix=%00").status_code == 200


def test_a_viewer_sees_scenarios_and_no_forms(sqlite_house: House) -> None:
    [episode] = campaigner(sqlite_house.server, sqlite_house.server.first_org).baselines(1)
    team = campaigner(sqlite_house.server, sqlite_house.server.first_org)
    made = scenario(team, episode)
    viewer = join(sqlite_house.server, sqlite_house.owner, "looks@example.com", "viewer")
    page = viewer.get(f"/portal/scenarios/{made}")
    assert page.status_code == 200
    assert "<h2>Change</h2>" not in page.text
    team.http.delete(f"/api/scenarios/{made}")
    viewer.close()


def test_hostile_text_is_shown_and_never_runs(sqlite_house: House) -> None:
    team = campaigner(sqlite_house.server)
    owner = team.owner()
    [episode] = team.baselines(1, success=True)
    made = scenario(team, episode, name=HOSTILE, description=HOSTILE)
    run_id = team.run([episode], HOSTILE, name=HOSTILE, baseline_policy_version=HOSTILE)
    team.result(run_id, episode, status="failed", metrics={}, error=HOSTILE)
    team.finalize(run_id)
    for path in (
        "/portal/scenarios",
        f"/portal/scenarios/{made}",
        f"/portal/scenarios/{made}/remove",
        f"/portal/gate?candidate={quote(HOSTILE)}",
        "/portal/trends",
        f"/portal/trends?candidate_prefix={quote(HOSTILE)}",
    ):
        page = owner.get(path)
        assert page.status_code == 200, path
        assert "<svg onload" not in page.text, path
        assert not re.search(r"<script(?![^>]*src=)", page.text), path
    owner.close()


def test_a_trend_shows_the_newest_run_of_each_version_and_says_what_it_is_not(
    sqlite_house: House,
) -> None:
    team = campaigner(sqlite_house.server)
    owner = team.owner()
    assert "Nothing to draw" in owner.get("/portal/trends").text
    baselines = team.baselines(12, success=False)
    for version, wins in (("v1", 3), ("v2", 6), ("v1", 9)):
        completed_run(team, baselines, version, [(False, each < wins) for each in range(12)])
    page = owner.get("/portal/trends").text
    assert "different baselines, so not a comparison" in page
    drawn = page[
        page.index('class="c trend"') : page.index("</svg>", page.index('class="c trend"'))
    ]
    assert drawn.index("v2: 50 %") < drawn.index("v1: 75 %")
    assert "v1: 25 %" not in drawn
    assert page.count("/portal/evals/") >= 3, "the table has every run"
    reward = owner.get("/portal/trends?metric=reward_total&candidate_prefix=v2").text
    assert "Change of reward by version" in reward
    assert 'class="c trend"' in reward
    owner.close()


def test_the_old_address_of_the_gate_leads_to_the_scenarios(owner: Person) -> None:
    assert owner.get("/portal/verify").headers["location"] == "/portal/scenarios"
