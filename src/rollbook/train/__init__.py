"""From a trainer batch to what a trainer's step takes: packed, padded or jagged arrays, traceable to their rollouts."""

from rollbook.train.dataset import QHBatches, QHStates
from rollbook.train.export import (
    JaggedBatch,
    PackedBatch,
    PaddedBatch,
    rollouts_of,
    to_jagged,
    to_packed,
    to_packed_bins,
    to_padded,
)
from rollbook.train.packing import balance, pack_to_budget

__all__ = [
    "JaggedBatch",
    "PackedBatch",
    "PaddedBatch",
    "QHBatches",
    "QHStates",
    "balance",
    "pack_to_budget",
    "rollouts_of",
    "to_jagged",
    "to_packed",
    "to_packed_bins",
    "to_padded",
]
