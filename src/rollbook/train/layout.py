"""Which tokens of a batch are exported, and where each of them stands in the arrays of a layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.columns import Rows
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.sample import Column
from rollbook.contracts.rl.staleness import TokenStaleness
from rollbook.contracts.rl.text_column import offsets_of
from rollbook.errors import ColumnLengthMismatch, EmptyTrainerBatch, InvalidNumber

PADDING: Mapping[str, float] = {
    "role": 255,
    "turn": 65535,
    "policy_version": -1,
    "temperature": 1,
}
"""Where 0 would read as a fact (role 0 is the policy) or could not be divided by, the filler is another value."""

_FIELDS = {"logprobs": "logprob", "rewards": "reward", "advantages": "advantage"}
_NOT_OPTIONAL = ("token_id", "loss_mask", *_FIELDS.values())

Mask = NDArray[np.bool_]
Picked = Rows | slice
"""Indices, or the whole where nothing has to be gathered one by one."""


def _runs(starts: Rows, lengths: Rows) -> Rows:
    """Indices of runs that begin at `starts`, one run after the other."""
    offsets = offsets_of(lengths)
    indices = np.arange(offsets[-1])
    indices += np.repeat(starts - offsets[:-1], lengths)
    return indices


@dataclass(frozen=True, slots=True, eq=False)
class ChosenTokens:
    """The tokens to export, sequence after sequence, before they have a place."""

    table: RolloutTable
    rows: Rows
    dropped_rows: tuple[int, ...]
    samples: Picked
    """Into the sample columns of the table."""
    sample_lengths: Rows
    sample_weights: Column | None
    """Of every sample of the table; None where all weigh 1."""
    prompts: Picked
    """Into the prompt tokens of the table."""
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
        """Names the artifact of the first id that is too large; `lengths` is how many ids each has."""
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
    """All of the table but what staleness drops; a prompt goes where its samples go."""
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
    """Zero where the table's mask is: a loss that only looks at weights must not learn from tool output."""
    mask = table.samples.get("loss_mask")
    if mask is None and "policy_version" in table.samples:
        mask = (
            table.samples["policy_version"] >= 0
        )  # nobody sampled the context, so nobody learns it
    if staleness is None:
        return mask
    return staleness.weight if mask is None else staleness.weight * mask


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the chosen tokens stand: samples and prompt tokens fill the places of their mask in order."""

    chosen: ChosenTokens
    sample_mask: Mask
    prompt_mask: Mask
    straight: bool = False
    """Samples fill every place, so columns are plain copies."""

    @classmethod
    def end_to_end(cls, chosen: ChosenTokens) -> Layout:
        spans = np.stack([chosen.prompt_lengths, chosen.sample_lengths], axis=1)
        sample_mask = np.repeat(np.tile([False, True], len(spans)), spans.ravel())
        straight = not chosen.prompt_lengths.any()
        return cls(chosen, sample_mask, ~sample_mask, straight)

    def arrays(self, token_dtype: np.dtype[Any], pad_id: int = 0) -> dict[str, Any]:
        """Every array of TrainerArrays that has one entry per place."""
        columns = self.chosen.table.samples
        weights = self._filled(self.chosen.weights(), np.dtype(np.float32), 0)
        return {
            "token_ids": self._token_ids(token_dtype, pad_id),
            "sample_mask": self.sample_mask,
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

    def _token_ids(self, dtype: np.dtype[Any], pad_id: int) -> Column:
        chosen = self.chosen
        sampled, prompts = chosen.column("token_id"), chosen.prompt_token_ids()
        if dtype.itemsize <= sampled.dtype.itemsize:
            chosen.refuse_ids_above(int(np.iinfo(dtype).max), sampled, chosen.sample_lengths)
            chosen.refuse_ids_above(int(np.iinfo(dtype).max), prompts, chosen.prompt_lengths)
        token_ids = self._filled(sampled, dtype, pad_id)
        if len(prompts):
            token_ids[self.prompt_mask] = prompts
        return token_ids
