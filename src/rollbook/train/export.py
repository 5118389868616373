"""Exports a trainer batch as arrays for a training step: packed, padded or jagged.

A sequence is the prompt of a rollout, if it has one, followed by its samples. Sample columns have no values at prompt
tokens and at padding: `sample_mask` is true where they have. Elsewhere they are 0, or what `layout.PADDING` says.

Every export names its batch, its rollouts and its options, so that it can be made again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rollbook.contracts.record import checked_type
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
from rollbook.train.layout import Layout, choose, import_torch
from rollbook.train.packing import pack_to_budget, whole_option
from rollbook.train.padding import padded_places

if TYPE_CHECKING:
    import torch

EXPORT_DOMAIN = "rollbook.trainer_export.v1"
_INT32_MAX = int(np.iinfo(np.int32).max)

TokenIds = NDArray[np.int32] | NDArray[np.int64]
Side = Literal["left", "right"]
PaddedLayout = Literal["sequence", "left_prompt", "right_prompt"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ExportedBatch:
    """What every export says: its batch, how it was made, and what each sequence is as a whole.

    Its arrays are new, writable arrays that nothing else uses.
    """

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
    sequence_rewards: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """The sum of the rewards of each rollout, dropped samples included."""
    group_ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The group of each sequence as an index into `groups`; -1 without a group."""
    groups: tuple[str, ...] = ()

    def arrays(self) -> dict[str, Column]:
        """Every array by its name, including the optional columns."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            **{name: value for name, value in own.items() if isinstance(value, np.ndarray)},
            **own.get("columns", {}),
        }

    def to_torch(self, device: torch.device | str | None = None) -> dict[str, torch.Tensor]:
        """The arrays as tensors that share their memory, or as copies on `device`."""
        torch = import_torch()
        tensors = {name: torch.from_numpy(array) for name, array in self.arrays().items()}
        if device is None:
            return tensors
        try:
            place = torch.device(device)
            return {name: tensor.to(place) for name, tensor in tensors.items()}
        except (RuntimeError, TypeError, AssertionError) as error:
            raise ConfigurationError(
                message=f"device is {device!r}, which torch cannot use: {error}"
            ) from error


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TrainerArrays(ExportedBatch):
    """The arrays of the layouts that hold prompt and samples together."""

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
    """One row of equal width per sequence. Every array is [sequences, width], except those with one entry per sequence:
    `rows`, `lengths`, `sequence_rewards` and `group_ids`."""

    lengths: NDArray[np.int64]
    """Tokens in each sequence, prompt included."""
    attention_mask: NDArray[np.bool_]
    """True at tokens, False at padding."""
    position_ids: NDArray[np.int32]
    """From 0 at the first token; 0 at padding."""
    prompt_width: int | None = None
    """The column at which all responses begin; None in the layout `sequence`, where each begins after its prompt."""


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
    dtype = token_dtype_of(token_dtype)
    identity = identity_of(batch, table)
    recipe = recipe_of("packed", dtype, staleness)
    chosen = choose(batch, table, staleness)
    offsets = offsets_of(chosen.lengths)
    return PackedBatch(
        **identity,
        **signed(recipe),
        **packed_places(batch.batch_id, chosen.rows, offsets),
        **Layout.end_to_end(chosen).arrays(dtype),
        **chosen.per_sequence(),
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
    dtype = token_dtype_of(token_dtype)
    budget = whole_option("token_budget", token_budget, 1, _INT32_MAX)
    identity = identity_of(batch, table)
    recipe = recipe_of("packed_bins", dtype, staleness, token_budget=budget)
    chosen = choose(batch, table, staleness)
    bins = pack_to_budget(chosen.lengths, budget, chosen.artifact_ids())
    chosen = chosen.reordered(np.concatenate(bins))
    offsets = offsets_of(chosen.lengths)
    arrays = Layout.end_to_end(chosen).arrays(dtype)
    recipe["bins"] = len(bins)
    bounds = offsets_of([*map(len, bins)]).tolist()
    per_sequence = chosen.per_sequence()
    groups = per_sequence.pop("groups")
    parts = []
    for index, (first, end) in enumerate(pairwise(bounds)):
        own = offsets[first : end + 1]
        part = PackedBatch(
            **identity,
            **signed({**recipe, "bin": index}),
            **packed_places(batch.batch_id, chosen.rows[first:end], own - own[0]),
            **_changed(arrays, operator.itemgetter(slice(own[0], own[-1]))),
            **_changed(per_sequence, operator.itemgetter(slice(first, end))),
            groups=groups,
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
    layout: PaddedLayout = "sequence",
    width: int | None = None,
    prompt_width: int | None = None,
) -> PaddedBatch:
    """One row per sequence, `width` columns each: the longest length, rounded up to `multiple_of`, unless given.

    The layout `sequence` pads each sequence on `side`. `left_prompt` and `right_prompt` begin all responses at the
    column `prompt_width` (the longest prompt, unless given), pad prompts on that side and responses on the right.
    """
    dtype = token_dtype_of(token_dtype)
    limits = np.iinfo(dtype)
    recipe = recipe_of(
        "padded",
        dtype,
        staleness,
        side=one_of("side", side, get_args(Side)),
        multiple_of=whole_option("multiple_of", multiple_of, 1, _INT32_MAX),
        pad_id=whole_option("pad_id", pad_id, int(limits.min), int(limits.max)),
        **_padded_options(side, layout, width, prompt_width),
    )
    identity = identity_of(batch, table)
    chosen = choose(batch, table, staleness)
    places = padded_places(chosen, recipe)
    sampled = places.pop("sample_mask")
    prompts = places["attention_mask"] & ~sampled
    return PaddedBatch(
        **identity,
        **signed(recipe),
        **places,
        **Layout(chosen, sampled, prompts).arrays(dtype, pad_id),
        **chosen.per_sequence(),
        rows=chosen.rows,
        dropped_rows=chosen.dropped_rows,
    )


def _padded_options(
    side: Side, layout: PaddedLayout, width: int | None, prompt_width: int | None
) -> dict[str, Plain]:
    """Only what differs from the default, so that recipes without these options keep their digests."""
    options: dict[str, Plain] = {}
    if one_of("layout", layout, get_args(PaddedLayout)) != "sequence":
        options["layout"] = layout
        if side != "right":
            raise ConfigurationError(message=f"the layout {layout} has no side; leave it out")
    elif prompt_width is not None:
        raise ConfigurationError(
            message="prompt_width is for the layouts left_prompt and right_prompt"
        )
    for name, value in (("width", width), ("prompt_width", prompt_width)):
        if value is not None:
            options[name] = whole_option(name, value, 0, _INT32_MAX)
    return options


def one_of(name: str, value: object, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise ConfigurationError(message=f"{name} is {value!r}, expected one of {', '.join(known)}")
    return value


def to_jagged(
    batch: TrainerBatch,
    table: RolloutTable,
    *,
    staleness: TokenStaleness | None = None,
    token_dtype: DTypeLike = np.int64,
) -> JaggedBatch:
    """Values and offsets, as nested tensors and list columns need them."""
    dtype = token_dtype_of(token_dtype)
    identity = identity_of(batch, table)
    recipe = recipe_of("jagged", dtype, staleness)
    chosen = choose(batch, table, staleness)
    offsets = offsets_of(chosen.lengths)
    return JaggedBatch(
        **identity,
        **signed(recipe),
        **Layout.end_to_end(chosen).arrays(dtype),
        **chosen.per_sequence(),
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


# ------------------------------------------------------------------- which batch, which rollouts


def rollouts_of(batch: TrainerBatch, table: RolloutTable) -> RolloutTable:
    """The rollouts of the batch, in its order, from a table that may have more."""
    try:
        rows = [table.artifact(artifact_id).row for artifact_id in batch.rollout_ids]
    except UnknownArtifact as missing:
        raise RolloutsNotInBatch(batch_id=batch.batch_id, detail=str(missing)) from missing
    chosen = table.take(rows)
    identity_of(batch, chosen)
    return chosen


def identity_of(batch: TrainerBatch, table: RolloutTable) -> dict[str, Any]:
    """The digests that identify the content of an export. Refuses a table that is not exactly that of the batch.

    Digests are compared; samples are not hashed again. A table computes its digests from its columns, or checks them
    when it is read.
    """
    checked_type(batch, TrainerBatch, "export", "batch")
    checked_type(table, RolloutTable, "export", "table")
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


def token_dtype_of(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        chosen = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            message=f"token_dtype is {dtype!r}, expected int32 or int64"
        ) from error
    if chosen not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise ConfigurationError(message=f"token_dtype is {chosen}, expected int32 or int64")
    return chosen


def recipe_of(
    kind: str, dtype: np.dtype[Any], staleness: TokenStaleness | None, **options: Plain
) -> dict[str, Plain]:
    if staleness is not None:
        checked_type(staleness, TokenStaleness, "export", "staleness")
    aged = None if staleness is None else staleness.recipe
    return {"kind": kind, "token_dtype": dtype.name, "staleness": aged, **options}


def signed(recipe: dict[str, Plain]) -> dict[str, Any]:
    return {"recipe": recipe, "recipe_digest": digest_of(EXPORT_DOMAIN, recipe)}


def _changed(arrays: Mapping[str, Any], change: Callable[[Column], Column]) -> dict[str, Any]:
    return {
        name: _changed(value, change) if name == "columns" else change(value)
        for name, value in arrays.items()
    }
