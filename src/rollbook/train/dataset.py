"""States of the dense view as tensors: `QHStates` by index, `QHBatches` as a shuffled stream that can be resumed.

Both read a store or a collection and copy once: rows are copied into new arrays, and the tensors share their memory.
Types are those of the columns, except that uint32 becomes int64, because torch supports few operations on uint32.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.row_numbers import row_number
from rollbook.errors import ConfigurationError
from rollbook.store.batches import epoch_order
from rollbook.store.collection import RolloutCollection
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.state_rows import QHRows
from rollbook.train.layout import import_torch

if TYPE_CHECKING:
    import torch

States = RolloutCollection | RolloutZarrStoreReader | str | os.PathLike[str]
Tensors = dict[str, "torch.Tensor"]


class QHStates:
    """A map-style dataset. A DataLoader reads whole batches with `__getitems__`, one copy per column.

        DataLoader(QHStates(store), batch_size=256, shuffle=True, collate_fn=QHStates.collate)

    Worker processes send every batch through a pipe. For stores on a local disk it is faster to use no workers.
    """

    def __init__(
        self,
        states: States,
        columns: Sequence[str] | None = None,
        *,
        global_ids: bool = False,
    ) -> None:
        """`global_ids`: row ids in a batch are those of the collection, not those of the single store."""
        import_torch()
        self._arguments = (_collection(states), None if columns is None else tuple(columns))
        self._global_ids = global_ids
        self._rows = QHRows(*self._arguments, global_ids)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(QHStates, global_ids=self._global_ids), self._arguments

    @property
    def columns(self) -> tuple[str, ...]:
        return self._rows.names

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensors:
        """One state: one tensor per column, without a batch axis."""
        rows = self._rows.take([row_number(index, len(self), "states", from_end=True)])
        return {name: values[0] for name, values in _tensors(rows).items()}

    def __getitems__(self, indices: Sequence[int]) -> Tensors:
        """A whole batch: one tensor per column, with the batch as first axis."""
        return _Batch(_tensors(self._rows.take(indices)))

    @staticmethod
    def collate(batch: Tensors) -> Tensors:
        """The `collate_fn` for a DataLoader: a batch is already complete."""
        return batch


class _Position(NamedTuple):
    number: int
    """Number of the next batch, counted over all epochs."""
    worker: tuple[int, int] | None = None
    """Index of the worker that this position belongs to, and the number of workers; None without workers."""


class QHBatches:
    """An IterableDataset of whole batches, in the order of `RolloutZarrStoreReader.batches` for the same seed.

        DataLoader(QHBatches(store, 256, seed=1, epochs=10), batch_size=None)

    Workers share the batches: the loader returns each batch once, in the same order for any number of workers. Every
    iteration starts at the position that was loaded last, or at the beginning.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> QHBatches:
        # torch requires its own base class, which is known only after torch is imported
        batches: QHBatches = object.__new__(_with_torch_base(cls))
        return batches

    def __init__(
        self,
        states: States,
        size: int,
        *,
        seed: int = 0,
        epochs: int | None = 1,
        columns: Sequence[str] | None = None,
        global_ids: bool = False,
    ) -> None:
        """`epochs=None` never ends. The last batch of an epoch may be smaller."""
        if size < 1 or seed < 0 or (epochs is not None and epochs < 0):
            raise ConfigurationError(
                message=f"batches of {size} states, seed {seed}, {epochs} epochs: size has to be at least 1, "
                "the others at least 0"
            )
        self._collection = _collection(states)
        self._size, self._seed, self._epochs = size, seed, epochs
        self._columns = None if columns is None else tuple(columns)
        self._global_ids = global_ids
        self._rows = QHRows(self._collection, self._columns, global_ids)
        self._start = self._next = _Position(0)

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(
            QHBatches,
            seed=self._seed,
            epochs=self._epochs,
            columns=self._columns,
            global_ids=self._global_ids,
        )
        state = {"_start": self._start, "_next": self._next}
        return make, (self._collection, self._size), state

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self._rows) // self._size)

    def __len__(self) -> int:
        """Number of batches from the position that was loaded last."""
        if self._epochs is None:
            raise TypeError("batches without an end have no length")
        return max(0, self._epochs * self.batches_per_epoch - self._start.number)

    # ------------------------------------------------------------------------------------ position

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that this object returned, and the identity of the data.

        Batches that worker processes return do not change this object. With workers, count the batches and load
        `{**state, "epoch": …, "batch": …}`.
        """
        epoch, batch = divmod(self._next.number, max(1, self.batches_per_epoch))
        return {"epoch": epoch, "batch": batch, "worker": self._next.worker, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the next iteration at this position. A position in other data is refused."""
        identity = self._identity()
        different = [name for name in identity if state.get(name) != identity[name]]
        if different:
            raise ConfigurationError(
                message=f"the position is one in other batches: {', '.join(different)} differ"
            )
        number = int(state["epoch"]) * self.batches_per_epoch + int(state["batch"])
        worker = state.get("worker")
        self._start = _Position(number, None if worker is None else (worker[0], worker[1]))
        self._next = self._start

    def _identity(self) -> dict[str, Any]:
        stores = [row["content_sha256"] for row in self._collection.provenance()]
        return {"seed": self._seed, "size": self._size, "stores": stores}

    # ----------------------------------------------------------------------------------- iteration

    def __iter__(self) -> Iterator[Tensors]:
        worker, workers = _worker()
        start = self._start
        if start.worker is None:
            return self._from(start.number + worker, worker, workers)
        if start.worker != (worker, workers):
            raise ConfigurationError(
                message=f"the position is that of worker {start.worker[0]} of {start.worker[1]}, "
                f"this is worker {worker} of {workers}"
            )
        return self._from(start.number, worker, workers)

    def _from(self, first: int, worker: int, workers: int) -> Iterator[Tensors]:
        per_epoch = self.batches_per_epoch
        if not per_epoch:
            return
        number, epoch_now, order = first, -1, np.zeros(0, np.int64)
        while self._epochs is None or number < self._epochs * per_epoch:
            epoch, batch = divmod(number, per_epoch)
            if epoch != epoch_now:
                epoch_now, order = epoch, epoch_order(len(self._rows), self._seed, epoch)
            rows = self._rows.take_existing(order[batch * self._size : (batch + 1) * self._size])
            number += workers
            self._next = _Position(number, (worker, workers) if workers > 1 else None)
            yield _tensors(rows)


class _Batch(dict[str, Any]):
    """Raises a clear error when torch tries to collate states that are already a batch."""

    def __missing__(self, key: object) -> Any:
        if key == 0:
            raise ConfigurationError(
                message="batches of QHStates are whole already: pass collate_fn=QHStates.collate"
            )
        raise KeyError(key)


_TORCH_CLASSES: dict[type[QHBatches], type[QHBatches]] = {}


def _with_torch_base(cls: type[QHBatches]) -> type[QHBatches]:
    if cls not in _TORCH_CLASSES:
        base = import_torch().utils.data.IterableDataset
        _TORCH_CLASSES[cls] = type(cls.__name__, (cls, base), {"__module__": cls.__module__})
    return _TORCH_CLASSES[cls]


def _collection(states: States) -> RolloutCollection:
    return states if isinstance(states, RolloutCollection) else RolloutCollection([states])


def _tensors(rows: dict[str, NDArray[Any]]) -> Tensors:
    """Tensors that share the memory of the arrays."""
    from_numpy = import_torch().from_numpy
    return {
        name: from_numpy(values.astype(np.int64) if values.dtype == np.uint32 else values)
        for name, values in rows.items()
    }


def _worker() -> tuple[int, int]:
    """The index of this worker, and the number of workers."""
    info = import_torch().utils.data.get_worker_info()
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))
