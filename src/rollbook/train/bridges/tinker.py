"""Batches for Tinker: one datum per rollout, everything at the place where a model predicts the token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.provenance import LogprobSemantics
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.staleness import TokenStaleness
from rollbook.train.bridges.meaning import check_logprobs, check_packed
from rollbook.train.export import to_packed

_TRAINER = "Tinker"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TinkerDatum:
    """What a `tinker.Datum` is made of, and which rollout it is."""

    artifact_id: str
    model_input: list[int]
    """Prompt and completion without the last token."""
    loss_fn_inputs: dict[str, NDArray[Any]]
    """`target_tokens` (int64), `logprobs`, `advantages` and `mask` (float32), all as long as `model_input`. Advantages
    are 0 where the mask is 0, because the losses of the service take no mask."""


def to_tinker(
    batch: TrainerBatch,
    table: RolloutTable,
    *,
    logprob_semantics: LogprobSemantics | None = None,
    staleness: TokenStaleness | None = None,
) -> list[TinkerDatum]:
    """One datum per rollout, shifted by one: row i of every input belongs to token i + 1 of the sequence."""
    export = to_packed(batch, table, staleness=staleness)
    ids = [table.columns.artifact_id[row] for row in export.rows.tolist()]
    starts, ends = export.cu_seqlens[:-1], export.cu_seqlens[1:]
    check_packed(export, ids, _TRAINER)
    check_logprobs(table, export.rows, logprob_semantics)
    mask = export.loss_mask.astype(np.float32)
    inputs: dict[str, NDArray[Any]] = {
        "target_tokens": export.token_ids.astype(np.int64, copy=False),
        "logprobs": export.logprobs,
        "advantages": np.where(export.loss_mask, export.advantages, np.float32(0)),
        "mask": mask,
    }
    return [
        TinkerDatum(
            artifact_id=artifact_id,
            model_input=export.token_ids[start : end - 1].tolist(),
            loss_fn_inputs={name: array[start + 1 : end] for name, array in inputs.items()},
        )
        for artifact_id, start, end in zip(ids, starts.tolist(), ends.tolist(), strict=True)
    ]
