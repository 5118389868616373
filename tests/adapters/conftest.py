"""A server to upload to, over real HTTP, and nobody's credentials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook import client as sdk
from tests.client.faulty_server import FaultyServer


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    for name in ("ROLLBOOK_API_KEY", "ROLLBOOK_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    yield
    sdk.close()


@pytest.fixture(scope="session")
def _faulty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    server = FaultyServer(tmp_path_factory.mktemp("adapter-server"))
    yield server
    server.stop()


@pytest.fixture
def wire(_faulty_server: FaultyServer) -> FaultyServer:
    _faulty_server.reset()
    return _faulty_server


@pytest.fixture
def client(wire: FaultyServer) -> Iterator[sdk.Client]:
    retries = sdk.Retries(attempts=2, first_wait_s=0.001, longest_wait_s=1)
    with sdk.Client(api_key=wire.api_key, base_url=wire.base_url, retries=retries) as made:
        yield made
