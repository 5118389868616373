"""Training runs: what they write, that they learn, that they repeat themselves, and what they refuse."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    DigestMismatch,
    IncompatibleStores,
    LeaseHeld,
    NotATrainingRun,
    RollbookError,
    ShardDrift,
    StorageError,
    TargetExists,
    UnfinishedRun,
)
from rollbook.learned import LearnedPolicy, load_learned_policy, open_training_run
from rollbook.store import RolloutZarrStoreReader
from rollbook.train import resume_training, train_policy
from rollbook.train.boosted import checked_options, fit_boosted
from rollbook.train.regret import RegretMeasure
from rollbook.train.run_work import RunWork
from rollbook.train.training_states import ChosenChains, check_disjoint
from tests.train.training_stores import NAMES, training_store

QUICK = {"iterations": 15, "report_every": 5, "horizon": 2}


@pytest.fixture(scope="module", autouse=True)
def fixed_time() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SOURCE_DATE_EPOCH", "1800000000")
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    return train_policy(training_store(), out, options=QUICK).path


def chosen_gains(policy: LearnedPolicy, store: Path) -> tuple[float, float, float]:
    """Mean gain of the policy's choice, of the best and of a random candidate, in every state of the store."""
    states = ChosenChains.open([store]).states()
    measure = RegretMeasure(states.reward)
    scores = policy.score(states.features, states.names, states.valid)
    best = float(np.nanmax(states.reward, axis=1).mean())
    return best - measure.of(np.nan_to_num(scores)), best, best - measure.of_random()


def test_a_trained_policy_chooses_well_on_scenes_that_it_never_saw(run: Path) -> None:
    chosen, best, by_chance = chosen_gains(load_learned_policy(run), training_store(32, seed=5))
    assert chosen - by_chance > 0.8 * (best - by_chance)


def test_a_run_folder_holds_everything_with_its_digest(run: Path) -> None:
    folder = open_training_run(run)
    written = sorted(str(each.relative_to(run)) for each in run.rglob("*") if each.is_file())
    assert written == sorted(["run.json", *(each.path for each in folder.run.files)])
    assert not (run / "state").exists()
    assert folder.run.horizon == 2
    assert [each["head"] for each in folder.metrics()] == [1, 1, 1, 2, 2, 2]
    revision = folder.run.policy_revision
    assert revision == msgspec.json.decode(
        (run / "revision.json").read_bytes(), type=type(revision)
    )
    assert revision.revision_number == 1
    assert revision.checkpoint is not None
    assert revision.checkpoint.object_digest == revision.policy_digest
    assert revision.produced_at_ms == 1_800_000_000_000


def test_the_batches_name_exactly_the_chains_that_were_trained_on(run: Path) -> None:
    folder = open_training_run(run)
    digest = RolloutZarrStoreReader(training_store()).store_manifest.payload["content_sha256"]
    held_out = {scene for each in folder.run.validation for scene in each.scenes}
    reader = RolloutZarrStoreReader(training_store())
    scenes = reader.decoded("rollouts", "scene_id")
    expected = {f"{digest[:12]}:{row}" for row, scene in enumerate(scenes) if scene not in held_out}
    [batch] = folder.batches()
    assert set(batch.rollout_ids) == expected
    assert batch.policy_lineage.target_revision == folder.run.policy_revision
    assert list(folder.rollouts().columns.artifact_id) == list(batch.rollout_ids)
    assert {each.content_sha256 for each in folder.run.data} == {digest}
    assert not held_out & {scene for each in folder.run.data for scene in each.scenes}


def digests(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in sorted(folder.rglob("*"))
        if each.is_file()
    }


def test_the_same_training_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    again = train_policy(training_store(), tmp_path / "again", options=QUICK)
    assert digests(again.path) == digests(run)
    other = train_policy(training_store(), tmp_path / "other", options=QUICK, seed=1)
    assert other.run.checkpoint_digest != again.run.checkpoint_digest


@pytest.mark.parametrize("report", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_killed_run_is_resumed_with_the_same_result(
    run: Path, tmp_path: Path, report: int
) -> None:
    """The process kills itself at its first report, then at the first of the second head."""
    script = (
        "import os, signal, sys\n"
        "from rollbook.train import train_policy\n"
        "seen = []\n"
        "def on_report(report):\n"
        "    seen.append(report)\n"
        f"    if len(seen) == {report}: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"train_policy(sys.argv[1], sys.argv[2], options={QUICK!r}, on_report=on_report)\n"
    )
    out = tmp_path / "killed run"
    done = subprocess.run([sys.executable, "-c", script, str(training_store()), str(out)])
    assert done.returncode == -signal.SIGKILL
    typed = f"`rollbook train resume '{out}'`"  # as a shell takes a path with a space
    with pytest.raises(NotATrainingRun, match=re.escape(typed)):
        open_training_run(out)
    with pytest.raises(UnfinishedRun, match=re.escape(typed)):
        train_policy(training_store(), out, options=QUICK)
    resumed: list[dict[str, Any]] = []
    resume_training(out, on_report=resumed.append)
    assert resumed[0]["head"] == (1 if report == 1 else 2)
    assert digests(out) == digests(run)
    assert resume_training(out).run == open_training_run(run).run


def test_a_resumed_run_refuses_another_store(tmp_path: Path) -> None:
    store = tmp_path / "s.zarr"
    shutil.copytree(training_store(), store)
    out = tmp_path / "run"

    def stop(report: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_policy(store, out, options=QUICK, on_report=stop)
    shutil.rmtree(store)
    shutil.copytree(training_store(seed=9), store)
    with pytest.raises(ShardDrift, match="train again"):
        resume_training(out)


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """A run that was interrupted when its first head was finished."""

    def stop(report: dict[str, Any]) -> None:
        if report["head"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_policy(training_store(), tmp_path / "unfinished", options=QUICK, on_report=stop)
    return tmp_path / "unfinished"


def test_what_a_killed_process_left_of_a_file_is_no_part_of_the_run(
    run: Path, unfinished: Path
) -> None:
    for name in ("checkpoint/head-01.txt", "batches/rollouts.table", "training.json"):
        whole = unfinished / name
        left = whole.with_name(f".{whole.name}.0123456789abcdef.tmp")
        left.write_bytes(whole.read_bytes()[:100])
    with open(unfinished / "metrics.jsonl", "ab") as metrics:
        metrics.write(b'{"head":2,"itera')
    resume_training(unfinished)
    assert digests(unfinished) == digests(run)


def test_what_somebody_put_beside_the_checkpoint_is_no_part_of_it(
    run: Path, unfinished: Path
) -> None:
    (unfinished / "checkpoint" / "notes.txt").write_text("from last week")
    with open(unfinished / "metrics.jsonl", "ab") as metrics:
        metrics.write(b'{"note": "no report"}\n\xff\n')
    assert resume_training(unfinished).run == open_training_run(run).run


def test_a_run_is_resumed_from_any_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(report: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(training_store().parent)
    with pytest.raises(KeyboardInterrupt):
        train_policy(training_store().name, tmp_path / "run", options=QUICK, on_report=stop)
    monkeypatch.chdir(tmp_path)
    assert resume_training("run").run == open_training_run(run).run


def test_a_resumed_run_refuses_another_plan(unfinished: Path) -> None:
    """The head that is finished was made by the plan of the beginning."""
    plan = unfinished / "training.json"
    plan.write_text(plan.read_text().replace('"leaves": 31', '"leaves": 7'))
    with pytest.raises(ShardDrift, match=r"training\.json was changed"):
        resume_training(unfinished)


def test_a_resumed_run_refuses_the_rollouts_of_another_run(
    unfinished: Path, tmp_path: Path
) -> None:
    other = train_policy(
        training_store(seed=9), tmp_path / "other", options={"iterations": 1, "horizon": 1}
    )
    shutil.copy(other.path / "batches/rollouts.table", unfinished / "batches/rollouts.table")
    with pytest.raises(DigestMismatch, match=r"rollouts\.table"):
        resume_training(unfinished)
    (unfinished / "batches/rollouts.table").unlink()
    assert resume_training(unfinished).run.horizon == 2


def test_a_resumed_run_names_a_finished_part_that_was_changed(unfinished: Path) -> None:
    """LightGBM would end the process at such a number."""
    piece = unfinished / "state" / "head-01.txt"
    piece.write_text(piece.read_text().replace("num_leaves=", "num_leaves=9", 1))
    with pytest.raises(StorageError, match=r"state/head-01\.txt.*remove it and resume"):
        resume_training(unfinished)
    piece.unlink()
    assert resume_training(unfinished).run.horizon == 2


def test_a_run_that_was_killed_before_it_had_a_plan_leaves_room_for_another(
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    (out / "state").mkdir(parents=True)
    (out / ".training.json.0123456789abcdef.tmp").write_bytes(b"{")
    train_policy(training_store(), out, options={"iterations": 1, "horizon": 1})
    assert not [each for each in out.rglob("*") if each.name.startswith(".")]
    (tmp_path / "other" / "state").mkdir(parents=True)
    (tmp_path / "other" / "state" / "of-mind.txt").write_text("calm")
    with pytest.raises(TargetExists, match="not the folder of a training run"):
        train_policy(training_store(), tmp_path / "other", options=QUICK)


def test_a_child_names_its_parent(run: Path, tmp_path: Path) -> None:
    child = train_policy(training_store(), tmp_path / "child", options=QUICK, parent=run)
    parent = open_training_run(run).run
    revision = child.run.policy_revision
    assert revision.parent_revision_id == parent.policy_revision.revision_id
    assert revision.revision_number == 2
    assert child.run.parent_run_digest == parent.digest
    with pytest.raises(ConfigurationError, match="'other'"):
        train_policy(training_store(), tmp_path / "x", parent=run, family="other")


def test_candidates_that_may_not_be_learned_from_have_no_influence(tmp_path: Path) -> None:
    """Labels of invalid and of untrusted candidates are not in the states at all."""
    store = training_store(unlabelled_fraction=0.3, unmatched_fraction=0.3)
    states = ChosenChains.open([store]).states()
    view = RolloutZarrStoreReader(store).q_h_view()
    assert not (states.trainable & ~states.valid).any()
    assert states.trainable.sum() < states.valid.sum()
    trusted = view["q_train_mask"] & np.isfinite(view["one_step_target_root_gain"])
    assert states.trainable.sum() <= trusted.sum()
    trained = train_policy(store, tmp_path / "run", options={**QUICK, "horizon": 1})
    assert trained.run.metrics["head_1_gap_closed"] > 0.5


# ---------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"iterations": 0}, "iterations is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"leaves": 1}, "leaves is 1"),
        ({"horizon": 65}, "horizon is 65"),
        ({"horizon": 3}, "longest chain has 2 moves"),
        ({"itterations": 3}, "did you mean iterations"),
    ],
)
def test_wrong_options_are_refused_by_name(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        train_policy(training_store(), tmp_path / "run", options=options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"learner": "boosting"}, "did you mean boosted"),
        ({"family": " "}, "family is empty"),
        ({"parent": "nowhere"}, "no such folder"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(RollbookError, match=words):
        train_policy(training_store(), tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_stores_that_cannot_be_learned_from_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(ConfigurationError, match="has no actor features"):
        train_policy(training_store(32, features=0), out)
    with pytest.raises(ConfigurationError, match="does not name its actor features"):
        train_policy(training_store(32, names=None), out)
    with pytest.raises(ConfigurationError, match="in the training and in the validation stores"):
        train_policy(training_store(), out, validation=training_store(32))
    with pytest.raises(IncompatibleStores):
        train_policy([training_store(), training_store()], out)
    with pytest.raises(ConfigurationError, match="no chain with a label"):
        train_policy(training_store(32, unmatched_fraction=1.0), out)
    with pytest.raises(ConfigurationError, match="stores is empty"):
        train_policy([], out)
    with pytest.raises(ConfigurationError, match="different scenes"):
        train_policy(training_store(1), out)
    assert not out.exists()


@pytest.mark.parametrize("label", [0.0, 0.3])
def test_labels_that_are_all_alike_are_refused_before_a_folder_is_replaced(
    label: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, options = tmp_path / "run", {"iterations": 1, "horizon": 1}
    before = train_policy(training_store(), out, options=options).run
    states = ChosenChains.states

    def alike(chains: ChosenChains) -> Any:
        found = states(chains)
        reward = np.where(np.isfinite(found.reward), label, np.nan)
        return dataclasses.replace(found, reward=reward)

    monkeypatch.setattr(ChosenChains, "states", alike)
    for place, replace in ((out, True), (tmp_path / "new", False)):
        with pytest.raises(ConfigurationError, match="candidates with different labels"):
            train_policy(training_store(), place, options=options, replace=replace)
    assert open_training_run(out).run == before
    assert not (tmp_path / "new").exists()


def renamed(chains: ChosenChains, scenes: list[str], meshes: list[str | None]) -> ChosenChains:
    """The same chains as those of other scenes. Several names may have one mesh, as after a second import."""
    found = ChosenChains(chains.collection, chains.rows, ["store"])
    found.__dict__ |= {"scenes": scenes, "_mesh_of_chains": meshes}
    return found


def test_a_mesh_under_two_names_is_never_on_both_sides() -> None:
    chains = ChosenChains.open([training_store()])
    names = [f"scene-{row % 6}" for row in range(len(chains.rows))]
    meshes = [f"mesh-{row % 3}" if row % 6 < 4 else None for row in range(len(names))]
    for seed in range(5):
        alike = renamed(chains, names, [*meshes])
        sides = alike._scenes_alike()
        assert sides == {name: "scene-0" if name == "scene-3" else name for name in names}
        training, held_out = alike.divided(seed)
        assert len(training.rows) + len(held_out.rows) == len(chains.rows)
    one, other = (
        renamed(chains, [f"{name} {scene}" for scene in names], [*meshes]) for name in "ab"
    )
    with pytest.raises(ConfigurationError, match=r"'b scene-0' has the same mesh .* 'a scene-0'"):
        check_disjoint(one, other)
    check_disjoint(one, renamed(chains, other.scenes, [None] * len(names)))


def test_one_changed_byte_of_a_store_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "s.zarr"
    shutil.copytree(training_store(), store)
    chunk = max((store / "q_h" / "actor_features").rglob("*"), key=lambda each: each.stat().st_size)
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 4
    chunk.write_bytes(data)
    with pytest.raises(ChecksumMismatch):
        train_policy(store, tmp_path / "run", options=QUICK)


def test_a_folder_is_replaced_only_if_it_is_a_run_and_if_asked(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = {"iterations": 1, "horizon": 1}
    first = train_policy(training_store(), out, options=options).run
    with pytest.raises(TargetExists):
        train_policy(training_store(), out, options=options)
    second = train_policy(training_store(), out, options=options, replace=True, seed=2).run
    assert first.digest != second.digest
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("text")
    with pytest.raises(TargetExists, match="not the folder of a training run"):
        train_policy(training_store(), other, options=options, replace=True)
    assert os.listdir(other) == ["thesis.tex"]


def test_names_of_features_are_kept(run: Path) -> None:
    assert load_learned_policy(run).feature_names == NAMES


def test_every_file_of_a_run_is_guarded(run: Path, tmp_path: Path) -> None:
    for name in sorted(digests(run)):
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(run, copy)
        data = bytearray((copy / name).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / name).write_bytes(data)
        with pytest.raises(RollbookError):
            open_training_run(copy)


def test_only_one_process_works_in_a_run_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def again(report: dict[str, Any]) -> None:
        with pytest.raises(LeaseHeld):
            train_policy(training_store(), out, options=QUICK, replace=True)
        with pytest.raises(LeaseHeld):
            resume_training(out)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_policy(training_store(), out, options=QUICK, on_report=again)
    assert resume_training(out).run.horizon == 2


def test_features_of_candidates_that_are_not_valid_have_no_influence(tmp_path: Path) -> None:
    states = ChosenChains.open([training_store()]).states()
    features = states.features.copy()
    features[~states.valid] = 1e6
    changed = dataclasses.replace(states, features=features)
    options = checked_options({"iterations": 5, "horizon": 2}, 2)
    for name, each in (("one", states), ("other", changed)):
        work = RunWork(tmp_path / name)
        fit_boosted(each, each, options, work, seed=0, threads=1)
    assert digests(tmp_path / "one") == digests(tmp_path / "other")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_features_without_a_finite_value_are_learned_around(tmp_path: Path, value: float) -> None:
    states = ChosenChains.open([training_store()]).states()
    features = states.features.copy()
    features[::3, :, 1] = value
    features[:, 0, 0] = value
    changed = dataclasses.replace(states, features=features)
    options = checked_options({"iterations": 10, "report_every": 10, "horizon": 2}, 2)
    metrics = fit_boosted(changed, changed, options, RunWork(tmp_path), seed=0, threads=1)
    assert all(np.isfinite(each) for each in metrics.values())
    assert metrics["head_1_gap_closed"] > 0.5
