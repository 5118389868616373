"""Stores of synthetic records for the benchmarks, and peers that may or may not be installed."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rollbook.store.records import RolloutZarrRecord
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records

CANDIDATES = 60
HORIZON = 5


def records_for(rows: int, **options: Any) -> Iterator[RolloutZarrRecord]:
    """At least so many candidate rows: chains of five steps, sixty candidates each."""
    count = -(-rows // (CANDIDATES * HORIZON))
    return make_records(count, seed=1, candidates=CANDIDATES, horizon=HORIZON, **options)


def write_store(folder: Path, records: Iterable[RolloutZarrRecord], **options: Any) -> Path:
    return write_rollout_zarr_store(
        folder, records, **{"selected_depth_enabled": False, **options}
    ).store_dir


def turns(scale: float) -> int:
    """How often to repeat: enough for a figure, or once to see that it runs."""
    return 7 if scale > 0.1 else 1


_IN_MEMORY = "/dev/shm"


def scratch(*, in_memory: bool = False) -> tempfile.TemporaryDirectory[str]:
    """A folder in ROLLBOOK_BENCH_DIR; without it among temporary files, or in memory where the system allows it."""
    otherwise = _IN_MEMORY if in_memory and os.path.isdir(_IN_MEMORY) else None
    return tempfile.TemporaryDirectory(dir=os.environ.get("ROLLBOOK_BENCH_DIR", otherwise))


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in files_of(folder))


def forget(paths: Iterable[Path]) -> None:
    """Asks the system to drop files from its cache, so that reading them means the disk. Not while they are mapped."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def peer(name: str) -> Any:
    """A peer's module, or None after saying that it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"  {name}: not installed, not measured")
        return None
