"""The real public client and a real `rollbook serve`: one server for the session, clients for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook.contracts.wire.keys import KeyScope
from tests.interop.public_client import robotrace
from tests.server.running import new_key_beside
from tests.server.serving import Served, serving


@dataclass(frozen=True)
class Portal:
    """A server with one organisation, and our own API to see what arrived there."""

    base_url: str
    api_key: str
    data_dir: Path
    http: httpx.Client
    """Carries the key; follows redirects."""

    def episode(self, episode_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/api/episodes/{episode_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def artifact(self, episode_id: str, kind: str) -> bytes:
        answer = self.http.get(f"/api/episodes/{episode_id}/artifact/{kind}")
        assert answer.status_code == 200, answer.text
        return answer.content

    def episodes(self, **wanted: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.get("/api/episodes", params=wanted).json()[
            "episodes"
        ]
        return found

    def new_key(self, scope: KeyScope) -> str:
        org_id = self.http.get("/api/whoami").json()["organisation"]["id"]
        return new_key_beside(self.data_dir, org_id, scope)


def portal_of(served: Served, data_dir: Path) -> Portal:
    """Whoever asks for one closes its `http`."""
    http = httpx.Client(
        base_url=served.base_url, headers=served.headers, timeout=60, follow_redirects=True
    )
    return Portal(served.base_url, served.api_key, data_dir, http)


@pytest.fixture(scope="session")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    data = tmp_path_factory.mktemp("interop") / "data"
    with serving(data) as served:
        opened = portal_of(served, data)
        with opened.http:
            yield opened


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The public client sees no credentials of whoever runs the tests, and no test those of another."""
    monkeypatch.setenv("ROBOTRACE_HOME", str(tmp_path / "home"))
    for name in ("ROBOTRACE_API_KEY", "ROBOTRACE_BASE_URL", "ROBOTRACE_QUIET"):
        monkeypatch.delenv(name, raising=False)
    yield
    robotrace.close()


MakeRobotraceClient = Callable[..., Any]


@pytest.fixture
def robotrace_client_of() -> Iterator[MakeRobotraceClient]:
    """`robotrace_client_of(base_url, api_key)`: closed when the test ends."""
    made: list[Any] = []

    def make(base_url: str, api_key: str) -> Any:
        made.append(robotrace.Client(api_key=api_key, base_url=base_url, verbose=False))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def robotrace_client(portal: Portal, robotrace_client_of: MakeRobotraceClient) -> Any:
    """`robotrace.Client` of the shared server."""
    return robotrace_client_of(portal.base_url, portal.api_key)
