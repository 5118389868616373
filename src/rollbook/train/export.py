"""Exports a trainer batch as arrays for a training step: packed, padded or jagged.

A sequence is the prompt of a rollout, if it has one, followed by its samples. Sample columns have no values at prompt
tokens and at padding: `sample_mask` is true where they have. Elsewhere they are 0, or what `layout.PADDING` says.

Every export names its batch, its rollouts and its options, so that it can be made again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.sample import Column
from rollbook.contracts.rl.staleness import TokenStaleness
from rollbook.contracts.rl.text_column import Offsets, offsets_of
from rollbook.contracts.row_numbers import Rows
from rollbook.digest import Plain, digest_of
from rollbook.errors import (
    ConfigurationError,
    InvalidNumber,
    RolloutsNotInBatch,
    UnknownArtifact,
)
from rollbook.train.layout import ChosenTokens, Layout, choose, import_torch
from rollbook.train.packing import pack_to_budget, whole_option

if TYPE_CHECKING:
    import torch

EXPORT_DOMAIN = "rollbook.trainer_export.v1"
_INT32_MAX = int(np.iinfo(np.int32).max)

TokenIds = NDArray[np.int32] | NDArray[np.int64]
Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TrainerArrays:
    """The arrays of every layout. They are new, writable arrays that nothing else uses."""

    batch_digest: str
    rollouts_root: str
    """Merkle root over the content of the rollouts. It covers prompts and optional columns, unlike `batch_digest`
    (v1)."""
    recipe: Mapping[str, Plain]
    """The kind of export, all its options, and the options of its staleness."""
    recipe_digest: str
    rows: Rows
    """Row in the batch of each sequence."""
    dropped_rows: tuple[int, ...]
    """Rows of the batch that are left out because staleness dropped all their samples."""
    token_ids: TokenIds
    sample_mask: NDArray[np.bool_]
    """True at samples; False at prompt tokens and padding."""
    loss_mask: NDArray[np.bool_]
    """True where a sample counts in the loss: where the mask of the table is 1 (without a mask: everywhere except
    context that no policy sampled) and staleness gives a weight above 0."""
    weights: NDArray[np.float32]
    """Weight in the loss: from staleness, or 1 without it; 0 where `loss_mask` is False."""
    logprobs: NDArray[np.float32]
    """Of the token at the same position, not of the next one. This holds for all columns."""
    rewards: NDArray[np.float32]
    advantages: NDArray[np.float32]
    columns: Mapping[str, Column]
    """The optional sample columns of the table, with the same names and types."""

    def arrays(self) -> dict[str, Column]:
        """Every array by its name, including the optional columns."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **{name: value for name, value in own.items() if isinstance(value, np.ndarray)},
            **self.columns,
        }

    def to_torch(self) -> dict[str, torch.Tensor]:
        """The arrays as tensors that share their memory."""
        torch = import_torch()
        return {name: torch.from_numpy(array) for name, array in self.arrays().items()}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedBatch(TrainerArrays):
    """Sequences end to end without padding, for variable-length attention."""

    cu_seqlens: NDArray[np.int32]
    """Start of each sequence, and the end of the last."""
    position_ids: NDArray[np.int32]
    """From 0 in every sequence, prompt included."""
    sequence_ids: NDArray[np.int32]
    """Row in the batch of each token."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PaddedBatch(TrainerArrays):
    """One row of equal width per sequence. Every array except `rows` and `lengths` is [sequences, width]."""

    lengths: NDArray[np.int64]
    """Tokens in each sequence, prompt included."""
    attention_mask: NDArray[np.bool_]
    """True at tokens, False at padding."""
    position_ids: NDArray[np.int32]
    """From 0 at the first token; 0 at padding."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JaggedBatch(TrainerArrays):
    """Sequences end to end. All columns share `offsets`."""

    offsets: Offsets
    """Start of each sequence, and the end of the last; 64 bits, so there is no size limit."""

    def nested(self) -> torch.Tensor:
        """The token ids as a nested tensor of jagged layout that shares their memory."""
        tensors = self.to_torch()
        nested: torch.Tensor = import_torch().nested.nested_tensor_from_jagged(
            tensors["token_ids"], tensors["offsets"]
        )
        return nested


# ------------------------------------------------------------------------------------ the exports


def to_packed(
    batch: TrainerBatch,
    table: RolloutTable,
    *,
    staleness: TokenStaleness | None = None,
    token_dtype: DTypeLike = np.int64,
) -> PackedBatch:
    """All sequences of the batch end to end. `to_packed_bins` respects a token budget."""
    dtype = _token_dtype(token_dtype)
    identity = _identity(batch, table)
    chosen = choose(batch, table, staleness)
    offsets = offsets_of(chosen.lengths)
    return PackedBatch(
        **identity,
        **_signed(_recipe("packed", dtype, staleness)),
        **packed_places(batch.batch_id, chosen.rows, offsets),
        **Layout.end_to_end(chosen).arrays(dtype),
        dropped_rows=chosen.dropped_rows,
    )


def to_packed_bins(
    batch: TrainerBatch,
    table: RolloutTable,
    *,
    token_budget: int,
    staleness: TokenStaleness | None = None,
    token_dtype: DTypeLike = np.int64,
) -> list[PackedBatch]:
    """The batch as packed parts of at most `token_budget` tokens. Every sequence is in exactly one part.

    The parts are slices of one allocation and do not overlap. The recipe of each part has its number.
    """
    dtype = _token_dtype(token_dtype)
    budget = whole_option("token_budget", token_budget, 1, _INT32_MAX)
    identity = _identity(batch, table)
    chosen = choose(batch, table, staleness)
    bins = pack_to_budget(chosen.lengths, budget, chosen.artifact_ids())
    chosen = chosen.reordered(np.concatenate(bins))
    offsets = offsets_of(chosen.lengths)
    arrays = Layout.end_to_end(chosen).arrays(dtype)
    recipe = _recipe("packed_bins", dtype, staleness, token_budget=budget, bins=len(bins))
    bounds = offsets_of([*map(len, bins)]).tolist()
    parts = []
    for index, (first, end) in enumerate(pairwise(bounds)):
        own = offsets[first : end + 1]
        part = PackedBatch(
            **identity,
            **_signed({**recipe, "bin": index}),
            **packed_places(batch.batch_id, chosen.rows[first:end], own - own[0]),
            **_changed(arrays, operator.itemgetter(slice(own[0], own[-1]))),
            dropped_rows=chosen.dropped_rows,
        )
        parts.append(part)
    return parts


def to_padded(
    batch: TrainerBatch,
    table: RolloutTable,
    *,
    side: Side = "right",
    multiple_of: int = 1,
    pad_id: int = 0,
    staleness: TokenStaleness | None = None,
    token_dtype: DTypeLike = np.int64,
) -> PaddedBatch:
    """One row per sequence. The width is the longest length, rounded up to `multiple_of`; padding is on `side`."""
    dtype = _token_dtype(token_dtype)
    limits = np.iinfo(dtype)
    if side not in ("left", "right"):
        raise ConfigurationError(message=f"side is {side!r}, expected 'left' or 'right'")
    multiple = whole_option("multiple_of", multiple_of, 1, _INT32_MAX)
    filler = whole_option("pad_id", pad_id, int(limits.min), int(limits.max))
    recipe = _recipe("padded", dtype, staleness, side=side, multiple_of=multiple, pad_id=filler)
    identity = _identity(batch, table)
    chosen = choose(batch, table, staleness)
    places = _padded_places(chosen, side, multiple)
    sampled = places.pop("sample_mask")
    prompts = places["attention_mask"] & ~sampled
    return PaddedBatch(
        **identity,
        **_signed(recipe),
        **places,
        **Layout(chosen, sampled, prompts).arrays(dtype, filler),
        rows=chosen.rows,
        dropped_rows=chosen.dropped_rows,
    )


def to_jagged(
    batch: TrainerBatch,
    table: RolloutTable,
    *,
    staleness: TokenStaleness | None = None,
    token_dtype: DTypeLike = np.int64,
) -> JaggedBatch:
    """Values and offsets, as nested tensors and list columns need them."""
    dtype = _token_dtype(token_dtype)
    identity = _identity(batch, table)
    chosen = choose(batch, table, staleness)
    offsets = offsets_of(chosen.lengths)
    return JaggedBatch(
        **identity,
        **_signed(_recipe("jagged", dtype, staleness)),
        **Layout.end_to_end(chosen).arrays(dtype),
        rows=chosen.rows,
        dropped_rows=chosen.dropped_rows,
        offsets=offsets,
    )


def packed_places(batch_id: str, rows: Rows, offsets: Offsets) -> dict[str, Any]:
    """The position of each token in a packed batch, in 32 bits, as variable-length attention needs it."""
    if offsets[-1] > _INT32_MAX:
        raise InvalidNumber(
            record=f"batch {batch_id!r}",
            field="cu_seqlens",
            value=str(offsets[-1]),
            expected=f"at most {_INT32_MAX} tokens in one packed batch; "
            "pack it to a token budget, or export it jagged",
        )
    cu_seqlens = offsets.astype(np.int32)
    lengths = np.diff(cu_seqlens)
    positions = np.arange(cu_seqlens[-1], dtype=np.int32)
    positions -= np.repeat(cu_seqlens[:-1], lengths)
    return {
        "rows": rows,
        "cu_seqlens": cu_seqlens,
        "position_ids": positions,
        "sequence_ids": np.repeat(rows.astype(np.int32), lengths),
    }


def _padded_places(chosen: ChosenTokens, side: Side, multiple_of: int) -> dict[str, Any]:
    lengths = chosen.lengths
    width = -(-int(lengths.max()) // multiple_of) * multiple_of
    begins = width - lengths if side == "left" else np.zeros_like(lengths)
    begin, end, prompt = (
        each.astype(np.int32)[:, None] for each in (begins, lengths, chosen.prompt_lengths)
    )
    positions = np.arange(width, dtype=np.int32) - begin
    attention = (positions >= 0) & (positions < end)
    sampled = attention & (positions >= prompt)
    positions *= attention
    return {
        "lengths": lengths,
        "attention_mask": attention,
        "position_ids": positions,
        "sample_mask": sampled,
    }


# ------------------------------------------------------------------- which batch, which rollouts


def rollouts_of(batch: TrainerBatch, table: RolloutTable) -> RolloutTable:
    """The rollouts of the batch, in its order, from a table that may have more."""
    try:
        rows = [table.artifact(artifact_id).row for artifact_id in batch.rollout_ids]
    except UnknownArtifact as missing:
        raise RolloutsNotInBatch(batch_id=batch.batch_id, detail=str(missing)) from missing
    chosen = table.take(rows)
    _identity(batch, chosen)
    return chosen


def _identity(batch: TrainerBatch, table: RolloutTable) -> dict[str, Any]:
    """The digests that identify the content of an export. Refuses a table that is not exactly that of the batch.

    Digests are compared; samples are not hashed again. A table computes its digests from its columns, or checks them
    when it is read.
    """
    root = table.root
    difference = _difference(batch, table, root)
    if difference is not None:
        raise RolloutsNotInBatch(batch_id=batch.batch_id, detail=difference)
    return {"batch_digest": batch.batch_digest, "rollouts_root": root}


def _difference(batch: TrainerBatch, table: RolloutTable, root: str) -> str | None:
    named = min(len(batch.rollout_ids), len(batch.rollout_digests))
    if not len(table) == len(batch.rollout_ids) == named:
        return f"it has {len(table)} rollouts, the batch {named}"
    for row, (expected, actual) in enumerate(
        zip(batch.rollout_ids, table.columns.artifact_id, strict=True)
    ):
        if expected != actual:
            return f"row {row} is artifact {actual!r}, the batch has {expected!r} there"
    digests = table.artifact_digests.tobytes().hex()
    for row, recorded in enumerate(batch.rollout_digests):
        if recorded != digests[64 * row : 64 * row + 64]:
            return f"artifact {batch.rollout_ids[row]!r} has another digest than the batch records"
    if batch.rollouts_root not in (None, root):
        return "a prompt, an optional column or another field that the v1 digest leaves out differs"
    return None


def _token_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    chosen = np.dtype(dtype)
    if chosen not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise ConfigurationError(message=f"token_dtype is {chosen}, expected int32 or int64")
    return chosen


def _recipe(
    kind: str, dtype: np.dtype[Any], staleness: TokenStaleness | None, **options: Plain
) -> dict[str, Plain]:
    aged = None if staleness is None else staleness.recipe
    return {"kind": kind, "token_dtype": dtype.name, "staleness": aged, **options}


def _signed(recipe: dict[str, Plain]) -> dict[str, Any]:
    return {"recipe": recipe, "recipe_digest": digest_of(EXPORT_DOMAIN, recipe)}


def _changed(arrays: Mapping[str, Any], change: Callable[[Column], Column]) -> dict[str, Any]:
    return {
        name: _changed(value, change) if name == "columns" else change(value)
        for name, value in arrays.items()
    }
