"""No organisation reads, changes or deletes what belongs to another, through any method of Scope."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import astuple, fields, replace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import sqlalchemy as sa

from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import Database
from rollbook.server.db.open import open_database, postgres_url
from rollbook.server.db.sqlite import SqliteDatabase, sqlite_engine
from rollbook.server.queries import (
    ArtifactRow,
    DeliveryRow,
    DoomedObject,
    EpisodeFilter,
    EvalRunFilter,
    Finalization,
    NewResult,
    RetentionRow,
    Scope,
)
from tests.server.db.two_tenants import (
    HOOK,
    MARK,
    REVISION,
    RUN,
    Ids,
    World,
    everything_of_the_first,
    made_world,
)
from tests.server.postgres_cluster import PostgresCluster
from tests.server.tenants import in_seconds, new_organisation

SOON = in_seconds(3600)


def stolen_video(ids: Ids) -> ArtifactRow:
    """As its owner would hold it, made up by somebody else."""
    row: dict[str, Any] = dict.fromkeys(each.name for each in fields(ArtifactRow))
    about = {"kind": "video", "rendition": "pending", "rendition_key": f"{MARK}/copy.mp4"}
    return ArtifactRow(**{**row, "episode_id": ids.episode, **about})


ANY_OLD = RetentionRow("01890000-0000-7000-8000-000000000000", -1, None, [], None, 0)
"""It matches every episode, whatever its age."""

CALLS: dict[str, Callable[[Scope, Ids], Any]] = {
    "abandon_episode": lambda scope, ids: scope.abandon_episode(ids.episode, SOON),
    "abandoned_episodes": lambda scope, ids: scope.abandoned_episodes(SOON),
    "abort_upload": lambda scope, ids: scope.abort_upload(ids.upload),
    "accept_invitation": lambda scope, ids: scope.accept_invitation(ids.invitation, ids.owner),
    "archive_episode": lambda scope, ids: scope.archive_episode(ids.episode),
    "artifact": lambda scope, ids: scope.artifact(ids.episode, "video"),
    "begin_rendition": lambda scope, ids: scope.begin_rendition(3),
    "end_rendition": lambda scope, ids: scope.end_rendition(stolen_video(ids), "ready", "stolen"),
    "renew_rendition": lambda scope, ids: scope.renew_rendition(stolen_video(ids)),
    "audit_events": lambda scope, ids: scope.audit_events(),
    "count_made_by": lambda scope, ids: sum(scope.count_made_by([MARK]).values()),
    "keys_made_by_key": lambda scope, ids: scope.keys_made_by_key(ids.key),
    "complete_upload": lambda scope, ids: scope.complete_upload(ids.upload),
    "create_upload": lambda scope, ids: scope.create_upload(
        ids.episode, "video", size=1, part_size=1
    ),
    "delete_episode": lambda scope, ids: scope.delete_episode(ids.episode),
    "doomed_objects": lambda scope, ids: scope.doomed_objects(),
    "episode": lambda scope, ids: scope.episode(ids.episode),
    "episodes": lambda scope, ids: [
        scope.episodes(EpisodeFilter(with_archived=True)).episodes,
        scope.episodes(EpisodeFilter(status="archived")).episodes,
        *(
            scope.episodes(EpisodeFilter(**{name: MARK})).episodes  # type: ignore[arg-type]
            for name in ("policy_version", "env_version", "git_sha", "robot", "name")
        ),
        scope.episodes(EpisodeFilter(seed=4711)).episodes,
        scope.episodes(EpisodeFilter(tags=(MARK,))).episodes,
        scope.episodes(EpisodeFilter(metadata={MARK: MARK})).episodes,
        scope.episodes(EpisodeFilter(metadata={MARK: MARK}, tags=(MARK,), robot=MARK)).episodes,
    ],
    "finalize_episode": lambda scope, ids: scope.finalize_episode(
        ids.episode, {"status": "failed"}
    ),
    "finalize_episodes": lambda scope, ids: [
        each
        for each in scope.finalize_episodes(
            [Finalization(ids.episode, {"status": "failed"}, {"video": {"size": 1}})],
            lambda _: None,
        )
        if each is not None
    ],
    "forget_idempotency_keys": lambda scope, ids: scope.forget_idempotency_keys(SOON),
    "forget_objects": lambda scope, ids: scope.forget_objects([DoomedObject(f"{MARK}/gone.npz")]),
    "invitations": lambda scope, ids: scope.invitations(),
    "key": lambda scope, ids: scope.key(ids.key),
    "keys": lambda scope, ids: scope.keys(),
    "known_objects": lambda scope, ids: scope.known_objects([ids.object_key, f"{MARK}/copy.mp4"]),
    "member": lambda scope, ids: scope.member(ids.owner),
    "members": lambda scope, ids: [row for row in scope.members() if row.user_id == ids.owner],
    "organisation": lambda scope, ids: None if scope.organisation().id != ids.org else MARK,  # type: ignore[union-attr]
    "parts": lambda scope, ids: scope.parts(ids.upload),
    "policy_revisions": lambda scope, ids: scope.policy_revisions([ids.policy_revision]),
    "add_training_source": lambda scope, ids: scope.add_training_source(
        ids.policy_revision, "store", "stolen", {}
    ),
    "training_source": lambda scope, ids: scope.training_source(ids.policy_revision, "batch", MARK),
    "training_sources": lambda scope, ids: scope.training_sources(ids.policy_revision),
    "ancestry_of": lambda scope, ids: scope.ancestry_of(REVISION),
    "batches_named": lambda scope, ids: scope.batches_named(MARK),
    "keep_evidence": lambda scope, ids: scope.keep_evidence(ids.eval_run, {"stolen": True}),
    "evidence_of": lambda scope, ids: scope.evidence_of(ids.eval_run),
    "episode_origins": lambda scope, ids: scope.episode_origins([ids.episode]),
    "batch_records": lambda scope, ids: scope.batch_records(ids.policy_revision),
    "revision_rows": lambda scope, ids: scope.revision_rows()[0],
    "revisions_named": lambda scope, ids: [
        *scope.revisions_named(ids.policy_revision),
        *scope.revisions_named(REVISION.revision_id),
    ],
    "family_of": lambda scope, ids: scope.family_of(REVISION),
    "episodes_of_policy": lambda scope, ids: (
        scope.episodes_of_policy(policy_revision_id=ids.policy_revision).count
        + scope.episodes_of_policy(policy_version=MARK).count
    ),
    "runs_of_policy": lambda scope, ids: [
        *scope.runs_of_policy(policy_revision_id=ids.policy_revision, limit=9),
        *scope.runs_of_policy(policy_version=MARK, limit=9),
    ],
    "eval_result_of": lambda scope, ids: scope.eval_result_of(ids.eval_run, ids.episode),
    "attempts_of_pair": lambda scope, ids: scope.attempts_of_pair(ids.eval_run, ids.episode),
    "newest_candidates": lambda scope, ids: scope.newest_candidates(),
    "newest_verifications": lambda scope, ids: scope.newest_verifications([ids.scenario]),
    "verifications": lambda scope, ids: scope.verifications(ids.scenario)[0],
    "browse_episodes": lambda scope, ids: (
        scope.browse_episodes(EpisodeFilter()).matching
        or scope.browse_episodes(EpisodeFilter(), "a-z").episodes
    ),
    "decided_runs": lambda scope, ids: scope.decided_runs(EvalRunFilter())[0],
    "deletions": lambda scope, ids: scope.deletions([ids.episode, ids.archived]),
    "find": lambda scope, ids: [
        found for text in (*astuple(ids), MARK, REVISION.revision_id) for found in scope.find(text)
    ],
    "holdings": lambda scope, ids: scope.holdings().eval_runs + scope.holdings().stores,
    "listed_episodes": lambda scope, ids: scope.listed_episodes([ids.episode, ids.archived]),
    "newest_episodes": lambda scope, ids: scope.newest_episodes(10),
    "offered_values": lambda scope, ids: [
        value for each in astuple(scope.offered_values()) for value in each
    ],
    "scenario_of_episode": lambda scope, ids: scope.scenario_of_episode(ids.episode),
    "uses_of_episode": lambda scope, ids: scope.uses_of_episode(ids.episode),
    "put_part": lambda scope, ids: scope.put_part(ids.upload, 1, 1, "stolen"),
    "count_due": lambda scope, ids: sum(scope.count_due(ANY_OLD)),
    "due_episodes": lambda scope, ids: scope.due_episodes(ANY_OLD, 10),
    "lock_due": lambda scope, ids: scope.lock_due(ANY_OLD, 10),
    "delete_retention_policy": lambda scope, ids: scope.delete_retention_policy(ids.retention),
    "hold_episode": lambda scope, ids: scope.hold_episode(ids.episode, "stolen", "x"),
    "holds": lambda scope, ids: scope.holds(),
    "lift_hold": lambda scope, ids: scope.lift_hold(ids.archived),
    "retention_policies": lambda scope, ids: scope.retention_policies(),
    "put_off_objects": lambda scope, ids: scope.put_off_objects([DoomedObject(f"{MARK}/gone.npz")]),
    "sampled_artifacts": lambda scope, ids: scope.sampled_artifacts(10),
    "stored_artifacts": lambda scope, ids: scope.stored_artifacts(10),
    "quota_usage": lambda scope, ids: scope.quota_usage().episodes + scope.quota_usage().bytes,
    "recount_usage": lambda scope, ids: scope.recount_usage().episodes,
    "end_sessions": lambda scope, ids: scope.end_sessions(ids.owner),
    "remove_member": lambda scope, ids: scope.remove_member(ids.owner),
    "request_artifact": lambda scope, ids: scope.request_artifact(ids.episode, "actions", "k", "t"),
    "restore_episode": lambda scope, ids: scope.restore_episode(ids.archived),
    "revoke_invitation": lambda scope, ids: scope.revoke_invitation(ids.invitation),
    "revoke_key": lambda scope, ids: scope.revoke_key(ids.key),
    "set_artifact": lambda scope, ids: scope.set_artifact(ids.episode, "video", size=1),
    "set_role": lambda scope, ids: scope.set_role(ids.owner, "viewer"),
    "stale_uploads": lambda scope, ids: scope.stale_uploads(SOON),
    "tag_episode": lambda scope, ids: scope.tag_episode(ids.episode, ["stolen"]),
    "upload": lambda scope, ids: scope.upload(ids.upload),
    # eval runs
    "all_eval_results": lambda scope, ids: scope.all_eval_results(ids.eval_run),
    "change_eval_run": lambda scope, ids: scope.change_eval_run(ids.eval_run, {"name": "stolen"}),
    "completed_runs": lambda scope, ids: scope.completed_runs(
        baseline_policy_version=None, candidate_prefix=MARK, limit=10
    ),
    "delete_eval_run": lambda scope, ids: scope.delete_eval_run(ids.eval_run),
    "episode_heads": lambda scope, ids: scope.episode_heads([ids.episode]),
    "episode_labels": lambda scope, ids: scope.episode_labels([ids.episode], [MARK]),
    "episode_outcomes": lambda scope, ids: scope.episode_outcomes([ids.episode]),
    "episodes_of": lambda scope, ids: scope.episodes_of([ids.episode]),
    "eval_attempts": lambda scope, ids: scope.eval_attempts(ids.eval_run)[0],
    "eval_result_ids": lambda scope, ids: scope.eval_result_ids(ids.eval_run, [ids.episode]),
    "eval_results": lambda scope, ids: scope.eval_results(ids.eval_run)[0],
    "eval_run": lambda scope, ids: scope.eval_run(ids.eval_run),
    "eval_runs": lambda scope, ids: [
        *scope.eval_runs(EvalRunFilter())[0],
        *scope.eval_runs(EvalRunFilter(candidate_policy_version=MARK))[0],
    ],
    "replays_of_other_policies": lambda scope, ids: scope.replays_of_other_policies(
        ids.eval_run, [ids.episode, ids.archived]
    ),
    "recount_eval_run": lambda scope, ids: scope.recount_eval_run(ids.eval_run, "completed"),
    "stale_eval_runs": lambda scope, ids: scope.stale_eval_runs(SOON),
    "unknown_episodes": lambda scope, ids: scope.unknown_episodes([ids.episode]) != [ids.episode],
    "write_eval_results": lambda scope, ids: scope.write_eval_results(
        ids.eval_run, [NewResult(ids.episode, "failed", {})]
    ),
    # the ledger and locked gates
    "enter_in_ledger": lambda scope, ids: scope.enter_in_ledger(ids.eval_run),
    "earlier_runs": lambda scope, ids: scope.earlier_runs(ids.eval_run),
    "fresh_baselines": lambda scope, ids: scope.fresh_baselines(EpisodeFilter(), 10, 0)[0],
    "locked_gate": lambda scope, ids: scope.locked_gate(MARK),
    "locked_gates": lambda scope, ids: scope.locked_gates(),
    "unlock_gate": lambda scope, ids: scope.unlock_gate(MARK),
    # analyses of episodes
    "analysis": lambda scope, ids: scope.analysis(ids.episode),
    "keep_analysis": lambda scope, ids: scope.keep_analysis(
        ids.episode, analyzer_version="stolen", basis="stolen", findings=[], left_out=[]
    ),
    "results_of_replay": lambda scope, ids: scope.results_of_replay(ids.episode),
    "scenarios_failed_by": lambda scope, ids: scope.scenarios_failed_by(ids.episode),
    # rollout stores
    "count_stores": lambda scope, ids: scope.count_stores(),
    "note_store": lambda scope, ids: scope.note_store(ids.store, {"problem": "stolen"}),
    "remove_store": lambda scope, ids: scope.remove_store(ids.store),
    "store": lambda scope, ids: scope.store(ids.store),
    "store_at": lambda scope, ids: scope.store_at(f"/{MARK}"),
    "stores": lambda scope, ids: scope.stores(),
    "stores_with_content": lambda scope, ids: scope.stores_with_content([MARK]),
    # scenarios
    "active_scenarios": lambda scope, ids: scope.active_scenarios(),
    "change_scenario": lambda scope, ids: scope.change_scenario(ids.scenario, {"active": False}),
    "critical_baselines": lambda scope, ids: scope.critical_baselines(ids.eval_run),
    "is_scenario": lambda scope, ids: scope.is_scenario(ids.episode),
    "delete_scenario": lambda scope, ids: scope.delete_scenario(ids.scenario),
    "mirror_results": lambda scope, ids: scope.mirror_results(ids.eval_run, MARK),
    "promote_episode": lambda scope, ids: scope.promote_episode(ids.episode, {}),
    "record_verification": lambda scope, ids: scope.record_verification(
        ids.scenario, MARK, {"status": "fail", "metrics": {}}
    ),
    "scenario": lambda scope, ids: scope.scenario(ids.scenario),
    "scenarios": lambda scope, ids: scope.scenarios()[0],
    "standings": lambda scope, ids: scope.standings(MARK),
    # webhooks
    "announce": lambda scope, ids: scope.announce(MARK, lambda _: "stolen"),
    "delete_webhook": lambda scope, ids: scope.delete_webhook(ids.webhook),
    "delete_webhooks_of": lambda scope, ids: scope.delete_webhooks_of([MARK]),
    "deliveries": lambda scope, ids: scope.deliveries(ids.webhook)[0],
    "enqueue": lambda scope, ids: scope.enqueue(ids.webhook, MARK, lambda _: "stolen"),
    "forget_deliveries": lambda scope, ids: scope.forget_deliveries(SOON),
    "next_delivery_at_us": lambda scope, ids: scope.next_delivery_at_us(),
    "note_attempt": lambda scope, ids: scope.note_attempt(
        DeliveryRow(ids.delivery, ids.webhook, MARK, "", "pending", 0, [], 1, 1, None),
        {},
        status="delivered",
        next_attempt_at_us=1,
    ),
    "pause_webhook": lambda scope, ids: scope.pause_webhook(ids.webhook, paused=True),
    "take_deliveries": lambda scope, ids: scope.take_deliveries(1, 10),
    "webhook": lambda scope, ids: scope.webhook(ids.webhook),
    "webhooks": lambda scope, ids: scope.webhooks(),
}
"""What the second asks about the rows of the first. Nothing is the only right answer to each."""

ADDS_TO_ITS_OWN: dict[str, Callable[[Scope, Ids], Any]] = {
    "add_retention_policy": lambda scope, ids: scope.add_retention_policy(
        replace(ANY_OLD, id=ids.retention)
    ),
    "new_retention_policy": lambda scope, ids: scope.new_retention_policy(1),
    "add_member": lambda scope, ids: scope.add_member(ids.owner, "viewer"),
    "audit": lambda scope, ids: scope.audit("event", subject=ids.episode),
    "create_episode": lambda scope, ids: scope.create_episode({}, (), (MARK, "another digest")),
    "create_episodes": lambda scope, ids: scope.create_episodes([({"tags": [MARK]}, ())]),
    "create_eval_run": lambda scope, ids: scope.create_eval_run(RUN, (), (MARK, "another digest")),
    "create_key": lambda scope, ids: scope.create_key(new_id()[-10:], "h"),
    "lock_gate": lambda scope, ids: scope.lock_gate(MARK, {}, "another digest", "x"),
    "add_store": lambda scope, ids: scope.add_store(
        MARK,
        f"/{MARK}",
        "x",
        {"manifest_sha256": None, "content_sha256": None, "counts": None},
    ),
    "create_webhook": lambda scope, ids: scope.create_webhook({**HOOK, "id": ids.webhook}),
    "invite": lambda scope, ids: scope.invite(
        f"{MARK}@example.org", "owner", token_hash=new_id(), expires_at_us=SOON
    ),
    "register_policy_revision": lambda scope, ids: scope.register_policy_revision(
        msgspec.structs.replace(REVISION, policy_digest="another digest")
    ),
    "rename_organisation": lambda scope, ids: scope.rename_organisation("renamed"),
    "set_quota": lambda scope, ids: scope.set_quota(episodes=0, bytes_=0),
}
"""These change something, and it may only be something of whoever asks."""


def test_no_method_of_scope_is_left_out() -> None:
    public = {
        name
        for name, member in inspect.getmembers(Scope, inspect.isfunction)
        if not name.startswith("_")
    }
    assert set(CALLS) | set(ADDS_TO_ITS_OWN) == public


# -------------------------------------------------------------------------------------- three worlds


@pytest.fixture(scope="module", params=["sqlite", "postgres", "postgres without policies"])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """The last one is served by a superuser, whom policies do not hold back: there, Scope stands alone."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("tenancy") / "rollbook.db"
        path.write_bytes(request.getfixturevalue("migrated_sqlite").read_bytes())
        database: Database = SqliteDatabase(path)
        unprotected = sqlite_engine(path)
    else:
        cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
        url = cluster.new_database(migrated=True)
        as_admin = cluster.admin_url(urlsplit(url).path[1:])
        database = open_database(url if request.param == "postgres" else as_admin)
        unprotected = sa.create_engine(postgres_url(as_admin))
    with made_world(database, unprotected) as made:
        yield made


@pytest.fixture(scope="module")
def kept(world: World) -> dict[str, list[Any]]:
    """Everything of the first, before anyone else tried anything. Nothing here may change it."""
    return everything_of_the_first(world)


def test_the_first_has_something_in_every_table_to_be_stolen(kept: dict[str, list[Any]]) -> None:
    assert all(kept.values())


@pytest.mark.parametrize("name", CALLS)
def test_the_second_gets_nothing_and_changes_nothing(
    world: World, kept: dict[str, list[Any]], name: str
) -> None:
    answer = world.second.write(lambda scope: CALLS[name](scope, world.ids))
    assert not any(answer) if isinstance(answer, list) else not answer
    assert MARK not in repr(answer)
    assert everything_of_the_first(world) == kept


@pytest.mark.parametrize("name", ADDS_TO_ITS_OWN)
def test_what_another_adds_is_its_own(world: World, kept: dict[str, list[Any]], name: str) -> None:
    newcomer = new_organisation(world.first.database)
    newcomer.write(lambda scope: ADDS_TO_ITS_OWN[name](scope, world.ids))
    assert everything_of_the_first(world) == kept


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_id_and_a_foreign_one_are_answered_alike(world: World, name: str) -> None:
    unknown = Ids(**dict.fromkeys(Ids.__annotations__, "unknown"))
    answers = [
        world.second.write(lambda scope, ids=ids: CALLS[name](scope, ids))  # type: ignore[misc]
        for ids in (world.ids, unknown)
    ]
    assert answers[0] == answers[1]


def test_the_first_itself_finds_it_all(world: World) -> None:
    """Or the tests above would prove nothing."""
    looks = (
        "artifact",
        "audit_events",
        "doomed_objects",
        "episode",
        "episodes",
        "invitations",
        "key",
        "keys",
        "known_objects",
        "member",
        "members",
        "organisation",
        "parts",
        "policy_revisions",
        "training_source",
        "training_sources",
        "batch_records",
        "ancestry_of",
        "batches_named",
        "evidence_of",
        "episode_origins",
        "revision_rows",
        "revisions_named",
        "family_of",
        "episodes_of_policy",
        "runs_of_policy",
        "eval_result_of",
        "attempts_of_pair",
        "newest_candidates",
        "newest_verifications",
        "verifications",
        "quota_usage",
        "stale_uploads",
        "upload",
        "active_scenarios",
        "all_eval_results",
        "count_made_by",
        "critical_baselines",
        "is_scenario",
        "keys_made_by_key",
        "deliveries",
        "analysis",
        "browse_episodes",
        "decided_runs",
        "deletions",
        "find",
        "holdings",
        "listed_episodes",
        "newest_episodes",
        "offered_values",
        "scenario_of_episode",
        "uses_of_episode",
        "results_of_replay",
        "count_stores",
        "store",
        "store_at",
        "stores",
        "stores_with_content",
        "episode_heads",
        "episode_labels",
        "episode_outcomes",
        "episodes_of",
        "eval_attempts",
        "eval_result_ids",
        "eval_results",
        "eval_run",
        "eval_runs",
        "next_delivery_at_us",
        "scenario",
        "scenarios",
        "standings",
        "webhook",
        "webhooks",
    )
    for name in looks:
        assert world.first.read(lambda scope, name=name: CALLS[name](scope, world.ids)), name  # type: ignore[misc]


def test_the_same_id_in_two_organisations_names_two_episodes(shared_database: Database) -> None:
    first, second = new_organisation(shared_database), new_organisation(shared_database)
    for org, kind in ((first, "video"), (second, "actions")):
        slot = (kind, f"{org.org_id}/{kind}", "video/mp4")
        values = {"id": "same", "name": kind, "tags": ["t"], "metadata": {"a": 1}}
        org.write(lambda scope, v=values, s=slot: scope.create_episode(v, [s]))  # type: ignore[misc]
    for org, kind in ((first, "video"), (second, "actions")):
        found = org.read(lambda scope: scope.episodes(EpisodeFilter(tags=("t",)))).episodes
        assert [(each.name, [it.kind for it in each.artifacts]) for each in found] == [
            (kind, [kind])
        ]
    first.write(lambda scope: scope.delete_episode("same"))
    left = second.read(lambda scope: scope.episodes(EpisodeFilter(metadata={"a": 1}))).episodes
    assert [each.artifacts[0].kind for each in left] == ["actions"]
