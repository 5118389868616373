"""Rollout stores small enough to count in, of synthetic records."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records

_FOLDER = tempfile.TemporaryDirectory(prefix="small-stores-")


@lru_cache
def small_store(records: int = 12, **options: Any) -> Path:
    """Written once for all tests; read-only. Options are those of `make_records`."""
    named = "-".join(f"{name}={value}" for name, value in sorted(options.items()))
    path = Path(_FOLDER.name) / f"{records}-{named or 'plain'}.zarr"
    write_rollout_zarr_store(
        path,
        make_records(records, **{"features": 6, "horizon": 3, "candidates": (8, 12), **options}),
        selected_depth_enabled=False,
        source_offline_store_version="1",
        split_manifest_hash="7" * 64,
    )
    return path
