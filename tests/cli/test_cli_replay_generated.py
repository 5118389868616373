"""`rollbook replay run --closed-loop`, and `--policy` with the run folder of a training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import Ended, rollbook
from tests.evals.generated.generated_stores import SOURCE, generated_store
from tests.evals.small_stores import small_store
from tests.learned.small_runs import small_run

NAMES = ("obb_area_frac", "target_unknown_per_ray", "remaining")
POLICY = "tests.evals.generated.generated_stores:Widest"


def replay(*words: object) -> Ended:
    return rollbook("replay", "run", *words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs") / "first", NAMES)


def test_a_run_folder_is_rolled_out_and_names_itself(folder: Path) -> None:
    closed = ("--store", generated_store(), "--source", SOURCE(), "--closed-loop")
    done = replay(*closed, "--policy", folder, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["candidate_policy_version"] == "next-best-view-r1-small"
    assert told["source"] == str(SOURCE())
    assert told["summary"]["reward_mean"]["evidence"] == "closed_loop"
    relation = told["summary"]["counterfactual_relation"]
    assert relation["n_pairs"] == len(told["results"]) == 4
    assert relation["closed_loop_delta"] == pytest.approx(
        told["summary"]["reward_mean"]["delta"], abs=1e-9
    )


@pytest.mark.slow
def test_the_report_says_how_the_two_figures_relate_and_the_gate_decides() -> None:
    done = replay(
        *("--store", generated_store(), "--closed-loop", "--gate"),
        *("--policy", POLICY, "--candidate-version", "w1"),
    )
    assert done.returncode == 1, done.stderr  # four pairs are too few
    assert "Closed loop: rolled out from" in done.stdout
    assert "✓ [4/4]" in done.stdout
    assert "than closed loop" in done.stdout
    assert "insufficient_n" in done.stdout


def test_wrong_words_end_with_2_and_say_what_is_missing(tmp_path: Path, folder: Path) -> None:
    candidate = ("--policy", POLICY, "--candidate-version", "w1", "--gate")
    store = ("--store", generated_store())
    (tmp_path / "empty").mkdir()
    wrong = {
        "--source is for --closed-loop": (*store, "--source", SOURCE()),
        "rolls out from the chains of a --store": ("--closed-loop",),
        "there is no manifest.json": (*store, "--closed-loop", "--source", tmp_path / "empty"),
        "does not say how the store was generated": (
            *("--store", small_store(), "--closed-loop", "--source", SOURCE()),
        ),
    }
    for told, words in wrong.items():
        done = replay(*words, *candidate)
        assert (done.returncode, told in done.stderr) == (2, True), (told, done.stderr)
    for policy, told in ((tmp_path / "empty", "it has no run.json"), ("runs/frist", "neither")):
        done = replay(*store, "--policy", policy, "--gate")
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr
