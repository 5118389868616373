"""Records of reinforcement learning: RolloutTable, RolloutArtifact, TrainerBatch, admission, lineage graph, table file.

They keep the digests of the v1 reference byte for byte, and add digests that cover everything. `Recorder` makes them
while an agent runs. These modules import each other and the root modules of `contracts/`, never `contracts/wire/`.
Public names are exported by `rollbook.contracts`; `Recorder` also from here.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.contracts.rl.recorder import Recorder as Recorder
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__, {"rollbook.contracts.rl.recorder": ("Recorder",)}
    )
