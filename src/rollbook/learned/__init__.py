"""What a training run leaves behind, and the policy made of it.

A run folder holds the checkpoint, the metrics, the trainer batches and the policy revision; `run.json` names every file
with its digest and is written last. Training itself is in `train/`; generation, replays, rounds of improvement and the
lineage walk read run folders through this room. A checkpoint is LightGBM text or safetensors, never a pickle.
A name below is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.learned.policy import (
        LearnedPolicy as LearnedPolicy,
        load_learned_policy as load_learned_policy,
    )
    from rollbook.learned.run_folder import (
        TrainingRunFolder as TrainingRunFolder,
        is_training_run as is_training_run,
        open_training_run as open_training_run,
    )
    from rollbook.learned.training_run import (
        BatchReference as BatchReference,
        RunFile as RunFile,
        TrainingData as TrainingData,
        TrainingRun as TrainingRun,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.learned.policy": ("LearnedPolicy", "load_learned_policy"),
            "rollbook.learned.run_folder": (
                "TrainingRunFolder",
                "is_training_run",
                "open_training_run",
            ),
            "rollbook.learned.training_run": (
                "BatchReference",
                "RunFile",
                "TrainingData",
                "TrainingRun",
            ),
        },
    )
