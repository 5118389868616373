"""One server for many tests: starting it takes longer than most of them. They share it and mind each other's rows."""

from __future__ import annotations

from contextlib import closing

from rollbook.server.bootstrap import bootstrap
from rollbook.server.db.engine import Tenant
from rollbook.server.db.open import open_database
from rollbook.server.queries import Scope
from tests.server.fixtures import StartServer
from tests.server.running import Access, RunningServer

BODY_LIMIT = 256 << 10
ARTIFACT_LIMIT = 64 << 20

_started: list[RunningServer] = []


def shared_server(running_server: StartServer) -> RunningServer:
    """Started by the first who asks, and ended with the session by `running_server`."""
    for server in _started:
        if server.process is not None and server.process.poll() is None:
            return server
    server = running_server(body_limit_bytes=BODY_LIMIT, artifact_limit_bytes=ARTIFACT_LIMIT)
    server.prepare()
    server.start()
    _started.append(server)
    return server


def new_organisation(
    server: RunningServer, *, quota_episodes: int | None = None, quota_bytes: int | None = None
) -> Access:
    """Made beside the running server, as `rollbook server bootstrap` does."""
    with closing(open_database(f"sqlite:///{server.data_dir / 'rollbook.db'}")) as database:
        made = bootstrap(database, "Another")
        database.write_now(
            Tenant(org_id=made.org_id),
            lambda connection: Scope(connection, made.org_id).set_quota(
                episodes=quota_episodes, bytes_=quota_bytes
            ),
        )
    return Access(made.org_id, made.user_id, made.email, made.api_key, made.sign_in_token)
