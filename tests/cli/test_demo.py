"""`rollbook demo`: the whole loop once, again, and after it was killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from rollbook.cli.exit_codes import USAGE, VIOLATIONS
from tests.command import rollbook
from tests.evals.test_examples import processes_of

STAGES = [
    *("sources", "campaign", "validate", "train"),
    *("record", "episodes", "replay", "closed", "lineage"),
]


@contextmanager
def running_demo(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process group of its own, as in a terminal."""
    with subprocess.Popen(
        [sys.executable, "-m", "rollbook", "demo", folder.name, *options],
        cwd=folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


# ---------------------------------------------------------------------------------------- refusals


def test_a_folder_of_something_else_stays_untouched(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    done = rollbook("demo", tmp_path, "--no-serve")
    assert (done.returncode, done.stdout) == (VIOLATIONS, "")
    assert "no demo made it; name another one" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["sources"]


@pytest.mark.parametrize("text", ["", "[]", '{"version": "other"}', '{"made": {}}'])
def test_damaged_notes_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "demo.json").write_text(text)
    done = rollbook("demo", tmp_path, "--no-serve")
    assert (done.returncode, done.stdout) == (VIOLATIONS, "")
    assert "demo.json" in done.stderr
    assert "name another folder" in done.stderr


def test_a_missing_library_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    done = rollbook("demo", tmp_path / "demo", "--no-serve")
    assert done.returncode == USAGE
    assert "numba" in done.stderr
    assert "pip install 'rollbook[demo]'" in done.stderr
    assert not (tmp_path / "demo").exists()


# --------------------------------------------------------------------------------- the whole demo


@pytest.mark.slow
def test_a_demo_that_was_killed_goes_on_and_a_third_one_uses_everything_again(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "my demo"
    with running_demo(folder, "--no-serve") as killed:
        while killed.poll() is None and not (folder / "campaigns/train/shards").exists():
            time.sleep(0.05)
        assert killed.poll() is None
        os.killpg(killed.pid, signal.SIGKILL)

    with running_demo(folder, "--serve") as second:
        assert second.stdout is not None
        printed = ""
        for line in second.stdout:
            printed += line
            if "Ctrl-C ends it" in line:
                break
        (link,) = re.findall(r"http\S+/sign-in\?token=\S+", printed)
        assert httpx.get(link).status_code == 200
        second.send_signal(signal.SIGINT)
        second.communicate()
    assert second.returncode == 0, printed
    assert not processes_of(folder)
    lines = printed.replace(link, "LINK").splitlines()
    assert [line for line in lines if len(line) > 79] == []
    assert [line.split("]")[1].split()[0] for line in lines if line.startswith("[")] == STAGES
    assert "reused: 56 furnished flats" in printed
    assert "Ship: " in printed
    assert "rollbook lineage show 'my demo/run' --in 'my demo'" in printed

    third = rollbook("demo", folder, "--no-serve", "--json")
    assert third.returncode == 0, third.stderr
    told = json.loads(third.stdout)
    assert told["reused"] == [each for each in STAGES if each not in ("validate", "lineage")]
    assert told["decision"] == "ship"
    assert told["gap_closed"] > 0.4
    rewards = told["rewards"]
    assert rewards["random_valid"] < rewards["learned"] < rewards["oracle_greedy"]
    assert link not in third.stderr
