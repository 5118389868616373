"""A newcomer types what the README says, from top to bottom, in a fresh clone: every block works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.replay.throwaway_server import throwaway_server
from rollbook.client import default
from rollbook.evals import StoreBaselines
from rollbook.learned import is_training_run
from tests.cli.test_demo import STAGES
from tests.command import rollbook

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files that git has, and with the .venv that `make demo` makes."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("Makefile", "README.md", "docs", "examples", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    yield folder
    default.close()


@pytest.mark.slow
def test_every_block_works_in_order(clone: Path, tmp_path: Path) -> None:
    names: dict[str, object] = {}
    with throwaway_server(tmp_path / "server") as (url, key):
        started = (tmp_path / "server" / "printed.txt").read_text()
        for kind, text in BLOCKS:
            if kind == "sh" and text.startswith("make "):
                assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= TARGETS
            elif kind == "sh" and text.startswith(". "):
                typed(text)
            elif kind == "sh":
                for line in text.splitlines():
                    command = shlex.split(line, comments=True)
                    assert command[0] == "rollbook"
                    # in this process: starting sixteen others takes longer than what they do
                    done = rollbook(*command[1:])
                    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            elif kind == "python":
                text = text.replace("http://127.0.0.1:8321", url).replace("rt_…", key)
                exec(compile(text, "README.md", "exec"), names)
            elif kind == "console" and text.startswith("$ make demo"):
                pass  # compared with the stages of a demo below
            elif kind == "console":
                command, *printed = text.splitlines()
                assert command == "$ rollbook serve"
                assert [shape(line) for line in printed] == [
                    shape(line) for line in started.rstrip().splitlines()
                ]
            elif "────►" not in text:  # the picture
                assert all(line.startswith("pip install ") for line in text.splitlines()), kind
    assert "<html" in (clone / "audit.html").read_text()
    assert is_training_run(clone / "runs/first")
    chains = StoreBaselines(clone / "train.zarr", policy="oracle_greedy")
    gains = [chain.outcome["reward_total"] for chain in chains]
    assert sum(gains) / len(gains) > 0.2, "a newcomer's first rollouts gain something"


def test_the_output_of_the_demo_has_its_stages_and_fits_a_narrow_terminal() -> None:
    (shown,) = (text for kind, text in BLOCKS if text.startswith("$ make demo"))
    lines = shown.splitlines()
    assert [line.split("]")[1].split()[0] for line in lines if line.startswith("[")] == STAGES
    assert all(len(line) <= 79 for line in lines)
    assert any(line.startswith(("Ship: ", "Hold: ")) for line in lines)


def typed(text: str) -> None:
    """As in a shell whose PATH does not have the environment of these tests."""
    path = os.pathsep.join(
        each
        for each in os.environ["PATH"].split(os.pathsep)
        if each != str(Path(sys.prefix, "bin"))
    )
    done = subprocess.run(
        ["bash", "-e"],
        input=text,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def shape(line: str) -> str:
    """A line of the server's first start without what differs from start to start."""
    line = re.sub(r"http://127\.0\.0\.1:\d+", "URL", line)
    line = re.sub(r"(token=|rt_)\S+", r"\1…", line)
    return re.sub(r"data in \S+", "data in FOLDER", line)


def test_all_extras_are_listed_and_no_others() -> None:
    table = README.partition("| extra | for |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) >= set(EXTRAS)
    first = [row.split("|")[1] for row in table.strip().splitlines()[1:]]
    named = {each for cell in first for each in re.findall(r"`(\w+)`", cell)}
    assert named <= set(EXTRAS)


def test_the_extras_of_pip_lines_exist() -> None:
    named = re.findall(r"\[([\w,]+)\]'", "".join(text for _, text in BLOCKS))
    assert named
    assert {extra for each in named for extra in each.split(",")} <= set(EXTRAS)
