"""RLDS: datasets of robot episodes that TensorFlow Datasets wrote, read without TensorFlow."""

from rollbook.adapters.rlds.importer import (
    FORMAT as FORMAT,
    RldsImporter as RldsImporter,
    looks_like as looks_like,
)
