"""A million samples from columns to a packed trainer batch, against one pass of SHA-256; and what they weigh."""

from __future__ import annotations

import gc
import tracemalloc

from benchmarks.digests import raw_sha256
from benchmarks.rollouts import many_lengths, random_columns, revision
from benchmarks.timing import Claim, best
from rollbook.contracts import RolloutTable, TrainerBatch
from rollbook.contracts.rl.admission import OffPolicyBudget, admit
from rollbook.train import to_packed


def main(scale: float = 1.0) -> list[Claim]:
    lengths = many_lengths(max(2, int(2048 * scale)))
    columns = random_columns(lengths)
    target = revision(4)
    table = RolloutTable.from_columns(**columns)
    batch = _assemble(table, target)
    seconds = best(
        {
            "columns → table with both digests": lambda: RolloutTable.from_columns(**columns),
            "batch": lambda: _assemble(table, target),
            "admission, all receipts": lambda: _admit(table, target),
            "packed": lambda: to_packed(batch, table),
            "raw SHA-256": lambda: raw_sha256(table),
        },
        repeats=5,
    )
    print(f"pipeline: {len(table)} rollouts, {table.sample_count} samples, one thread")
    for name, spent in seconds.items():
        print(f"  {name:34} {spent * 1e3:8.2f} ms")
    raw = seconds.pop("raw SHA-256")
    weight = _bytes_per_sample(lengths)
    print(f"  {'resident':34} {weight:8.2f} bytes per sample")
    return [
        Claim(
            "assembled, admitted and packed vs raw SHA-256",
            sum(seconds.values()) / raw,
            20,
            "x",
            at_most=True,
        ),
        Claim("resident memory of a table", weight, 24, "bytes per sample", at_most=True),
    ]


def _assemble(table: RolloutTable, target: object) -> TrainerBatch:
    return TrainerBatch.assemble(
        batch_id="bench", target_revision=revision(4), rollouts=table, assembled_at_ms=5_000
    )


def _admit(table: RolloutTable, target: object) -> object:
    admission = admit(
        table,
        revision(4),
        OffPolicyBudget.default(),
        run_id="run",
        stage_id="stage",
        window_id="window",
        observed_at_ms=9_000,
    )
    return list(admission.receipts())


def _bytes_per_sample(lengths: object) -> float:
    """Everything a table keeps, columns and digests, once its inputs are gone."""
    gc.collect()
    tracemalloc.start()
    table = RolloutTable.from_columns(**random_columns(many_lengths(2048)))
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept / table.sample_count
