"""States of the dense view as tensors: `QHStates` by number, `QHBatches` as a shuffled stream that can be resumed.

Both read a store or a collection, and copy once: rows are gathered into arrays of the batch's own, which the tensors
share. Types are those of the columns, except that uint32 becomes int64, for which torch has all its operations.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError
from rollbook.store.batches import epoch_order
from rollbook.store.collection import QHRows, RolloutCollection
from rollbook.store.reader import RolloutZarrStoreReader

if TYPE_CHECKING:
    import torch

States = RolloutCollection | RolloutZarrStoreReader | str | os.PathLike[str]
Tensors = dict[str, "torch.Tensor"]


class QHStates:
    """A map-style dataset. Batched reads go through `__getitems__`: one take per column, whatever the batch.

        DataLoader(QHStates(store), batch_size=256, shuffle=True, collate_fn=QHStates.collate)

    With processes as workers every batch is sent through a pipe: for stores on a local disk none are faster.
    """

    def __init__(
        self,
        states: States,
        columns: Sequence[str] | None = None,
        *,
        global_ids: bool = False,
    ) -> None:
        """`global_ids`: row ids in a batch are the collection's, not those of the store they come from."""
        _torch()
        self._arguments = (_collection(states), None if columns is None else tuple(columns))
        self._global_ids = global_ids
        self._rows = QHRows(*self._arguments, global_ids)

    def __reduce__(self) -> tuple[Any, ...]:
        return _states_again, (*self._arguments, self._global_ids)

    @property
    def columns(self) -> tuple[str, ...]:
        return self._rows.names

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensors:
        """One state: a tensor per column, without a batch axis."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"state {index} of {len(self)}")
        rows = self._rows.take(np.array([index % len(self)]))
        return {name: values[0] for name, values in _tensors(rows).items()}

    def __getitems__(self, indices: Sequence[int]) -> Tensors:
        """A whole batch: a tensor per column, with the batch as first axis."""
        return _Batch(_tensors(self._rows.take(np.asarray(indices, np.int64))))

    @staticmethod
    def collate(batch: Tensors) -> Tensors:
        """For a DataLoader: batches are whole already."""
        return batch


class _Position(NamedTuple):
    number: int
    """The next batch, counted over all epochs."""
    worker: tuple[int, int] | None = None
    """The worker whose next batch it is, and of how many; None where it is the next of all."""


class QHBatches:
    """An IterableDataset of whole batches, in the order of `RolloutZarrStoreReader.batches` for the same seed.

        DataLoader(QHBatches(store, 256, seed=1, epochs=10), batch_size=None)

    Workers share the batches: the loader returns each once, and in the same order, however many there are. Every
    iteration begins at the position that was loaded last, or at the beginning.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> QHBatches:
        # torch looks for its own base class, which can only be named once torch is loaded
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
        """`epochs=None` goes on for ever. The last batch of an epoch may be smaller."""
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
        options = {
            "seed": self._seed,
            "epochs": self._epochs,
            "columns": self._columns,
            "global_ids": self._global_ids,
        }
        state = {"_start": self._start, "_next": self._next}
        return _batches_again, (self._collection, self._size, options), state

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self._rows) // self._size)

    def __len__(self) -> int:
        """Batches from the position on that was loaded last."""
        if self._epochs is None:
            raise TypeError("batches without an end have no length")
        return max(0, self._epochs * self.batches_per_epoch - self._start.number)

    # ------------------------------------------------------------------------------------ position

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that this object gave out, and what it is a position in.

        Batches that worker processes give out do not move the object they were copied from: count those, and load
        `{**state, "epoch": …, "batch": …}`.
        """
        epoch, batch = divmod(self._next.number, max(1, self.batches_per_epoch))
        return {"epoch": epoch, "batch": batch, "worker": self._next.worker, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on there. Refused for other batches than those the position was taken in."""
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
        if not self.batches_per_epoch:
            return
        number, epoch_now, order = first, -1, np.zeros(0, np.int64)
        while self._epochs is None or number < self._epochs * self.batches_per_epoch:
            epoch, batch = divmod(number, self.batches_per_epoch)
            if epoch != epoch_now:
                epoch_now, order = epoch, epoch_order(len(self._rows), self._seed, epoch)
            rows = self._rows.take(order[batch * self._size : (batch + 1) * self._size])
            number += workers
            self._next = _Position(number, (worker, workers) if workers > 1 else None)
            yield _tensors(rows)


class _Batch(dict[str, Any]):
    """Says what is missing where torch would try to collate states that are a batch already."""

    def __missing__(self, key: object) -> Any:
        if key == 0:
            raise ConfigurationError(
                message="batches of QHStates are whole already: pass collate_fn=QHStates.collate"
            )
        raise KeyError(key)


def _states_again(
    collection: RolloutCollection, columns: tuple[str, ...] | None, global_ids: bool
) -> QHStates:
    return QHStates(collection, columns, global_ids=global_ids)


def _batches_again(collection: RolloutCollection, size: int, options: dict[str, Any]) -> QHBatches:
    return QHBatches(collection, size, **options)


_TORCH_CLASSES: dict[type[QHBatches], type[QHBatches]] = {}


def _with_torch_base(cls: type[QHBatches]) -> type[QHBatches]:
    if cls not in _TORCH_CLASSES:
        base = _torch().utils.data.IterableDataset
        _TORCH_CLASSES[cls] = type(cls.__name__, (cls, base), {"__module__": cls.__module__})
    return _TORCH_CLASSES[cls]


def _collection(states: States) -> RolloutCollection:
    return states if isinstance(states, RolloutCollection) else RolloutCollection([states])


def _tensors(rows: dict[str, NDArray[Any]]) -> Tensors:
    """Without a copy: the arrays were made for this batch."""
    from_numpy = _torch().from_numpy
    return {name: from_numpy(_storable(values)) for name, values in rows.items()}


def _storable(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.int64) if values.dtype == np.uint32 else values


def _worker() -> tuple[int, int]:
    """Which worker this is, and of how many."""
    info = _torch().utils.data.get_worker_info()
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))


def _torch() -> Any:
    try:
        import torch
        import torch.utils.data
    except ImportError as missing:
        raise ConfigurationError(
            message="tensors need torch, which is not installed: pip install 'rollbook[torch]'"
        ) from missing
    return torch
