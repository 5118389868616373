"""Where a policy came from and what was decided about it: the pages, and the route that records it."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from rollbook.client import Client
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.wire.lineage import StoreRows
from tests.portal.pairs_world import HOSTILE, completed_run, scenario, trainer_batch
from tests.server.campaigns import Campaigner, campaigner
from tests.server.people import House, Person

PATH = "/api/policy-revisions"


def revision(
    name: str, number: int, parent: str | None = None, family: str = "arm"
) -> PolicyRevision:
    return PolicyRevision(
        policy_family=family,
        revision_id=name,
        policy_digest=f"weights of {name}",
        produced_at_ms=1_700_000_000_000 + number,
        revision_number=number,
        parent_revision_id=parent,
    )


def body(this: PolicyRevision, **more: Any) -> dict[str, Any]:
    return {"revision": msgspec.to_builtins(this), **more}


@pytest.fixture(scope="module")
def team(house: House) -> Campaigner:
    """On both databases, so in the first organisation, which others use too: families have names of their own."""
    return campaigner(house.server, house.server.first_org)


@pytest.fixture(scope="module")
def owner(house: House) -> Person:
    return house.owner


def test_a_revision_shows_what_it_came_from_and_what_was_decided(
    team: Campaigner, owner: Person
) -> None:
    family = "walks"
    grandparent, parent = revision("w1", 1, family=family), revision("w2", 2, "w1", family)
    this, child = revision("w3", 3, "w2", family), revision("w4", 4, "w3", family)
    episodes = team.baselines(40, success=False)
    for each in (grandparent, parent, child):
        team.post(PATH, body(each))
    batch = trainer_batch("batch-w", this, parent, 5)
    rows = {"store_digest": "0a" * 32, "rows": [4, 2, 4], "name": "flats", "batch_id": "batch-w"}
    sent = body(this, batches=[msgspec.to_builtins(batch)], stores=[rows], episode_ids=episodes[:3])
    made = team.post(PATH, sent)
    assert made["added"] == 3
    outcomes = [(False, each != 0) for each in range(40)]
    run_id = completed_run(
        team,
        episodes,
        "w3",
        outcomes,
        name="Judged at night",
        candidate_policy_revision=msgspec.to_builtins(this),
    )
    page = owner.get(f"/portal/lineage/{made['id']}").text
    graph = page[page.index('<svg viewBox="0 0 1328') : page.index('class="body steps"')]
    for words in (
        "Batch batch-w",
        "5 rollouts, drift ≤ 1",
        "Store flats",
        "2 rollouts",
        "3 episodes",
    ):
        assert words in graph, words
    for words in ("Judged at night", "✓ Ship", "w1", "w2", "w4", "this one"):
        assert words in graph, words
    assert f"/portal/evals/{run_id}" in graph
    assert "rows 2, 4" in page
    assert "parent <a" in page
    verified = owner.get(f"/portal/lineage/{made['id']}?verify=1").text
    assert "All digests of 1 batch were computed again" in verified
    by_version = owner.get("/portal/lineage?version=w3")
    assert by_version.headers["location"] == f"/portal/lineage/{made['id']}"
    assert team.post(PATH, sent)["added"] == 0, "the same again changes nothing"


def test_what_nobody_recorded_is_shown_as_missing(team: Campaigner, owner: Person) -> None:
    lone = team.post(PATH, body(revision("lone", 7, "never seen", "alone")))
    page = owner.get(f"/portal/lineage/{lone['id']}").text
    assert "never seen" in page
    assert "not recorded here" in page
    for words in ("No batch recorded", "Not judged yet", "No children yet"):
        assert words in page, words
    assert "✓" not in page[page.index('<svg viewBox="0 0 1328') :]


def test_a_version_without_a_revision_has_a_page_too(team: Campaigner, owner: Person) -> None:
    baselines = team.baselines(8, success=True)
    completed_run(team, baselines, "team/v 1", [(True, True)] * 8, name="Only a version")
    page = owner.get("/portal/lineage?version=team%2Fv%201")
    assert page.status_code == 200
    assert "no revision was recorded" in page.text
    assert "Only a version" in page.text
    [as_list] = re.findall(r'href="([^"]*as=list)"', page.text)
    assert owner.get(as_list.replace("&amp;", "&")).status_code == 200
    assert owner.get("/portal/lineage?version=nobody").status_code == 404
    assert owner.get("/portal/lineage/%00").status_code == 404
    assert owner.get(f"/portal/lineage/{'v' * 5000}").status_code == 404


def test_a_revision_id_of_two_families_is_asked_for(team: Campaigner, owner: Person) -> None:
    for family in ("left hand", "right hand"):
        team.post(PATH, body(revision("twin", 1, family=family)))
    page = owner.get("/portal/lineage/twin").text
    assert "Several families" in page
    assert "left hand" in page
    assert "right hand" in page


def test_a_batch_that_is_not_what_its_digest_says_is_refused(team: Campaigner) -> None:
    this, source = revision("t2", 2, "t1", "tampered"), revision("t1", 1, family="tampered")
    batch = msgspec.to_builtins(trainer_batch("batch-t", this, source))
    more = {**batch, "rollout_ids": [*batch["rollout_ids"][:-1], "another"]}
    assert team.refused(PATH, body(this, batches=[more])) == (400, "digest_mismatch")
    other = revision("t3", 3, "t2", "tampered")
    assert team.refused(PATH, body(other, batches=[batch])) == (400, "invalid_value")
    team.post(PATH, body(this, batches=[batch]))
    same_id = msgspec.to_builtins(trainer_batch("batch-t", this, source, 2))
    assert team.refused(PATH, body(this, batches=[same_id])) == (400, "digest_mismatch")


def test_nothing_is_recorded_when_a_part_is_refused(team: Campaigner, owner: Person) -> None:
    this = revision("half", 1, family="halves")
    rows = {"store_digest": "0b" * 32, "rows": [1]}
    assert team.refused(PATH, body(this, stores=[rows], episode_ids=["nobody"]))[0] == 404
    assert owner.get("/portal/lineage/half").status_code == 404
    faults: tuple[dict[str, Any], ...] = ({"rows": []}, {"rows": [-1]}, {"store_digest": "0b"})
    for wrong in faults:
        assert team.refused(PATH, body(this, stores=[{**rows, **wrong}]))[0] == 400


def test_the_client_sends_what_a_revision_was_trained_on(team: Campaigner, owner: Person) -> None:
    this, source = revision("c2", 2, "c1", "by client"), revision("c1", 1, family="by client")
    with Client(
        base_url=team.server.base_url, api_key=team.access.api_key, verbose=False
    ) as client:
        done = client.record_revision(
            this,
            batches=[trainer_batch("batch-c", this, source)],
            stores=[StoreRows(store_digest="0c" * 32, rows=[0, 1, 2])],
        )
    assert (done.policy_family, done.revision_id, done.added) == ("by client", "c2", 2)
    assert "batch-c" in owner.get(f"/portal/lineage/{done.id}").text


def test_the_list_is_paged_and_filtered_by_family(team: Campaigner, owner: Person) -> None:
    for number in range(53):
        team.post(PATH, body(revision(f"many-{number}", number, family="many")))
    page = owner.get("/portal/lineage?family=many").text
    assert page.count("/portal/lineage/") >= 50
    assert "many-2<" not in page
    [older] = re.findall(r'href="([^"]*cursor=[^"]*)"', page)
    assert "many-2<" in owner.get(older.replace("&amp;", "&")).text
    for wrong in ("cursor=nonsense", "what=ever"):
        assert owner.get(f"/portal/lineage?{wrong}").status_code == 400


def test_hostile_names_are_shown_and_never_run(team: Campaigner, owner: Person) -> None:
    this = revision(HOSTILE, 2, f"parent {HOSTILE}", HOSTILE)
    source = revision(f"parent {HOSTILE}", 1, family=HOSTILE)
    rows = {"store_digest": "0d" * 32, "rows": [1], "name": HOSTILE}
    batch = msgspec.to_builtins(trainer_batch(HOSTILE, this, source))
    made = team.post(PATH, body(this, batches=[batch], stores=[rows]))
    [episode] = team.baselines(1, success=True)
    scenario_id = scenario(team, episode, name=HOSTILE)
    revisions = {"candidate_policy_revision": msgspec.to_builtins(this)}
    completed_run(team, [episode], HOSTILE, [(True, False)], name=HOSTILE, **revisions)
    for path in (
        "/portal/lineage",
        f"/portal/lineage?family={quote(HOSTILE)}",
        f"/portal/lineage/{made['id']}",
        f"/portal/lineage/{made['id']}?as=list&verify=1",
    ):
        page = owner.get(path, follow_redirects=True)
        assert page.status_code == 200, path
        assert "<svg onload" not in page.text, path
        assert not re.search(r"<script(?![^>]*src=)", page.text), path
    team.http.delete(f"/api/scenarios/{scenario_id}")
