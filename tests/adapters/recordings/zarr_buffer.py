"""A small replay buffer: two episodes, one camera."""

from __future__ import annotations

from pathlib import Path

from tests.adapters.zarr_buffers import write_small


def make(folder: Path) -> Path:
    return write_small(folder / "pusht.zarr")
