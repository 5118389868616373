"""Compares verl's policy loss with TRL's on a batch that TRL recorded. Needs verl; run as a file, not as a module,
because verl installs a package `tests` of its own.

    python tests/train/verl_loss.py RECORDED_FOLDER MODEL_FOLDER FILE

FILE gets the batch without pickle, and is read back into a DataProto.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch

from rollbook.train import open_verl, recorded_steps, save_verl, to_trl, to_verl

datasets: Any = importlib.import_module("datasets")
transformers: Any = importlib.import_module("transformers")
trl: Any = importlib.import_module("trl")


def main() -> None:
    recorded, model_folder, target = map(Path, sys.argv[1:])
    [step, *_] = recorded_steps(recorded)
    made = to_verl(step.batch, step.table, pad_id=0)
    save_verl(made, target)
    proto = open_verl(target).data_proto()
    assert all(torch.equal(proto.batch[name], tensor) for name, tensor in made.batch.items())
    assert proto.non_tensor_batch["uid"].tolist() == made.non_tensor_batch["uid"].tolist()
    assert proto.meta_info == made.meta_info

    model = transformers.LlamaForCausalLM.from_pretrained(model_folder)
    torch.manual_seed(3)
    with torch.no_grad():
        for weights in model.parameters():  # another policy than the one that sampled
            weights += 0.05 * torch.randn_like(weights)
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=trl.GRPOConfig(
            output_dir=str(target.parent / "trl"), report_to=[], use_cpu=True, bf16=False
        ),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["1"]}),
        processing_class=transformers.PreTrainedTokenizerFast.from_pretrained(model_folder),
    )
    trainer.model.eval()
    inputs = to_trl(step.batch, step.table, pad_id=0)
    with torch.no_grad():
        of_trl = trainer.compute_loss(trainer.model, inputs)
        responses = proto.batch["responses"].size(1)
        logprobs, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model, proto.batch["input_ids"], proto.batch["attention_mask"], responses
        )
    algorithms: Any = importlib.import_module("verl.trainer.ppo.core_algos")
    actor: Any = importlib.import_module("verl.workers.config").ActorConfig
    of_verl, _ = algorithms.compute_policy_loss_vanilla(
        old_log_prob=proto.batch["old_log_probs"],
        log_prob=logprobs,
        advantages=proto.batch["advantages"],
        response_mask=proto.batch["response_mask"],
        config=actor(strategy="fsdp", rollout_n=8, ppo_micro_batch_size_per_gpu=1),
    )
    ratio = float((logprobs - proto.batch["old_log_probs"]).abs().max())
    print(json.dumps({"trl": float(of_trl), "verl": float(of_verl), "moved": ratio}))  # noqa: T201


if __name__ == "__main__":
    main()
