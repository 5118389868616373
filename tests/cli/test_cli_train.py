"""`rollbook train` in a terminal: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command import rollbook
from tests.train.training_stores import training_store


def test_a_policy_is_trained_shown_and_compared(tmp_path: Path) -> None:
    few = ("--store", training_store(), "--iterations", 5)
    first = rollbook("train", "run", *few, "--out", tmp_path / "first")
    assert first.returncode == 0, first.stderr
    assert "trained on" in first.stdout
    assert "of the gap to the best closed" in first.stdout
    assert "head 1, iteration 5: loss" in first.stderr

    second = rollbook(
        *("train", "run", *few, "--out", tmp_path / "second", "--json"),
        *("--parent", tmp_path / "first", "--horizon", 2),
    )
    assert (second.returncode, second.stderr) == (0, "")
    record = json.loads(second.stdout)
    assert record["horizon"] == 2
    assert record["policy_revision"]["revision_number"] == 2

    shown = rollbook("train", "info", tmp_path / "second")
    assert record["policy_revision"]["revision_id"] in shown.stdout
    assert record["policy_revision"]["parent_revision_id"] in shown.stdout

    compared = rollbook("train", "compare", tmp_path / "first", tmp_path / "second", "--json")
    answer = json.loads(compared.stdout)
    assert answer["differences"] == {"horizon": [1, 2]}
    assert [each["same_validation"] for each in answer["runs"]] == [True, True]

    again = rollbook("train", "run", *few, "--out", tmp_path / "first")
    assert again.returncode == 1
    assert "--replace replaces it" in again.stderr
    assert rollbook("train", "resume", tmp_path / "first").returncode == 0

    (tmp_path / "first" / "metrics.jsonl").write_text("{}\n")
    damaged = rollbook("train", "info", tmp_path / "first")
    assert damaged.returncode == 1
    assert "metrics.jsonl" in damaged.stderr
