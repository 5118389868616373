"""Records anew what users rely on: `python -m tests.promises.record [NAME …]`, from the root of the repository.

Without names everything is recorded, with names only these files of tests/golden/promises. Do it only to change a
promise on purpose, and read the difference line by line before it is committed: whatever differs there is something
that a user has to be told. A recording that does not change leaves its file as it is.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.promises.cli_script import printed
from tests.promises.digests import digests
from tests.promises.fixed_stores import store_files
from tests.promises.inner import RunningServer, promise_server
from tests.promises.names import public_names
from tests.promises.openapi_shapes import bare
from tests.promises.recordings import json_text, save
from tests.promises.rollup_cases import rollup_text
from tests.promises.sdk_script import sdk_requests
from tests.promises.wire_script import wire_transcript


def _openapi(server: RunningServer) -> str:
    document = httpx.get(f"{server.base_url}/api/openapi.json").json()
    return json_text(bare(document))


RECORDINGS: dict[str, Callable[[RunningServer, Path], str]] = {
    "wire.txt": lambda server, _: wire_transcript(server),
    "openapi.json": lambda server, _: _openapi(server),
    "rollups.txt": lambda *_: rollup_text(),
    "stores.json": lambda _, folder: json_text(store_files(folder)),
    "digests.json": lambda _, folder: json_text(digests(folder)),
    "sdk.txt": sdk_requests,
    "cli.json": lambda server, folder: json_text(printed(server, folder)),
    "names.json": lambda *_: json_text(public_names()),
}


def record(names: list[str]) -> None:
    for name in ("ROLLBOOK_API_KEY", "ROLLBOOK_BASE_URL", "ROLLBOOK_QUIET", "ROLLBOOK_SECRET"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="promises-") as folder:
        os.environ["ROLLBOOK_HOME"] = f"{folder}/home"
        place = Path(folder)
        with promise_server(place / "server") as server:
            for name in names or RECORDINGS:
                (place / name).mkdir()
                save(name, RECORDINGS[name](server, place / name))


if __name__ == "__main__":
    record(sys.argv[1:])
