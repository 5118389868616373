"""Retention deletes what a policy names, when it is old enough, and nothing that is needed; a hold keeps everything."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollbook.errors import EpisodeOnHold, InvalidNumber, InvalidValue
from rollbook.server.db.columns import now_us
from rollbook.server.db.engine import Database
from rollbook.server.episodes.retention import delete_due, preview
from rollbook.server.queries import NewResult, RetentionRow, Scope
from tests.server.episodes.server_without_http import Server
from tests.server.people import House, house
from tests.server.tenants import Organisation, new_organisation

__all__ = ["house"]

DAY_US = 86_400_000_000
RUN = {
    "candidate_policy_version": "v2",
    "runner_kind": "client",
    "metadata": {},
    "gate": {},
    "gate_digest": "",
}


@pytest.fixture
def org(shared_database: Database) -> Organisation:
    return new_organisation(shared_database)


def recorded(org: Organisation, days: int = 100, **values: Any) -> str:
    """Finalized so many days ago."""

    def record(scope: Scope) -> str:
        made = scope.create_episode(values)
        scope.finalize_episode(made.id, {"status": "ready"})
        return made.id

    return org.at(now_us() - days * DAY_US, record)


def policy(org: Organisation, days: int = 30, **match: Any) -> RetentionRow:
    def add(scope: Scope) -> RetentionRow:
        made = scope.new_retention_policy(days, **match)
        scope.add_retention_policy(made)
        return made

    return org.write(add)


def due(org: Organisation, rule: RetentionRow) -> list[str]:
    return [each.id for each in org.read(lambda scope: scope.due_episodes(rule, 100))]


def there(org: Organisation) -> set[str]:
    return {each.id for each in org.read(lambda scope: scope.episodes()).episodes}


def test_a_policy_matches_by_age_source_and_all_of_its_tags(org: Organisation) -> None:
    old = recorded(org, 100)
    sim = recorded(org, 60, source="sim", tags=["scratch", "nightly"])
    tagged = recorded(org, 40, source="real", tags=["scratch"])
    recorded(org, 29, source="sim", tags=["scratch", "nightly"])
    assert due(org, policy(org)) == [old, sim, tagged]
    assert due(org, policy(org, 59)) == [old, sim]
    assert due(org, policy(org, source="sim")) == [sim]
    assert due(org, policy(org, tags=["scratch"])) == [sim, tagged]
    assert due(org, policy(org, tags=["scratch", "nightly"])) == [sim]
    assert due(org, policy(org, source="real", tags=["nightly"])) == []


def test_what_is_needed_is_never_due(org: Organisation) -> None:
    free = recorded(org)
    recording = org.at(now_us() - 100 * DAY_US, lambda scope: scope.create_episode({}))
    scenario, inactive, held, baseline, candidate, failed, done, cancelled = (
        recorded(org) for _ in range(8)
    )

    def use(scope: Scope) -> None:
        scope.promote_episode(scenario, {})
        promoted = scope.promote_episode(inactive, {})
        assert promoted is not None
        scope.change_scenario(promoted[0].id, {"active": False})
        scope.hold_episode(held, "a claim", "user:x")
        running = scope.create_eval_run(RUN, [baseline])
        scope.write_eval_results(running.id, [NewResult(baseline, "complete", {}, candidate)])
        for episode_id, status in (
            (failed, "failed"),
            (done, "completed"),
            (cancelled, "cancelled"),
        ):
            run = scope.create_eval_run(RUN, [episode_id])
            scope.change_eval_run(run.id, {"status": status})

    org.write(use)
    rule = policy(org)
    assert sorted(due(org, rule)) == sorted([free, done, cancelled])
    shown = org.read(lambda scope: preview(scope, rule))
    protected = {scenario, inactive, held, baseline, candidate, failed}
    assert (shown.episode_count, shown.protected_count) == (3, len(protected))
    assert org.write(lambda scope: delete_due(scope, rule))[0] == 3
    assert there(org) == protected | {recording.id}


def test_a_dry_run_counts_bytes_and_deletes_nothing(org: Organisation) -> None:
    ids = [recorded(org, 50 + number) for number in range(3)]
    for number, episode_id in enumerate(ids, 1):
        org.write(partial(_store, episode_id, 1000 * number))
    rule = policy(org)
    before = there(org)
    shown = org.read(lambda scope: preview(scope, rule))
    assert (shown.episode_count, shown.bytes, shown.protected_count) == (3, 6000, 0)
    assert [(each.id, each.bytes) for each in shown.episodes] == [
        (ids[2], 3000),
        (ids[1], 2000),
        (ids[0], 1000),
    ]
    assert there(org) == before


def _store(episode_id: str, size: int, scope: Scope) -> None:
    for kind, part in (("video", size - 1), ("sensors", 1)):
        key = f"episodes/{scope.org_id}/{episode_id}/{kind}"
        scope.request_artifact(episode_id, kind, key, "application/octet-stream")
        scope.set_artifact(episode_id, kind, status="stored", size=part)


def test_nothing_of_another_organisation_is_due(shared_database: Database) -> None:
    mine, theirs = new_organisation(shared_database), new_organisation(shared_database)
    kept = recorded(theirs)
    rule = policy(mine)
    assert due(mine, rule) == []
    mine.write(lambda scope: delete_due(scope, rule))
    assert there(theirs) == {kept}


def test_a_held_episode_cannot_be_deleted_until_the_hold_is_lifted(org: Organisation) -> None:
    episode_id = recorded(org)
    first = org.write(lambda scope: scope.hold_episode(episode_id, "a claim", "user:x"))
    again = org.write(lambda scope: scope.hold_episode(episode_id, "another", "user:y"))
    assert first == again
    with pytest.raises(EpisodeOnHold, match="legal hold"):
        org.write(lambda scope: scope.delete_episode(episode_id))
    assert org.write(lambda scope: scope.lift_hold(episode_id)) is True
    assert org.write(lambda scope: scope.lift_hold(episode_id)) is False
    assert org.write(lambda scope: scope.delete_episode(episode_id)) == []
    assert org.write(lambda scope: scope.hold_episode(episode_id, "too late", "user:x")) is None


@pytest.mark.parametrize("days", [0, -1, 36_501])
def test_a_policy_without_a_sensible_age_is_refused(org: Organisation, days: int) -> None:
    with pytest.raises((InvalidNumber, InvalidValue)):
        policy(org, days)


def test_upkeep_applies_the_policies_and_writes_them_into_the_audit_log(
    database: Database, tmp_path: Path
) -> None:
    server = Server(database, tmp_path)
    org, other = new_organisation(database), new_organisation(database)
    gone, kept, others = recorded(org, 20), recorded(org, 5), recorded(other, 200)
    key = f"episodes/{org.org_id}/{gone}/sensors.npz"
    server.put(key, b"bytes")
    org.write(lambda scope: scope.request_artifact(gone, "sensors", key, "x/y"))
    org.write(lambda scope: scope.set_artifact(gone, "sensors", status="stored", size=5))
    rule = policy(org, 10)
    assert server.do_upkeep(orphans=False)["retention"] == 1
    assert (there(org), there(other)) == ({kept}, {others})
    assert server.keys() == []
    [event] = [e for e in org.read(lambda scope: scope.audit_events()) if e.subject == gone]
    assert (event.event, event.actor) == ("episode.deleted", f"retention:{rule.id}")
    assert event.detail == {"older_than_days": 10, "bytes": 5}
    assert org.read(lambda scope: scope.quota_usage()).bytes == 0
    assert server.do_upkeep(orphans=False)["retention"] == 0


def test_a_run_that_takes_a_baseline_meanwhile_protects_it(postgres_database: Database) -> None:
    """The run is not committed yet when retention looks for the first time."""
    org = new_organisation(postgres_database)
    episode_id = recorded(org)
    rule = policy(org)
    began, finish = threading.Event(), threading.Event()

    def create_run(scope: Scope) -> None:
        scope.create_eval_run(RUN, [episode_id])
        began.set()
        assert finish.wait(30)

    def retire(scope: Scope) -> int:
        assert [each.id for each in scope.due_episodes(rule, 10)] == [episode_id]
        threading.Timer(0.3, finish.set).start()
        return delete_due(scope, rule)[0]

    running = threading.Thread(target=lambda: org.write(create_run))
    running.start()
    assert began.wait(30)
    assert org.write(retire) == 0
    running.join()
    assert there(org) == {episode_id}


# ------------------------------------------------------------------------------------------- over HTTP


def test_an_admin_sets_tries_and_removes_a_policy(house: House) -> None:
    owner = house.owner
    episode = owner.call("POST", "/api/ingest/episode", json={"name": "new"}).json()["episode_id"]
    wanted = {"older_than_days": 30, "source": "sim", "tags": ["scratch"]}
    shown = owner.call("POST", "/api/retention/preview", json=wanted).json()
    assert shown == {"episode_count": 0, "bytes": 0, "protected_count": 0, "episodes": []}
    made = owner.call("POST", "/api/retention", json=wanted)
    assert made.status_code == 201
    policy_id = made.json()["id"]
    assert {name: made.json()[name] for name in wanted} == wanted
    listed = owner.get("/api/retention").json()["policies"]
    assert policy_id in [each["id"] for each in listed]
    refused = owner.call("POST", "/api/retention", json={"older_than_days": 0})
    assert (refused.status_code, refused.json()["where"]) == (400, "$.older_than_days")
    assert owner.call("DELETE", f"/api/retention/{policy_id}").json()["deleted"] is True
    assert owner.call("DELETE", f"/api/retention/{policy_id}").status_code == 404
    events = [each["event"] for each in owner.get("/api/audit").json()["events"]]
    assert {"retention.created", "retention.deleted"} <= set(events)

    hold = f"/api/episodes/{episode}/hold"
    assert owner.call("POST", hold, json={"reason": "a claim"}).json()["reason"] == "a claim"
    refused = owner.call("DELETE", f"/api/episodes/{episode}")
    assert (refused.status_code, refused.json()["code"]) == (409, "episode_on_hold")
    assert [each["episode_id"] for each in owner.get("/api/holds").json()["holds"]] == [episode]
    assert owner.call("DELETE", hold).json()["lifted"] is True
    assert owner.call("DELETE", f"/api/episodes/{episode}").status_code == 200


def test_usage_shows_what_is_stored_and_the_limits_that_apply(house: House) -> None:
    usage = house.owner.get("/api/usage").json()
    assert set(usage) == {"episodes", "bytes", "quota_episodes", "quota_bytes"}
    house.owner.call("POST", "/api/ingest/episode", json={})
    assert house.owner.get("/api/usage").json()["episodes"] == usage["episodes"] + 1
