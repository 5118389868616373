"""Rounds of improvement: generate with the current policy, train, replay, and promote what the gate ships.

`improve_policy` runs the rounds in a folder; `LoopRecord` is what its `loop.json` says.
A name below is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.improve.improvement_loop import improve_policy as improve_policy
    from rollbook.improve.loop_record import (
        LoopPlan as LoopPlan,
        LoopRecord as LoopRecord,
        LoopRound as LoopRound,
    )
    from rollbook.improve.round_work import LoopProgress as LoopProgress
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.improve.improvement_loop": ("improve_policy",),
            "rollbook.improve.loop_record": ("LoopPlan", "LoopRecord", "LoopRound"),
            "rollbook.improve.round_work": ("LoopProgress",),
        },
    )
