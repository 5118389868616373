"""Settings for all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

# a slow moment of the machine is not a mistake of the code
settings.register_profile("rollbook", deadline=None)
settings.load_profile("rollbook")

LONG = ("test_benchmarks.py", "test_docs.py")
"""Files whose tests take longest. They start first, so that all workers end at about the same time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)
