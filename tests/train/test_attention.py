"""The attention learner: what it learns, what it never learns from, and that a run can be repeated and resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.errors import ConfigurationError
from rollbook.learned import load_learned_policy
from rollbook.learned.training_run import is_checkpoint
from rollbook.train import train_policy
from rollbook.train.attention import checked_options, fit_attention
from rollbook.train.run_work import RunWork
from rollbook.train.training_states import TrainingStates
from tests.train.training_stores import training_store

NAMES = ("gain", "future", "noise", "remaining")
SMALL = {"width": 16, "layers": 1, "iterations": 4, "patience": 4, "states_per_step": 16}
LEARNED = {**SMALL, "iterations": 20, "patience": 20, "learning_rate": 0.01}


def made_states(chains: int, seed: int, candidates: int = 6) -> TrainingStates:
    """Chains of two moves. The gain of a candidate is its first feature; what the next state is worth, its second."""
    random = np.random.default_rng(seed)
    features = random.random((2 * chains, candidates, len(NAMES))).astype(np.float32)
    features[..., 3] = np.tile([2, 1], chains)[:, None]
    valid = random.random(features.shape[:2]) < 0.8
    valid[:, 0] = True
    selected = np.array([random.choice(np.flatnonzero(each)) for each in valid])
    first = np.arange(0, 2 * chains, 2)
    # the best candidate of the second state is worth what the move before promised
    features[first + 1, :, 0] *= features[first, selected[first], 1][:, None]
    features[first + 1, 0, 0] = features[first, selected[first], 1]
    reward = np.where(valid, features[..., 0].astype(np.float64), np.nan)
    after = np.full(2 * chains, -1)
    after[first] = first + 1
    scenes = tuple(f"{seed}-{number}" for number in range(chains))
    return TrainingStates(
        features=features,
        names=NAMES,
        valid=valid,
        reward=reward,
        selected=selected,
        next_state=after,
        discount=np.where(after >= 0, 1.0, 0.0),
        scene=np.repeat(np.arange(chains), 2),
        scenes=scenes,
    )


TRAINING, VALIDATION = made_states(24, 0), made_states(8, 1)


def fitted(
    folder: Path,
    options: Mapping[str, Any] = SMALL,
    training: TrainingStates = TRAINING,
    **more: Any,
) -> tuple[dict[str, float], bytes]:
    """The metrics and the checkpoint."""
    chosen = checked_options(options, 2)
    work = RunWork(folder, more.pop("on_report", None))
    settings = {"seed": 0, "threads": 1, **more}
    metrics = fit_attention(training, VALIDATION, chosen, work, **settings)
    return metrics, (folder / "checkpoint" / "weights.safetensors").read_bytes()


def test_a_run_folder_is_written_from_a_store(tmp_path: Path) -> None:
    options = {**SMALL, "horizon": 1, "learning_rate": 0.01}
    run = train_policy(training_store(), tmp_path / "run", learner="attention", options=options)
    assert run.run.metrics["head_1_gap_closed"] > 0.3
    assert load_learned_policy(run.path).policy_revision == run.revision
    weights = [file.path for file in run.run.files if is_checkpoint(file)]
    assert weights == ["checkpoint/weights.safetensors"]


@pytest.mark.slow
def test_it_learns_to_choose_what_brings_most_now_and_later(tmp_path: Path) -> None:
    metrics, _ = fitted(tmp_path, LEARNED, made_states(300, 3))
    assert metrics["head_1_gap_closed"] > 0.9
    assert metrics["head_2_gap_closed"] > 0.9


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(tmp_path: Path) -> None:
    first, again, other = (
        fitted(tmp_path / name, seed=seed)[1] for name, seed in (("a", 7), ("b", 7), ("c", 8))
    )
    assert first == again
    assert first != other


def test_a_candidate_that_is_not_valid_never_contributes(tmp_path: Path) -> None:
    hidden = ~TRAINING.valid
    features = TRAINING.features.copy()
    features[hidden] = 1e6
    reward = np.where(hidden, 1e6, TRAINING.reward)
    changed = replace(TRAINING, features=features, reward=reward)
    assert fitted(tmp_path / "changed", training=changed)[1] == fitted(tmp_path / "plain")[1]


def test_the_future_of_a_move_without_a_trusted_label_is_not_learned_from(tmp_path: Path) -> None:
    rows = np.arange(len(TRAINING))
    reward = TRAINING.reward.copy()
    reward[rows, TRAINING.selected] = np.nan
    for name, gains, counts in (("trusted", TRAINING.reward, True), ("hidden", reward, False)):
        whole = replace(TRAINING, reward=gains)
        half = replace(whole, discount=TRAINING.discount / 2)
        found = [
            fitted(tmp_path / f"{name}-{at}", training=each)[1]
            for at, each in enumerate((whole, half))
        ]
        assert (found[0] != found[1]) == counts


class Killed(Exception):
    pass


@pytest.mark.parametrize("head", [1, 2])
def test_an_interrupted_run_goes_on_to_the_same_bytes(tmp_path: Path, head: int) -> None:
    def kill(report: dict[str, Any]) -> None:
        if report["head"] == head and report["iteration"] == 3:
            raise Killed

    with pytest.raises(Killed):
        fitted(tmp_path / "killed", on_report=kill)
    resumed = fitted(tmp_path / "killed")
    assert resumed == fitted(tmp_path / "whole")
    lines = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("killed", "whole")]
    assert lines[0] == lines[1]


def test_a_single_scene_and_chains_of_one_move_can_be_learned_from(tmp_path: Path) -> None:
    alone = made_states(1, 5)
    metrics, _ = fitted(tmp_path / "one", training=alone)
    assert all(np.isfinite(value) for value in metrics.values())
    short = replace(
        TRAINING,
        next_state=np.full(len(TRAINING), -1),
        discount=np.zeros(len(TRAINING)),
    )
    metrics, _ = fitted(tmp_path / "short", training=short)
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"horizon": 0}, "horizon is 0, expected a whole number from 1 to 64"),
        ({"iterations": 1.5}, "iterations is 1.5"),
        ({"patience": True}, "patience is True"),
        ({"states_per_step": 0}, "states_per_step is 0"),
        ({"width": 20}, "width is 20, expected a multiple of 16"),
        ({"layers": -1}, "layers is -1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"device": "gpu"}, "device is 'gpu', expected cpu, cuda or cuda:NUMBER"),
        ({"device": "cpu:1"}, "device is 'cpu:1'"),
        ({"device": "cuda:9"}, "device is 'cuda:9', but torch sees"),
        ({"leaves": 31}, "the attention learner has no option 'leaves'"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        checked_options(given, 2)


def test_by_default_there_is_a_head_for_every_move_of_the_longest_chain() -> None:
    assert checked_options({}, 3)["horizon"] == 3
    assert checked_options({"horizon": 1}, 3)["horizon"] == 1
