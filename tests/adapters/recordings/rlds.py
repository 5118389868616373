"""A small RLDS dataset: four episodes in two splits and three shards, with a camera."""

from __future__ import annotations

from pathlib import Path

from tests.adapters.rlds_datasets import write_robot


def make(folder: Path) -> Path:
    return write_robot(folder)
