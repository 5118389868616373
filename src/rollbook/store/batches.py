"""Batches of states from the dense view: shuffled by a seed and resumable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError
from rollbook.store.mapped import MappedArray, is_raw
from rollbook.store.stored_tables import StoredTables

Array = NDArray[Any]


def epoch_order(states: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of the states in one epoch. It is the same on every machine for the same seed."""
    return np.random.default_rng([seed, epoch]).permutation(states)


def state_batches(
    store: StoredTables,
    size: int,
    *,
    seed: int,
    epochs: int | None,
    columns: Sequence[str] | None,
    start: int,
    prefetch: bool,
) -> Iterator[dict[str, Array]]:
    """Batches from number `start` on; earlier batches are not read. The last batch of an epoch may be smaller."""
    if size < 1 or start < 0:
        raise ConfigurationError(message=f"a batch of {size} states from {start} on cannot be made")
    names = store.column_names("q_h") if columns is None else tuple(columns)
    sources = {name: StateColumn(store, name) for name in names}
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
    """One column of the dense view. Rows are copied from the mapped file, or from memory where it is compressed."""

    def __init__(self, store: StoredTables, name: str) -> None:
        folder = store.local(f"q_h/{name}")
        self._mapped = MappedArray.open(folder) if is_raw(folder) else None
        self._values = store.array(f"q_h/{name}") if self._mapped is None else self._mapped.view()
        self._constant = self._mapped is not None and self._mapped.is_constant

    def take(self, rows: NDArray[np.int64]) -> Array:
        """Copies of these rows. They must exist: a check would cost a quarter of the time."""
        if self._mapped is not None and self._constant:
            return self._mapped.take(rows)  # numpy would first expand the one value to all rows
        return self._values.take(rows, 0, None, "clip")

    def prefetch(self, rows: NDArray[np.int64]) -> None:
        if self._mapped is not None and len(rows):
            self._mapped.prefetch(rows)
