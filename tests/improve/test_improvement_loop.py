"""Rounds of improvement: what they make, what they refuse, and that an interruption changes nothing."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import msgspec
import numpy as np
import pytest

from rollbook import notebook
from rollbook.contracts.gate import Gate
from rollbook.errors import ConfigurationError, DigestMismatch
from rollbook.files import locked
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.sources.writer import SourceStoreWriter
from rollbook.improve import LoopPlan, LoopRecord, LoopRound, improve_policy
from rollbook.improve.loop_record import LOOP_FILE, MadeRun, Verdict
from rollbook.learned import open_training_run
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.shards.collection_file import open_collection
from tests.command import rollbook
from tests.generate.source_rows import room, some_row
from tests.generate.tiny_source import tiny_config
from tests.improve.small_loops import written_config

QUICK = ["--iterations", "20", "--threads", "1"]
_LONGEST_S = 240.0


# --------------------------------------------------------------------------------------- the record


def plan(**changes: Any) -> LoopPlan:
    fields: dict[str, Any] = {
        "config_hash": "1" * 64,
        "source_manifest_hash": "2" * 64,
        "training_split": "train",
        "held_out_split": "val",
        "training_rows": 4,
        "held_out_rows": 4,
        "horizon": 2,
        "chains": 2,
        "epsilon": 0.1,
        "learner": "boosted",
        "options": {},
        "seed": 0,
        "threads": 1,
        "family": "next-best-view",
        "gate": Gate.for_reward(),
    }
    return LoopPlan(**(fields | changes))


def a_round(number: int, ships: bool) -> LoopRound:
    run = MadeRun(
        place=f"rounds/{number:03}/run",
        run_digest=f"{number}" * 64,
        revision_id=f"r{number}",
        policy_digest=f"{number + 1}" * 64,
    )
    verdict = Verdict(
        place="replay",
        results_sha256="a" * 64,
        rollup_sha256="b" * 64,
        pairs=4,
        ships=ships,
        sentence="",
    )
    return LoopRound(number=number, run=run, verdict=verdict)


def test_the_current_policy_is_the_last_one_that_shipped() -> None:
    record = LoopRecord.begun(plan())
    assert record.current is None
    for number, ships in enumerate((True, False, True), start=1):
        record = record.with_round(a_round(number, ships))
    policies = [record.current_before(number) for number in (1, 2, 3, 4)]
    assert [each and each.revision_id for each in policies] == [None, "r1", "r1", "r3"]
    assert record.finished == 3


def test_a_record_comes_back_and_an_edited_one_is_refused(tmp_path: Path) -> None:
    assert LoopRecord.read(tmp_path) is None
    written = LoopRecord.begun(plan()).with_round(a_round(1, False)).write(tmp_path)
    assert LoopRecord.read(tmp_path) == written
    file = tmp_path / LOOP_FILE
    file.write_bytes(file.read_bytes().replace(b'"ships": false', b'"ships": true'))
    with pytest.raises(DigestMismatch, match=r"loop\.json.*digest"):
        LoopRecord.read(tmp_path)


def test_places_do_not_count_in_the_digest() -> None:
    record = LoopRecord.begun(plan()).with_round(a_round(1, True))
    run = record.rounds[0].run
    assert run is not None
    moved = msgspec.structs.replace(
        record.rounds[0], run=msgspec.structs.replace(run, place="elsewhere")
    )
    assert record.with_round(moved).computed_digest() == record.computed_digest()
    assert record.with_round(a_round(1, False)).computed_digest() != record.computed_digest()


def test_another_plan_names_the_first_difference(tmp_path: Path) -> None:
    record = LoopRecord.begun(plan())
    record.check_plan(plan(), tmp_path)
    with pytest.raises(ConfigurationError, match=r"epsilon was 0\.1 and is 0\.3"):
        record.check_plan(plan(epsilon=0.3, seed=4), tmp_path)


# -------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--held-out", "train"], "is in the training split 'train' and in the held-out split"),
        (["--held-out", "nosuch"], "source.split is 'nosuch', which has no row"),
        (["--epsilon", "0.2", "--temperature", "1"], "give one"),
        (["--temperature", "0"], "temperature is 0.0, expected more than 0"),
        (["--rounds", "1000"], "rounds is 1000, expected 1 to 999"),
        (["--gate-file", "none.toml"], "none.toml cannot be read"),
        (["--learner", "nosuch"], "nosuch"),
        (["--config", "none.toml"], "none.toml"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_made(
    tmp_path: Path, given: list[str], said: str
) -> None:
    ended = rollbook(
        *("train", "loop"), *written_config(tmp_path, 4), "--out", tmp_path / "loop", *given
    )
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr
    assert not (tmp_path / "loop" / "rounds").exists()


def test_a_scene_that_is_held_out_under_another_name_is_refused(tmp_path: Path) -> None:
    split_of = {"a": "train", "b": "val"}
    with SourceStoreWriter(tmp_path / "s", config={}, split_of=split_of) as writer:
        for scene in split_of:
            writer.add_scene(scene, room(), Boxes.none())
            writer.add_row(scene, "r", *some_row(np.random.default_rng(0)))
        writer.finish()
    config = tiny_config(
        tmp_path / "unused", source={"store_dir": str(tmp_path / "s"), "split": "train"}
    )
    with pytest.raises(ConfigurationError, match="'b' has the same mesh as 'a'"):
        improve_policy(config, tmp_path / "loop")
    assert not (tmp_path / "loop").exists()


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    options = written_config(tmp_path, 4)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("important")
    ended = rollbook("train", "loop", *options, "--out", tmp_path / "mine")
    assert ended.returncode != 0
    assert "'notes.txt'; choose an empty folder" in ended.stderr
    assert os.listdir(tmp_path / "mine") == ["notes.txt"]


def test_only_one_process_works_in_a_folder(tmp_path: Path) -> None:
    options = written_config(tmp_path, 4)
    (tmp_path / "loop").mkdir()
    with locked(tmp_path / "loop" / ".lock"):
        ended = rollbook("train", "loop", *options, "--out", tmp_path / "loop")
    assert ended.returncode != 0
    assert "is held by another process" in ended.stderr


# --------------------------------------------------------------------------------------- the rounds


@pytest.mark.slow
def test_three_rounds_do_not_get_worse(tmp_path: Path) -> None:
    out = tmp_path / "loop"
    command = ["train", "loop", *written_config(tmp_path), "--out", str(out), *QUICK]
    command += ["--family", "../../team/views"]  # a name, never a path
    ended = rollbook(*command, "--rounds", "3")
    assert ended.returncode == 0, ended.stderr
    assert "round 3 of 3: replaying" in ended.stderr
    record = LoopRecord.read(out)
    assert record is not None
    assert record.finished == 3

    gains = []
    for each in record.rounds:
        assert each.run is not None
        assert each.data is not None
        assert each.verdict is not None
        before = record.current_before(each.number)
        parent = None if before is None else before.revision_id
        assert each.policy == each.run.parent_revision_id == parent
        revision = open_training_run(out / each.run.place).revision
        assert (revision.revision_id, revision.parent_revision_id) == (each.run.revision_id, parent)
        if each.promoted:
            assert each.verdict.candidate_gain is not None
            gains.append(each.verdict.candidate_gain)
        stored = RolloutZarrStoreReader(out / each.data.place)
        if before is not None:
            assert set(stored.policy_revisions) == {before.policy_digest}
            assert set(stored.decoded("rollouts", "policy_id")) == {f"epsilon_greedy:{parent}"}
            _assert_exact_chances(stored, epsilon=0.1)
    assert gains, "no policy beat chance"
    assert gains == sorted(gains)
    assert record.current is not None

    assert {each.parent for each in out.rglob("*.zarr")} == {
        out / "baselines",
        *(out / "rounds" / f"{each.number:03}" for each in record.rounds),
    }
    collection = open_collection(out)
    assert len(collection.stores) == 3
    assert collection.validate(deep=True).ok

    again = rollbook(*command, "--rounds", "3", "--json")
    assert again.json["digest"] == record.digest
    other = rollbook(*command, "--rounds", "3", "--epsilon", "0.5")
    assert other.returncode == 2
    assert "epsilon was 0.1 and is 0.5" in other.stderr


def _assert_exact_chances(store: RolloutZarrStoreReader, *, epsilon: float) -> None:
    """Every valid candidate has its share of epsilon, and the best ones share the rest."""
    chances = store.array("candidates/selection_probabilities")
    step = store.array("candidates/step_row_id")
    for state in range(store.num_steps):
        some = chances[(step == state) & (chances > 0)].astype(np.float64)
        assert some.sum() == pytest.approx(1, abs=1e-6)
        best = some == some.max()
        np.testing.assert_allclose(some[~best], epsilon / len(some), rtol=1e-6)


@pytest.mark.slow
def test_a_loop_that_is_killed_in_every_stage_ends_with_the_same_digests(tmp_path: Path) -> None:
    out = tmp_path / "loop"
    command = ["train", "loop", *written_config(tmp_path, 8), "--out", str(out), *QUICK]
    command += ["--rounds", "2"]
    first, second = out / "rounds" / "001", out / "rounds" / "002"
    for stage in (
        lambda: any((first / ".data.zarr.rows").glob("*.row")),
        lambda: (first / "run" / "training.json").exists(),
        lambda: (out / "baselines").exists(),
        lambda: second.exists(),
        lambda: (second / "run").exists(),
    ):
        _kill_when(command, stage)
    _end(command)
    killed = LoopRecord.read(out)
    shutil.move(out, tmp_path / "killed")
    _end(command)
    assert killed is not None
    assert killed.finished == 2
    assert killed == LoopRecord.read(out)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """In the folder of the loop, which is no git checkout: manifests state whether a checkout was changed."""
    return subprocess.Popen(
        [sys.executable, "-m", "rollbook", *command, "--json"],
        cwd=Path(command[command.index("--out") + 1]).parent,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def _kill_when(command: list[str], reached: Callable[[], bool]) -> None:
    """Kills the command and its processes as soon as a stage was reached; not at all if it ended before."""
    process = _start(command)
    give_up = time.monotonic() + _LONGEST_S
    while not reached():
        assert process.poll() is None or reached(), "it ended before the stage"
        assert time.monotonic() < give_up
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end(command: list[str]) -> None:
    assert _start(command).wait(_LONGEST_S) == 0


@pytest.mark.slow
def test_what_the_loop_made_is_checked_before_it_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "loop"
    command = ["train", "loop", *written_config(tmp_path, 8), "--out", str(out), *QUICK]
    assert rollbook(*command, "--rounds", "1").returncode == 0
    model = out / "rounds" / "001" / "run" / "checkpoint" / "head-01.txt"
    good = model.read_bytes()
    model.write_bytes(good[:-2] + bytes([good[-2] ^ 1]) + good[-1:])
    ended = rollbook(*command, "--rounds", "2")
    assert ended.returncode != 0
    assert "head-01.txt" in ended.stderr
    model.write_bytes(good)
    results = out / "rounds" / "001" / "replay" / "results.jsonl"
    kept = results.read_bytes()
    results.write_bytes(kept.replace(b"complete", b"Complete", 1))
    ended = rollbook(*command, "--rounds", "2")
    assert ended.returncode != 0
    assert "results.jsonl" in ended.stderr
    results.write_bytes(kept)
    store = out / "rounds" / "001" / "data.zarr"
    shutil.move(store, tmp_path / "away.zarr")
    ended = rollbook(*command, "--rounds", "2")
    assert ended.returncode != 0
    assert "data.zarr" in ended.stderr


@pytest.mark.slow
def test_from_python_with_a_temperature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[str] = []

    def bar(what: str) -> MagicMock:
        bars.append(what)
        return MagicMock()

    monkeypatch.setattr(notebook, "in_notebook", lambda: True)
    monkeypatch.setattr(notebook, "_Bar", bar)
    written_config(tmp_path, 8)
    config = RolloutDatasetWriterConfig.from_toml(tmp_path / "config.toml")
    source = msgspec.structs.replace(config.source, split="train")
    record = improve_policy(
        dataclasses.replace(config, source=source),
        tmp_path / "loop",
        rounds=2,
        temperature=0.5,
        options={"iterations": 10},
        threads=1,
    )
    # in a notebook every stage shows its bar
    assert {"generating rollouts", "training", "replaying episodes"} <= set(bars)
    assert record.plan.temperature == 0.5
    assert record.plan.epsilon is None
    # four scenes are too few for the default gate: chance stays to be beaten, and makes new data in every round
    assert not any(each.promoted for each in record.rounds)
    assert record.current is None
    assert [each.policy for each in record.rounds] == [None, None]
    assert record.rounds[0].baseline == record.rounds[1].baseline
    first, second = open_collection(tmp_path / "loop").stores
    seeds = [
        {store.lineage(row).random_seed for row in range(store.num_rollouts)}
        for store in (first, second)
    ]
    assert not seeds[0] & seeds[1]
