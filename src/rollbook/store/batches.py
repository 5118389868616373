"""Batches of states from the dense view and their returns: shuffled by a seed and resumable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, near_names
from rollbook.store.mapped import MappedArray, is_raw
from rollbook.store.stored_tables import StoredTables

Array = NDArray[Any]


def epoch_order(states: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of the states in one epoch. It is the same on every machine for the same seed."""
    return np.random.default_rng([seed, epoch]).permutation(states)


class _StateTables(Protocol):
    def column_names(self, table: str) -> tuple[str, ...]: ...


def state_columns(tables: _StateTables, names: Sequence[str] | None) -> dict[str, str]:
    """The path of every named column of `q_h` or `returns`; all columns of `q_h` without names."""
    there = {
        name: f"{table}/{name}"
        for table in ("q_h", "returns")
        for name in tables.column_names(table)
    }
    if names is None:
        return {name: path for name, path in there.items() if path.startswith("q_h/")}
    for name in names:
        if name not in there:
            raise ConfigurationError(
                message=f"states have no column {name!r}; {near_names(name, there)}"
            )
    return {name: there[name] for name in names}


def state_batches(
    store: StoredTables,
    size: int,
    *,
    seed: int,
    epochs: int | None,
    columns: Mapping[str, str],
    start: int,
    prefetch: bool,
) -> Iterator[dict[str, Array]]:
    """Batches from number `start` on; earlier batches are not read. The last batch of an epoch may be smaller.

    `columns` has the path of every column.
    """
    if size < 1 or start < 0:
        raise ConfigurationError(message=f"a batch of {size} states from {start} on cannot be made")
    sources = {name: StateColumn(store, path) for name, path in columns.items()}
    states = store.num_steps
    per_epoch = -(-states // size)
    epoch, first = divmod(start, per_epoch) if per_epoch else (0, 0)
    while states and (epochs is None or epoch < epochs):
        order = epoch_order(states, seed, epoch)
        if prefetch:
            _prefetch(sources, order[first * size : (first + 1) * size])
        for number in range(first, per_epoch):
            rows = order[number * size : (number + 1) * size]
            if prefetch:
                _prefetch(sources, order[(number + 1) * size : (number + 2) * size])
            yield {name: source.take(rows) for name, source in sources.items()}
        epoch, first = epoch + 1, 0


def _prefetch(sources: Mapping[str, StateColumn], rows: NDArray[np.int64]) -> None:
    for source in sources.values():
        source.prefetch(rows)


class StateColumn:
    """One column of states. Rows are copied from the mapped file, or from memory where it is compressed."""

    def __init__(self, store: StoredTables, path: str) -> None:
        folder = store.local(path)
        self._mapped = MappedArray.open(folder) if is_raw(folder) else None
        self._values = store.array(path) if self._mapped is None else self._mapped.view()
        self._constant = self._mapped is not None and self._mapped.is_constant

    def take(self, rows: NDArray[np.int64]) -> Array:
        """Copies of these rows. They must exist: a check would cost a quarter of the time."""
        if self._mapped is not None and self._constant:
            return self._mapped.take(rows)  # numpy would first expand the one value to all rows
        return self._values.take(rows, 0, None, "clip")

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        if self._mapped is not None and len(rows):
            self._mapped.prefetch(rows)
