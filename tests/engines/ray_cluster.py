"""A Ray cluster of one node for the whole session. Starting it takes seconds, so tests that use it are slow tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

CPUS = 2
"""Of the first node."""


@dataclass
class RayCluster:
    address: str
    cluster: Any
    """A `ray.cluster_utils.Cluster`, which can add and kill nodes."""


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """Names of sockets are short, so the folder is not below the folder of the session."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_TMPDIR", folder)
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.delenv("RAY_ADDRESS", raising=False)
        from ray.cluster_utils import Cluster

        cluster: Any = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": CPUS, "include_dashboard": False},
            # Ray would replace the handler of SIGTERM of this process; the cluster ends with it anyway
            shutdown_at_exit=False,
        )
    try:
        yield RayCluster(cluster.address, cluster)
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def ray_address(ray_cluster: RayCluster) -> str:
    return ray_cluster.address
