"""What a candidate costs at 1e4, 1e5 and 1e6 candidates, and a plan for 1e9 from these slopes (docs/operate.md).

Stores of synthetic records are written, read and validated at all three sizes: the claims say that a candidate does not
cost more in a larger store. Generation takes more than a millisecond of CPU time for a candidate, so 1e6 would take
half an hour; it is measured at 1e4 and 1e5: the first rows of a shard, and all of them. Source rows do not know
of each other, so more rows cost the same each. CPU time is measured: other work on the machine does not change it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.stores import CANDIDATES, files_of, records_for, scratch, size_of, write_store
from benchmarks.timing import Claim
from rollbook.generate.actor.features import FEATURES
from rollbook.generate.campaigns.planning import plan_rollout_shards
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.row_rollouts import RowRoller
from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store
from rollbook.generate.sources.reader import SourceStore
from rollbook.generate.sources.splits import SplitConfig
from rollbook.generate.writer import RolloutDatasetWriter
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.shards.shard_manifest import shard_manifest_bytes

_SIZES = (10_000, 100_000, 1_000_000)
_GENERATED_ROWS = 16
"""A shard of the default size, about 1e5 candidates."""
_PLANNED = 1_000_000_000
_ROWS_PER_SHARD = (16, 64)
_CORES = (1, 16, 64, 256, 1024)
_BATCH = 256
_BAR = 1.3
"""Most that a candidate may cost in a store of 1e6, beside one of 1e5."""
_THESIS = Path(__file__).parents[1] / "examples" / "generate" / "thesis.toml"


@dataclasses.dataclass(frozen=True)
class Stored:
    """One store of synthetic records. Seconds are CPU time."""

    candidates: int
    write_s: float
    read_s: float
    validate_s: float
    nbytes: int
    files: int


@dataclasses.dataclass(frozen=True)
class Generated:
    """One shard as a campaign makes it."""

    rows: int
    candidates: int
    row_s: tuple[float, ...]
    """CPU time to roll each row out."""
    row_candidates: tuple[int, ...]
    finish_s: float
    """CPU time to write and validate the store."""
    nbytes: int
    files: int
    trained_bytes: int
    """The dense view, which a trainer reads."""
    image_bytes: int
    source_bytes: int
    plan_bytes: int

    @property
    def rows_s(self) -> float:
        return sum(self.row_s)


def main(scale: float = 1.0) -> list[Claim]:
    with scratch() as folder:
        stored = [_stored(Path(folder) / f"{size}", max(600, int(size * scale))) for size in _SIZES]
        generated = _generated(Path(folder), scale)
    _print_slopes(stored)
    _print_plan(stored, generated)
    tenth, whole = stored[-2:]
    return [
        *(
            Claim(
                f"a candidate {done} in a store ten times as large",
                (getattr(whole, name) / whole.candidates)
                / (getattr(tenth, name) / tenth.candidates),
                _BAR,
                "x",
                at_most=True,
            )
            for name, done in (
                ("write_s", "written"),
                ("read_s", "read"),
                ("validate_s", "validated"),
                ("nbytes", "on disk"),
            )
        ),
        Claim(
            "writing and validating beside generation",
            100 * generated.finish_s / (generated.rows_s + generated.finish_s),
            10,
            "%",
            at_most=True,
        ),
    ]


# ------------------------------------------------------------------------------------------- stores


class _Timed:
    """Records, and the CPU time that making them took."""

    def __init__(self, records: Iterable[RolloutZarrRecord]) -> None:
        self._records = iter(records)
        self.seconds = 0.0

    def __iter__(self) -> Iterator[RolloutZarrRecord]:
        while True:
            start = time.process_time()
            record = next(self._records, None)
            self.seconds += time.process_time() - start
            if record is None:
                return
            yield record


def _stored(folder: Path, rows: int) -> Stored:
    records = _Timed(records_for(rows, features=len(FEATURES)))
    start = time.process_time()
    write_store(folder, records)
    write_s = time.process_time() - start - records.seconds
    start = time.process_time()
    reader = RolloutZarrStoreReader(folder)
    for _ in reader.batches(min(_BATCH, reader.num_steps)):
        pass
    read_s = time.process_time() - start
    start = time.process_time()
    assert validate_rollout_zarr_store(folder, deep=True).ok
    return Stored(
        candidates=reader.num_candidates,
        write_s=write_s,
        read_s=read_s,
        validate_s=time.process_time() - start,
        nbytes=size_of(folder),
        files=len(files_of(folder)),
    )


def _print_slopes(stored: list[Stored]) -> None:
    print("stores of synthetic records with the features of generation, without images; CPU time")
    print(
        f"  {'candidates':>10} {'write':>9} {'read':>9} {'validate':>9} {'bytes':>7} {'files':>6}"
    )
    for each in stored:
        write, read, validate = (
            f"{1e6 * seconds / each.candidates:6.2f} us"
            for seconds in (each.write_s, each.read_s, each.validate_s)
        )
        size = each.nbytes / each.candidates
        print(f"  {each.candidates:10,} {write} {read} {validate} {size:7.0f} {each.files:6,}")


# --------------------------------------------------------------------------------------- generation


def _generated(folder: Path, scale: float) -> Generated:
    sources, out = folder / "sources", folder / "shard"
    rows = _GENERATED_ROWS if scale >= 1 else 1
    scene = SceneConfig(max_edge_m=0.25 if scale >= 1 else 1.0)
    all_train = SplitConfig(train=1.0, val=0.0, test=0.0)
    make_source_store(
        sources, MakeSourcesConfig(scenes=rows, seed=20_000, scene=scene, splits=all_train)
    )
    config = RolloutDatasetWriterConfig.from_toml(_THESIS)
    config = dataclasses.replace(
        config,
        source=msgspec.structs.replace(config.source, store_dir=str(sources)),
        store=dataclasses.replace(config.store, store_dir=out),
        recipes=config.recipes if scale >= 1 else config.recipes[:1],
    )
    RowRoller(
        dataclasses.replace(config, max_targets_per_sample=1), SourceStore.open(sources)
    ).roll_out(0)  # compiles
    (entry,) = plan_rollout_shards(config, rows_per_shard=rows)
    times = [time.process_time()]
    result = RolloutDatasetWriter(config).run(
        shard_entry=entry, on_row=lambda *_: times.append(time.process_time())
    )
    times.append(time.process_time())
    *row_s, finish_s = np.diff(times).tolist()
    reader = RolloutZarrStoreReader(out)
    steps = np.bincount(
        reader.array("rollouts/source_row_id"), reader.array("rollouts/num_steps"), rows
    )
    return Generated(
        rows=rows,
        candidates=result.num_candidates,
        row_s=tuple(row_s),
        row_candidates=tuple(int(each) for each in steps * CANDIDATES),
        finish_s=finish_s,
        nbytes=size_of(out),
        files=len(files_of(out)),
        trained_bytes=size_of(out / "q_h"),
        image_bytes=size_of(out / "selected_depth"),
        source_bytes=size_of(sources),
        plan_bytes=len(shard_manifest_bytes([entry], "plan")),
    )


# ---------------------------------------------------------------------------------------- 1e9 candidates


def _print_plan(stored: list[Stored], generated: Generated) -> None:
    large = stored[-1]
    per_row = generated.candidates / generated.rows
    rows = math.ceil(_PLANNED / per_row)
    cpu_s = (generated.rows_s + generated.finish_s) / generated.candidates * _PLANNED
    nbytes = generated.nbytes / generated.candidates * _PLANNED
    trained = generated.trained_bytes / generated.candidates * _PLANNED
    images = generated.image_bytes / generated.candidates * _PLANNED
    print(
        f"thesis.toml: {generated.rows} rows gave {generated.candidates:,} candidates in "
        f"{generated.rows_s:.1f} CPU-s and {generated.finish_s:.1f} for the store of "
        f"{generated.nbytes / 1e6:.1f} MB in {generated.files} files"
    )
    first = slice(min(2, generated.rows))
    few, few_s = sum(generated.row_candidates[first]), sum(generated.row_s[first])
    for candidates, seconds in ((few, few_s), (generated.candidates, generated.rows_s)):
        print(
            f"  {candidates:10,} candidates: {1e6 * seconds / candidates:,.0f} us of CPU time each"
        )
    print(f"1e9 candidates: {rows:,} source rows, {cpu_s / 86400:.1f} CPU days")
    print(f"  finished shards {nbytes / 1e12:.2f} TB, of it images {images / 1e12:.2f} TB")
    print(f"  read by a trainer in one epoch {trained / 1e12:.2f} TB (q_h)")
    print(f"  sources {generated.source_bytes / generated.rows * rows / 1e9:.0f} GB")
    read_s = large.read_s / large.candidates * _PLANNED
    validate_s = large.validate_s / large.candidates * _PLANNED
    print(f"  CPU time of one epoch of batches {read_s / 60:.1f} min, without waiting for the disk")
    print(f"  CPU time of a deep validation without images {validate_s / 60:.1f} min")
    for size in _ROWS_PER_SHARD:
        shards = math.ceil(rows / size)
        shard_s = cpu_s / shards
        plan = generated.plan_bytes / generated.rows * rows
        files = _files(stored, generated, size * per_row)
        print(
            f"  {size} rows per shard: {shards:,} shards of {size * per_row:,.0f} candidates, "
            f"{nbytes / shards / 1e6:,.0f} MB, {shard_s / 60:.0f} min; "
            f"{shards * (files + 2):,.0f} files; plan {plan / 1e6:.0f} MB"
        )
    for cores in _CORES:
        print(f"  {cores:5,} cores: {cpu_s / cores / 3600:9.1f} h")


def _files(stored: list[Stored], generated: Generated, candidates: float) -> float:
    """Files of one shard. A column has another file when a chunk is full; 64 images share a file."""
    sizes, files = zip(*((each.candidates, each.files) for each in stored), strict=True)
    more = generated.files - np.interp(generated.candidates, sizes, files)
    return float(np.interp(candidates, sizes, files) + more * candidates / generated.candidates)


if __name__ == "__main__":
    for claim in main():
        print(claim)
