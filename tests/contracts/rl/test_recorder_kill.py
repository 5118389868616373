"""`kill -9` at any moment loses nothing that a Recorder has acknowledged."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollbook.contracts import Recorder, read_journal
from rollbook.contracts.rl.recorded_rollout import RecordedRollout
from tests.contracts.rl.killed_recorder import tokens

ROOT = Path(__file__).parents[3]


def killed_after(path: Path, seconds: float, mode: str) -> list[tuple[str, str, int]]:
    """What the program had acknowledged when it was killed: kind, rollout, turn."""
    program = [sys.executable, "-m", "tests.contracts.rl.killed_recorder", str(path), "3", mode]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        assert lines == ["started - 0\n"]
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    acknowledged = []
    for line in lines[1:]:
        if line.endswith("\n"):  # the last line may be incomplete
            kind, name, turn = line.split()
            acknowledged.append((kind, name, int(turn)))
    return acknowledged


def check_everything_is_there(path: Path, acknowledged: list[tuple[str, str, int]]) -> None:
    with read_journal(path) as journal:
        rollouts: dict[str, RecordedRollout] = {
            each.artifact_id: each for each in journal.rollouts()
        }
        rollouts |= {name: journal.rollout_at(at) for name, at in journal.unfinished.items()}
        torn = journal.torn
        table = journal.table()
    for kind, name, turn in acknowledged:
        recorded = rollouts[name]
        if kind == "closed":
            assert recorded.ended is not None
            assert table.artifact(name).reward_sum == int(name.split(".")[1])
        else:
            assert recorded.turns[1 + turn].token_ids.tolist() == list(tokens(name, turn))
    with Recorder(path) as book:
        assert book.recovered == torn
        assert len(book.table()) == len(table)


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_a_killed_recorder_keeps_what_it_acknowledged(tmp_path: Path, seconds: float) -> None:
    path = tmp_path / "agents.journal"
    check_everything_is_there(path, killed_after(path, seconds, "no-sync"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["no-sync", "sync"])
def test_a_journal_survives_many_kills(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "agents.journal"
    chance = random.Random(mode)
    everything: list[tuple[str, str, int]] = []
    for _ in range(20):
        everything += killed_after(path, chance.random() * 0.2, mode)
        with read_journal(path) as journal:
            closed = {each.artifact_id for each in journal.rollouts()}
        assert {name for kind, name, _ in everything if kind == "closed"} <= closed
    check_everything_is_there(path, [each for each in everything if each[1] in closed])
    assert os.path.getsize(path) > 100_000
