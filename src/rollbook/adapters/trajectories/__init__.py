"""Trajectories: rollouts that the Python package `imitation` saved as one NPZ file."""

from rollbook.adapters.trajectories.importer import (
    FORMAT as FORMAT,
    TrajectoriesImporter as TrajectoriesImporter,
    looks_like as looks_like,
)
