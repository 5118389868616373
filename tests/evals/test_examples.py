"""The examples do what they say: the demo cleans up after itself, and the gate of a CI job ends as it should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.replay.throwaway_server import throwaway_server
from rollbook.adapters import gymnasium
from rollbook.client import Client
from tests.evals.recorded_runs import SlidingEnv, away
from tests.server.running import RunningServer

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


# ------------------------------------------------------------------------------------------- the gate


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With thirty recordings of a policy that pushes the wrong way."""
    with RunningServer(tmp_path_factory.mktemp("gate-server")) as running:
        with Client(api_key=running.api_key, base_url=running.base_url) as client:
            done = gymnasium.record_many(
                SlidingEnv,
                away,
                seeds=range(30),
                client=client,
                policy_version="production-1",
                env_version="sliding-1",
                tags=["nightly"],
            )
        assert all(each.error is None for each in done)
        yield running


def ci_gate(server: RunningServer, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    access = {"ROLLBOOK_API_KEY": server.api_key, "ROLLBOOK_BASE_URL": server.base_url}
    command = [sys.executable, "-m", "examples.ci_gate", "--baseline-version", "production-1"]
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env={**os.environ, **access, "ROLLBOOK_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


SLIDING = ("--environment", "tests.evals.recorded_runs:sliding")
BETTER = ("--policy", "tests.evals.recorded_runs:push_towards", "--candidate-version", "v4")
SAME = ("--policy", "tests.evals.recorded_runs:push_away", "--candidate-version", "v5")


def test_a_better_candidate_passes_the_job(server: RunningServer, tmp_path: Path) -> None:
    report = tmp_path / "replay.xml"
    done = ci_gate(server, tmp_path, *BETTER, *SLIDING, "--tag", "nightly", "--junit", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the candidate ships" in done.stdout
    assert "<testsuite" in report.read_text()


def test_a_candidate_that_is_not_better_fails_the_job(
    server: RunningServer, tmp_path: Path
) -> None:
    done = ci_gate(server, tmp_path, *SAME, *SLIDING)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the candidate is held" in done.stdout
    assert "not_better" in done.stdout


def test_a_wrong_call_is_no_decision(server: RunningServer, tmp_path: Path) -> None:
    nowhere = ("--policy", "no_such_module:policy", "--candidate-version", "v4")
    assert ci_gate(server, tmp_path, *nowhere, *SLIDING).returncode == 2
    nothing = ci_gate(server, tmp_path, *BETTER, *SLIDING, "--tag", "of-nobody")
    assert nothing.returncode == 2
    assert "no episodes of production-1" in nothing.stdout


def test_a_server_that_is_away_is_no_decision(server: RunningServer, tmp_path: Path) -> None:
    elsewhere = RunningServer(tmp_path, port=9)
    elsewhere.first_org = server.first_org
    done = ci_gate(elsewhere, tmp_path, *BETTER, *SLIDING)
    assert done.returncode == 3, done.stdout + done.stderr
