"""One policy identity: episodes and eval runs name a PolicyRevision; the first description of one defines it."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from rollbook.contracts.policy import (
    CheckpointReference,
    PolicyRevision,
    conflicting_field,
    merged,
)
from rollbook.contracts.wire.limits import LONGEST_INDEXED, LONGEST_POLICY_FAMILY
from rollbook.errors import ConflictingRevision, InvalidText
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import Database
from rollbook.server.queries import EpisodeFilter
from tests.server.campaigns import Campaigner, campaigner
from tests.server.fixtures import StartServer
from tests.server.running import RunningServer
from tests.server.shared_server import shared_server
from tests.server.tenants import Organisation, new_organisation

CHECKPOINT = CheckpointReference(
    checkpoint_family="grasp",
    stream_id="s",
    manifest_digest="m",
    object_digest="o",
    writer_node_id="n",
    membership_epoch=2**64 - 1,
    cluster_state_digest="c",
    topology_digest="t",
    started_at_ms=5,
)


def revision(**facts: Any) -> PolicyRevision:
    known: dict[str, Any] = {
        "policy_family": "grasp",
        "revision_id": "rev-7",
        "policy_digest": "d7",
        "produced_at_ms": 1_700_000_000_000,
    }
    return PolicyRevision(**{**known, **facts})


FULL = revision(revision_number=7, parent_revision_id="rev-6", checkpoint=CHECKPOINT)


def plain(each: PolicyRevision) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(each)
    return found


# ----------------------------------------------------------------------------------- both databases


@pytest.fixture
def org(shared_database: Database) -> Organisation:
    return new_organisation(shared_database)


def test_an_episode_is_read_with_its_revision(org: Organisation) -> None:
    made = org.episode(policy_revision=FULL, tags=["t"])
    without = org.episode(tags=["t"])
    for found in (
        org.read(lambda scope: scope.episode(made.id)),
        org.read(lambda scope: scope.episodes_of([made.id]))[0],
        org.read(lambda scope: scope.episodes(EpisodeFilter(tags=("t",)))).episodes[1],
        org.write(lambda scope: scope.tag_episode(made.id, ["t", "u"])),
        org.write(lambda scope: scope.archive_episode(made.id)),
        org.write(lambda scope: scope.restore_episode(made.id)),
    ):
        assert found is not None
        assert found.policy_revision == FULL
    plain_one = org.read(lambda scope: scope.episode(without.id))
    assert plain_one is not None
    assert plain_one.policy_revision is UNSET


def test_a_later_description_adds_what_was_missing(org: Organisation) -> None:
    first = org.episode(policy_revision=revision(revision_number=7))
    second = org.episode(
        policy_revision=revision(parent_revision_id="rev-6", checkpoint=CHECKPOINT)
    )
    assert first.policy_revision_id == second.policy_revision_id
    for each in (first, second):
        found = org.read(lambda scope, each=each: scope.episode(each.id))  # type: ignore[misc]
        assert found.policy_revision == FULL


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"policy_digest": "d8"}, "policy_digest"),
        ({"produced_at_ms": 1}, "produced_at_ms"),
        ({"revision_number": 8}, "revision_number"),
        ({"parent_revision_id": "rev-5"}, "parent_revision_id"),
        (
            {"checkpoint": msgspec.structs.replace(CHECKPOINT, object_digest="p")},
            "checkpoint.object_digest",
        ),
    ],
)
def test_a_contradiction_is_refused_by_field_and_changes_nothing(
    org: Organisation, other: dict[str, Any], field: str
) -> None:
    made = org.episode(policy_revision=FULL)
    with pytest.raises(ConflictingRevision) as caught:
        org.episode(policy_revision=msgspec.structs.replace(FULL, **other))
    assert caught.value.field == field
    found = org.read(lambda scope: scope.episode(made.id))
    assert found is not None
    assert found.policy_revision == FULL
    assert org.read(lambda scope: scope.quota_usage()).episodes == 1


def test_another_family_or_tenant_may_use_the_same_revision_id(
    org: Organisation, shared_database: Database
) -> None:
    org.episode(policy_revision=FULL)
    org.episode(policy_revision=revision(policy_family="push", policy_digest="d8"))
    new_organisation(shared_database).episode(policy_revision=revision(policy_digest="d9"))


def test_a_revision_outlives_its_episodes(org: Organisation) -> None:
    made = org.episode(policy_revision=FULL)
    org.write(lambda scope: scope.delete_episode(made.id))
    with pytest.raises(ConflictingRevision):
        org.episode(policy_revision=revision(policy_digest="d8"))
    assert org.episode(policy_revision=revision()).policy_revision_id == made.policy_revision_id


def test_names_that_do_not_fit_an_index_are_refused(org: Organisation) -> None:
    longest = revision(
        policy_family="😀" * LONGEST_POLICY_FAMILY, revision_id="😀" * LONGEST_INDEXED
    )
    org.episode(policy_revision=longest)
    for facts in ({"policy_family": "a" * (LONGEST_POLICY_FAMILY + 1)}, {"policy_digest": "\x00"}):
        with pytest.raises(InvalidText):
            org.episode(policy_revision=revision(**facts))


def test_of_descriptions_that_come_together_one_defines(org: Organisation) -> None:
    """Eight at once, of two kinds: all of one kind are taken, all of the other refused."""
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def record(digest: str) -> None:
        start.wait()
        try:
            org.episode(policy_revision=revision(policy_digest=digest))
            outcomes.append(digest)
        except ConflictingRevision:
            outcomes.append("refused")

    threads = [threading.Thread(target=record, args=(f"d{n % 2}",)) for n in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert outcomes.count("refused") == 4
    assert len(set(outcomes)) == 2


def test_batches_that_name_new_revisions_in_opposite_orders_do_not_lock_each_other_out(
    org: Organisation,
) -> None:
    """PostgreSQL ends one of two transactions that wait for each other's rows."""
    problems: list[Exception] = []

    def record(revision_ids: list[str], start: threading.Barrier) -> None:
        named = [revision(revision_id=each) for each in revision_ids]
        wanted = [({"id": new_id(), "policy_revision": each}, ()) for each in named]
        start.wait()
        try:
            made = org.write(lambda scope: scope.create_episodes(wanted))
        except Exception as error:  # noqa: BLE001 - a thread cannot raise
            problems.append(error)
        else:
            assert [each.id for each in made] == [values["id"] for values, _ in wanted]

    for round_number in range(5):
        start = threading.Barrier(2)
        ids = [f"{round_number}-{number}" for number in range(30)]
        threads = [threading.Thread(target=record, args=(each, start)) for each in (ids, ids[::-1])]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert not problems


_number = st.none() | st.integers(0, 2)
_text = st.none() | st.sampled_from(["a", "b"])
_checkpoints = st.builds(
    lambda step, ref: msgspec.structs.replace(CHECKPOINT, step=step, checkpoint_ref=ref),
    _number,
    _text,
)
_descriptions = st.builds(
    lambda digest, number, parent, checkpoint: revision(
        policy_digest=digest,
        revision_number=number,
        parent_revision_id=parent,
        checkpoint=checkpoint,
    ),
    st.sampled_from(["d", "d", "d", "e"]),
    _number,
    _text,
    st.none() | _checkpoints,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(descriptions=st.lists(_descriptions, min_size=1, max_size=5))
def test_the_table_joins_descriptions_as_the_contracts_do(
    shared_database: Database, descriptions: list[PolicyRevision]
) -> None:
    org = new_organisation(shared_database)
    known: PolicyRevision | None = None
    for each in descriptions:
        field = None if known is None else conflicting_field(known, each)
        if field is None:
            known = each if known is None else merged(known, each)
            assert registered(org, each) == known
        else:
            with pytest.raises(ConflictingRevision) as caught:
                registered(org, each)
            assert caught.value.field == field
    assert known is not None
    assert registered(org, known) == known


def registered(org: Organisation, description: PolicyRevision) -> PolicyRevision:
    """What the table knows of this revision from now on."""
    row_id = org.write(lambda scope: scope.register_policy_revision(description))
    return org.read(lambda scope: scope.policy_revisions([row_id]))[row_id]


# -------------------------------------------------------------------------------------------- HTTP


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


@pytest.fixture
def team(server: RunningServer) -> Campaigner:
    return campaigner(server)


def test_a_revision_goes_in_and_comes_out(team: Campaigner) -> None:
    body = {"policy_revision": plain(FULL)}
    made = team.post("/api/ingest/episode", body)
    [many] = team.post("/api/ingest/episodes", {"episodes": [body]})["episodes"]
    assert made["policy_revision_kept"] is many["policy_revision_kept"] is True
    alone = made["episode_id"]
    for found in (
        team.get(f"/api/episodes/{alone}"),
        *team.get("/api/episodes", policy_version="rev-7")["episodes"],
        *team.post("/api/episodes/lookup", {"ids": [alone, many["episode_id"]]})["episodes"],
    ):
        assert found["policy_revision"] == plain(FULL)
        assert found["policy_version"] == "rev-7"


def test_a_version_that_is_given_stays_and_answers_without_revision_lack_the_key(
    team: Campaigner,
) -> None:
    named = team.post(
        "/api/ingest/episode", {"policy_version": "v3", "policy_revision": plain(FULL)}
    )
    assert team.get(f"/api/episodes/{named['episode_id']}")["policy_version"] == "v3"
    [without] = team.baselines(1)
    assert "policy_revision" not in team.get(f"/api/episodes/{without}")
    run = team.get(f"/api/eval-runs/{team.run([without])}")
    assert not [name for name in run if "policy_revision" in name]


def test_a_contradiction_is_a_409_that_names_the_field(team: Campaigner) -> None:
    team.post("/api/ingest/episode", {"policy_revision": plain(FULL)})
    other = plain(revision(policy_digest="d8"))
    answer = team.http.post("/api/ingest/episode", json={"policy_revision": other})
    told = answer.json()
    assert answer.status_code == 409
    assert (told["code"], told["field"]) == ("conflicting_revision", "policy_digest")
    assert (told["first"], told["second"]) == ("d7", "d8")
    answer = team.http.post(
        "/api/ingest/episodes", json={"episodes": [{}, {"policy_revision": other}]}
    )
    assert answer.status_code == 409
    assert answer.json()["error"].startswith("episodes[1]")
    assert len(team.get("/api/episodes")["episodes"]) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy_family": "grasp"},
        {**plain(FULL), "policy_digest": 7},
        {**plain(FULL), "revision_number": -1},
        {**plain(FULL), "unknown": 1},
        {**plain(FULL), "revision_id": "x" * 5000},
    ],
)
def test_what_is_no_revision_is_a_400(team: Campaigner, wrong: dict[str, Any]) -> None:
    assert team.refused("/api/ingest/episode", {"policy_revision": wrong}) == (400, "invalid_value")


def test_a_run_names_the_revision_that_its_decision_is_about(team: Campaigner) -> None:
    baselines = team.baselines(2)
    before = revision(revision_id="rev-6", policy_digest="d6")
    revisions: dict[str, Any] = {
        "candidate_policy_revision": plain(FULL),
        "baseline_policy_revision": plain(before),
    }
    run_id = team.run(baselines, **revisions)
    for baseline in baselines:
        team.result(run_id, baseline)
    team.finalize(run_id)
    [listed] = team.get("/api/eval-runs")["eval_runs"]
    for found in (listed, team.get(f"/api/eval-runs/{run_id}")):
        assert {name: found[name] for name in revisions} == revisions
    body = {"candidate_policy_version": "v2", "baseline_episode_ids": baselines}
    other = {**body, "candidate_policy_revision": plain(revision(policy_digest="d8"))}
    assert team.refused("/api/ingest/eval-run", other) == (409, "conflicting_revision")
    other = {**body, "baseline_policy_revision": plain(revision(policy_digest="d8"))}
    told = team.http.post("/api/ingest/eval-run", json=other).json()["error"]
    assert told.startswith("baseline_policy_revision: ")


def test_a_replay_with_another_policy_is_no_result_of_the_run(team: Campaigner) -> None:
    baselines = team.baselines(3)
    run_id = team.run(baselines, candidate_policy_revision=plain(FULL))
    recorded = {
        name: team.post("/api/ingest/episode", body)["episode_id"]
        for name, body in {
            "same": {"policy_revision": plain(revision())},
            "other": {"policy_revision": plain(revision(revision_id="rev-8"))},
            "unsaid": {},
        }.items()
    }
    team.result(run_id, baselines[0], candidate_episode_id=recorded["same"])
    team.result(run_id, baselines[1], candidate_episode_id=recorded["unsaid"])
    body = {"baseline_episode_id": baselines[2], "status": "complete", "metrics": {}}
    other = {**body, "candidate_episode_id": recorded["other"]}
    path = f"/api/ingest/eval-run/{run_id}/result"
    assert team.refused(path, other) == (409, "conflicting_revision")
