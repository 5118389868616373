"""Data for trainers: chains of stores as artifacts, batches as arrays or as a trainer wants them, states as tensors.

Every array can be traced back to its rollouts. torch is optional and imported on first use. This room imports `store/`
and `contracts/`, never generation, the client or the server. A name below is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.train.artifacts import (
        chains_table as chains_table,
    )
    from rollbook.train.bridges.prime_rl import (
        PrimeRLMicroBatch as PrimeRLMicroBatch,
        to_prime_rl as to_prime_rl,
    )
    from rollbook.train.bridges.step_recorder import (
        RecordedStep as RecordedStep,
        StepRecorder as StepRecorder,
        TrainedStep as TrainedStep,
        lineage_of_steps as lineage_of_steps,
        recorded_steps as recorded_steps,
        trained_steps as trained_steps,
    )
    from rollbook.train.bridges.tinker import (
        TinkerDatum as TinkerDatum,
        to_tinker as to_tinker,
    )
    from rollbook.train.bridges.trl import (
        to_trl as to_trl,
    )
    from rollbook.train.bridges.trl_recording import (
        RecordingMixin as RecordingMixin,
        weights_digest as weights_digest,
    )
    from rollbook.train.bridges.verl import (
        VerlBatch as VerlBatch,
        open_verl as open_verl,
        save_verl as save_verl,
        to_verl as to_verl,
    )
    from rollbook.train.chain_proofs import (
        check_proofs as check_proofs,
        open_chains as open_chains,
    )
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
    from rollbook.train.split import (
        SplitBatch as SplitBatch,
        to_split as to_split,
    )
    from rollbook.train.training import (
        resume_training as resume_training,
        train_policy as train_policy,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.train.artifacts": ("chains_table",),
            "rollbook.train.bridges.prime_rl": (
                "PrimeRLMicroBatch",
                "to_prime_rl",
            ),
            "rollbook.train.bridges.step_recorder": (
                "RecordedStep",
                "StepRecorder",
                "TrainedStep",
                "lineage_of_steps",
                "recorded_steps",
                "trained_steps",
            ),
            "rollbook.train.bridges.tinker": (
                "TinkerDatum",
                "to_tinker",
            ),
            "rollbook.train.bridges.trl": ("to_trl",),
            "rollbook.train.bridges.trl_recording": (
                "RecordingMixin",
                "weights_digest",
            ),
            "rollbook.train.bridges.verl": (
                "VerlBatch",
                "open_verl",
                "save_verl",
                "to_verl",
            ),
            "rollbook.train.chain_proofs": (
                "check_proofs",
                "open_chains",
            ),
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
            "rollbook.train.split": (
                "SplitBatch",
                "to_split",
            ),
            "rollbook.train.training": (
                "resume_training",
                "train_policy",
            ),
        },
    )
