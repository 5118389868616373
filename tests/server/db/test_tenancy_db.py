"""No organisation reads, changes or deletes what belongs to another: not through Scope, and on PostgreSQL not even
by SQL that forgot to ask whose rows they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg
import pytest
import sqlalchemy as sa

from rollbook.contracts.policy import PolicyRevision
from rollbook.errors import RollbookError
from rollbook.server.db import tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import NOBODY, Database, Tenant
from rollbook.server.db.migrate import migrate
from rollbook.server.db.open import open_database, postgres_url
from rollbook.server.db.postgres import PostgresDatabase
from rollbook.server.db.sqlite import SqliteDatabase, sqlite_engine
from rollbook.server.db.tables import TENANT_TABLES
from rollbook.server.queries import (
    ArtifactRow,
    DeliveryRow,
    DoomedObject,
    EpisodeFilter,
    EvalRunFilter,
    Finalization,
    NewResult,
    Scope,
    create_session,
    invitation_by_hash,
    key_by_id,
    organisations_of_user,
    touch_key,
)
from tests.server.postgres_cluster import PostgresCluster
from tests.server.tenants import Organisation, in_seconds, new_organisation

MARK = "only-of-the-first"


@dataclass(frozen=True)
class Ids:
    """Of everything the first organisation has; the second is told them all."""

    org: str
    owner: str
    episode: str
    archived: str
    upload: str
    key: str
    invitation: str
    object_key: str
    eval_run: str
    scenario: str
    webhook: str
    delivery: str
    policy_revision: str


RUN = {
    "candidate_policy_version": MARK,
    "runner_kind": "client",
    "metadata": {MARK: MARK},
    "gate": {MARK: MARK},
    "gate_digest": MARK,
}
REVISION = PolicyRevision(
    policy_family=MARK, revision_id=MARK, policy_digest=MARK, produced_at_ms=1
)
PASSED = {"status": "pass", "metrics": {MARK: 1}}
HOOK = {
    "url": f"https://{MARK}.example",
    "events": [MARK],
    "salt": MARK,
    "secret_hash": MARK,
}


def fill(org: Organisation) -> Ids:
    """One row at least in every table."""
    object_key = f"{MARK}/video.mp4"
    key_id, token_hash = new_id()[-10:], f"{MARK}-{new_id()}"

    def record(scope: Scope) -> Ids:
        values = dict.fromkeys(("name", "robot", "policy_version", "env_version", "git_sha"), MARK)
        video = ("video", object_key, "video/mp4")
        more = {"policy_revision": REVISION, "seed": 4711, "tags": [MARK], "metadata": {MARK: MARK}}
        made = scope.create_episode({**values, **more}, [video], (MARK, MARK))
        waiting = {"rendition": "pending", "rendition_key": f"{MARK}/copy.mp4"}
        scope.set_artifact(made.id, "video", size=4711, sha256=MARK, **waiting)
        upload = scope.create_upload(made.id, "video", size=9, part_size=5, store_id=MARK)
        assert upload is not None
        scope.put_part(upload.id, 1, 5, MARK)
        archived = scope.create_episode({"name": MARK})
        scope.archive_episode(archived.id)
        gone = scope.create_episode(
            {}, [("actions", f"{MARK}/gone.npz", "application/octet-stream")]
        )
        scope.delete_episode(gone.id)
        scope.create_key(key_id, MARK, label=MARK)
        sent = scope.invite(
            f"{MARK}@example.org", "admin", token_hash=token_hash, expires_at_us=in_seconds(600)
        )
        scope.audit(MARK, actor=MARK, subject=MARK)
        policy = {"candidate_policy_revision_id": made.policy_revision_id}
        run = scope.create_eval_run({**RUN, **policy}, [made.id, archived.id], (MARK, MARK))
        scope.write_eval_results(run.id, [NewResult(made.id, "complete", {MARK: 1}, made.id)])
        promoted = scope.promote_episode(made.id, {"severity": "critical", "name": MARK})
        assert promoted is not None
        scope.record_verification(promoted[0].id, MARK, {**PASSED, "eval_run_id": run.id})
        hook = scope.create_webhook({**HOOK, "id": new_id()})
        delivery = scope.enqueue(hook.id, MARK, lambda _: MARK)
        assert delivery is not None
        assert made.policy_revision_id is not None
        return Ids(
            policy_revision=made.policy_revision_id,
            eval_run=run.id,
            scenario=promoted[0].id,
            webhook=hook.id,
            delivery=delivery.id,
            org=org.org_id,
            owner=org.owner_id,
            episode=made.id,
            archived=archived.id,
            upload=upload.id,
            key=key_id,
            invitation=sent.id,
            object_key=object_key,
        )

    ids = org.at(in_seconds(-7200), record)
    org.database.write_now(
        NOBODY,
        lambda connection: create_session(
            connection,
            f"session of {org.org_id}",
            org.owner_id,
            org.org_id,
            csrf_token=MARK,
            expires_at_us=in_seconds(600),
        ),
    )
    return ids


SOON = in_seconds(3600)


def stolen_video(ids: Ids) -> ArtifactRow:
    """As its owner would hold it, made up by somebody else."""
    row: dict[str, Any] = dict.fromkeys(each.name for each in fields(ArtifactRow))
    about = {"kind": "video", "rendition": "pending", "rendition_key": f"{MARK}/copy.mp4"}
    return ArtifactRow(**{**row, "episode_id": ids.episode, **about})


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
    "put_part": lambda scope, ids: scope.put_part(ids.upload, 1, 1, "stolen"),
    "quota_usage": lambda scope, ids: scope.quota_usage().episodes + scope.quota_usage().bytes,
    "recount_usage": lambda scope, ids: scope.recount_usage().episodes,
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
    "episode_metadata": lambda scope, ids: scope.episode_metadata([ids.episode]),
    "episodes_of": lambda scope, ids: scope.episodes_of([ids.episode]),
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
    # scenarios
    "active_scenarios": lambda scope, ids: scope.active_scenarios(),
    "change_scenario": lambda scope, ids: scope.change_scenario(ids.scenario, {"active": False}),
    "critical_baselines": lambda scope, ids: scope.critical_baselines(ids.eval_run),
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
    "take_deliveries": lambda scope, ids: scope.take_deliveries(1, 10),
    "webhook": lambda scope, ids: scope.webhook(ids.webhook),
    "webhooks": lambda scope, ids: scope.webhooks(),
}
"""What the second asks about the rows of the first. Nothing is the only right answer to each."""

ADDS_TO_ITS_OWN: dict[str, Callable[[Scope, Ids], Any]] = {
    "add_member": lambda scope, ids: scope.add_member(ids.owner, "viewer"),
    "audit": lambda scope, ids: scope.audit("event", subject=ids.episode),
    "create_episode": lambda scope, ids: scope.create_episode({}, (), (MARK, "another digest")),
    "create_episodes": lambda scope, ids: scope.create_episodes([({"tags": [MARK]}, ())]),
    "create_eval_run": lambda scope, ids: scope.create_eval_run(RUN, (), (MARK, "another digest")),
    "create_key": lambda scope, ids: scope.create_key(new_id()[-10:], "h"),
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


@dataclass(frozen=True)
class World:
    first: Organisation
    second: Organisation
    ids: Ids
    unprotected: sa.Engine
    """Its connections are held back by no policy: they show what is really there."""


@contextmanager
def made_world(database: Database, unprotected: sa.Engine) -> Iterator[World]:
    first, second = new_organisation(database, "First"), new_organisation(database, "Second")
    yield World(first, second, fill(first), unprotected)
    database.close()
    unprotected.dispose()


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


def everything_of_the_first(world: World) -> dict[str, list[Any]]:
    with world.unprotected.connect() as connection:
        return {
            table.name: sorted(
                connection.execute(sa.select(table).where(table.c.org_id == world.ids.org)).all(),
                key=repr,
            )
            for table in tables.metadata.sorted_tables
            if "org_id" in table.c
        }


def test_the_first_has_something_in_every_table_to_be_stolen(world: World) -> None:
    kept = everything_of_the_first(world)
    assert {name for name, rows in kept.items() if not rows} == {"device_logins"}


@pytest.mark.parametrize("name", CALLS)
def test_the_second_gets_nothing_and_changes_nothing(world: World, name: str) -> None:
    before = everything_of_the_first(world)
    answer = world.second.write(lambda scope: CALLS[name](scope, world.ids))
    assert not any(answer) if isinstance(answer, list) else not answer
    assert MARK not in repr(answer)
    assert everything_of_the_first(world) == before


@pytest.mark.parametrize("name", ADDS_TO_ITS_OWN)
def test_what_another_adds_is_its_own(world: World, name: str) -> None:
    before = everything_of_the_first(world)
    newcomer = new_organisation(world.first.database)
    newcomer.write(lambda scope: ADDS_TO_ITS_OWN[name](scope, world.ids))
    assert everything_of_the_first(world) == before


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
        "quota_usage",
        "stale_uploads",
        "upload",
        "active_scenarios",
        "all_eval_results",
        "critical_baselines",
        "deliveries",
        "episode_metadata",
        "episodes_of",
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


# ------------------------------------------------------------------------------ row-level security


@pytest.fixture(scope="module")
def guarded(postgres_cluster: PostgresCluster) -> Iterator[World]:
    url = postgres_cluster.new_database(migrated=True)
    as_admin = postgres_cluster.admin_url(urlsplit(url).path[1:])
    with made_world(open_database(url), sa.create_engine(postgres_url(as_admin))) as made:
        yield made


def counts(connection: sa.Connection) -> dict[str, int]:
    """By SQL that does not say whose rows are meant."""
    return {
        name: connection.execute(
            sa.select(sa.func.count()).select_from(tables.metadata.tables[name])
        ).scalar_one()
        for name in TENANT_TABLES
    }


def test_the_application_is_not_above_the_policies(guarded: World) -> None:
    query = sa.text("SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user")
    role = guarded.first.database.read_now(NOBODY, lambda c: tuple(c.execute(query).one()))
    assert role == (False, False)


def test_without_a_tenant_there_is_nothing(guarded: World) -> None:
    assert set(guarded.first.database.read_now(NOBODY, counts).values()) == {0}
    assert set(guarded.first.database.read_now(Tenant(org_id=""), counts).values()) == {0}


def test_a_tenant_sees_its_own_rows_by_any_query(guarded: World) -> None:
    seen = guarded.first.database.read_now(Tenant(org_id=guarded.ids.org), counts)
    assert all(seen.values())
    other = guarded.first.database.read_now(Tenant(org_id=guarded.second.org_id), counts)
    assert {name for name, count in other.items() if count} == {"memberships", "usage"}


@pytest.mark.parametrize("ends", ["well", "with an error of its own", "with an error of SQL"])
def test_a_connection_that_is_used_again_remembers_no_tenant(guarded: World, ends: str) -> None:
    database = guarded.first.database

    def work(connection: sa.Connection) -> None:
        assert counts(connection)["episodes"] > 0
        if ends == "with an error of its own":
            raise LookupError
        if ends == "with an error of SQL":
            connection.execute(sa.text("SELECT 1 / 0"))

    futures = [database.submit_write(Tenant(org_id=guarded.ids.org), work) for _ in range(40)]
    assert [future.exception() is None for future in futures] == [ends == "well"] * 40
    assert isinstance(database, PostgresDatabase)
    with ExitStack() as stack:  # all connections of the pool, by a way that names no tenant at all
        idle = database._engine.pool.checkedin()  # type: ignore[attr-defined]
        assert idle
        for _ in range(idle):
            assert set(counts(stack.enter_context(database._engine.connect())).values()) == {0}
    after = [database.submit_read(NOBODY, counts) for _ in range(40)]
    assert all(set(future.result().values()) == {0} for future in after)


def test_a_row_of_another_tenant_cannot_be_written(guarded: World) -> None:
    database = guarded.second.database
    row = {"key": "k", "request_digest": "d", "episode_id": "e", "created_at_us": 1}
    insert = sa.insert(tables.idempotency_keys).values(org_id=guarded.ids.org, **row)
    for tenant in (Tenant(org_id=guarded.second.org_id), NOBODY):
        with pytest.raises(sa.exc.ProgrammingError, match="row-level security"):
            database.write_now(tenant, lambda connection: connection.execute(insert))


def test_a_row_cannot_be_given_away(guarded: World) -> None:
    guarded.second.episode()
    move = sa.update(tables.episodes).values(org_id=guarded.ids.org)
    with pytest.raises(sa.exc.ProgrammingError, match="row-level security"):
        guarded.second.database.write_now(
            Tenant(org_id=guarded.second.org_id), lambda connection: connection.execute(move)
        )


@pytest.mark.parametrize("name", TENANT_TABLES)
def test_sql_that_forgets_the_tenant_changes_only_its_own(guarded: World, name: str) -> None:
    before = everything_of_the_first(guarded)
    table = tables.metadata.tables[name]
    column = next(iter(table.c))
    for statement in (sa.update(table).values({column.name: column}), sa.delete(table)):
        for tenant in (NOBODY, Tenant(org_id=new_id())):
            changed = guarded.second.database.write_now(
                tenant,
                lambda connection, statement=statement: connection.execute(statement).rowcount,  # type: ignore[misc]
            )
            assert changed == 0
    assert everything_of_the_first(guarded) == before


def test_a_row_cannot_hang_on_a_row_of_another_tenant(shared_database: Database) -> None:
    """On both databases: a reference within a tenant names the tenant."""
    first, second = new_organisation(shared_database), new_organisation(shared_database)
    made = first.episode()
    row = {"episode_id": made.id, "kind": "video", "object_key": "k", "content_type": "t"}
    insert = sa.insert(tables.artifacts).values(
        org_id=second.org_id, status="requested", requested_at_us=1, **row
    )
    with pytest.raises(sa.exc.IntegrityError, match=r"(?i)foreign key"):
        shared_database.write_now(
            Tenant(org_id=second.org_id), lambda connection: connection.execute(insert)
        )


# ---------------------------------------------------------------------- before the tenant is known


def test_a_user_sees_their_memberships_and_nothing_more(guarded: World) -> None:
    database, owner = guarded.first.database, guarded.ids.owner
    seen = database.read_now(Tenant(user_id=owner), counts)
    assert {name: count for name, count in seen.items() if count} == {"memberships": 1}
    assert (
        len(database.read_now(Tenant(user_id=owner), lambda c: organisations_of_user(c, owner)))
        == 1
    )
    stranger = Tenant(user_id=guarded.second.owner_id)
    assert database.read_now(stranger, lambda c: organisations_of_user(c, owner)) == []
    promote = sa.update(tables.memberships).values(role="owner")
    assert database.write_now(Tenant(user_id=owner), lambda c: c.execute(promote).rowcount) == 0


def test_a_key_is_seen_by_who_names_it_and_only_its_last_use_can_be_changed(guarded: World) -> None:
    database, key_id = guarded.first.database, guarded.ids.key
    by_key = Tenant(key_id=key_id)
    seen = database.read_now(by_key, counts)
    assert {name: count for name, count in seen.items() if count} == {"api_keys": 1}
    assert database.read_now(by_key, lambda c: key_by_id(c, key_id)) is not None
    assert database.read_now(NOBODY, lambda c: key_by_id(c, key_id)) is None
    assert database.write_now(by_key, lambda c: touch_key(c, key_id))
    for change in (
        {"org_id": guarded.second.org_id},
        {"revoked_at_us": 1},
        {"secret_hash": "mine"},
    ):
        statement = sa.update(tables.api_keys).values(**change)
        with pytest.raises(sa.exc.ProgrammingError, match="only its last use"):
            database.write_now(by_key, lambda c, s=statement: c.execute(s))  # type: ignore[misc]
    assert database.write_now(by_key, lambda c: c.execute(sa.delete(tables.api_keys)).rowcount) == 0


def test_an_invitation_is_seen_by_who_holds_its_token(guarded: World) -> None:
    with guarded.unprotected.connect() as connection:
        token_hash = connection.execute(sa.select(tables.invitations.c.token_hash)).scalar_one()
    holder = Tenant(invitation_hash=token_hash)
    database = guarded.first.database
    assert database.read_now(holder, lambda c: invitation_by_hash(c, token_hash)) is not None
    assert database.read_now(NOBODY, lambda c: invitation_by_hash(c, token_hash)) is None
    seen = database.read_now(holder, counts)
    assert {name: count for name, count in seen.items() if count} == {"invitations": 1}
    change = sa.update(tables.invitations).values(role="owner")
    assert database.write_now(holder, lambda c: c.execute(change).rowcount) == 0


def test_an_organisation_is_made_in_a_transaction_of_its_own_only(guarded: World) -> None:
    from rollbook.server.queries import create_organisation

    database = guarded.first.database
    with pytest.raises((sa.exc.ProgrammingError, RollbookError)):
        database.write_now(NOBODY, lambda c: create_organisation(c, new_id(), "Stray"))


def test_a_role_that_owns_nothing_can_serve(postgres_cluster: PostgresCluster) -> None:
    url = postgres_cluster.new_database(migrated=True)
    with psycopg.connect(url, autocommit=True) as owner:
        name = "rollbook_only_serves"
        with psycopg.connect(postgres_cluster.admin_url(), autocommit=True) as admin:
            admin.execute(f"CREATE ROLE {name} LOGIN NOSUPERUSER NOBYPASSRLS".encode())
        tables_of = "ALL TABLES IN SCHEMA public"
        owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables_of} TO {name}".encode())
        owner.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {name}".encode())
    as_server = url.replace("rollbook_app", name, 1)
    assert migrate(as_server) == []
    with closing(open_database(as_server)) as database:
        ids = fill(new_organisation(database))
        assert set(database.read_now(NOBODY, counts).values()) == {0}
        assert all(database.read_now(Tenant(org_id=ids.org), counts).values())
