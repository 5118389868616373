"""A causal language model of 84,000 weights that TRL's GRPO trains in seconds, made in code.

    python -m tests.train.tiny_grpo JOBS.json RESULTS.json

runs in a process of its own, because warnings of TRL are not errors there. Jobs are the arguments of `trainer` by name;
results are losses, gradients, rewards and the digest of the weights, or the error that refused the training.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

import torch

from rollbook.errors import RollbookError
from rollbook.train import RecordingMixin, StepRecorder, weights_digest

DIGITS = [str(digit) for digit in range(10)]
WORDS = ["<pad>", "<eos>", "<unk>", *DIGITS]


# what these libraries say about their types differs from version to version
datasets: Any = importlib.import_module("datasets")
tokenizers: Any = importlib.import_module("tokenizers")
transformers: Any = importlib.import_module("transformers")
trl: Any = importlib.import_module("trl")

RecordingTrainer: Any = type("RecordingTrainer", (RecordingMixin, trl.GRPOTrainer), {})


def tokenizer() -> Any:
    words = {word: at for at, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def model(folder: Path) -> Any:
    """It lies in a folder, because TRL reads the reference model from where the model came from."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    tokenizer().save_pretrained(folder)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return transformers.LlamaForCausalLM.from_pretrained(folder)


def prompts() -> Any:
    texts = [
        " ".join(DIGITS[(first + k) % 10] for k in range(1 + first % 3)) for first in range(64)
    ]
    return datasets.Dataset.from_dict({"prompt": texts})


def same_parity(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """The share of words that are digits of the parity of the first digit of the prompt."""

    def share(prompt: str, completion: str) -> float:
        words = completion.split()
        right = [word.isdigit() and int(word) % 2 == int(prompt[0]) % 2 for word in words]
        return sum(right) / 4

    return [share(*pair) for pair in zip(prompts, completions, strict=True)]


def long_ones(completions: list[str], **_: Any) -> list[float | None]:
    """Has no opinion about completions of one word or none."""
    return [0.1 * len(each.split()) if len(each.split()) > 1 else None for each in completions]


def with_tools(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Completions that somebody else sampled: two words of the policy, one of a tool, one more of the policy."""
    drawn = torch.randint(3, len(WORDS), (len(prompts), 4)).tolist()
    logprobs = (-3 * torch.rand(len(prompts), 4)).tolist()
    return {
        "prompt_ids": trainer.processing_class(prompts)["input_ids"],
        "completion_ids": drawn,
        "logprobs": logprobs,
        "env_mask": [[1, 1, 0, 1]] * len(prompts),
    }


REWARDS = {"same_parity": same_parity, "long_ones": long_ones}


def trainer(
    folder: Path,
    *,
    record: str | None = None,
    steps: int = 3,
    rewards: tuple[str, ...] = ("same_parity",),
    tools: bool = False,
    alter: str | None = None,
    **options: Any,
) -> Any:
    """A trainer that writes under `folder`. `record` is the folder in it where steps are recorded; `alter` is the
    tensor that is altered after it was recorded."""
    config = trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        num_generations=8,
        max_completion_length=4,
        max_steps=steps,
        learning_rate=3e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=7,
        bf16=False,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{"per_device_train_batch_size": 32, **options},
    )
    parts: dict[str, Any] = {
        "model": model(folder / "model"),
        "reward_funcs": [REWARDS[name] for name in rewards],
        "args": config,
        "train_dataset": prompts(),
        "processing_class": tokenizer(),
        "rollout_func": with_tools if tools else None,
    }
    if record is None:
        return trl.GRPOTrainer(**parts)
    recorder = StepRecorder(folder / record, policy_family="tiny")
    kind = RecordingTrainer if alter is None else altered(alter)
    return kind(**parts, recorder=recorder)


def trained(made: Any) -> dict[str, Any]:
    begun = time.perf_counter()
    try:
        made.train()
    except RollbookError as error:
        return {"refused": type(error).__name__, "message": str(error)}
    seconds = time.perf_counter() - begun
    logs = [each for each in made.state.log_history if "loss" in each]
    return {
        "losses": [each["loss"] for each in logs],
        "gradients": [each["grad_norm"] for each in logs],
        "rewards": [each["reward"] for each in logs if "reward" in each],
        "weights": weights_digest(made.accelerator.unwrap_model(made.model)),
        "seconds": seconds,
    }


def altered(name: str) -> Any:
    """A trainer that records, and alters one number of a tensor after it was recorded."""

    class Altering(RecordingTrainer):  # type: ignore[misc]
        def _prepare_inputs(self, generation_batch: Any) -> Any:
            inputs = super()._prepare_inputs(generation_batch)
            inputs[name].view(-1)[0] += 1
            return inputs

    return Altering


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    jobs, results = map(Path, sys.argv[1:])
    done = {
        name: trained(trainer(results.parent, **job))
        for name, job in json.loads(jobs.read_text()).items()
    }
    results.write_text(json.dumps(done))


if __name__ == "__main__":
    main()
