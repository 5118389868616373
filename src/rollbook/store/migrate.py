"""Bringing an older store up to this release's schema. So far there is one version, so there is nothing to do."""

from __future__ import annotations

import os
from pathlib import Path

from rollbook.errors import UnsupportedVersion
from rollbook.store.manifest import read_manifest
from rollbook.store.schema import ROLLOUT_ZARR_SCHEMA_ID, ROLLOUT_ZARR_SCHEMA_VERSION


def migrate_store(store_dir: str | os.PathLike[str]) -> str:
    """Says that a store is current; refuses, by name, a version this release does not know."""
    attrs = read_manifest(Path(store_dir).resolve()).root_attrs
    found = (attrs.get("schema_id"), attrs.get("schema_version"))
    if found != (ROLLOUT_ZARR_SCHEMA_ID, ROLLOUT_ZARR_SCHEMA_VERSION):
        raise UnsupportedVersion(
            path=str(store_dir),
            detail=f"there is no way from schema {found[0]!r} {found[1]!r} to {ROLLOUT_ZARR_SCHEMA_VERSION!r}; "
            "a store of a later schema needs a later release",
        )
    return f"{store_dir} has schema version {ROLLOUT_ZARR_SCHEMA_VERSION}, which is current"
