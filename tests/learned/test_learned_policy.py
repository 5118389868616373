"""The policy of a run folder: what it scores, how it finds its columns and its head, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from rollbook.contracts.candidate_keys import FEATURES_KEY, SCORE_KEY, VALID_KEY
from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    DigestMismatch,
    InvalidValue,
    NotATrainingRun,
    StorageError,
    TruncatedFile,
    UnsupportedVersion,
)
from rollbook.learned import is_training_run, load_learned_policy, open_training_run
from tests.learned.small_runs import NAMES, small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs") / "first")


def shell(remaining: float) -> np.ndarray[Any, Any]:
    """Four candidates: the second is nearest, the third is widest."""
    near, wide = [0.1, 0.9, 0.2, 0.5], [0.2, 0.1, 0.95, 0.5]
    return np.stack([near, wide, [remaining] * 4], axis=1).astype(np.float32)


EVERY = np.ones(4, bool)


def test_the_moves_that_are_left_choose_the_head(run: Path) -> None:
    policy = load_learned_policy(run)
    assert policy.horizon == 2
    for remaining, best in ((1, 1), (2, 2), (7, 2)):
        assert int(np.argmax(policy.score(shell(remaining), NAMES, EVERY))) == best


def test_states_with_different_heads_are_scored_together(run: Path) -> None:
    policy = load_learned_policy(run)
    both = policy.score(np.stack([shell(1), shell(2)]), NAMES, np.stack([EVERY, EVERY]))
    alone = [policy(shell(left), NAMES, EVERY, {}) for left in (1, 2)]
    np.testing.assert_array_equal(both, np.stack(alone))


def test_a_candidate_that_is_not_valid_has_no_score_and_no_influence(run: Path) -> None:
    policy = load_learned_policy(run)
    valid = np.array([True, False, True, True])
    features = shell(1)
    scores = policy.score(features, NAMES, valid)
    assert np.isnan(scores).tolist() == [False, True, False, False]
    features[1] = np.nan
    np.testing.assert_array_equal(policy.score(features, NAMES, valid), scores)
    assert np.isnan(policy.score(features, NAMES, np.zeros(4, bool))).all()


def test_columns_are_found_by_their_names(run: Path) -> None:
    policy = load_learned_policy(run)
    names = ("remaining", "colour", "wide", "near")
    given = shell(2)[:, [2, 0, 1, 0]]
    np.testing.assert_array_equal(
        policy.score(given, names, EVERY), policy.score(shell(2), NAMES, EVERY)
    )
    with pytest.raises(ConfigurationError, match=r"needs the feature 'near'"):
        policy.score(given[:, :3], names[:3], EVERY)
    with pytest.raises(InvalidValue, match="candidates, 3"):
        policy.score(given, NAMES, EVERY)
    with pytest.raises(InvalidValue, match=r"\[3\] candidates"):
        policy.score(shell(1), NAMES, EVERY[:3])


def test_it_answers_replays_and_environments(run: Path) -> None:
    policy = load_learned_policy(run)
    record = SimpleNamespace(metadata={"actor_feature_names": list(NAMES)})
    context = SimpleNamespace(episode=SimpleNamespace(record=record))
    seen = {FEATURES_KEY: np.stack([shell(2), shell(1)]), VALID_KEY: np.stack([EVERY, EVERY])}
    answer = policy.act_batch(seen, context)[SCORE_KEY]
    assert answer.argmax(axis=1).tolist() == [2, 1]
    one = policy.act({key: values[1] for key, values in seen.items()}, context)
    np.testing.assert_array_equal(one[SCORE_KEY], answer[1])
    offered = {"candidate_features": shell(1), "candidate_valid_mask": np.array([1, 0, 1, 1])}
    assert policy.choose(offered) == 3
    with pytest.raises(ConfigurationError, match="actor_feature_names"):
        policy.act_batch(seen, SimpleNamespace(episode=None))
    with pytest.raises(ConfigurationError, match="/candidates/features"):
        policy.act_batch({}, context)


def test_a_run_is_what_has_a_run_file(run: Path, tmp_path: Path) -> None:
    assert is_training_run(run)
    assert not is_training_run(tmp_path)
    with pytest.raises(NotATrainingRun, match=r"no run\.json"):
        open_training_run(tmp_path)
    with pytest.raises(NotATrainingRun, match="no such folder"):
        open_training_run(tmp_path / "nothing")
    (tmp_path / "training.json").write_text("{}")
    with pytest.raises(NotATrainingRun, match="rollbook train resume"):
        load_learned_policy(tmp_path)


@pytest.mark.parametrize("name", ["checkpoint/head-01.txt", "checkpoint/head-02.txt"])
def test_one_changed_byte_of_the_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    folder = small_run(tmp_path / "run")
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(ChecksumMismatch, match=name):
        load_learned_policy(folder)
    (folder / name).write_bytes(data[:-1])
    with pytest.raises(TruncatedFile, match=name):
        load_learned_policy(folder)
    (folder / name).unlink()
    with pytest.raises(TruncatedFile, match=f"{name} is missing"):
        load_learned_policy(folder)


def test_a_file_of_a_run_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """Nobody waits for a pipe."""
    folder = small_run(tmp_path / "run")
    (folder / "checkpoint" / "head-02.txt").unlink()
    os.mkfifo(folder / "checkpoint" / "head-02.txt")
    with pytest.raises(StorageError, match=r"head-02\.txt: it is not a file"):
        open_training_run(folder)


def test_a_file_of_another_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    with open(folder / "checkpoint" / "head-02.txt", "ab") as file:
        file.truncate(1 << 40)  # a hole: no disk is used
    with pytest.raises(TruncatedFile, match=f"has {1 << 40} bytes"):
        open_training_run(folder)


def test_a_changed_record_is_refused(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    file = folder / "run.json"
    written = msgspec.json.decode(file.read_bytes())
    for change in ({"seed": 1}, {"options": {"leaves": 2}}, {"horizon": 1}):
        file.write_bytes(msgspec.json.encode({**written, **change}))
        with pytest.raises(DigestMismatch, match="digest is recorded as"):
            open_training_run(folder)
    file.write_bytes(msgspec.json.encode({**written, "version": 2}))
    with pytest.raises(UnsupportedVersion, match="later release"):
        open_training_run(folder)
    file.write_bytes(msgspec.json.encode({**written, "schema": "other"}))
    with pytest.raises(NotATrainingRun, match="'other'"):
        open_training_run(folder)
    file.write_bytes(b"{")
    with pytest.raises(NotATrainingRun):
        open_training_run(folder)


def test_where_a_store_was_is_not_part_of_the_digest(run: Path) -> None:
    opened = open_training_run(run).run
    moved = [msgspec.structs.replace(each, place="elsewhere") for each in opened.data]
    msgspec.structs.replace(opened, data=tuple(moved)).verify()
