"""What trainers take for granted about a batch, checked before they get it. Refusals name the first artifact."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.policy import conflicting_field
from rollbook.contracts.record import checked_type
from rollbook.contracts.rl.provenance import LogprobDistribution, LogprobSemantics
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.row_numbers import Rows
from rollbook.errors import InvalidNumber, InvalidValue
from rollbook.train.export import PackedBatch
from rollbook.train.split import SplitBatch

_STATE_IT = (
    "what the log-probs are; where rollouts do not record it, give "
    "logprob_semantics=LogprobSemantics(distribution=..., temperature=...)"
)


def check_logprobs(
    table: RolloutTable,
    rows: Rows,
    stated: LogprobSemantics | None,
    *,
    temperature: float | None = None,
) -> None:
    """Refuse log-probs that are not those of the distribution from which tokens were sampled.

    Raw log-probs are the same only at temperature 1 without a cut-off. `stated` is for rollouts that do not record what
    theirs are. `temperature` is that of the trainer: log-probs at another one are refused.
    """
    if stated is not None:
        checked_type(stated, LogprobSemantics, "bridge", "logprob_semantics")
    columns = table.columns
    codes, first = np.unique(columns.semantics_index[rows], return_index=True)
    for code, at in zip(codes.tolist(), first.tolist(), strict=True):
        record = f"artifact {columns.artifact_id[int(rows[at])]!r}"
        meaning = _meaning(None if code < 0 else columns.semantics[code], stated, record)
        if meaning.distribution == LogprobDistribution.RAW:
            _refuse_unlike_sampling(meaning, record, columns_have="temperature" in table.samples)
        if temperature is not None and meaning.temperature not in (None, temperature):
            raise InvalidNumber(
                record=record,
                field="logprob_semantics.temperature",
                value=str(meaning.temperature),
                expected=f"{temperature}, the temperature of the trainer",
            )
    _check_temperature_column(table, rows, stated, temperature)


def _meaning(
    recorded: LogprobSemantics | None, stated: LogprobSemantics | None, record: str
) -> LogprobSemantics:
    meaning = recorded if recorded is not None else stated
    if meaning is None:
        raise InvalidValue(
            record=record, field="logprob_semantics", value="missing", expected=_STATE_IT
        )
    field = None if stated is None else conflicting_field(meaning, stated)
    if field is not None:
        raise InvalidValue(
            record=record,
            field=f"logprob_semantics.{field}",
            value=str(getattr(meaning, field)),
            expected=f"{getattr(stated, field)}, as the argument logprob_semantics says",
        )
    return meaning


def _refuse_unlike_sampling(meaning: LogprobSemantics, record: str, *, columns_have: bool) -> None:
    differs = {
        "temperature": meaning.temperature != 1
        and not (columns_have and meaning.temperature is None),
        "top_p": meaning.top_p is not None and meaning.top_p < 1,
        "top_k": bool(meaning.top_k),
    }
    for field, wrong in differs.items():
        if not wrong:
            continue
        value = getattr(meaning, field)
        raise InvalidValue(
            record=record,
            field=f"logprob_semantics.{field}",
            value="missing" if value is None else str(value),
            expected=f"{'none' if field == 'top_k' else 1}: raw log-probs are those of sampling only at temperature 1 "
            "without a cut-off; record processed ones",
        )


def _check_temperature_column(
    table: RolloutTable, rows: Rows, stated: LogprobSemantics | None, temperature: float | None
) -> None:
    """The same for temperatures that were recorded token by token."""
    column = table.samples.get("temperature")
    if column is None:
        return
    meanings = (*table.columns.semantics, stated)  # the code -1 is that of the last
    raw = np.array([m is not None and m.distribution == LogprobDistribution.RAW for m in meanings])
    of_rows = raw[table.columns.semantics_index]
    wanted = np.where(of_rows, 1.0, np.nan if temperature is None else temperature)
    lengths = np.diff(table.offsets)
    in_rows = np.zeros(len(table), np.bool_)
    in_rows[rows] = True
    expected = np.repeat(np.where(in_rows, wanted, np.nan), lengths).astype(np.float32)
    wrong = ~np.isnan(expected) & (column != expected) & _sampled(table)
    if wrong.any():
        at = int(np.argmax(wrong))
        row = int(np.searchsorted(table.offsets, at, side="right")) - 1
        raise InvalidNumber(
            record=f"artifact {table.columns.artifact_id[row]!r}, sample {at - int(table.offsets[row])}",
            field="temperature",
            value=str(column[at]),
            expected=f"{expected[at]}, at which the trainer takes its log-prob",
        )


def _sampled(table: RolloutTable) -> NDArray[np.bool_]:
    """Samples of the policy. Other tokens have no temperature."""
    mask = table.samples.get("loss_mask")
    version = table.samples.get("policy_version")
    sampled = np.ones(table.sample_count, np.bool_)
    if mask is not None:
        sampled &= mask == 1
    if version is not None:
        sampled &= version >= 0
    return sampled


def temperatures_of(
    table: RolloutTable, rows: Rows, stated: LogprobSemantics | None
) -> NDArray[np.float64]:
    """The temperature of each rollout. Refuses rollouts that do not say it, and 0, which has no log-probs."""
    columns = table.columns
    meanings = (*columns.semantics, stated)  # the code -1 is that of the last
    known = [None if meaning is None else meaning.temperature for meaning in meanings]
    codes = columns.semantics_index[rows]
    for code in np.unique(codes).tolist():
        if not known[code]:
            at = int(np.argmax(codes == code))
            raise InvalidNumber(
                record=f"artifact {columns.artifact_id[int(rows[at])]!r}",
                field="logprob_semantics.temperature",
                value="missing" if known[code] is None else str(known[code]),
                expected="the temperature of sampling, above 0",
            )
    return np.array([0 if each is None else each for each in known], np.float64)[codes]


def refuse_partial_weights(
    weights: NDArray[np.float32], artifact_at: Callable[[int], str], trainer: str
) -> None:
    """Refuse weights between 0 and 1, for trainers that know only tokens in the loss and tokens outside of it.

    `artifact_at` names the artifact of a flat index.
    """
    flat = weights.ravel()
    partial = (flat != 0) & (flat != 1)
    if partial.any():
        at = int(np.argmax(partial))
        raise InvalidNumber(
            record=f"artifact {artifact_at(at)!r}",
            field="weight",
            value=str(flat[at]),
            expected=f"0 or 1: {trainer} has no weight per token; "
            "drop or mask stale tokens instead of weighing them less",
        )


def refuse_rollouts_without_prompt(
    has_prompt: NDArray[np.bool_], artifact_ids: Sequence[str], trainer: str
) -> None:
    if not has_prompt.all():
        raise InvalidValue(
            record=f"artifact {artifact_ids[int(np.argmin(has_prompt))]!r}",
            field="prompt",
            value="missing",
            expected=f"at least one token: {trainer} predicts the first token of a completion from it",
        )


def check_split(export: SplitBatch, trainer: str) -> None:
    """Both refusals, for prompts and completions apart."""
    width = export.completion_ids.shape[1]
    ids = export.artifact_ids
    refuse_partial_weights(export.weights, lambda at: ids[at // width], trainer)
    refuse_rollouts_without_prompt(export.prompt_lengths > 0, ids, trainer)


def check_packed(export: PackedBatch, artifact_ids: Sequence[str], trainer: str) -> None:
    """The same for sequences end to end."""
    starts, ends = export.cu_seqlens[:-1], export.cu_seqlens[1:]

    def artifact_at(at: int) -> str:
        return artifact_ids[int(np.searchsorted(ends, at, side="right"))]

    refuse_partial_weights(export.weights, artifact_at, trainer)
    refuse_rollouts_without_prompt(~export.sample_mask[starts], artifact_ids, trainer)
