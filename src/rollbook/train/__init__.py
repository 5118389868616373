"""Data for trainers: batches as packed, padded or jagged arrays, and states of a store as tensors.

Every array can be traced back to its rollouts. torch is optional and imported on first use. This room imports `store/`
and `contracts/`, never generation, the client or the server. A name below is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.train.dataset import (
        QHBatches as QHBatches,
        QHStates as QHStates,
    )
    from rollbook.train.export import (
        JaggedBatch as JaggedBatch,
        PackedBatch as PackedBatch,
        PaddedBatch as PaddedBatch,
        rollouts_of as rollouts_of,
        to_jagged as to_jagged,
        to_packed as to_packed,
        to_packed_bins as to_packed_bins,
        to_padded as to_padded,
    )
    from rollbook.train.packing import (
        balance as balance,
        pack_to_budget as pack_to_budget,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.train.dataset": (
                "QHBatches",
                "QHStates",
            ),
            "rollbook.train.export": (
                "JaggedBatch",
                "PackedBatch",
                "PaddedBatch",
                "rollouts_of",
                "to_jagged",
                "to_packed",
                "to_packed_bins",
                "to_padded",
            ),
            "rollbook.train.packing": (
                "balance",
                "pack_to_budget",
            ),
        },
    )
