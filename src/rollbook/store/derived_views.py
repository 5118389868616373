"""Writes the derived views of a store, the dense view and the returns, from the columns that were written before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.store.config import RolloutZarrStoreConfig
from rollbook.store.description import DescribedTables
from rollbook.store.mapped import MappedArray
from rollbook.store.q_h import CANDIDATE_COLUMNS, STEP_COLUMNS, q_h_block
from rollbook.store.raw_array import RawArrayWriter
from rollbook.store.raw_layout import WrittenFiles, chunk_rows_for, page_rows, row_bytes
from rollbook.store.returns import returns_block
from rollbook.store.schema import TABLES

Array = NDArray[Any]
_BLOCK_STEPS = 4096
"""Number of steps, rounded up to complete chains, whose derived views are computed at one time."""


def write_derived_views(
    folder: Path, tables: DescribedTables, config: RolloutZarrStoreConfig
) -> WrittenFiles:
    """Write the views of the store whose other columns are finished in the folder."""
    views = DerivedViews(
        folder=folder,
        num_steps=tables.num_steps,
        widest=tables.widest,
        horizon=tables.horizon,
        has_features=bool(tables.feature_count),
        gamma=config.discount_gamma,
        chunk_states=config.q_h_chunk_states,
    )
    return views.write(tables.small("rollouts"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedViews:
    """Sizes and settings of the views of one store."""

    folder: Path
    """Holds the finished columns of `steps` and `candidates`."""
    num_steps: int
    widest: int
    """Number of candidates of the widest shell."""
    horizon: int
    has_features: bool
    gamma: float
    chunk_states: int
    """Minimum number of states per chunk file."""

    def write(self, rollouts: Mapping[str, Array]) -> WrittenFiles:
        """Compute and write the views, a block of complete chains at a time. `rollouts` has all rows of the store."""
        steps = mapped_columns(self.folder, "steps", STEP_COLUMNS)
        features = ("actor_features",) if self.has_features else ()
        candidates = mapped_columns(self.folder, "candidates", (*CANDIDATE_COLUMNS, *features))
        writers: dict[str, RawArrayWriter] = {}
        for first, end in chain_blocks(rollouts, self.num_steps):
            part = {name: values[first:end] for name, values in steps.items()}
            rows = _candidate_rows(part)
            shells = {name: values[rows] for name, values in candidates.items()}
            for path, values in self._block(part, rollouts, shells).items():
                self._writer(writers, path, values).write(first, values)
        return {
            f"{path}/{name}": sums
            for path, writer in writers.items()
            for name, sums in writer.close().items()
        }

    def _block(
        self, steps: Mapping[str, Array], rollouts: Mapping[str, Array], shells: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The derived columns of a block, by their path in the store."""
        q_h = q_h_block(steps, rollouts, shells, width=self.widest, gamma=self.gamma)
        returns = returns_block(
            q_h["td_reward"],
            steps["step_index"],
            rollouts["num_steps"][steps["rollout_row_id"]],
            horizon=self.horizon,
            gamma=self.gamma,
        )
        return {
            f"{table}/{name}": values
            for table, view in (("q_h", q_h), ("returns", returns))
            for name, values in view.items()
        }

    def _writer(
        self, writers: dict[str, RawArrayWriter], path: str, values: Array
    ) -> RawArrayWriter:
        if path not in writers:
            table, _, name = path.partition("/")
            rows, row_shape = self.num_steps, values.shape[1:]
            writers[path] = RawArrayWriter(
                self.folder / path,
                values.dtype,
                row_shape,
                rows,
                TABLES[table].columns[name].fill,
                chunk_rows=_chunk_rows(rows, row_bytes(values.dtype, row_shape), self.chunk_states),
            )
        return writers[path]


def mapped_columns(folder: Path, table: str, names: Sequence[str]) -> dict[str, Array]:
    """Columns of a store that is being written. They must be closed."""
    return {name: MappedArray.open(folder / table / name).view() for name in names}


def _chunk_rows(rows: int, row_size: int, least: int) -> int:
    """The usual number of rows per chunk, but at least `least`."""
    pages = page_rows(max(row_size, 1))
    return max(chunk_rows_for(rows, row_size), -(-least // pages) * pages)


def _candidate_rows(steps: Mapping[str, Array]) -> slice:
    """The candidate rows of neighbouring steps."""
    offsets = steps["candidate_offset"]
    if not len(offsets):
        return slice(0, 0)
    return slice(int(offsets[0]), int(offsets[-1] + steps["num_candidates"][-1]))


def chain_blocks(rollouts: Mapping[str, Array], num_steps: int) -> Iterator[tuple[int, int]]:
    """Step ranges of complete chains: the return of a step needs the later steps of its chain."""
    ends = np.unique(rollouts["step_offset"] + rollouts["num_steps"])
    first = 0
    if not num_steps:
        yield 0, 0  # the columns must exist even without rows
    while first < num_steps:
        at = int(np.searchsorted(ends, first + _BLOCK_STEPS, side="left"))
        end = int(ends[min(at, len(ends) - 1)])
        yield first, end
        first = end
