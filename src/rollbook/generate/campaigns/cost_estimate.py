"""What a campaign would cost: a few of its rows are rolled out on this machine, and the rest is multiplied.

seconds of a shard = its rows x seconds per row + seconds per shard (open, write, validate)
wall time          = rounds of shards x seconds of a shard, where a round is one shard for every worker
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.row_rollouts import RowRoller
from rollbook.generate.writer import RolloutDatasetWriter
from rollbook.store.shards.entry import RolloutShardEntry, split_hash

_MEASURED_ROWS = 3
_SIDECARS = 2
"""Files that a finished shard has beside those of its store."""
Progress = Callable[[int, int], None]
"""Called with the number of measured rows and of all rows to measure."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRows:
    """A store that was made of some rows of a plan, and what that took."""

    row_seconds: tuple[float, ...]
    """Of each row, in one process with the threads of the config. Compilation is not counted."""
    finish_seconds: float
    """To write and validate the store, once the rows are rolled out."""
    candidates: int
    row_bytes: int
    """Stored arrays of all rows."""
    shard_bytes: int
    """Documents of the store. Nearly as many in a store of any size."""
    files: int
    kept_bytes: int
    """Finished rows, which a worker keeps beside the store in work until it is complete."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """What all shards of a plan would take, each on its own share of a machine like this one."""

    rows_measured: int
    seconds_per_row: float
    least_seconds_per_row: float
    most_seconds_per_row: float
    seconds_per_shard: float
    """Beside its rows."""
    candidates: int
    bytes: int
    files: int
    work_bytes_per_worker: int
    seconds: float
    """Of one worker that makes all shards."""
    wall_seconds: dict[int, float]
    """By the number of workers."""


def measure_rows(
    config: RolloutDatasetWriterConfig,
    entries: Sequence[RolloutShardEntry],
    *,
    on_row: Progress | None = None,
) -> MeasuredRows:
    """Rolls out a few planned rows into a store in a temporary folder, which is removed.

    Raises NoRollouts if none of them gives a rollout.
    """
    sample = _sample(entries)
    with tempfile.TemporaryDirectory(prefix="rollbook-estimate-") as folder:
        out = Path(folder) / "store"
        store = dataclasses.replace(config.store, store_dir=out)
        writer = RolloutDatasetWriter(dataclasses.replace(config, store=store, workers=1))
        source, rows = writer.shard_rows(sample)
        # compiles, or loads what was compiled before
        RowRoller(dataclasses.replace(config, max_targets_per_sample=1), source).roll_out(rows[0])
        times = [time.perf_counter()]
        kept_bytes = 0

        def noted(done: int, total: int, _stats: object) -> None:
            nonlocal kept_bytes
            times.append(time.perf_counter())
            kept_bytes = sum(each.stat().st_size for each in writer.finished.folder.iterdir())
            if on_row is not None:
                on_row(done, total)

        result = writer.run(shard_entry=sample, on_row=noted)
        times.append(time.perf_counter())
        sizes = {each: each.stat().st_size for each in out.rglob("*") if each.is_file()}
    documents = sum(size for file, size in sizes.items() if file.suffix == ".json")
    seconds = [later - earlier for earlier, later in pairwise(times)]
    return MeasuredRows(
        row_seconds=tuple(seconds[:-1]),
        finish_seconds=seconds[-1],
        candidates=result.num_candidates,
        row_bytes=sum(sizes.values()) - documents,
        shard_bytes=documents,
        files=len(sizes),
        kept_bytes=kept_bytes,
    )


def estimate_cost(
    entries: Sequence[RolloutShardEntry],
    measured: MeasuredRows,
    *,
    workers: Sequence[int] = (1, 2, 8, 64),
) -> CostEstimate:
    """The cost of all shards, if their rows are like the measured ones."""
    count = len(measured.row_seconds)
    rows, most = (each([len(entry.rows) for entry in entries]) for each in (sum, max))
    per_row = sum(measured.row_seconds) / count
    stored, kept = measured.row_bytes / count, measured.kept_bytes / count
    longest = most * per_row + measured.finish_seconds
    seconds = rows * per_row + len(entries) * measured.finish_seconds
    return CostEstimate(
        rows_measured=count,
        seconds_per_row=per_row,
        least_seconds_per_row=min(measured.row_seconds),
        most_seconds_per_row=max(measured.row_seconds),
        seconds_per_shard=measured.finish_seconds,
        candidates=round(rows * measured.candidates / count),
        bytes=round(rows * stored + len(entries) * measured.shard_bytes),
        files=len(entries) * (measured.files + _SIDECARS),
        work_bytes_per_worker=round(most * (stored + kept) + measured.shard_bytes),
        seconds=seconds,
        wall_seconds={
            each: min(seconds, math.ceil(len(entries) / each) * longest) for each in workers
        },
    )


def _sample(entries: Sequence[RolloutShardEntry]) -> RolloutShardEntry:
    """A shard of a few rows that lie apart, and therefore mostly in different scenes, of the largest split."""
    by_split: dict[str, list[RolloutShardEntry]] = {}
    for entry in entries:
        by_split.setdefault(entry.split, []).append(entry)
    largest = max(by_split.values(), key=lambda shards: sum(len(each.rows) for each in shards))
    rows = [row for entry in largest for row in entry.rows]
    count = min(_MEASURED_ROWS, len(rows))
    chosen = tuple(
        msgspec.structs.replace(rows[(2 * order + 1) * len(rows) // (2 * count)], order=order)
        for order in range(count)
    )
    first = largest[0]
    digest = split_hash(first.source_manifest_hash, first.split, chosen)
    return msgspec.structs.replace(first, rows=chosen, split_manifest_hash=digest)
