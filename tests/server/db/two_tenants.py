"""Two organisations, of which the first has something in every table and the second is told every id of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rollbook.contracts.gate import Gate
from rollbook.contracts.policy import PolicyRevision
from rollbook.server.db import tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import Database, Tenant
from rollbook.server.queries import (
    NewResult,
    Scope,
    create_device_login,
    create_session,
    create_sign_in_link,
    decide_device_login,
    take_lease,
)
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
    retention: str
    delivery: str
    policy_revision: str
    store: str


RUN = {
    "candidate_policy_version": MARK,
    "runner_kind": "client",
    "metadata": {MARK: MARK},
    "gate": Gate(cluster=MARK).as_dict(),
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
    "created_by": MARK,
    "secret_hash": MARK,
}


_TEXTS = ("name", "robot", "policy_version", "env_version", "git_sha")


def fill(org: Organisation) -> Ids:
    """One row at least in every table."""
    object_key = f"{MARK}/video.mp4"
    key_id, token_hash = new_id()[-10:], f"{MARK}-{new_id()}"

    def record(scope: Scope) -> Ids:
        values = dict.fromkeys((*_TEXTS, "created_by"), MARK)
        video = ("video", object_key, "video/mp4")
        more = {
            "policy_revision": REVISION,
            "seed": 4711,
            "tags": [MARK],
            "metadata": {MARK: MARK, "rollout": {MARK: MARK}},
        }
        made = scope.create_episode({**values, **more}, [video], (MARK, MARK))
        waiting = {"rendition": "pending", "rendition_key": f"{MARK}/copy.mp4"}
        scope.set_artifact(made.id, "video", status="stored", size=4711, sha256=MARK, **waiting)
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
        scope.audit("key.created", actor=f"key:{key_id}", subject=f"key:{MARK}")
        policy = {"candidate_policy_revision_id": made.policy_revision_id}
        run = scope.create_eval_run({**RUN, **policy}, [made.id, archived.id], (MARK, MARK))
        scope.enter_in_ledger(run.id)
        scope.lock_gate(MARK, {MARK: MARK}, MARK, MARK)
        for value in (0, 1):
            result = NewResult(made.id, "complete", {MARK: value}, made.id)
            scope.write_eval_results(run.id, [result])
        scope.keep_evidence(run.id, {MARK: MARK})
        promoted = scope.promote_episode(made.id, {"severity": "critical", "name": MARK})
        assert promoted is not None
        scope.record_verification(promoted[0].id, MARK, {**PASSED, "eval_run_id": run.id})
        policy_row = scope.new_retention_policy(9, tags=[MARK])
        scope.add_retention_policy(policy_row)
        scope.hold_episode(archived.id, MARK, MARK)
        scope.keep_analysis(
            made.id, analyzer_version=MARK, basis=MARK, findings=[{MARK: MARK}], left_out=[MARK]
        )
        seen = {"manifest_sha256": MARK, "content_sha256": MARK, "counts": {MARK: 1}}
        store = scope.add_store(MARK, f"/{MARK}", MARK, seen)
        assert store is not None
        hook = scope.create_webhook({**HOOK, "id": new_id()})
        delivery = scope.enqueue(hook.id, MARK, lambda _: MARK)
        assert delivery is not None
        assert made.policy_revision_id is not None
        scope.add_training_source(
            made.policy_revision_id, "batch", MARK, {MARK: MARK}, {MARK: MARK}
        )
        return Ids(
            policy_revision=made.policy_revision_id,
            store=store.id,
            eval_run=run.id,
            scenario=promoted[0].id,
            webhook=hook.id,
            retention=policy_row.id,
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
    org.database.write_now(Tenant(org_id=org.org_id), lambda connection: sign_in(connection, org))
    return ids


def sign_in(connection: sa.Connection, org: Organisation) -> None:
    """The owner's session, a link to sign in, a device that the owner let in, and a lease for some work."""
    soon = in_seconds(600)
    create_session(
        connection,
        secret_of("session", org.org_id),
        org.owner_id,
        org.org_id,
        csrf_token=MARK,
        expires_at_us=soon,
    )
    create_sign_in_link(connection, secret_of("link", org.org_id), org.owner_id, expires_at_us=soon)
    code = secret_of("code", org.org_id)
    create_device_login(connection, secret_of("device", org.org_id), code, expires_at_us=soon)
    decide_device_login(connection, code, approved=True, user_id=org.owner_id, org_id=org.org_id)
    take_lease(connection, secret_of("lease", org.org_id), MARK, now_us=0, until_us=soon)


def secret_of(what: str, org_id: str) -> str:
    return f"{what} of {org_id}"


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


def everything_of(world: World, org: Organisation) -> dict[str, list[Any]]:
    with world.unprotected.connect() as connection:
        return {
            table.name: rows_of(connection, table, belongs_to(table, org))
            for table in tables.metadata.sorted_tables
        }


def rows_of(
    connection: sa.Connection, table: sa.Table, which: sa.ColumnElement[bool] | None = None
) -> list[Any]:
    query = sa.select(table) if which is None else sa.select(table).where(which)
    return sorted(connection.execute(query).all(), key=repr)


def belongs_to(table: sa.Table, org: Organisation) -> sa.ColumnElement[bool]:
    if table.name == "organisations":
        return table.c.id == org.org_id
    if table.name == "users":
        return table.c.id == org.owner_id
    if table.name == "sign_in_links":
        return table.c.user_id == org.owner_id
    if table.name == "leases":
        return table.c.name == secret_of("lease", org.org_id)
    return table.c.org_id == org.org_id


def everything_of_the_first(world: World) -> dict[str, list[Any]]:
    return everything_of(world, world.first)
