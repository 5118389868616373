"""Batches for prime-rl: the fields of its MicroBatch, sequences end to end."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.provenance import LogprobSemantics
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.staleness import TokenStaleness
from rollbook.errors import InvalidValue
from rollbook.train.bridges.meaning import (
    check_logprobs,
    refuse_rollouts_without_prompt,
    temperatures_of,
)
from rollbook.train.export import PackedBatch, to_packed, to_packed_bins

_TRAINER = "prime-rl"
_RESERVED = "all"
"""prime-rl uses this name of an environment for its totals."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PrimeRLMicroBatch:
    """The fields of prime-rl's MicroBatch as plain lists, which `MicroBatch(**micro_batch.fields())` takes."""

    input_ids: list[int]
    loss_mask: list[bool]
    advantages: list[float]
    inference_logprobs: list[float]
    position_ids: list[int]
    sequence_lengths: list[int]
    temperatures: list[float]
    """At the token before the one that was sampled at it: prime-rl divides the logits of that place."""
    env_names: list[str]
    seq_lens: list[int]
    ref_logprobs: list[float] | None = None
    rl_weights: list[float] | None = None
    """Given only where staleness weighs tokens less."""

    def fields(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


def to_prime_rl(
    batch: TrainerBatch,
    table: RolloutTable,
    *,
    token_budget: int | None = None,
    logprob_semantics: LogprobSemantics | None = None,
    staleness: TokenStaleness | None = None,
) -> list[PrimeRLMicroBatch]:
    """One micro batch, or several of at most `token_budget` tokens each."""
    if token_budget is None:
        parts = [to_packed(batch, table, staleness=staleness)]
    else:
        parts = to_packed_bins(batch, table, token_budget=token_budget, staleness=staleness)
    return [_micro_batch(table, part, logprob_semantics) for part in parts]


def _micro_batch(
    table: RolloutTable, part: PackedBatch, stated: LogprobSemantics | None
) -> PrimeRLMicroBatch:
    ids = [table.columns.artifact_id[row] for row in part.rows.tolist()]
    refuse_rollouts_without_prompt(~part.sample_mask[part.cu_seqlens[:-1]], ids, _TRAINER)
    check_logprobs(table, part.rows, stated)
    lengths = np.diff(part.cu_seqlens).tolist()
    reference = part.columns.get("reference_logprob")
    weighed = bool(((part.weights != 0) & (part.weights != 1)).any())
    return PrimeRLMicroBatch(
        input_ids=part.token_ids.tolist(),
        loss_mask=part.loss_mask.tolist(),
        advantages=part.advantages.tolist(),
        inference_logprobs=part.logprobs.tolist(),
        position_ids=part.position_ids.tolist(),
        sequence_lengths=lengths,
        temperatures=_temperatures(table, part, stated).tolist(),
        env_names=_environments(table, part),
        seq_lens=list(lengths),
        ref_logprobs=None if reference is None else reference.tolist(),
        rl_weights=part.weights.tolist() if weighed else None,
    )


def _temperatures(
    table: RolloutTable, part: PackedBatch, stated: LogprobSemantics | None
) -> NDArray[np.floating[Any]]:
    own = part.columns.get("temperature")
    lengths = np.diff(part.cu_seqlens)
    if own is None:
        # one temperature per rollout, also at its prompt: the last token of the prompt predicts the first sample
        return np.repeat(temperatures_of(table, part.rows, stated), lengths)
    moved = np.append(own[1:], np.float32(1))
    moved[part.cu_seqlens[1:] - 1] = 1  # the last token of a sequence predicts nothing
    wrong = part.loss_mask & ~(own > 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        row = int(part.rows[np.searchsorted(part.cu_seqlens[1:], at, side="right")])
        raise InvalidValue(
            record=f"artifact {table.columns.artifact_id[row]!r}",
            field="temperature",
            value=str(own[at]),
            expected="above 0 at every sample in the loss",
        )
    return np.where(moved > 0, moved, np.float32(1))


def _environments(table: RolloutTable, part: PackedBatch) -> list[str]:
    """The environment of every token, by its reference."""
    columns = table.columns
    names = np.array([each.environment_ref for each in columns.environments], object)
    of_rows = names[columns.environment_index[part.rows]]
    for row, name in zip(part.rows.tolist(), of_rows.tolist(), strict=True):
        if name in (_RESERVED, ""):
            raise InvalidValue(
                record=f"artifact {columns.artifact_id[row]!r}",
                field="environment_ref",
                value=repr(name),
                expected=f"a name; {_RESERVED!r} stands for the totals of {_TRAINER}",
            )
    every: list[str] = np.repeat(of_rows, np.diff(part.cu_seqlens)).tolist()
    return every
