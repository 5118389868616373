"""A small HDF5 file as robomimic writes it: two demonstrations, one camera, a mask."""

from __future__ import annotations

from pathlib import Path

from tests.adapters.hdf5.hdf5_files import write_robomimic


def make(folder: Path) -> Path:
    return write_robomimic(folder / "lift.hdf5", lengths=(5, 4), with_camera=True)
