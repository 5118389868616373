"""Finding by id and name, and what goes with an episode, in both databases."""

from __future__ import annotations

import pytest

from rollbook.contracts.policy import PolicyRevision
from rollbook.server.db.engine import Database
from tests.server.tenants import Organisation, new_organisation

GATE = {"gate": {}, "gate_digest": "none", "metadata": {}, "runner_kind": "test"}


@pytest.fixture
def org(shared_database: Database) -> Organisation:
    return new_organisation(shared_database)


def found(org: Organisation, text: str) -> list[tuple[str, str]]:
    return [(each.kind, each.id) for each in org.read(lambda scope: scope.find(text))]


def run_of(org: Organisation, name: str, *baselines: str) -> str:
    values = {**GATE, "name": name, "candidate_policy_version": "v2"}
    return org.write(lambda scope: scope.create_eval_run(values, baselines)).id


def test_ids_prefixes_names_and_digests_are_found(org: Organisation) -> None:
    other = new_organisation(org.database)
    theirs = other.episode(name="Kitchen", robot="arm").id
    mine = org.episode(name="Kitchen RUN", robot="arm", policy_version="v1").id
    digest = {"rollout": {"lineage_digest": "0123456789abcdef" * 4}}
    rolled = org.episode(name="logged", metadata=digest).id
    run = run_of(org, "Kitchen nightly", mine)
    assert found(org, mine) == [("episode", mine)]
    assert found(org, mine[:-1]) == [("episode", mine)]
    assert found(org, run[:-1]) == [("run", run)]
    assert found(org, theirs) == []
    assert found(org, f"{mine[:8]}…{mine[-6:]}") == [("episode", mine)], "as lists write it"
    assert found(org, f"{theirs[:8]}…{theirs[-6:]}") == []
    assert set(found(org, "kitchen")) == {("run", run), ("episode", mine)}
    assert found(org, "arm") == [("robot", "arm")]
    assert found(org, "0123456789abcdef") == [("rollout", rolled)]
    assert found(org, "0123456789abcdef…") == [("rollout", rolled)]
    assert found(org, "nobody's") == []
    revision = PolicyRevision(
        policy_family="grasp", revision_id="grasp-7", policy_digest="d", produced_at_ms=1
    )
    row = org.write(lambda scope: scope.register_policy_revision(revision))
    org.write(lambda scope: scope.add_training_source(row, "batch", "batch-0042", {}))
    assert found(org, "BATCH-0042") == [("batch", row)]
    assert found(org, "grasp-7") == [("revision", row)]


def test_what_goes_with_an_episode_is_known_before_it_is_deleted(org: Organisation) -> None:
    used, free, held = (org.episode(name=name).id for name in ("used", "free", "held"))
    open_run = run_of(org, "open", used)
    closed = run_of(org, "closed", used, free)
    org.write(lambda scope: scope.change_eval_run(closed, {"status": "completed"}))
    promoted = org.write(lambda scope: scope.promote_episode(free, {"name": "edge"}))
    assert promoted is not None
    org.write(lambda scope: scope.hold_episode(held, "a claim", "me"))
    ids = (held, "unknown", used, free)
    by_name = {each.name: each for each in org.read(lambda scope: scope.deletions(ids))}
    assert list(by_name) == ["held", "used", "free"]
    assert [(each.run_id, each.is_open) for each in by_name["used"].runs] == [
        (open_run, True),
        (closed, False),
    ]
    assert [by_name[name].is_refused for name in by_name] == [True, True, False]
    assert (by_name["free"].scenario_id, by_name["free"].scenario_name) == (promoted[0].id, "edge")
    assert org.read(lambda scope: scope.deletions(["unknown"])) == []
