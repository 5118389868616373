"""A real server for eval runs, with baselines on it, and clients that give up quickly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.client import Client, Retries
from tests.evals.campaigns import Campaign, log_baseline
from tests.evals.faulty_proxy import FaultyProxy
from tests.server.running import RunningServer

QUICK = Retries(attempts=3, first_wait_s=0.01, longest_wait_s=1)

MakeClient = Callable[..., Client]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the credentials, the cache or the journals of whoever runs it."""
    home = tmp_path / "home"
    monkeypatch.setenv("ROLLBOOK_HOME", str(home))
    for name in ("ROLLBOOK_API_KEY", "ROLLBOOK_BASE_URL", "ROLLBOOK_QUIET"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(scope="session")
def campaign_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("campaigns")) as server:
        yield server


@pytest.fixture(scope="session")
def shared_baselines(
    campaign_server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> list[str]:
    """Five episodes of ten steps; the third begins below zero. Nobody changes or deletes them."""
    cache = tmp_path_factory.mktemp("cache")
    with Client(
        api_key=campaign_server.api_key, base_url=campaign_server.base_url, cache=cache
    ) as client:
        return [
            log_baseline(client, number, start=-1.0 if number == 2 else 1.0) for number in range(5)
        ]


@pytest.fixture
def client_at(campaign_server: RunningServer) -> Iterator[MakeClient]:
    """`client_at(base_url)`: of the first organisation, unless another key is given."""
    made: list[Client] = []

    def make(base_url: str = campaign_server.base_url, **options: Any) -> Client:
        access = {"api_key": campaign_server.api_key, "retries": QUICK, "verbose": False, **options}
        made.append(Client(base_url=base_url, **access))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def campaign(client_at: MakeClient, shared_baselines: list[str]) -> Campaign:
    return Campaign(client_at(), shared_baselines)


@pytest.fixture
def proxy(campaign_server: RunningServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(campaign_server.base_url) as running:
        yield running


@pytest.fixture
def faulty(client_at: MakeClient, proxy: FaultyProxy, shared_baselines: list[str]) -> Campaign:
    """As `campaign`, through the proxy."""
    return Campaign(client_at(proxy.base_url), shared_baselines)
