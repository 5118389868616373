"""Stores to look into."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollbook.store.manifest import RolloutStoreManifestContext
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.writer import write_rollout_zarr_store

COMPONENTS = ("ahead", "bearing")
"""The mixture components that the config of a store written here names; there are more."""


def written(path: Path, records: Iterable[RolloutZarrRecord], **options: Any) -> Path:
    components = [{"name": name} for name in COMPONENTS]
    context = RolloutStoreManifestContext(
        writer_config={"candidate_mixture": {"components": components}}
    )
    write_rollout_zarr_store(path, records, manifest_context=context, **options)
    return path


def opened(path: Path) -> RolloutZarrStoreReader:
    return RolloutZarrStoreReader(path)
