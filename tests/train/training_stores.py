"""Stores to train on, of synthetic records. Their first feature tells the gain of a candidate, with some noise."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollbook.store.manifest import RolloutStoreManifestContext
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records

NAMES = ("gain_hint", "a", "b", "c", "d", "e")
_FOLDER = tempfile.TemporaryDirectory(prefix="training-stores-")


@lru_cache
def training_store(
    records: int = 96, names: tuple[str, ...] | None = NAMES, **options: Any
) -> Path:
    """Written once for all tests; read-only. Options are those of `make_records`."""
    named = "-".join(f"{name}={value}" for name, value in sorted(options.items()))
    path = Path(_FOLDER.name) / f"{records}-{hash(names)}-{named or 'plain'}.zarr"
    given = {"features": 6, "horizon": 2, "candidates": (8, 12), **options}
    write_rollout_zarr_store(
        path,
        make_records(records, **given),
        selected_depth_enabled=False,
        source_offline_store_version="1",
        split_manifest_hash="7" * 64,
        manifest_context=RolloutStoreManifestContext(
            writer_config=None if names is None else {"actor_feature_names": list(names)}
        ),
    )
    return path
