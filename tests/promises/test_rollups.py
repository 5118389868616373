"""The summary of a run is a promise, byte for byte: from the function and from the server."""

from __future__ import annotations

import pytest

from tests.promises.inner import RunningServer
from tests.promises.recordings import assert_same, load_text
from tests.promises.rollup_cases import CASES, by_function, over_http


def recorded(name: str) -> str:
    return load_text("rollups.txt").partition(f"# {name}\n")[2].partition("\n")[0]


@pytest.mark.parametrize("name", CASES)
def test_the_function_gives_the_recorded_bytes(name: str) -> None:
    assert_same(f"rollups.txt, {name}", recorded(name), by_function(CASES[name]))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.over_http])
def test_the_server_sends_the_recorded_bytes(server: RunningServer, name: str) -> None:
    found = over_http(server, server.second_org, CASES[name])
    assert_same(f"rollups.txt, {name}", recorded(name), found)
