"""Tests of the portal use the servers and people of the server's tests."""

from __future__ import annotations

from tests.server.fixtures import postgres_cluster, running_server
from tests.server.people import house, sqlite_house

__all__ = ["house", "postgres_cluster", "running_server", "sqlite_house"]
