"""Minari: datasets of episodes in Gymnasium environments, in HDF5, Arrow or Parquet files."""

from rollbook.adapters.minari.importer import (
    FORMAT as FORMAT,
    MinariImporter as MinariImporter,
    looks_like as looks_like,
)
