"""Tables of random rollouts for the benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollbook.contracts import (
    EnvironmentPackageKey,
    PolicyRevision,
    RolloutTable,
    RolloutTerminationReason,
)

VOCABULARY = 152_000


def revision(number: int) -> PolicyRevision:
    return PolicyRevision(
        policy_family="bench",
        revision_id=f"r{number}",
        policy_digest=f"digest-{number}",
        produced_at_ms=1_000 + number,
        revision_number=number,
    )


def random_columns(
    lengths: np.ndarray[Any, Any], seed: int = 0, vocabulary: int = VOCABULARY
) -> dict[str, Any]:
    """Arguments of `RolloutTable.from_columns`; token ids are uniform, the worst case for table look-ups."""
    rng = np.random.default_rng(seed)
    rows, total = len(lengths), int(lengths.sum())
    revisions = [revision(number) for number in range(4)]
    columns = {
        "token_id": rng.integers(0, vocabulary, total).astype(np.uint32),
        "logprob": -rng.random(total).astype(np.float32),
        "reward": rng.random(total).astype(np.float32),
        "advantage": rng.normal(size=total).astype(np.float32),
    }
    for column in columns.values():
        column.flags.writeable = False
    return {
        "artifact_id": [f"rollout-{row:07d}" for row in range(rows)],
        "worker_id": [f"worker-{row % 16}" for row in range(rows)],
        "environment": [EnvironmentPackageKey(environment_ref="bench.env", version="1")] * rows,
        "task_id": [f"task-{row % 64}" for row in range(rows)],
        "source_policy_revision": [revisions[row % 4] for row in range(rows)],
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "samples": columns,
        "termination_reason": [RolloutTerminationReason.COMPLETED] * rows,
        "created_at_ms": np.arange(rows) + 2_000,
    }


def random_table(
    lengths: np.ndarray[Any, Any], seed: int = 0, vocabulary: int = VOCABULARY
) -> RolloutTable:
    return RolloutTable.from_columns(**random_columns(lengths, seed, vocabulary))


def many_lengths(rows: int, seed: int = 1) -> np.ndarray[Any, Any]:
    """Between 16 and 1024 samples each."""
    return np.random.default_rng(seed).integers(16, 1025, rows)
