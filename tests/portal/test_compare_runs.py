"""Several runs beside each other on a page."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.portal.pairs_world import HOSTILE, completed_run, metrics_of
from tests.server.campaigns import Campaigner, campaigner
from tests.server.people import House, Person


@pytest.fixture(scope="module")
def team(sqlite_house: House) -> Campaigner:
    return campaigner(sqlite_house.server)


@pytest.fixture(scope="module")
def owner(team: Campaigner) -> Iterator[Person]:
    person = team.owner()
    yield person
    person.close()


def compare(owner: Person, *runs: str, more: str = "") -> str:
    answer = owner.get("/portal/compare?" + "&".join(f"run={each}" for each in runs) + more)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_candidates_on_the_same_baselines_are_ranked_together(
    team: Campaigner, owner: Person
) -> None:
    baselines = team.baselines(40, success=False)
    good = completed_run(team, baselines, "good", [(False, each > 2) for each in range(40)])
    poor = completed_run(team, baselines, "poor", [(False, each > 36) for each in range(40)])
    page = compare(owner, poor, good)
    assert "good was shown to be better on success after the correction for 2 candidates." in page
    assert "good is told apart from all others." in page
    assert "34 of 40" in page, "pairs that come out differently"
    ranking = page[page.index("Ranked by") : page.index("Each run alone")]
    assert ranking.index("good") < ranking.index("poor")
    assert f"/portal/evals/{good}/pairs/{baselines[5]}" in page
    assert f"rollbook replay compare {poor} {good}" in page
    by_reward = compare(owner, poor, good, more="&metric=reward_total")
    assert "Ranked by reward" in by_reward


def test_runs_that_share_nothing_are_shown_and_not_ranked(team: Campaigner, owner: Person) -> None:
    runs = [
        completed_run(team, team.baselines(8, success=True), name, [(True, True)] * 8)
        for name in ("one", "two")
    ]
    page = compare(owner, *runs)
    assert "not ranked together: the runs have no baseline in common" in page
    assert "No baseline in common" in page
    assert "Each run alone" in page


def test_runs_of_different_evidence_are_told_apart_in_words(
    team: Campaigner, owner: Person
) -> None:
    baselines = team.baselines(8, success=True)
    measured = completed_run(team, baselines, "measured", [(True, True)] * 8)
    guessed = team.run(baselines, "guessed")
    metrics = {**metrics_of(True, True), "evidence": {"success": "counterfactual"}}
    for each in baselines:
        team.result(guessed, each, metrics=metrics)
    team.finalize(guessed)
    page = compare(owner, measured, guessed, more="&metric=success")
    assert "success is closed loop in measured, replayed and counterfactual in guessed" in page


def test_a_run_that_is_not_complete_is_named_by_its_name(team: Campaigner, owner: Person) -> None:
    baselines = team.baselines(8, success=True)
    done = completed_run(team, baselines, "done", [(True, True)] * 8)
    under_way = team.run(baselines, "slow", name="Still at it")
    page = compare(owner, done, under_way)
    assert "Still at it is pending; only completed runs are ranked together" in page


def test_too_few_too_many_or_unknown_runs(team: Campaigner, owner: Person) -> None:
    baselines = team.baselines(1, success=True)
    run = completed_run(team, baselines, "v", [(True, True)])
    assert "Choose at least two runs" in compare(owner)
    assert "Choose at least two runs" in compare(owner, run, run)
    many = "&".join(f"run={each}" for each in range(7))
    assert owner.get(f"/portal/compare?{many}").status_code == 400
    assert owner.get(f"/portal/compare?run={run}&run=unknown").status_code == 404
    assert owner.get(f"/portal/compare?run={run}&run=%00").status_code == 404
    assert owner.get(f"/portal/compare?run={run}&metric=luck").status_code == 400


def test_the_run_of_another_organisation_is_an_unknown_one(
    sqlite_house: House, team: Campaigner, owner: Person
) -> None:
    other = campaigner(sqlite_house.server)
    foreign = completed_run(other, other.baselines(1, success=True), "v", [(True, True)])
    mine = completed_run(team, team.baselines(1, success=True), "v", [(True, True)])
    answers = [owner.get(f"/portal/compare?run={mine}&run={each}") for each in (foreign, "unknown")]
    assert [each.status_code for each in answers] == [404, 404]
    assert answers[0].text == answers[1].text


def test_hostile_names_are_shown_and_never_run(team: Campaigner, owner: Person) -> None:
    baselines = team.baselines(8, success=True, task=HOSTILE)
    runs = [
        completed_run(
            team,
            baselines,
            f"{number} {HOSTILE}",
            [(True, each > number) for each in range(8)],
            name=HOSTILE,
        )
        for number in (2, 5)
    ]
    page = compare(owner, *runs)
    assert "<svg onload" not in page
    assert not re.search(r"<script(?![^>]*src=)", page)
