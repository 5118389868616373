"""A command that is ended leaves nothing half-written and no lock behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollbook.cli.exit_codes import INTERRUPTED, TERMINATED
from rollbook.contracts import write_file
from tests.command import rollbook
from tests.evals.small_stores import small_store
from tests.factories import table

HELD_AT_THE_FIRST_SYNC = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started the tests may have it ignored
ready, go = os.environ["READY"], os.environ["GO"]
real = os.fsync
def held(descriptor):
    with open(ready, "w"): pass
    while not os.path.exists(go): time.sleep(0.005)
    real(descriptor)
os.fsync = held
if __name__ == "__main__":
    from rollbook.cli.main import main
    sys.argv[0] = "rollbook"
    main()
"""
"""Every command syncs what it wrote before that gets its name. There it waits, until the test lets it go on."""


def ended_at_the_first_sync(
    folder: Path, how: signal.Signals, arguments: Sequence[object]
) -> tuple[int, str]:
    """Send a signal in the middle of the work. Returns the exit code and standard error."""
    ready, go, program = (folder / name for name in ("ready", "go", "held.py"))
    program.write_text(HELD_AT_THE_FIRST_SYNC)
    with subprocess.Popen(
        [sys.executable, str(program), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "READY": str(ready), "GO": str(go), "COLUMNS": "80"},
    ) as process:
        while not ready.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.send_signal(how)
        go.touch()
        _, err = process.communicate()
    return process.returncode, err


@pytest.mark.parametrize(
    ("how", "code", "arguments"),
    [
        (signal.SIGTERM, TERMINATED, "store repack {store} {out}/r.zarr --profile archive"),
        (signal.SIGINT, INTERRUPTED, "store repack {store} {out}/r.zarr --profile archive"),
        (signal.SIGTERM, TERMINATED, "store export {store} {out}/x.csv"),
        (signal.SIGHUP, 129, "contracts convert {table} {out}/t.table"),
        (signal.SIGTERM, TERMINATED, "server backup {out}/b --data {data}"),
        pytest.param(
            *(
                signal.SIGTERM,
                TERMINATED,
                "source make {out}/s --scenes 2 --difficulty easy --workers 2",
            ),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_command_that_is_ended_leaves_nothing_behind(
    how: signal.Signals, code: int, arguments: str, tmp_path: Path
) -> None:
    places = {name: tmp_path / name for name in ("out", "data", "table")}
    places["out"].mkdir()
    write_file(table([2, 3]), [], tmp_path / "table.json")
    places |= {"store": small_store(), "table": tmp_path / "table.json"}
    if "{data}" in arguments:
        assert rollbook("server", "migrate", "--data", places["data"]).returncode == 0
    words = [each.format(**places) for each in arguments.split()]
    ended, err = ended_at_the_first_sync(tmp_path, how, words)
    assert (ended, "Traceback" in err) == (code, False), err
    assert os.listdir(places["out"]) == []


def test_a_command_that_is_done_leaves_only_its_output(tmp_path: Path) -> None:
    made = rollbook("store", "repack", small_store(), tmp_path / "r.zarr", "--profile", "local")
    assert (made.returncode, os.listdir(tmp_path)) == (0, ["r.zarr"])
    exported = rollbook("store", "export", tmp_path / "r.zarr", tmp_path / "x.csv", "--json")
    assert json.loads(exported.stdout)["table"] == "candidates"
    assert sorted(os.listdir(tmp_path)) == ["r.zarr", "x.csv"]
