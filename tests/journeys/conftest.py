"""Servers for journeys, small and team; deployments.py says what that means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.journeys.deployments import S3_ACCESS, SMALL, Deployment, team
from tests.journeys.nursery import MortalServer, Nursery
from tests.server.blob_servers import Served, rclone_server
from tests.server.fixtures import postgres_cluster
from tests.server.postgres_cluster import PostgresCluster

__all__ = ["postgres_cluster"]

Deploy: TypeAlias = "Callable[[], Deployment]"


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with rclone_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session", params=["small", "team"])
def deploy(request: pytest.FixtureRequest) -> Deploy:
    """Gives a new, empty deployment every time."""
    if request.param == "small":
        return lambda: SMALL
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    storage: Served = request.getfixturevalue("s3")
    return lambda: team(cluster, storage)


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery"), S3_ACCESS)
    yield made
    made.close()


@pytest.fixture
def server(nursery: Nursery, deploy: Deploy, tmp_path: Path) -> Iterator[MortalServer]:
    with MortalServer(nursery, tmp_path / "data", deploy()) as running:
        yield running
