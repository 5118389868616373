"""The demo comes to a decision and cleans up after itself."""

from __future__ import annotations

import os
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


def the_demo(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "examples.whole_loop"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_demo_comes_to_a_decision_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with the_demo(tmp_path) as demo:
        printed, _ = demo.communicate(timeout=500)
    assert demo.returncode == 0, printed
    assert "every byte" in printed
    assert "decision  HOLD   reasons: not_measured" in printed
    assert "evidence  counterfactual" in printed
    assert "the store alone gives the decision of the server" in printed
    assert "source    row" in printed
    assert not any(tmp_path.iterdir())
    assert not processes_of(tmp_path)


def test_a_demo_that_is_stopped_takes_its_server_with_it(tmp_path: Path) -> None:
    with the_demo(tmp_path) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "baseline episodes" in line:
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
