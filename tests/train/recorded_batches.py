"""Small batches of conversations for the tests of the bridges."""

from __future__ import annotations

from typing import Any

from rollbook.contracts import (
    LogprobDistribution,
    LogprobSemantics,
    RolloutTable,
    TrainerBatch,
)
from tests.factories import revision, table_fields

PROCESSED = LogprobSemantics(distribution=LogprobDistribution.PROCESSED, temperature=0.5)


def raw(**changes: Any) -> LogprobSemantics:
    return LogprobSemantics(distribution=LogprobDistribution.RAW, **changes)


def conversations(
    *, semantics: LogprobSemantics | None = PROCESSED, samples: Any = None, **changes: Any
) -> RolloutTable:
    """Three rollouts of 2, 1 and 3 tokens after prompts of 3, 1 and 2."""
    fields = table_fields(
        [2, 1, 3],
        **{
            "prompt": [[7, 8, 9], [4], [5, 6]],
            "group_id": ["g", "g", None],
            "logprob_semantics": [semantics] * 3,
            **changes,
        },
    )
    fields["samples"] = {
        "token_id": [10, 11, 20, 30, 31, 32],
        "logprob": [-0.5, -1, -1.5, -2, -2.5, -3],
        "reward": [0, 1, 0.5, 0, 0, 2],
        "advantage": [1, 1, -1, 3, 3, 3],
        **(samples or {}),
    }
    return RolloutTable.from_columns(**fields)


def batch_of(table: RolloutTable) -> TrainerBatch:
    return TrainerBatch.assemble(
        batch_id="batch", target_revision=revision(9), rollouts=table, assembled_at_ms=9
    )
