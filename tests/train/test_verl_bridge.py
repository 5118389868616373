"""What verl gets: the three parts of a DataProto; a file of it without pickle; and the same loss as TRL's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rollbook.contracts import LogprobDistribution, LogprobSemantics
from rollbook.errors import (
    ConfigurationError,
    DigestMismatch,
    MalformedJson,
    StorageError,
    TargetExists,
)
from rollbook.train import VerlBatch, open_verl, save_verl, to_verl
from tests.public_packages import reader_python
from tests.train.recorded_batches import PROCESSED, batch_of, conversations, raw

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("verl==0.9.1", "tensordict==0.15.3", "codetiming", "hydra-core", "omegaconf", "pyvers"),
    *("antlr4-python3-runtime==4.9.3", "orjson", "importlib-metadata", "zipp", "cloudpickle"),
)


def made(**changes: Any) -> VerlBatch:
    table = conversations(**changes)
    return to_verl(batch_of(table), table, pad_id=0)


def test_prompts_are_padded_on_the_left_and_responses_on_the_right() -> None:
    found = made(samples={"loss_mask": [1, 1, 1, 1, 0, 1]}).batch
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "prompts": [[7, 8, 9], [0, 0, 4], [0, 5, 6]],
        "responses": [[10, 11, 0], [20, 0, 0], [30, 31, 32]],
        "response_mask": [[1, 1, 0], [1, 0, 0], [1, 0, 1]],
        "input_ids": [[7, 8, 9, 10, 11, 0], [0, 0, 4, 20, 0, 0], [0, 5, 6, 30, 31, 32]],
        "attention_mask": [[1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]],
        "position_ids": [[0, 1, 2, 3, 4, 4], [0, 0, 0, 1, 1, 1], [0, 0, 1, 2, 3, 4]],
        "rollout_log_probs": [[-0.5, -1, 0], [-1.5, 0, 0], [-2, -2.5, -3]],
        "old_log_probs": [[-0.5, -1, 0], [-1.5, 0, 0], [-2, -2.5, -3]],
        "token_level_scores": [[0, 1, 0], [0.5, 0, 0], [0, 0, 2]],
        "token_level_rewards": [[0, 1, 0], [0.5, 0, 0], [0, 0, 2]],
        "advantages": [[1, 1, 0], [-1, 0, 0], [3, 3, 3]],
        "returns": [[1, 1, 0], [-1, 0, 0], [3, 3, 3]],
    }
    integers = {name for name, tensor in found.items() if tensor.dtype == torch.int64}
    assert integers == {
        *("prompts", "responses", "response_mask", "input_ids", "attention_mask", "position_ids")
    }


def test_groups_temperature_and_origin_come_with_the_tensors() -> None:
    found = made()
    assert found.non_tensor_batch["uid"].tolist() == ["g", "g", "rollout-2"]
    assert found.non_tensor_batch["revision_id"].tolist() == [f"policy-r{n}" for n in (1, 2, 3)]
    assert found.meta_info["temperature"] == 0.5
    assert found.meta_info["global_token_num"] == [5, 2, 5]
    assert found.meta_info["batch_digest"] == batch_of(conversations()).batch_digest


def test_a_temperature_that_has_no_exact_binary_form_is_kept() -> None:
    meaning = LogprobSemantics(distribution=LogprobDistribution.PROCESSED, temperature=0.8)
    assert made(semantics=meaning).meta_info["temperature"] == 0.8


def test_a_critic_and_a_reference_have_their_own_tensors() -> None:
    found = made(samples={"value": [1.0] * 6, "reference_logprob": [-1.0] * 6}).batch
    assert found["values"].tolist() == found["ref_log_prob"].neg().tolist()
    assert "returns" not in found


def test_rollouts_of_different_temperatures_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"different temperatures \(0.5 to 1.0\)"):
        made(logprob_semantics=[PROCESSED, PROCESSED, raw(temperature=1)])


def test_a_saved_batch_comes_back_and_is_not_replaced(tmp_path: Path) -> None:
    batch = made()
    path = tmp_path / "batch.safetensors"
    save_verl(batch, path)
    again = open_verl(path)
    assert again.digest == batch.digest
    assert {name: tensor.tolist() for name, tensor in again.batch.items()} == {
        name: tensor.tolist() for name, tensor in batch.batch.items()
    }
    assert again.meta_info == batch.meta_info
    with pytest.raises(TargetExists):
        save_verl(batch, path)
    save_verl(batch, path, replace=True)


@pytest.mark.parametrize("name", ["responses", "old_log_probs", "advantages"])
def test_a_file_whose_tensors_were_altered_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "batch.safetensors"
    save_verl(made(), path)
    data = bytearray(path.read_bytes())
    header = int.from_bytes(data[:8], "little")
    start, _ = json.loads(data[8 : 8 + header])[name]["data_offsets"]
    data[8 + header + start] ^= 1
    path.write_bytes(data)
    with pytest.raises(DigestMismatch):
        open_verl(path)


def test_files_that_are_no_saved_batch_give_typed_errors(tmp_path: Path) -> None:
    path = tmp_path / "batch.safetensors"
    save_verl(made(), path)
    whole = path.read_bytes()
    for cut in (0, 7, 100, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(StorageError, match="is no file of tensors"):
            open_verl(path)
    with pytest.raises(StorageError, match="is no file of tensors"):
        open_verl(tmp_path / "missing")
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(StorageError, match=r"has no rollbook.verl_batch"):
        open_verl(path)
    save_file(load_file(path), path, metadata={"rollbook.verl_batch": '{"meta_info": 3}'})
    with pytest.raises(MalformedJson):
        open_verl(path)


def test_a_data_proto_needs_verl() -> None:
    with pytest.raises(ConfigurationError, match="a DataProto needs verl"):
        made().data_proto()


@pytest.mark.slow
def test_verl_reads_a_recorded_batch_and_has_the_loss_of_trl(tmp_path: Path) -> None:
    """Its libraries are put beside ours, because torch is too large to be installed twice."""
    reader = reader_python(without_dependencies=PACKAGES)
    [packages] = (reader.parents[1] / "lib").glob("python3*/site-packages")
    (tmp_path / "jobs.json").write_text(json.dumps({"plain": {"record": "run", "steps": 1}}))
    files = [str(tmp_path / name) for name in ("jobs.json", "results.json")]
    train = [sys.executable, "-m", "tests.train.tiny_grpo", *files]
    subprocess.run(train, cwd=ROOT, check=True, capture_output=True)
    folders = [tmp_path / "run", tmp_path / "model", tmp_path / "batch.safetensors"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", ROOT / "tests/train/verl_loss.py", *folders],
        env={"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["moved"] > 0.1  # the ratios are not all 1
    assert found["trl"] == found["verl"] != 0
