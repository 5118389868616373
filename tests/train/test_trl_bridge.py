"""What TRL gets; steps on disk; and a model that TRL's GRPO trains through our records, bit by bit as without them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollbook.contracts import (
    LogprobDistribution,
    LogprobSemantics,
    RolloutRole,
    RolloutTable,
    RolloutTerminationReason,
    batch_to_json,
    open_table,
    save_table,
)
from rollbook.contracts.rl.provenance import EnvironmentPackageKey
from rollbook.errors import (
    ConfigurationError,
    InvalidValue,
    RollbookError,
    RolloutsNotInBatch,
    StorageError,
    WrongColumnType,
)
from rollbook.lineage import Places, Shelf, resolve, walk
from rollbook.train import (
    RecordedStep,
    RecordingMixin,
    StepRecorder,
    lineage_of_steps,
    recorded_steps,
    to_trl,
    trained_steps,
    weights_digest,
)
from tests.train.recorded_batches import PROCESSED, batch_of, conversations

ROOT = Path(__file__).parents[2]
ENVIRONMENT = EnvironmentPackageKey(environment_ref="sums", version="1")


def trl(table: RolloutTable, **options: Any) -> dict[str, torch.Tensor]:
    return to_trl(batch_of(table), table, pad_id=0, **options)


# ------------------------------------------------------------------------------------- the tensors


def test_prompts_are_padded_on_the_left_and_completions_on_the_right() -> None:
    found = trl(conversations())
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "prompt_ids": [[7, 8, 9], [0, 0, 4], [0, 5, 6]],
        "prompt_mask": [[1, 1, 1], [0, 0, 1], [0, 1, 1]],
        "completion_ids": [[10, 11, 0], [20, 0, 0], [30, 31, 32]],
        "completion_mask": [[1, 1, 0], [1, 0, 0], [1, 1, 1]],
        "advantages": [1, -1, 3],
        "num_items_in_batch": 6,
        "old_per_token_logps": [[-0.5, -1, 0], [-1.5, 0, 0], [-2, -2.5, -3]],
    }
    floats = {name for name, tensor in found.items() if tensor.dtype == torch.float32}
    assert floats == {"advantages", "old_per_token_logps"}
    assert all(tensor.dtype == torch.int64 for name, tensor in found.items() if name not in floats)


def test_tokens_of_tools_are_outside_of_the_loss_and_padding_is_1_in_the_tool_mask() -> None:
    found = trl(conversations(samples={"loss_mask": [1, 1, 1, 1, 0, 1]}))
    assert found["tool_mask"].tolist() == [[1, 1, 1], [1, 1, 1], [1, 0, 1]]
    assert found["completion_mask"].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
    assert found["num_items_in_batch"].item() == 5


def test_recorded_log_probs_are_old_or_of_sampling_or_left_out() -> None:
    table = conversations(samples={"reference_logprob": [-1.0] * 6})
    assert "old_per_token_logps" not in trl(table, logprobs="sampling")
    assert "sampling_per_token_logps" in trl(table, logprobs="sampling")
    left_out = trl(conversations(semantics=None), logprobs="none")
    assert not [name for name in left_out if name.endswith("_logps")]
    assert trl(table)["ref_per_token_logps"].tolist()[1] == [-1, 0, 0]


def test_log_probs_of_the_trainer_give_the_ratio_to_those_of_sampling() -> None:
    table = conversations(samples={"loss_mask": [1, 1, 1, 1, 0, 1]})
    own = torch.tensor([[-0.4, -1, 9], [-1.5, 9, 9], [-2, -2, -2.5]])
    found = trl(table, trainer_logprobs=own, ratio_cap=1.5)
    assert found["old_per_token_logps"].tolist() == own.tolist()
    assert found["sampling_per_token_logps"].tolist()[2] == [-2, -2.5, -3]
    expected = np.array([[1.1052, 1, 1], [1, 1, 1], [1, 1, 1.5]])
    assert np.allclose(found["importance_sampling_ratio"].numpy(), expected, atol=1e-4)
    with pytest.raises(WrongColumnType, match=r"floats of the shape \(3, 3\)"):
        trl(table, trainer_logprobs=own[:, :2])
    for cap in (0, -1, float("nan"), float("inf"), "2", True):
        with pytest.raises(ConfigurationError, match=r"ratio_cap is .*above 0"):
            trl(table, trainer_logprobs=own, ratio_cap=cap)
    with pytest.raises(ConfigurationError, match="give both"):
        trl(table, ratio_cap=1.5)


def test_rollouts_that_ended_at_the_limit_can_be_left_out_of_the_loss() -> None:
    reasons = [RolloutTerminationReason.MAX_TOKENS, *[RolloutTerminationReason.COMPLETED] * 2]
    found = trl(conversations(termination_reason=reasons), mask_truncated=True)
    assert found["completion_mask"].tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 1]]
    assert found["num_items_in_batch"].item() == 4


def test_one_advantage_is_wanted_unless_tokens_have_their_own() -> None:
    table = conversations(samples={"advantage": [1, 2, -1, 3, 3, 3]})
    with pytest.raises(
        InvalidValue, match=r"artifact 'rollout-0': advantage is 1.0 at sample 0 and"
    ):
        trl(table)
    assert trl(table, advantages="token")["advantages"].tolist()[0] == [1, 2, 0]
    with pytest.raises(ConfigurationError, match="logprobs is 'new'"):
        trl(table, logprobs="new")


# ------------------------------------------------------------------------------------ steps on disk


def record(
    recorder: StepRecorder, step: int = 1, digest: str = "a" * 64, **changes: Any
) -> RecordedStep:
    fields: dict[str, Any] = {
        "revision": recorder.revision(step - 1, digest),
        "offsets": [0, 2, 3],
        "samples": {
            "token_id": [1, 2, 3],
            "logprob": [-1, -2, -3],
            "reward": [0, 1, 0],
            "advantage": [1, 1, -1],
        },
        "prompt": [[5], [6, 7]],
        "groups": [0, 0],
        "termination_reason": [RolloutTerminationReason.COMPLETED] * 2,
        "logprob_semantics": PROCESSED,
        "environment": ENVIRONMENT,
    }
    return recorder.record(step, **{**fields, **changes})


def test_a_step_is_on_disk_before_it_is_given_out(tmp_path: Path) -> None:
    recorder = StepRecorder(tmp_path / "run", clock=lambda: 5)
    step = record(recorder, tensors={"old_per_token_logps": np.ones((2, 2), np.float32)})
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "step-000001.batch.json",
        "step-000001.npz",
        "step-000001.table",
    ]
    assert step.batch.batch_id == "run-step-000001"
    assert [each.artifact_id for each in step.table] == ["run-step-000001-0", "run-step-000001-1"]
    assert step.tensors["old_per_token_logps"].tolist() == [[1, 1], [1, 1]]
    [again] = recorded_steps(tmp_path / "run")
    assert again.batch == step.batch
    assert again.table.root == step.table.root


def test_a_reward_that_nobody_could_give_is_recorded_as_missing(tmp_path: Path) -> None:
    step = record(
        StepRecorder(tmp_path),
        samples={
            "token_id": [1, 2, 3],
            "logprob": [-1, -2, -3],
            "reward": [0, np.nan, 0],
            "advantage": [0, 0, 0],
        },
    )
    assert np.isnan(step.batch.reward_sum)


def test_a_run_that_is_continued_keeps_the_steps_that_were_there(tmp_path: Path) -> None:
    times = iter(range(100))
    first = StepRecorder(tmp_path, run_id="run", clock=lambda: next(times))
    one = record(first)
    first.finish(1, one.batch, first.revision(1, "b" * 64))
    record(first, 2, "b" * 64)
    second = StepRecorder(tmp_path, run_id="run", clock=lambda: next(times))
    assert second.revision(1, "b" * 64) == first.revision(1, "b" * 64)
    again = record(second, 2, "b" * 64)
    second.finish(2, again.batch, second.revision(2, "c" * 64))
    assert [step.name for step in recorded_steps(tmp_path)] == [
        *("step-000001", "step-000002", "step-000002-2")
    ]
    graph = lineage_of_steps(tmp_path)
    last = trained_steps(tmp_path)[-1].revision
    digests = [each.policy_digest[0] for each in graph.ancestors("policy", last.revision_id)]
    assert digests == ["b", "a"]


def altered_table(folder: Path, name: str, **columns: Any) -> None:
    """A table file that is valid in itself, with other values."""
    path = folder / f"{name}.table"
    table = open_table(path)
    save_table(
        RolloutTable.from_columns(
            artifact_id=[each.artifact_id for each in table],
            worker_id=[each.worker_id for each in table],
            environment=[each.environment for each in table],
            task_id=[each.task_id for each in table],
            source_policy_revision=[each.source_policy_revision for each in table],
            offsets=table.offsets,
            samples={**table.samples, **columns},
            termination_reason=[each.termination_reason for each in table],
            created_at_ms=[each.created_at_ms for each in table],
            prompt=[each.prompt for each in table],
            group_id=[each.group_id for each in table],
            logprob_semantics=[each.logprob_semantics for each in table],
        ),
        path,
        replace=True,
    )


@pytest.mark.parametrize("column", ["token_id", "logprob", "advantage"])
def test_an_altered_value_is_refused_when_a_step_is_read(tmp_path: Path, column: str) -> None:
    step = record(StepRecorder(tmp_path))
    values = step.table.samples[column].copy()
    values[1] -= 1
    altered_table(tmp_path, step.name, **{column: values})
    with pytest.raises(RolloutsNotInBatch, match="has another digest than the batch records"):
        recorded_steps(tmp_path)


@pytest.mark.parametrize("suffix", [".table", ".npz", ".batch.json", ".step.json"])
def test_any_flipped_bit_gives_a_typed_error(tmp_path: Path, suffix: str) -> None:
    recorder = StepRecorder(tmp_path)
    step = record(recorder, tensors={"importance_sampling_ratio": np.ones((2, 1), np.float32)})
    recorder.finish(1, step.batch, recorder.revision(1, "b" * 64))
    assert lineage_of_steps(tmp_path).artifacts_of_batch(step.batch.batch_id)
    path = tmp_path / f"step-000001{suffix}"
    whole = path.read_bytes()
    unharmed = []
    for at in range(0, len(whole), max(1, len(whole) // 97)):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        try:
            lineage_of_steps(tmp_path)
        except RollbookError:
            continue
        unharmed.append(at)
    assert not unharmed
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RollbookError):
        lineage_of_steps(tmp_path)


def test_a_file_that_is_altered_before_it_is_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_altered(table: RolloutTable, path: Path) -> None:
        save_table(table, path)
        altered_table(path.parent, path.stem, advantage=table.samples["advantage"] + 1)

    monkeypatch.setattr("rollbook.train.bridges.step_recorder.save_table", save_altered)
    with pytest.raises(RolloutsNotInBatch):
        record(StepRecorder(tmp_path))


def test_a_missing_file_of_a_step_is_named(tmp_path: Path) -> None:
    step = record(StepRecorder(tmp_path), tensors={"a": np.ones(1)})
    (tmp_path / f"{step.name}.npz").unlink()
    with pytest.raises(StorageError, match=r"step-000001.npz: cannot be read"):
        recorded_steps(tmp_path)


def test_a_killed_run_leaves_no_half_step(tmp_path: Path) -> None:
    """A table without its batch was never learned from: it is left out, and its name is not used again."""
    record(StepRecorder(tmp_path, run_id="run"))
    (tmp_path / "step-000001.batch.json").unlink()
    assert recorded_steps(tmp_path) == []
    assert record(StepRecorder(tmp_path, run_id="run")).name == "step-000001-2"


def test_the_digest_of_weights_covers_values_names_types_and_shapes() -> None:
    def linear(**changes: Any) -> Any:
        made = torch.nn.Linear(2, 2)
        with torch.no_grad():
            made.weight.copy_(torch.tensor([[1.0, 2], [3, 4]]))
            made.bias.zero_()
        return made

    first = weights_digest(linear())
    assert first == weights_digest(linear())
    moved = linear()
    with torch.no_grad():
        moved.weight[0, 0] += 1e-6
    narrow = linear().to(torch.bfloat16)
    named = torch.nn.Sequential(linear())
    assert len({first, *map(weights_digest, (moved, narrow, named))}) == 4


def test_the_mixin_wants_a_recorder() -> None:
    with pytest.raises(RollbookError, match="recorder"):
        RecordingMixin(recorder="runs/1")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------- end to end

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"steps": 80},
    "reference": {"beta": 0.04},
    "again": {"num_iterations": 2, "steps": 4},
    "accumulated": {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2},
    "several steps of one batch": {
        "per_device_train_batch_size": 16,
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 2,
    },
    "truncated": {"mask_truncated_completions": True},
    "two rewards": {"rewards": ["same_parity", "long_ones"], "reward_weights": [1.0, 0.5]},
    "cut off": {"temperature": 0.7, "top_p": 0.9},
    "tools": {"tools": True},
}


ALTERED = ("completion_ids", "old_per_token_logps", "advantages", "prompt_ids")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Every variant trained by TRL alone and through our records, in one process of its own."""
    folder = tmp_path_factory.mktemp("grpo")
    recorded = {
        f"{name}, recorded": {**options, "record": f"run of {name}"}
        for name, options in VARIANTS.items()
    }
    altering = {
        name: {"record": f"altered {name}", "alter": name, "num_iterations": 2} for name in ALTERED
    }
    (folder / "jobs.json").write_text(json.dumps(VARIANTS | recorded | altering))
    files = [str(folder / name) for name in ("jobs.json", "results.json")]
    command = [sys.executable, "-m", "tests.train.tiny_grpo", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, json.loads((folder / "results.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_weights_are_those_of_trl_alone_bit_by_bit(
    runs: tuple[Path, dict[str, Any]], variant: str
) -> None:
    _, results = runs
    alone, recorded = results[variant], results[f"{variant}, recorded"]
    for field in ("losses", "gradients", "rewards", "weights"):
        assert alone[field] == recorded[field], field
    assert any(recorded["gradients"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALTERED)
def test_a_tensor_that_was_altered_after_recording_is_not_learned_from(
    runs: tuple[Path, dict[str, Any]], name: str
) -> None:
    folder, results = runs
    assert results[name]["refused"] == "RolloutsNotInBatch"
    assert "of the tensors is none of its rollouts" in results[name]["message"]
    assert trained_steps(folder / f"altered {name}") == []


@pytest.mark.slow
def test_the_reward_rises_and_is_what_was_recorded(runs: tuple[Path, dict[str, Any]]) -> None:
    folder, results = runs
    rewards = results["plain, recorded"]["rewards"]
    assert np.mean(rewards[-10:]) > np.mean(rewards[:10]) + 0.25
    steps = recorded_steps(folder / "run of plain")
    assert [float(each.table.reward_sums().mean()) for each in steps] == pytest.approx(rewards)


@pytest.mark.slow
def test_lineage_names_the_batch_of_every_step(runs: tuple[Path, dict[str, Any]]) -> None:
    folder, results = runs
    run = folder / "run of plain"
    steps, done = recorded_steps(run), trained_steps(run)
    assert [each.step for each in done] == list(range(1, 81))
    assert [each.batch_digest for each in done] == [each.batch.batch_digest for each in steps]
    last = done[-1].revision
    assert last.policy_digest == results["plain, recorded"]["weights"]
    graph = lineage_of_steps(run)
    ancestors = graph.ancestors("tiny", last.revision_id)
    assert len(ancestors) == 80
    batches = [
        use.batch_id
        for each in reversed(ancestors)
        for use in graph.batches_of_revision("tiny", each.revision_id)
        if use.role == "target"
    ]
    assert batches == [each.batch_id for each in done]
    places = Places(
        tables=tuple(run / f"{each.name}.table" for each in steps[:3]),
        batches=tuple(run / f"{each.name}.batch.json" for each in steps[:3]),
    )
    shelf = Shelf.of(places)
    report = walk(resolve(steps[2].batch.batch_id, shelf, "batch"), shelf)
    titles = [node.title for node in report.nodes.values()]
    assert any(steps[2].batch.batch_id in title for title in titles)
    assert sum("revision" in title for title in titles) >= 3


@pytest.mark.slow
def test_a_batch_that_serves_several_steps_is_recorded_once(
    runs: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = runs
    run = folder / "run of again"
    assert [each.batch_id[-6:] for each in trained_steps(run)] == [
        *("000001", "000001", "000003", "000003")
    ]
    assert "old_per_token_logps" not in recorded_steps(run)[0].tensors


@pytest.mark.slow
def test_what_a_table_has_no_column_for_is_recorded_beside_it(
    runs: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = runs
    [step, *_] = recorded_steps(folder / "run of two rewards")
    assert step.tensors["reward_func_names"].tolist() == ["same_parity", "long_ones"]
    each = step.tensors["rewards_per_func"]
    total = np.nansum(each * np.array([1, 0.5], np.float32), axis=1)
    assert np.isnan(each[:, 1]).any()
    assert step.table.reward_sums().tolist() == pytest.approx(total.tolist())


@pytest.mark.slow
def test_tools_limits_and_cut_offs_are_in_the_record(runs: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = runs
    [step, *_] = recorded_steps(folder / "run of tools")
    first = step.table[0]
    assert first.columns["loss_mask"].tolist() == [1, 1, 0, 1]
    assert first.columns["role"].tolist()[2] == RolloutRole.TOOL
    assert first.columns["policy_version"].tolist() == [0, 0, -1, 0]
    assert first.columns["reward"].tolist()[:3] == [0, 0, 0]
    [step, *_] = recorded_steps(folder / "run of truncated")
    reasons = {each.termination_reason for each in step.table}
    assert reasons == {
        RolloutTerminationReason.COMPLETED,
        RolloutTerminationReason.MAX_TOKENS,
    }
    [step, *_] = recorded_steps(folder / "run of cut off")
    meaning = step.table[0].logprob_semantics
    assert isinstance(meaning, LogprobSemantics)
    assert (meaning.distribution, meaning.temperature) == (LogprobDistribution.PROCESSED, 0.7)
    assert meaning.engine is not None
    assert "without the cut-off of sampling (top_p 0.9)" in meaning.engine


@pytest.mark.slow
@pytest.mark.parametrize("column", ["token_id", "logprob", "advantage"])
def test_a_recorded_value_that_was_altered_is_refused_by_the_bridge(
    runs: tuple[Path, dict[str, Any]], tmp_path: Path, column: str
) -> None:
    folder, _ = runs
    [step, *_] = recorded_steps(folder / "run of plain")
    save_table(step.table, tmp_path / "step-000001.table")
    (tmp_path / "step-000001.batch.json").write_bytes(batch_to_json(step.batch))
    values = step.table.samples[column].copy()
    values[5] -= 1
    altered_table(tmp_path, "step-000001", **{column: values})
    with pytest.raises(RolloutsNotInBatch):
        to_trl(step.batch, open_table(tmp_path / "step-000001.table"), pad_id=0)
    with pytest.raises(RolloutsNotInBatch):
        recorded_steps(tmp_path)
