"""Exports a trainer batch with prompts and completions apart, as trainers of language models hold them.

A completion is the samples of a rollout: what the policy said, and what tools answered in between. `loss_mask` tells
them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.sample import Column
from rollbook.contracts.rl.staleness import TokenStaleness
from rollbook.contracts.rl.text_column import offsets_of
from rollbook.contracts.row_numbers import Rows
from rollbook.digest import Plain
from rollbook.errors import ConfigurationError, InvalidNumber, InvalidValue
from rollbook.train.export import (
    ExportedBatch,
    Side,
    TokenIds,
    identity_of,
    one_of,
    recipe_of,
    signed,
    token_dtype_of,
)
from rollbook.train.layout import ChosenTokens, Layout, choose, place_prompts
from rollbook.train.packing import whole_option
from rollbook.train.padding import shifted_places, split_places

AdvantageShape = Literal["token", "sequence"]
MaskArray = NDArray[np.int64] | NDArray[np.float32] | NDArray[np.bool_]

_INT32_MAX = int(np.iinfo(np.int32).max)
_INT64_MAX = int(np.iinfo(np.int64).max)
_MASK_TYPES = tuple(map(np.dtype, ("int64", "float32", "bool")))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SplitBatch(ExportedBatch):
    """One row per rollout. Prompts are [rollouts, prompt width], completions [rollouts, completion width].

    `loss_mask` and what follows it lie at the columns of the completions. If the export is shifted, they lie at the
    columns of prompt and completion together, each one column before its token, and are one column narrower.
    """

    artifact_ids: tuple[str, ...]
    prompt_ids: TokenIds
    prompt_mask: MaskArray
    """1 at tokens, 0 at padding."""
    prompt_lengths: NDArray[np.int64]
    completion_ids: TokenIds
    completion_mask: MaskArray
    """1 at tokens, also at those of tools; 0 at padding."""
    completion_lengths: NDArray[np.int64]
    loss_mask: MaskArray
    """1 where a token counts in the loss, as in every export."""
    weights: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    advantages: NDArray[np.float32]
    """One per token, or one per rollout, as the option `advantages` says."""
    columns: Mapping[str, Column]
    """The optional sample columns of the table, with the same names and types."""
    model_versions: NDArray[np.int64]
    """Revision number of the policy of each rollout; -1 if its revision has none."""
    span_rows: Rows
    """The row of each span of tokens that one version of the policy sampled. Spans follow each other without gaps."""
    span_starts: Rows
    """The first token of the span, counted within the completion."""
    span_ends: Rows
    span_versions: NDArray[np.int64]
    """-1 for tokens that no policy sampled."""


def to_split(
    batch: TrainerBatch,
    table: RolloutTable,
    *,
    prompt_side: Side = "left",
    completion_side: Side = "right",
    shifted: bool = False,
    advantages: AdvantageShape = "token",
    pad_id: int = 0,
    prompt_width: int | None = None,
    completion_width: int | None = None,
    multiple_of: int = 1,
    mask_dtype: DTypeLike = np.int64,
    token_dtype: DTypeLike = np.int64,
    staleness: TokenStaleness | None = None,
) -> SplitBatch:
    """Prompts and completions apart. Each is padded on its side, so `completion_side="left"` aligns ends.

    Widths are the longest lengths, rounded up to `multiple_of`, unless given. `shifted` puts what belongs to a token
    at the column of the token before it, where a model predicts it. `advantages="sequence"` gives one advantage per
    rollout and refuses a rollout whose tokens in the loss have different ones.
    """
    dtype = token_dtype_of(token_dtype)
    masks = _mask_dtype(mask_dtype)
    limits = np.iinfo(dtype)
    recipe = recipe_of(
        "split",
        dtype,
        staleness,
        prompt_side=one_of("prompt_side", prompt_side, get_args(Side)),
        completion_side=one_of("completion_side", completion_side, get_args(Side)),
        shifted=_shift(shifted, prompt_side, completion_side),
        advantages=one_of("advantages", advantages, get_args(AdvantageShape)),
        pad_id=whole_option("pad_id", pad_id, int(limits.min), int(limits.max)),
        multiple_of=whole_option("multiple_of", multiple_of, 1, _INT32_MAX),
        mask_dtype=masks.name,
        **_widths(prompt_width=prompt_width, completion_width=completion_width),
    )
    identity = identity_of(batch, table)
    chosen = choose(batch, table, staleness)
    prompts, completions = split_places(chosen, recipe)
    if shifted:
        refuse_missing_prompts(chosen)
    layout = Layout(chosen, completions, None)
    places = shifted_places(completions, prompts.shape[1]) if shifted else completions
    values = Layout(chosen, places, None).values()
    if advantages == "sequence":
        values["advantages"] = _one_per_rollout(chosen)
    prompt_ids = np.full(prompts.shape, pad_id, dtype)
    place_prompts(chosen, prompt_ids, prompts)
    return SplitBatch(
        **identity,
        **signed(recipe),
        **chosen.per_sequence(),
        rows=chosen.rows,
        dropped_rows=chosen.dropped_rows,
        artifact_ids=tuple(chosen.artifact_ids()),
        prompt_ids=prompt_ids,
        prompt_mask=prompts.astype(masks),
        prompt_lengths=chosen.prompt_lengths.astype(np.int64),
        completion_ids=layout.token_ids(dtype, pad_id),
        completion_mask=completions.astype(masks),
        completion_lengths=chosen.sample_lengths.astype(np.int64),
        **{**values, "loss_mask": values["loss_mask"].astype(masks)},
        **_versions(chosen),
    )


# ---------------------------------------------------------------------------------------- options


def _mask_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    with suppress(TypeError, ValueError):
        chosen = np.dtype(dtype)
        if chosen in _MASK_TYPES:
            return chosen
    expected = ", ".join(each.name for each in _MASK_TYPES)
    raise ConfigurationError(message=f"mask_dtype is {dtype!r}, expected one of {expected}")


def _shift(shifted: bool, prompt_side: Side, completion_side: Side) -> bool:
    if not isinstance(shifted, bool):
        raise ConfigurationError(message=f"shifted is {shifted!r}, expected True or False")
    if shifted and (prompt_side, completion_side) != ("left", "right"):
        raise ConfigurationError(
            message="shifted needs prompt_side='left' and completion_side='right': otherwise padding lies between "
            "the last token of a prompt and the token that it predicts"
        )
    return shifted


def _widths(**widths: int | None) -> dict[str, Plain]:
    return {
        name: whole_option(name, width, 0, _INT32_MAX)
        for name, width in widths.items()
        if width is not None
    }


# --------------------------------------------------------------------------------------- refusals


def refuse_missing_prompts(chosen: ChosenTokens) -> None:
    """Refuse rollouts without a prompt, by the name of the first."""
    missing = chosen.prompt_lengths == 0
    if missing.any():
        raise InvalidValue(
            record=f"artifact {chosen.artifact_ids()[int(np.argmax(missing))]!r}",
            field="prompt",
            value="missing",
            expected="at least one token: a model predicts a token from those before it",
        )


def _one_per_rollout(chosen: ChosenTokens) -> NDArray[np.float32]:
    """The advantage that all tokens of a rollout in the loss have; 0 for a rollout that has none in the loss."""
    values = chosen.column("advantage")
    offsets = offsets_of(chosen.sample_lengths)
    weights = chosen.weights()
    counts = np.broadcast_to(np.asarray(weights) > 0, values.shape)
    at = np.flatnonzero(counts)
    row = np.searchsorted(offsets, at, side="right") - 1
    rows, first = np.unique(row, return_index=True)
    chosen_values = np.zeros(len(chosen.rows), np.float32)
    chosen_values[rows] = values[at[first]]
    same = (values[at] == chosen_values[row]) | (
        np.isnan(values[at]) & np.isnan(chosen_values[row])
    )
    if not same.all():
        wrong = int(np.argmax(~same))
        sequence = int(row[wrong])
        start = int(offsets[sequence])
        one = at[first[np.searchsorted(rows, sequence)]]
        raise InvalidValue(
            record=f"artifact {chosen.artifact_ids()[sequence]!r}",
            field="advantage",
            value=f"{values[one]} at sample {one - start} and {values[at[wrong]]} at sample {at[wrong] - start}",
            expected="one value for all samples in the loss, because one advantage per rollout is wanted",
        )
    return chosen_values


# --------------------------------------------------------------------------------- model versions


def _versions(chosen: ChosenTokens) -> dict[str, Any]:
    """The version of the policy of each rollout, and of each span of tokens.

    Without the column `policy_version`, a completion is one span of the revision that the rollout names.
    """
    of_rollouts = _revision_numbers(chosen)
    offsets = offsets_of(chosen.sample_lengths)
    begins = offsets[:-1]
    versions = of_rollouts
    if "policy_version" in chosen.table.samples:
        tokens = chosen.column("policy_version").astype(np.int64)
        changes = np.flatnonzero(tokens[1:] != tokens[:-1]) + 1
        begins = np.union1d(begins, changes)
        versions = tokens[begins]
    rows = np.searchsorted(offsets, begins, side="right") - 1
    ends = np.append(begins[1:], offsets[-1])
    return {
        "model_versions": of_rollouts,
        "span_rows": rows,
        "span_starts": begins - offsets[rows],
        "span_ends": ends - offsets[rows],
        "span_versions": versions.copy(),
    }


def _revision_numbers(chosen: ChosenTokens) -> NDArray[np.int64]:
    columns = chosen.table.columns
    numbers = []
    for revision in columns.revisions:
        number = -1 if revision.revision_number is None else revision.revision_number
        if number > _INT64_MAX:
            raise InvalidNumber(
                record=f"policy revision {revision.revision_id!r}",
                field="revision_number",
                value=str(number),
                expected=f"at most {_INT64_MAX}, which an array of int64 can hold",
            )
        numbers.append(number)
    return np.array(numbers, np.int64)[columns.revision_index[chosen.rows]]
