"""The server of the examples cleans up after itself."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from examples.replay.throwaway_server import throwaway_server
from rollbook.client import Client

pytestmark = pytest.mark.slow


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def test_a_throwaway_server_ends_with_an_error_too(tmp_path: Path) -> None:
    def broken() -> None:
        with throwaway_server(tmp_path / "server") as (url, key):
            with Client(base_url=url, api_key=key) as client:
                assert not list(client.episodes())
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        broken()
    deadline = time.monotonic() + 5
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(tmp_path)
