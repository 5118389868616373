"""A trainer batch as the arrays a training step takes: packed, padded or jagged.

A sequence is a rollout's prompt, where it has one, followed by its samples. Nothing was sampled at a prompt
token and nothing stands at padding, so the sample columns hold no facts there: `sample_mask` says where they
do. Everywhere else stands 0, or what `layout.PADDING` says.

Every export says which batch, which rollouts and which options it was made of, so that it can be made again.
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
from rollbook.contracts.rl.columns import Rows
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.sample import Column
from rollbook.contracts.rl.staleness import TokenStaleness
from rollbook.contracts.rl.text_column import Offsets, offsets_of
from rollbook.digest import Plain, digest_of
from rollbook.errors import (
    ConfigurationError,
    InvalidNumber,
    RolloutsNotInBatch,
    UnknownArtifact,
)
from rollbook.train.layout import ChosenTokens, Layout, choose
from rollbook.train.packing import pack_to_budget, whole_option

if TYPE_CHECKING:
    import torch

EXPORT_DOMAIN = "rollbook.trainer_export.v1"
_INT32_MAX = int(np.iinfo(np.int32).max)

TokenIds = NDArray[np.int32] | NDArray[np.int64]
Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TrainerArrays:
    """What every layout has. All arrays are the caller's own: writable, shared with nobody."""

    batch_digest: str
    rollouts_root: str
    """Merkle root over the rollouts' content: covers prompts and optional columns, which `batch_digest` (v1)
    does not."""
    recipe: Mapping[str, Plain]
    """The kind of export, all its options and the recipe of its staleness."""
    recipe_digest: str
    rows: Rows
    """Row in the batch of each sequence."""
    dropped_rows: tuple[int, ...]
    """Rows of the batch that are not here because staleness left them no sample."""
    token_ids: TokenIds
    sample_mask: NDArray[np.bool_]
    """True where a sample stands; False at prompt tokens and padding."""
    loss_mask: NDArray[np.bool_]
    """True where the loss counts: the table's own mask (without one, all but context that nobody sampled), where
    staleness gives any weight."""
    weights: NDArray[np.float32]
    """Weight in the loss: what staleness says (1 without it), 0 where `loss_mask` is False."""
    logprobs: NDArray[np.float32]
    """Of the token at the same position, not of the next one; so are all columns."""
    rewards: NDArray[np.float32]
    advantages: NDArray[np.float32]
    columns: Mapping[str, Column]
    """The optional sample columns the table has, by their names there, in their types there."""

    def arrays(self) -> dict[str, Column]:
        """Every array by its name, the optional columns beside the rest."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **{name: value for name, value in own.items() if isinstance(value, np.ndarray)},
            **self.columns,
        }

    def to_torch(self) -> dict[str, torch.Tensor]:
        """The arrays as tensors on the same memory: writing to one writes to the other."""
        torch = _torch()
        return {name: torch.from_numpy(array) for name, array in self.arrays().items()}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedBatch(TrainerArrays):
    """Sequences end to end without padding, as variable-length attention takes them."""

    cu_seqlens: NDArray[np.int32]
    """Where each sequence begins, and the end of the last."""
    position_ids: NDArray[np.int32]
    """From 0 in every sequence, prompt included."""
    sequence_ids: NDArray[np.int32]
    """Row in the batch of each token."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PaddedBatch(TrainerArrays):
    """One row of equal width per sequence; every array but `rows` and `lengths` is [sequences, width]."""

    lengths: NDArray[np.int64]
    """Tokens in each sequence, prompt included."""
    attention_mask: NDArray[np.bool_]
    """True at tokens, False at padding."""
    position_ids: NDArray[np.int32]
    """From 0 at the first token; 0 at padding."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JaggedBatch(TrainerArrays):
    """Sequences end to end; the one `offsets` is that of every column."""

    offsets: Offsets
    """Where each sequence begins, and the end of the last; 64 bits, so of any size."""

    def nested(self) -> torch.Tensor:
        """The token ids as a nested tensor of jagged layout, on the same memory."""
        tensors = self.to_torch()
        nested: torch.Tensor = _torch().nested.nested_tensor_from_jagged(
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
    """All sequences of the batch end to end. `to_packed_bins` keeps to a token budget."""
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
    """The batch as packed parts of at most `token_budget` tokens; every sequence is in exactly one.

    The parts are slices of one allocation that do not overlap; each names its place in its recipe.
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
            **_each(arrays, operator.itemgetter(slice(own[0], own[-1]))),
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
    """One row per sequence, as wide as the longest rounded up to `multiple_of`; padding is on `side`."""
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
    """Values and offsets: what nested tensors and list columns are made of."""
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
    """Which token is where in a packed batch, in the 32 bits that variable-length attention takes."""
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
    """The rollouts of the batch, in its order, out of a table that may hold more."""
    try:
        rows = [table.artifact(artifact_id).row for artifact_id in batch.rollout_ids]
    except UnknownArtifact as missing:
        raise RolloutsNotInBatch(batch_id=batch.batch_id, detail=str(missing)) from missing
    chosen = table.take(rows)
    _identity(batch, chosen)
    return chosen


def _identity(batch: TrainerBatch, table: RolloutTable) -> dict[str, Any]:
    """What an export is made of, once the table is known to hold exactly the rollouts of the batch.

    Digests are compared, samples are not hashed anew: a table has its digests from its own columns, or
    checked them when it was read.
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


def _each(arrays: Mapping[str, Any], change: Callable[[Column], Column]) -> dict[str, Any]:
    return {
        name: _each(value, change) if name == "columns" else change(value)
        for name, value in arrays.items()
    }


def _torch() -> Any:
    try:
        import torch
    except ImportError as missing:
        raise ConfigurationError(
            message="tensors need torch, which is not installed: pip install 'rollbook[torch]'"
        ) from missing
    return torch
