"""Training reads: random batches of 256 states over all columns of the dense view, warm and cold, against peers."""

from __future__ import annotations

import gc
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.stores import (
    files_of,
    forget,
    peer,
    records_for,
    scratch,
    size_of,
    turns,
    write_store,
)
from benchmarks.timing import Claim, best
from rollbook.store.mapped import MappedArray
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.train import QHBatches

Array = NDArray[Any]
Columns = dict[str, Array]
Run = Callable[[], object]

_ROWS = 1_000_000
_BATCH = 256
_FEATURES, _COLD_FEATURES = 16, 64
_IN_A_ROW = 20
_COLD_BATCHES = 4


def main(scale: float = 1.0) -> list[Claim]:
    torch.set_num_threads(1)
    rows = max(6_000, int(_ROWS * scale))
    with scratch() as folder:
        cold = write_store(Path(folder) / "cold", records_for(rows, features=_COLD_FEATURES))
        warm = write_store(Path(folder) / "warm", records_for(rows, features=_FEATURES))
        return [*_warm(warm, Path(folder), turns(scale)), *_cold(cold, turns(scale))]


# ----------------------------------------------------------------------------------------------- warm


def _warm(store: Path, folder: Path, repeats: int) -> list[Claim]:
    reader = RolloutZarrStoreReader(store)
    columns = {name: np.array(values) for name, values in reader.q_h_view().items()}
    states = reader.num_steps
    state_bytes = sum(values.nbytes for values in columns.values()) // states
    print(f"store read: {states} states of {len(columns)} columns, {state_bytes} bytes each")
    batch = min(_BATCH, states)
    rows = _random_rows(states, batch)
    runs: dict[str, tuple[Run, int]] = {
        "ours, MappedArray.take(out=)": (_mapped_take(store, rows, batch), _IN_A_ROW),
        "limit: np.memmap take(out=)": (_memmap_take(columns, folder, rows, batch), _IN_A_ROW),
        "ours, reader.batches": (_batches(reader, batch), _IN_A_ROW),
        "ours, QHBatches, as tensors": (_tensors(store, batch), _IN_A_ROW),
    }
    for name, (module, make, in_a_row) in _PEERS.items():
        found = peer(module)
        if found is not None:
            runs[name] = (make(found, columns, folder, rows, batch), in_a_row)
    seconds = best(
        {name: _repeated(run, times) for name, (run, times) in runs.items()},
        repeats=3 * repeats,
        clock=time.perf_counter,
    )
    each = {name: spent / runs[name][1] for name, spent in seconds.items()}
    for name, spent in each.items():
        speed = batch * state_bytes / spent / 1e9
        print(f"  {name:32} {spent * 1e6:12,.0f} us per batch  {speed:8.3f} GB/s")
    return _warm_claims(each)


def _warm_claims(each: dict[str, float]) -> list[Claim]:
    """Each path by itself. The limit fills buffers that it uses again; only the first of ours can do that too."""
    limit = "limit: np.memmap take(out=)"
    claims = [
        Claim(f"{name} vs np.memmap take(out=)", each[limit] / spent, 0.8, "x")
        for name, spent in each.items()
        if name.startswith("ours")
    ]
    batches = each["ours, reader.batches"]
    bars = {"TorchRL LazyMemmapStorage": 2.5, "h5py, flat": 15, "zarr-python, raw chunks": 40}
    for name, bar in bars.items():
        ratio = each[name] / batches if name in each else None
        claims.append(Claim(f"reader.batches vs {name}", ratio, bar, "x"))
    return claims


def _repeated(run: Run, times: int) -> Run:
    def runs() -> None:
        for _ in range(times):
            run()

    return runs


def _random_rows(states: int, batch: int) -> Iterator[Array]:
    rng = np.random.default_rng(0)
    return itertools.cycle([rng.integers(0, states, batch) for _ in range(256)])


def _buffers(columns: Columns, batch: int) -> Columns:
    return {name: np.empty((batch, *v.shape[1:]), v.dtype) for name, v in columns.items()}


def _mapped_take(store: Path, rows: Iterator[Array], batch: int) -> Run:
    reader = RolloutZarrStoreReader(store)
    mapped = {name: MappedArray.open(store / "q_h" / name) for name in reader.column_names("q_h")}
    buffers = {name: np.empty((batch, *m.shape[1:]), m.dtype) for name, m in mapped.items()}

    def run() -> None:
        taken = next(rows)
        for name, source in mapped.items():
            source.take(taken, out=buffers[name])

    return run


def _memmap_take(columns: Columns, folder: Path, rows: Iterator[Array], batch: int) -> Run:
    mapped = {}
    for name, values in columns.items():
        np.save(folder / f"{name}.npy", values)
        mapped[name] = np.load(folder / f"{name}.npy", mmap_mode="r")
    buffers = _buffers(columns, batch)

    def run() -> None:
        taken = next(rows)
        for name, source in mapped.items():
            np.take(source, taken, axis=0, out=buffers[name], mode="clip")

    return run


def _batches(reader: RolloutZarrStoreReader, batch: int) -> Run:
    batches = reader.batches(batch, seed=0, epochs=None)
    return lambda: next(batches)


def _tensors(store: Path, batch: int) -> Run:
    batches = iter(QHBatches(store, batch, seed=0, epochs=None))
    return lambda: next(batches)


def _torchrl(module: Any, columns: Columns, folder: Path, rows: object, batch: int) -> Run:
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    states = len(next(iter(columns.values())))
    storage = module.LazyMemmapStorage(states, scratch_dir=str(folder / "torchrl"))
    buffer = module.TensorDictReplayBuffer(storage=storage, batch_size=batch)
    tensors = {name: torch.from_numpy(_signed(values)) for name, values in columns.items()}
    tensordict = peer("tensordict")
    buffer.extend(tensordict.TensorDict(tensors, batch_size=[states]))
    sample: Run = buffer.sample
    return sample


def _signed(values: Array) -> Array:
    """torch cannot index unsigned integers of 32 bits; the bytes are the same."""
    return values.view(np.int32) if values.dtype == np.uint32 else values


def _h5py(module: Any, columns: Columns, folder: Path, rows: Iterator[Array], batch: int) -> Run:
    file = module.File(folder / "flat.h5", "w")
    for name, values in columns.items():
        file.create_dataset(name, data=values)

    def run() -> None:
        taken = np.unique(next(rows))  # sorted and without duplicates, as h5py wants them
        for name in columns:
            file[name][taken]

    return run


def _zarr(module: Any, columns: Columns, folder: Path, rows: Iterator[Array], batch: int) -> Run:
    return _zarr_run(module.create_group(str(folder / "defaults.zarr")), columns, rows)


def _zarr_raw(
    module: Any, columns: Columns, folder: Path, rows: Iterator[Array], batch: int
) -> Run:
    """Like ours, it decodes nothing."""
    root = module.create_group(str(folder / "raw.zarr"))
    return _zarr_run(root, columns, rows, compressors=None, filters=None)


def _zarr_run(root: Any, columns: Columns, rows: Iterator[Array], **options: None) -> Run:
    for name, values in columns.items():
        root.create_array(name, data=values, **options)
    arrays = [root[name] for name in columns]

    def run() -> None:
        taken = next(rows)
        for array in arrays:
            array.oindex[taken]

    return run


_PEERS: dict[str, tuple[str, Callable[..., Run], int]] = {
    "TorchRL LazyMemmapStorage": ("torchrl.data", _torchrl, _IN_A_ROW),
    "h5py, flat": ("h5py", _h5py, 2),
    "zarr-python, raw chunks": ("zarr", _zarr_raw, 1),
    "zarr-python, compressed chunks": ("zarr", _zarr, 1),
}
"""Module, how it is set up, batches per turn."""


# ----------------------------------------------------------------------------------------------- cold


def _cold(store: Path, repeats: int) -> list[Claim]:
    """Every run starts with the store out of the cache, and with maps of its own."""
    files = files_of(store / "q_h")
    seconds = {"faulting": float("inf"), "prefetching": float("inf")}
    for turn in range(repeats):
        for name in seconds:
            forget(files)
            spent = _cold_batches(store, turn, prefetch=name == "prefetching")
            seconds[name] = min(seconds[name], spent)
            gc.collect()
    size = size_of(store / "q_h")
    print(f"store read, cold: {_COLD_BATCHES} batches of {_BATCH} from {size / 1e6:.0f} MB")
    for name, spent in seconds.items():
        print(f"  {name:32} {spent / _COLD_BATCHES * 1e3:12.2f} ms per batch")
    gained = seconds["faulting"] / seconds["prefetching"]
    return [Claim("cold batches, prefetching vs faulting", gained, 1.5, "x")]


def _cold_batches(store: Path, seed: int, *, prefetch: bool) -> float:
    reader = RolloutZarrStoreReader(store)
    batches = reader.batches(_BATCH, seed=seed, prefetch=prefetch)
    start = time.perf_counter()
    for _ in itertools.islice(batches, _COLD_BATCHES):
        pass
    return time.perf_counter() - start
