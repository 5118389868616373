"""Selects the tokens of a batch to export, and places them in the arrays of a layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.sample import Column
from rollbook.contracts.rl.staleness import TokenStaleness
from rollbook.contracts.rl.text_column import offsets_of
from rollbook.contracts.row_numbers import Rows
from rollbook.errors import (
    ColumnLengthMismatch,
    EmptyTrainerBatch,
    InvalidNumber,
)
from rollbook.lazy import needs


def import_torch() -> Any:
    with needs("a tensor"):
        import torch
        import torch.utils.data
    return torch


PADDING: Mapping[str, float] = {
    "role": 255,
    "turn": 65535,
    "policy_version": -1,
    "temperature": 1,
}
"""Fill values of columns where 0 would have a meaning (role 0 is the policy) or would be a divisor."""

_FIELDS = {"logprobs": "logprob", "rewards": "reward", "advantages": "advantage"}
_NOT_OPTIONAL = ("token_id", "loss_mask", *_FIELDS.values())

Mask = NDArray[np.bool_]
Picked = Rows | slice
"""Indices, or a slice of everything."""


def _runs(starts: Rows, lengths: Rows) -> Rows:
    """Indices of runs of these lengths that begin at `starts`, one run after the other."""
    offsets = offsets_of(lengths)
    indices = np.arange(offsets[-1])
    indices += np.repeat(starts - offsets[:-1], lengths)
    return indices


@dataclass(frozen=True, slots=True, eq=False)
class ChosenTokens:
    """The tokens to export, sequence by sequence."""

    table: RolloutTable
    rows: Rows
    dropped_rows: tuple[int, ...]
    samples: Picked
    """Indices into the sample columns of the table."""
    sample_lengths: Rows
    sample_weights: Column | None
    """Weight of every sample of the table; None if all weights are 1."""
    prompts: Picked
    """Indices into the prompt tokens of the table."""
    prompt_lengths: Rows

    @property
    def lengths(self) -> Rows:
        return self.prompt_lengths + self.sample_lengths

    def column(self, name: str) -> Column:
        return self.table.samples[name][self.samples]

    def weights(self) -> Column | float:
        return 1.0 if self.sample_weights is None else self.sample_weights[self.samples]

    def prompt_token_ids(self) -> Column:
        return self.table.columns.prompt_token_id[self.prompts]

    def refuse_ids_above(self, highest: int, ids: Column, lengths: Rows) -> None:
        """Refuse ids that are too large, naming the artifact. `lengths` is the number of ids of each artifact."""
        if ids.max(initial=0) <= highest:
            return
        at = int(np.argmax(ids > highest))
        sequence = int(np.searchsorted(np.cumsum(lengths), at, side="right"))
        raise InvalidNumber(
            record=f"artifact {self.artifact_ids()[sequence]!r}",
            field="token_id",
            value=str(ids[at]),
            expected=f"at most {highest}, or a wider token_dtype",
        )

    def per_sequence(self) -> dict[str, Any]:
        """What an export says about each sequence as a whole."""
        columns = self.table.columns
        return {
            "sequence_rewards": self.table.reward_sums()[self.rows],
            "group_ids": columns.group_index[self.rows].astype(np.int64),
            "groups": columns.groups,
        }

    def artifact_ids(self) -> list[str]:
        ids = list(self.table.columns.artifact_id)
        return [ids[row] for row in self.rows.tolist()]

    def reordered(self, order: Rows) -> ChosenTokens:
        return replace(
            self,
            rows=self.rows[order],
            samples=_reordered(self.samples, self.sample_lengths, order),
            sample_lengths=self.sample_lengths[order],
            prompts=_reordered(self.prompts, self.prompt_lengths, order),
            prompt_lengths=self.prompt_lengths[order],
        )


def _reordered(picked: Picked, lengths: Rows, order: Rows) -> Rows:
    moved = _runs(offsets_of(lengths)[order], lengths[order])
    return moved if isinstance(picked, slice) else picked[moved]


def choose(
    batch: TrainerBatch, table: RolloutTable, staleness: TokenStaleness | None
) -> ChosenTokens:
    """All samples except those that staleness drops. A rollout without samples loses its prompt too."""
    samples: Picked = slice(None)
    offsets = table.offsets
    if staleness is not None:
        _check_staleness(table, staleness)
        if not staleness.keep.all():
            samples = np.flatnonzero(staleness.keep)
            offsets = np.searchsorted(samples, table.offsets)
    lengths = np.diff(offsets)
    rows = np.flatnonzero(lengths)
    if not len(rows):
        raise EmptyTrainerBatch(batch_id=batch.batch_id)
    dropped = np.flatnonzero(lengths == 0)
    prompt_offsets = table.columns.prompt_offsets
    prompt_lengths = np.diff(prompt_offsets)[rows]
    return ChosenTokens(
        table=table,
        rows=rows,
        dropped_rows=tuple(dropped.tolist()),
        samples=samples,
        sample_lengths=lengths[rows],
        sample_weights=_sample_weights(table, staleness),
        prompts=_runs(prompt_offsets[rows], prompt_lengths) if len(dropped) else slice(None),
        prompt_lengths=prompt_lengths,
    )


def _check_staleness(table: RolloutTable, staleness: TokenStaleness) -> None:
    for name, array in (("weight", staleness.weight), ("keep", staleness.keep)):
        if len(array) != table.sample_count:
            raise ColumnLengthMismatch(
                artifact_id=None,
                column=f"staleness {name}",
                expected=table.sample_count,
                actual=len(array),
            )


def _sample_weights(table: RolloutTable, staleness: TokenStaleness | None) -> Column | None:
    """Weights are 0 where the mask of the table is 0, so that a loss that uses only weights ignores tool output."""
    mask = table.samples.get("loss_mask")
    if mask is None and "policy_version" in table.samples:
        mask = table.samples["policy_version"] >= 0  # context was not sampled, so it is not learned
    if staleness is None:
        return mask
    return staleness.weight if mask is None else staleness.weight * mask


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The places of the chosen tokens. Samples and prompt tokens fill the places of their mask in order."""

    chosen: ChosenTokens
    sample_mask: Mask
    prompt_mask: Mask | None
    """None where prompts lie in an array of their own."""
    straight: bool = False
    """Whether samples fill every place, so that columns are plain copies."""

    @classmethod
    def end_to_end(cls, chosen: ChosenTokens) -> Layout:
        spans = np.stack([chosen.prompt_lengths, chosen.sample_lengths], axis=1)
        sample_mask = np.repeat(np.tile([False, True], len(spans)), spans.ravel())
        straight = not chosen.prompt_lengths.any()
        return cls(chosen, sample_mask, ~sample_mask, straight)

    def arrays(self, token_dtype: np.dtype[Any], pad_id: int = 0) -> dict[str, Any]:
        """Every array of TrainerArrays with one entry per place."""
        return {
            "token_ids": self.token_ids(token_dtype, pad_id),
            "sample_mask": self.sample_mask,
            **self.values(),
        }

    def values(self) -> dict[str, Any]:
        """What is known about each sample, at the place of the sample."""
        columns = self.chosen.table.samples
        weights = self._filled(self.chosen.weights(), np.dtype(np.float32), 0)
        return {
            "loss_mask": weights > 0,
            "weights": weights,
            **{field: self._column(name) for field, name in _FIELDS.items()},
            "columns": {name: self._column(name) for name in columns if name not in _NOT_OPTIONAL},
        }

    def _filled(self, values: Column | float, dtype: np.dtype[Any], padding: float) -> Column:
        shape = self.sample_mask.shape
        array = np.full(shape, padding, dtype) if padding else np.zeros(shape, dtype)
        array[slice(None) if self.straight else self.sample_mask] = values
        return array

    def _column(self, name: str) -> Column:
        values = self.chosen.column(name)
        return self._filled(values, values.dtype.newbyteorder("="), PADDING.get(name, 0))

    def token_ids(self, dtype: np.dtype[Any], pad_id: int) -> Column:
        chosen = self.chosen
        sampled = chosen.column("token_id")
        if dtype.itemsize <= sampled.dtype.itemsize:
            chosen.refuse_ids_above(int(np.iinfo(dtype).max), sampled, chosen.sample_lengths)
        token_ids = self._filled(sampled, dtype, pad_id)
        if self.prompt_mask is not None:
            place_prompts(chosen, token_ids, self.prompt_mask)
        return token_ids


def place_prompts(chosen: ChosenTokens, token_ids: Column, prompt_mask: Mask) -> None:
    """Write the tokens of all prompts to the places of the mask."""
    prompts, dtype = chosen.prompt_token_ids(), token_ids.dtype
    if dtype.itemsize <= prompts.dtype.itemsize:
        chosen.refuse_ids_above(int(np.iinfo(dtype).max), prompts, chosen.prompt_lengths)
    if len(prompts):
        token_ids[prompt_mask] = prompts
