"""HDF5: demonstrations of robomimic, LIBERO, robosuite, ALOHA and DROID become episodes.

The layout of a file is detected, or named. Links are followed only inside the file, and nothing in it is run.
docs/formats/hdf5.md says what is kept and what is lost.
"""

from __future__ import annotations

from rollbook.adapters.hdf5.importer import FORMAT, Hdf5Importer, looks_like

__all__ = ["FORMAT", "Hdf5Importer", "looks_like"]
