"""Paths of stores on the command line: a path with nothing at it is wrong usage, not a damaged store."""

from __future__ import annotations

from pathlib import Path

from rollbook.errors import ConfigurationError


def existing_path(path: Path) -> Path:
    if not path.exists():
        raise ConfigurationError(message=f"there is nothing at {path}; name the folder of a store")
    return path


def rollout_store_path(path: Path) -> Path:
    """Refuse a folder that is no rollout store. A damaged store passes: that is for its reader to say."""
    if not (existing_path(path) / "zarr.json").exists():
        raise ConfigurationError(
            message=f"{path} is not a rollout store: it has no zarr.json; name the folder of a store"
        )
    return path
