"""Tests of stores use a server with store roots, shared by a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.portal.stores_world import StoresWorld, small_store, start_stores_world
from tests.server.fixtures import StartServer, postgres_cluster, running_server

__all__ = ["postgres_cluster", "running_server"]


@pytest.fixture(scope="module")
def world(
    running_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoresWorld]:
    made = start_stores_world(running_server, tmp_path_factory.mktemp("stores"))
    small_store(made.root / "shared.zarr")
    yield made
    made.close()
