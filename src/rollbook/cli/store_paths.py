"""Paths of stores on the command line: a path with nothing at it is wrong usage, not a damaged store."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote

from rollbook.errors import ConfigurationError

_URL_AS_PATH = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""How a URL begins that was taken for a path: one of its two slashes is gone."""


def existing_path(path: Path, what: str = "a store") -> Path:
    if not path.exists():
        raise ConfigurationError(message=f"there is nothing at {path}; name the folder of {what}")
    return path


def folder_here(path: Path, option: str) -> Path:
    """The folder that a command writes. For a URL it would make a folder named `s3:` in the current one."""
    if _URL_AS_PATH.match(str(path)):
        raise ConfigurationError(
            message=f"{option} is a URL ({path}), expected a folder of this machine"
        )
    return path


def refuse_unmerged(path: Path) -> None:
    """The folder of a campaign can be read like a store once its shards are merged."""
    if (path / "campaign.json").is_file() and not (path / "collection.json").exists():
        raise ConfigurationError(
            message=f"{path} is a campaign that was not merged: rollbook campaign merge {quote(str(path))}"
        )


def rollout_store_path(path: Path) -> Path:
    """Refuse a folder that is no rollout store. A damaged store passes: that is for its reader to say."""
    if (existing_path(path) / "collection.json").exists() or path.name == "collection.json":
        raise ConfigurationError(
            message=f"{path} is a collection of many stores, and this command reads one: "
            "rollbook campaign merge CAMPAIGN --compact FOLDER writes it as one"
        )
    if not (path / "zarr.json").exists():
        raise ConfigurationError(
            message=f"{path} is not a rollout store: it has no zarr.json; name the folder of a store"
        )
    return path
