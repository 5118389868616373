"""The demo comes to a decision and cleans up after itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.replay.throwaway_server import throwaway_server
from rollbook.client import Client

ROOT = Path(__file__).resolve().parents[2]
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


# ------------------------------------------------------------------------------------------ the demo


def the_demo(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "examples.whole_loop", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_first_demo_can_be_read_and_leaves_its_pictures(tmp_path: Path) -> None:
    """A first run compiles everything."""
    temporary, kept, cache = tmp_path / "temporary", tmp_path / "kept", tmp_path / "cache"
    temporary.mkdir()
    with the_demo(temporary, str(kept), NUMBA_CACHE_DIR=str(cache)) as demo:
        printed, _ = demo.communicate(timeout=500)
    assert demo.returncode == 0, printed
    lines = printed.replace(os.path.relpath(kept, ROOT), ".demo/loop").splitlines()
    assert [line for line in lines if len(line) > 79] == []
    assert len(lines) < 100
    assert 1 <= sum("compiling for this machine" in line for line in lines) <= 3
    stages = [line for line in lines if re.match(r"\[ *\d+ s\] \d\.", line)]
    assert len(stages) == 7
    assert re.search(r"Decision: Hold: 0 of \d+ pairs measured", printed)
    assert "not_measured: no outcome is known" in printed
    assert "95 % interval" in printed
    assert "The store alone, without a server, gives the same decision." in printed
    assert "source    row" in printed
    assert "Then type . .venv/bin/activate" in printed
    assert {each.name for each in kept.iterdir()} == {
        *("sources", "rollouts.zarr", "audit.html", "rollout.png"),
    }
    assert not any(temporary.iterdir())
    assert not processes_of(temporary)


def test_a_demo_that_is_stopped_takes_its_server_with_it(tmp_path: Path) -> None:
    with the_demo(tmp_path) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "episodes recorded" in line:
                break
        assert processes_of(tmp_path)
        demo.send_signal(signal.SIGTERM)
        demo.communicate(timeout=60)
    assert demo.returncode == 143
    assert not processes_of(tmp_path)
    assert not any(tmp_path.iterdir())


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
