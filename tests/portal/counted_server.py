"""A server inside the process of the test, which counts the statements that it sends to its database."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import uvicorn

from rollbook.app import create_app
from rollbook.server.settings import Settings
from tests.server.running import RunningServer


@dataclass
class CountedServer(RunningServer):
    statements: list[str] = field(default_factory=list)
    """Since they were last cleared. Background work of this server is among them, that of other servers in the process
    of the test is not."""
    _database: sa.URL | None = None
    _thread: threading.Thread | None = None
    _serving: uvicorn.Server | None = None

    def start(self) -> None:
        settings = Settings.load(Path(self.data_dir), host="127.0.0.1", **self.overrides)
        config = uvicorn.Config(
            create_app(settings), host="127.0.0.1", port=0, lifespan="on", log_level="warning"
        )
        self._serving = uvicorn.Server(config)
        self._database = sa.make_url(settings.database_url)
        sa.event.listen(sa.Engine, "before_cursor_execute", self._note)
        self._thread = threading.Thread(target=self._serving.run, daemon=True)
        self._thread.start()
        while not self._serving.started:
            assert self._thread.is_alive(), "the server did not start"
            self._thread.join(0.01)
        self.port = self._serving.servers[0].sockets[0].getsockname()[1]

    def _note(self, connection: sa.Connection, cursor: Any, statement: str, *others: Any) -> None:
        assert self._database is not None, "it was started"
        if connection.engine.url.database == self._database.database:
            self.statements.append(statement)

    def close(self) -> None:
        assert self._serving is not None, "it was started"
        assert self._thread is not None
        self._serving.should_exit = True
        self._thread.join()
        sa.event.remove(sa.Engine, "before_cursor_execute", self._note)
