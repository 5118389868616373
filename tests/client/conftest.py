"""A server for the SDK to talk to, which fails on demand, and clients of both kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from anyio.from_thread import start_blocking_portal

from rollbook.client import Client, Retries, default
from tests.client.faulty_server import FaultyServer
from tests.client.portal import async_client

QUICK = Retries(attempts=4, first_wait_s=0.001, longest_wait_s=5, upload_for_s=0)


class AnyServer(Protocol):
    """What a test may know of a server when it is to hold for every server."""

    @property
    def base_url(self) -> str: ...

    @property
    def api_key(self) -> str: ...

    @property
    def other_api_key(self) -> str: ...


MakeClient = Callable[..., Client]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test sees the credentials or the cache of whoever runs it."""
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    for name in ("ROLLBOOK_API_KEY", "ROLLBOOK_BASE_URL", "ROLLBOOK_QUIET"):
        monkeypatch.delenv(name, raising=False)
    yield
    default.close()


@pytest.fixture(scope="session")
def _faulty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    server = FaultyServer(tmp_path_factory.mktemp("sdk-server"))
    yield server
    server.stop()


@pytest.fixture
def wire(_faulty_server: FaultyServer) -> FaultyServer:
    """As new: nothing stored, nothing to break."""
    _faulty_server.reset()
    return _faulty_server


@pytest.fixture
def server(wire: FaultyServer) -> AnyServer:
    """For tests that break nothing."""
    return wire


def _options(server: AnyServer, given: dict[str, Any]) -> dict[str, Any]:
    access = {"api_key": server.api_key, "base_url": server.base_url}
    return {**access, "retries": QUICK, **given}


@pytest.fixture
def client_of() -> Iterator[MakeClient]:
    """`client_of(server, spool=…)`: quick to give up, closed when the test ends."""
    made: list[Client] = []

    def make(server: AnyServer, **options: Any) -> Client:
        made.append(Client(**_options(server, options)))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture(params=["blocking", "asyncio"])
def any_client_of(
    request: pytest.FixtureRequest, client_of: MakeClient
) -> Iterator[Callable[..., Any]]:
    """As `client_of`, once for each kind of client."""
    if request.param == "blocking":
        yield client_of
        return
    with start_blocking_portal(request.param) as portal:
        made: list[Any] = []

        def make(server: AnyServer, **options: Any) -> Any:
            made.append(async_client(portal, **_options(server, options)))
            return made[-1]

        yield make
        for client in made:
            client.close()
