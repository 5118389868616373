"""A server of today opens the database that the first release left, with a row in every table, and goes on with it.

tests/golden/first_release.json holds the rows as that release wrote them, and the secrets whose hashes are in them.
The clock of the tests runs on, so sessions, links and invitations in it end in the year 2099.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy as sa

from rollbook.app import create_app
from rollbook.server.db.migrate import current_revision, migrate
from rollbook.server.db.open import postgres_url
from rollbook.server.db.sqlite import sqlite_engine, sqlite_path
from rollbook.server.settings import Settings
from tests.server.postgres_cluster import PostgresCluster

FIRST: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "first_release.json").read_text("utf-8")
)
SECRETS: dict[str, str] = FIRST["secrets"]
CONTENT = b"sensors of a robot\n" * 3
CHANGED_SINCE: dict[str, set[str]] = {}
"""Columns of the first release, by table, whose values a later migration changes on purpose."""


@pytest.fixture
def engine(empty_database_url: str, request: pytest.FixtureRequest) -> sa.Engine:
    """As somebody whom no policy holds back."""
    if empty_database_url.startswith("sqlite"):
        return sqlite_engine(sqlite_path(empty_database_url))
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    return sa.create_engine(
        postgres_url(cluster.admin_url(urlsplit(empty_database_url).path[1:])),
        poolclass=sa.pool.NullPool,
    )


@pytest.fixture
def old_database(
    empty_database_url: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> str:
    """At the first revision, and full. Only statements written here touch it, no query of today."""
    from alembic import command

    upgrade = command.upgrade
    with monkeypatch.context() as patch:
        patch.setattr(command, "upgrade", lambda config, _head: upgrade(config, "0001"))
        assert migrate(empty_database_url) == ["0001"]
    with engine.begin() as connection:
        there = set(sa.inspect(connection).get_table_names()) - {"alembic_version"}
        assert there == {name for name, rows in FIRST["tables"].items() if rows}
        for name, rows in FIRST["tables"].items():
            marks = ", ".join(f":{column}" for column in rows[0])
            columns = ", ".join(rows[0])
            connection.execute(sa.text(f"INSERT INTO {name} ({columns}) VALUES ({marks})"), rows)
        if connection.dialect.name == "postgresql":
            next_id = "SELECT setval('audit_log_id_seq', (SELECT max(id) FROM audit_log))"
            connection.execute(sa.text(next_id))
    return empty_database_url


def rows_of(engine: sa.Engine) -> dict[str, list[str]]:
    """The columns of the first release, whatever else is there now. JSON is compared as such."""
    found = {}
    with engine.connect() as connection:
        for name, rows in FIRST["tables"].items():
            columns = sorted(set(rows[0]) - CHANGED_SINCE.get(name, set()))
            query = sa.text(f"SELECT {', '.join(columns)} FROM {name}")
            found[name] = sorted(
                repr([_plain(value) for value in row]) for row in connection.execute(query)
            )
    return found


def _plain(value: object) -> object:
    if isinstance(value, str) and value.startswith(("{", "[")):
        return json.loads(value)
    return value


def test_an_upgrade_keeps_every_row_of_the_first_release(
    old_database: str, engine: sa.Engine
) -> None:
    before = rows_of(engine)
    assert all(before.values())
    applied = migrate(old_database)
    assert applied[0] == "0002"
    assert current_revision(old_database) == applied[-1]
    assert rows_of(engine) == before


def test_everything_of_the_first_release_works_after_the_upgrade(
    old_database: str, tmp_path: Path
) -> None:
    settings = Settings.load(
        tmp_path / "data", database_url=old_database, reap_every_s=0, webhook_poll_s=0
    )
    lay_blobs(settings.data_dir / "blobs")

    async def story() -> None:
        async with serving_in_process(settings) as client_for:
            for look in LOOKS:
                await look(client_for)

    asyncio.run(story())


def test_runs_of_an_older_release_know_their_results_and_their_deleted_baselines(
    old_database: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic import command

    upgrade = command.upgrade
    with monkeypatch.context() as patch:
        patch.setattr(command, "upgrade", lambda config, _head: upgrade(config, "0008"))
        migrate(old_database)
    kept = the_row("episodes", name="pick 12")
    of = {"org_id": kept["org_id"]}
    run = {
        **of,
        "id": "r",
        **dict.fromkeys(("candidate_policy_version", "runner_kind", "gate_digest"), "x"),
        **dict.fromkeys(("gate", "metadata"), "{}"),
        **dict.fromkeys(("episodes_failed", "revision", "created_at_us", "updated_at_us"), 0),
        "status": "completed",
        "episode_count": 3,
        "episodes_completed": 1,
    }
    others = [each for each in FIRST["tables"]["episodes"] if each["org_id"] == kept["org_id"]][:2]
    results = [
        {
            **of,
            "eval_run_id": "r",
            "position": position,
            "id": f"row {position}",
            "baseline_episode_id": each["id"],
            "status": status,
            "metrics": "{}",
            "updated_at_us": 0,
        }
        for position, (each, status) in enumerate(zip(others, ("complete", "pending"), strict=True))
    ]
    with engine.begin() as connection:
        for name, rows in (("eval_runs", [run]), ("eval_results", results)):
            columns = ", ".join(rows[0])
            marks = ", ".join(f":{column}" for column in rows[0])
            connection.execute(sa.text(f"INSERT INTO {name} ({columns}) VALUES ({marks})"), rows)
    migrate(old_database)
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT altered, retried FROM eval_runs")).all()
        query = sa.text("SELECT attempts FROM eval_results ORDER BY position")
        attempts = connection.execute(query).scalars().all()
    assert [tuple(row) for row in found] == [(1, 0)]
    assert attempts == [1, 0]


def lay_blobs(folder: Path) -> None:
    """As the first release left them: one object, and one upload that has begun."""
    upload = the_row("uploads")
    files = {
        folder / "objects" / the_row("artifacts", status="stored")["object_key"]: CONTENT,
        folder / "uploads" / upload["store_id"] / "key": upload["object_key"].encode(),
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True)
        path.write_bytes(content)


ClientFor = Callable[..., httpx.AsyncClient]


@asynccontextmanager
async def serving_in_process(settings: Settings) -> AsyncIterator[ClientFor]:
    app = create_app(settings)
    transport = httpx.ASGITransport(app)

    def client_for(secret: str | None = None, **headers: str) -> httpx.AsyncClient:
        if secret is not None:
            headers["Authorization"] = f"Bearer {SECRETS[secret]}"
        return httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers, verify=False
        )

    async with app.router.lifespan_context(app):
        yield client_for


async def answered(sending: Awaitable[httpx.Response], status: int = 200) -> Any:
    answer = await sending
    assert answer.status_code == status, answer.text
    return answer.json()


def the_row(table: str, **equal: Any) -> dict[str, Any]:
    [row] = [each for each in FIRST["tables"][table] if equal.items() <= each.items()]
    found: dict[str, Any] = row
    return found


async def episodes_are_read_and_found(client_for: ClientFor) -> None:
    kept = the_row("episodes", name="pick 12")
    async with client_for("api_key") as client:
        listed = (await answered(client.get("/api/episodes?with_archived=true")))["episodes"]
        assert {each["id"] for each in listed} == {
            each["id"] for each in FIRST["tables"]["episodes"] if each["org_id"] == kept["org_id"]
        }
        one = await answered(client.get(f"/api/episodes/{kept['id']}"))
        for name in (
            "robot",
            "policy_version",
            "env_version",
            "git_sha",
            "seed",
            "metadata",
            "tags",
        ):
            assert one[name] == FIRST["created"][name], name
        assert (one["status"], one["duration_s"]) == ("ready", 0.5)
        for search in ("tag=night", "metadata.note=grün", "robot=arm-3", "name=pick"):
            found = await answered(client.get(f"/api/episodes?{search}"))
            assert [each["id"] for each in found["episodes"]] == [kept["id"]], search
    async with client_for("key_of_the_second") as client:
        assert (await answered(client.get("/api/episodes")))["episodes"] == []
        await answered(client.get(f"/api/episodes/{kept['id']}"), 404)


async def artifacts_are_downloaded(client_for: ClientFor) -> None:
    kept = the_row("artifacts", status="stored")
    path = f"/api/episodes/{kept['episode_id']}/artifact/{kept['kind']}"
    async with client_for("api_key") as client:
        answer = await client.get(path, follow_redirects=True)
    assert hashlib.sha256(answer.content).hexdigest() == kept["sha256"]


async def a_delivery_that_is_repeated_makes_no_second_episode(client_for: ClientFor) -> None:
    kept = the_row("idempotency_keys")
    async with client_for("api_key", **{"Idempotency-Key": kept["key"]}) as client:
        again = await client.post("/api/ingest/episode", json=FIRST["created"])
    assert again.json()["episode_id"] == kept["episode_id"]


async def a_recording_goes_on(client_for: ClientFor) -> None:
    kept = the_row("episodes", status="recording")
    path = f"/api/ingest/episode/{kept['id']}"
    async with client_for("api_key") as client:
        upload = await answered(client.get(f"{path}/upload/{the_row('uploads')['id']}"))
        assert upload["completed"] is False
        await answered(client.post(f"{path}/finalize", json={"status": "ready"}))
        await answered(client.post("/api/ingest/episode", json={"name": "after"}), 201)


async def keys_keep_their_rights(client_for: ClientFor) -> None:
    async with client_for("minted_key") as client:
        await answered(client.post("/api/ingest/episode", json={"name": "by a robot"}), 201)
        assert (await answered(client.get("/api/whoami")))["key"]["scope"] == "write"
    async with client_for("read_only_key") as client:
        assert (await answered(client.get("/api/whoami")))["key"]["scope"] == "read"
        await answered(client.get("/api/episodes"))
        await answered(client.post("/api/ingest/episode", json={}), 403)
    async with client_for("revoked_key") as client:
        await answered(client.get("/api/episodes"), 401)


async def people_stay_signed_in_and_can_sign_in(client_for: ClientFor) -> None:
    async with client_for(Cookie=f"rollbook_session={SECRETS['session']}") as client:
        who = await answered(client.get("/api/whoami"))
        assert (who["user"]["email"], who["role"]) == (SECRETS["email"], "owner")
        events = (await answered(client.get("/api/audit")))["events"]
        of_first = [
            each["id"]
            for each in FIRST["tables"]["audit_log"]
            if each["org_id"] == who["organisation"]["id"]
        ]
        assert set(of_first) <= {each["id"] for each in events}
        assert len((await answered(client.get("/api/invitations")))["invitations"]) == 1
    by_password = {"email": SECRETS["email"], "password": SECRETS["password"]}
    for credentials in (by_password, {"token": SECRETS["link_of_the_second"]}):
        async with client_for() as client:
            await answered(client.post("/api/sign-in", json=credentials))


async def an_invitation_and_a_device_that_wait_are_let_in(client_for: ClientFor) -> None:
    async with client_for() as client:
        sent = {"token": SECRETS["invitation"], "password": "another four unrelated words"}
        joined = await answered(client.post("/api/invitations/accept", json=sent))
        assert joined["role"] == "member"
        polled = await answered(
            client.post("/api/cli/auth/poll", json={"device_code": SECRETS["device_code"]})
        )
        assert polled["status"] == "approved"
    async with client_for(Authorization=f"Bearer {polled['api_key']}") as client:
        await answered(client.get("/api/episodes"))


LOOKS: tuple[Callable[[ClientFor], Awaitable[None]], ...] = (
    episodes_are_read_and_found,
    artifacts_are_downloaded,
    a_delivery_that_is_repeated_makes_no_second_episode,
    a_recording_goes_on,
    keys_keep_their_rights,
    people_stay_signed_in_and_can_sign_in,
    an_invitation_and_a_device_that_wait_are_let_in,
)
