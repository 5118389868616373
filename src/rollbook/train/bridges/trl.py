"""Batches for TRL's GRPOTrainer: the tensors that its `compute_loss` takes, with its names, sides and types."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.given_array import given_array
from rollbook.contracts.rl.provenance import (
    TERMINATION_REASONS,
    LogprobSemantics,
    RolloutTerminationReason,
)
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.staleness import TokenStaleness
from rollbook.errors import ConfigurationError, WrongColumnType
from rollbook.train.bridges.meaning import check_logprobs, check_split
from rollbook.train.export import one_of
from rollbook.train.layout import import_torch
from rollbook.train.packing import whole_option
from rollbook.train.split import AdvantageShape, SplitBatch, to_split

if TYPE_CHECKING:
    import torch

RecordedAs = Literal["old", "sampling", "none"]

_TRAINER = "TRL"
_MAX_TOKENS = TERMINATION_REASONS.index(RolloutTerminationReason.MAX_TOKENS)


def to_trl(
    batch: TrainerBatch,
    table: RolloutTable,
    *,
    pad_id: int,
    logprobs: RecordedAs = "old",
    advantages: AdvantageShape = "sequence",
    trainer_logprobs: ArrayLike | None = None,
    ratio_cap: float | None = None,
    mask_truncated: bool = False,
    temperature: float | None = None,
    logprob_semantics: LogprobSemantics | None = None,
    prompt_width: int | None = None,
    completion_width: int | None = None,
    multiple_of: int = 1,
    staleness: TokenStaleness | None = None,
) -> dict[str, torch.Tensor]:
    """The batch as GRPOTrainer holds it: prompts padded on the left, completions on the right.

    `logprobs` says what the recorded log-probs are for TRL: `old_per_token_logps`, `sampling_per_token_logps`, or
    nothing, if the weights that sampled are those that learn now. `trainer_logprobs` are those of the same tokens by
    the weights before the step: they become the old ones, the recorded ones those of sampling, and
    `importance_sampling_ratio` is computed, at most `ratio_cap`. `mask_truncated` leaves rollouts out of the loss that
    ended at the token limit. `temperature` is that of the trainer.
    """
    torch = import_torch()
    recorded = one_of("logprobs", logprobs, get_args(RecordedAs))
    cap = _checked_cap(ratio_cap, trainer_logprobs)
    export = to_split(
        batch,
        table,
        advantages=advantages,
        pad_id=whole_option("pad_id", pad_id, 0),
        prompt_width=prompt_width,
        completion_width=completion_width,
        multiple_of=multiple_of,
        staleness=staleness,
    )
    check_split(export, _TRAINER)
    if recorded != "none" or trainer_logprobs is not None:
        check_logprobs(table, export.rows, logprob_semantics, temperature=temperature)
    arrays = _masked(table, export, mask_truncated)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    mask = tensors["completion_mask"]
    if "tool_mask" in tensors:
        mask = mask * tensors["tool_mask"]
    tensors["num_items_in_batch"] = mask.sum()
    own = torch.from_numpy(export.logprobs)
    if trainer_logprobs is not None:
        old = torch.from_numpy(_like_completions("trainer_logprobs", trainer_logprobs, export))
        ratio = torch.exp((old - own) * mask)
        tensors["old_per_token_logps"], tensors["sampling_per_token_logps"] = old, own
        tensors["importance_sampling_ratio"] = ratio if cap is None else ratio.clamp(max=cap)
    elif recorded != "none":
        tensors[f"{recorded}_per_token_logps"] = own
    if "reference_logprob" in export.columns:
        tensors["ref_per_token_logps"] = torch.from_numpy(export.columns["reference_logprob"])
    return tensors


def _checked_cap(cap: object, trainer_logprobs: ArrayLike | None) -> float | None:
    if cap is None:
        return None
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not 0 < cap < math.inf:
        message = f"ratio_cap is {cap!r}, expected a number above 0, or None for no cap"
        raise ConfigurationError(message=message)
    if trainer_logprobs is None:
        message = "ratio_cap caps the ratio of trainer_logprobs to the recorded ones: give both"
        raise ConfigurationError(message=message)
    return float(cap)


def _masked(
    table: RolloutTable, export: SplitBatch, mask_truncated: bool
) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """TRL's `tool_mask` is 1 at padding. It is given only if a token of a completion is outside of the loss."""
    completions = np.asarray(export.completion_mask)
    tools = np.where(completions == 1, np.asarray(export.loss_mask), 1)
    arrays = {
        "prompt_ids": export.prompt_ids,
        "prompt_mask": export.prompt_mask,
        "completion_ids": export.completion_ids,
        "completion_mask": completions,
        "advantages": export.advantages,
    }
    if not tools.all():
        arrays["tool_mask"] = tools
    if mask_truncated:
        kept = table.columns.termination[export.rows] != _MAX_TOKENS
        for name in ("completion_mask", "tool_mask"):
            if name in arrays:
                arrays[name] = arrays[name] * kept[:, None].astype(np.int64)
    return arrays


def _like_completions(
    name: str, given: ArrayLike, export: SplitBatch
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    array = given_array(name, given, "numbers")
    if array.shape != export.logprobs.shape or array.dtype.kind != "f":
        raise WrongColumnType(
            column=name,
            expected=f"floats of the shape {export.logprobs.shape}, as completion_ids",
            actual=f"{array.dtype} of the shape {array.shape}",
        )
    return np.ascontiguousarray(array, np.float32)
