"""A policy that is judged on scenes that it was trained on: the commands say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.cli.training.seen_scenes import scenes_of_store, warn_of_seen_scenes
from rollbook.train import train_policy
from tests.command import rollbook
from tests.train.training_stores import training_store


def test_a_replay_on_scenes_of_the_training_says_so(tmp_path: Path) -> None:
    trained = train_policy(training_store(), tmp_path / "run", options={"iterations": 5})
    replayed = ("replay", "run", "--store", training_store(), "--limit", "3", "--policy")
    shown = rollbook(*replayed, trained.path)
    assert shown.returncode == 0, shown.stderr
    scenes = set(scenes_of_store(training_store()))
    words = f"was trained on {len(scenes)} of these {len(scenes)} scenes"
    assert words in shown.stderr
    assert "warning" not in shown.stdout
    other = rollbook(*replayed, "tests.train.test_seen_scenes:first", "--candidate-version", "v1")
    assert "was trained on" not in other.stderr


def test_only_run_folders_and_only_their_own_scenes_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_policy(training_store(), tmp_path / "run", options={"iterations": 1}).run
    [seen, *_] = run.data[0].scenes
    [judged, *_] = run.validation[0].scenes
    assert run.seen_among(["elsewhere", judged, seen]) == sorted([seen, judged])
    assert run.seen_among(["elsewhere"]) == []
    assert scenes_of_store(tmp_path / "nowhere") == []
    warn_of_seen_scenes(["random", str(tmp_path / "run")], [None, "elsewhere"])
    assert capsys.readouterr().err == ""
    warn_of_seen_scenes(["random", str(tmp_path / "run")], [None, "elsewhere", seen])
    assert f"run was trained on 1 of these 2 scenes, such as {seen}" in capsys.readouterr().err


def first(observation: dict[str, object]) -> dict[str, object]:
    return {"/choice/index": 0}
