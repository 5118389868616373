"""What the tests of promises share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.promises.inner import RunningServer, promise_server


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The first organisation belongs to the script of the wire, the second to the rollups."""
    with promise_server(tmp_path_factory.mktemp("promises")) as running:
        yield running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials, cache or journals of whoever runs the tests."""
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    for name in ("ROLLBOOK_API_KEY", "ROLLBOOK_BASE_URL", "ROLLBOOK_QUIET", "ROLLBOOK_SECRET"):
        monkeypatch.delenv(name, raising=False)
