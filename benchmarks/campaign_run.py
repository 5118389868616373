"""What running a shard costs beside building it, and what a second worker gives.

The first part runs the whole protocol of leases, sidecars and promotion with a builder that does nothing, beside the
time that this disk needs to sync the same number of small files. The second part runs the smoke campaign with one
worker and with two, beside what two processes of pure computation reach on this machine at that moment. Workers are
warm: what happens before each has built one shard is not counted.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.stores import scratch
from benchmarks.timing import Claim
from rollbook.errors import ConfigurationError
from rollbook.files import write_bytes
from rollbook.generate.campaigns.planning import plan_rollout_shards
from rollbook.generate.campaigns.run_campaign import (
    ShardOutcome,
    ShardTask,
    ShardWork,
    run_campaign,
)
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store
from rollbook.store.shards.build_shard import BuiltStore, build_shard
from rollbook.store.shards.entry import RolloutShardEntry, RolloutShardRow, split_hash

_SHARDS = 200
_SMOKE_SHARDS = 24
_LOOPS = 20_000_000
_SYNCED_FILES = 4
"""Small files that are synced for one shard: lease, owner file, token of the promotion, success file."""
_SMOKE = Path(__file__).parents[1] / "examples" / "generate" / "smoke.toml"


def main(scale: float = 1.0) -> list[Claim]:
    with scratch() as folder:
        return [*_overhead(Path(folder), scale), _second_worker(Path(folder), scale)]


# ------------------------------------------------------------------------------------------ overhead


def start_nothing() -> ShardWork:
    return _build_nothing


def _build_nothing(task: ShardTask) -> ShardOutcome:
    result = build_shard(
        task.entry,
        lambda folder, progress: BuiltStore(None),
        output_tmp=task.output_tmp,
        output_final=task.output_final,
        take_over=True,
    )
    return ShardOutcome(result.skipped)


def _overhead(folder: Path, scale: float) -> list[Claim]:
    config = RolloutDatasetWriterConfig.from_table(
        {"source": {"store_dir": "source"}, "store": {"store_dir": "store"}}, folder=folder
    )
    entries = _planned(config, max(5, int(_SHARDS * scale)))
    print(f"{len(entries)} shards whose builder does nothing, one worker")
    synced = _synced_s(folder, len(entries)) * 1e3
    print(f"  {f'limit: {_SYNCED_FILES} small files are synced':46} {synced:7.1f} ms")
    claims = []
    for engine, bar in (("local", 50), ("ray", 150)):
        try:
            per_shard: float | None = 1e3 * _per_shard_s(
                config, entries, folder / engine, 1, engine=engine, start=start_nothing
            )
            print(f"  {f'engine {engine}, a shard':46} {per_shard:7.1f} ms")
        except ConfigurationError as error:
            per_shard = None
            print(f"  engine {engine}: not measured: {error}")
        name = f"campaign run, engine {engine}, overhead per shard"
        claims.append(Claim(name, per_shard, bar, "ms", at_most=True))
    return claims


def _planned(config: RolloutDatasetWriterConfig, shards: int) -> list[RolloutShardEntry]:
    source, entries = "5" * 64, []
    for number in range(shards):
        row = RolloutShardRow(
            order=0,
            sample_index=number,
            sample_key=f"flat-{number}",
            scene_id=f"flat-{number}",
            snippet_id="walk",
            split="train",
            source_shard_id="shard-000000",
            source_shard_row=number,
        )
        entry = RolloutShardEntry(
            shard_id=f"shard-{number:06d}",
            split="train",
            rows=(row,),
            writer_config_hash=config.config_hash,
            source_manifest_hash=source,
            source_cache_version="1",
            split_manifest_hash=split_hash(source, "train", (row,)),
            source_store_dir="source",
        )
        entries.append(entry)
    return entries


def _synced_s(folder: Path, shards: int) -> float:
    """Seconds to write the small files of one shard."""
    began = time.perf_counter()
    for number in range(shards * _SYNCED_FILES):
        write_bytes(folder / f"synced-{number}", bytes(1024))
    return (time.perf_counter() - began) / shards


def _per_shard_s(
    config: RolloutDatasetWriterConfig,
    entries: Sequence[RolloutShardEntry],
    folder: Path,
    workers: int,
    **options: Any,
) -> float:
    """Seconds from one finished shard to the next, when all workers are warm."""
    built: list[float] = []
    ended = run_campaign(
        config,
        entries,
        final_root=folder / "shards",
        work_root=folder / "work",
        workers=workers,
        on_event=lambda event: built.append(time.perf_counter()),
        **options,
    )
    assert ended.complete
    # at the end some workers have nothing left to do
    first, last = workers - 1, len(built) - workers
    return (built[last] - built[first]) / (last - first)


# -------------------------------------------------------------------------------------- a second worker


def _second_worker(folder: Path, scale: float) -> Claim:
    shards = max(6, int(_SMOKE_SHARDS * scale))
    scene = SceneConfig.of_difficulty("easy", max_edge_m=0.5 if scale >= 1 else 1.0)
    made = MakeSourcesConfig(scenes=shards, seed=5, scene=scene)
    make_source_store(folder / "source", made)
    config = RolloutDatasetWriterConfig.from_toml(_SMOKE)
    source = msgspec.structs.replace(config.source, store_dir=str(folder / "source"), split="all")
    config = dataclasses.replace(config, source=source, max_samples=shards)
    entries = plan_rollout_shards(config, rows_per_shard=1)
    ceiling = _ceiling(max(10_000, int(_LOOPS * scale)))
    seconds = {
        workers: _per_shard_s(config, entries, folder / f"x{workers}", workers)
        for workers in (1, 2)
    }
    gain = seconds[1] / seconds[2]
    print(f"{len(entries)} shards of the smoke campaign")
    for workers, each in seconds.items():
        print(f"  {f'workers: {workers}, a shard':46} {each * 1e3:7.1f} ms")
    print(f"  {'two workers, times as fast':46} {gain:7.2f} x")
    print(f"  {'limit: two processes of pure computation':46} {ceiling:7.2f} x")
    # two free cores reach 2; a machine with other work reaches less
    return Claim("campaign run, two workers vs one", gain, 0.85 * ceiling, "x")


def _ceiling(loops: int) -> float:
    """How much more two processes compute than one, in the same time."""
    return 2 * _computing_s(loops, 1) / _computing_s(loops, 2)


def _computing_s(loops: int, processes: int) -> float:
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        pool.map(_compute, [1000] * processes, chunksize=1)
        began = time.perf_counter()
        pool.map(_compute, [loops] * processes, chunksize=1)
        return time.perf_counter() - began


def _compute(loops: int) -> int:
    value = 0
    for number in range(loops):
        value = (value * 31 + number) & 0xFFFF
    return value
