"""run_rollout_shard: generates the rollouts of one shard and puts the finished store in its place."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from rollbook.errors import NoRollouts, ShardDrift, UnfinishedRun
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.finished_rows import Unfinished
from rollbook.generate.writer import OnRow, RolloutDatasetWriter
from rollbook.store.config import RolloutZarrWriteResult
from rollbook.store.manifest import RolloutStoreInvocation, collect_runtime_provenance
from rollbook.store.shards.build_shard import BuiltStore, RolloutShardRunResult, build_shard
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.lease_record import LeaseWatch


def run_rollout_shard(
    config: RolloutDatasetWriterConfig,
    *,
    shard_entry: RolloutShardEntry,
    output_tmp: str | os.PathLike[str],
    output_final: str | os.PathLike[str],
    invocation: RolloutStoreInvocation | None = None,
    take_over: bool = False,
    lease_s: float | None = None,
    watch: LeaseWatch | None = None,
    on_row: OnRow | None = None,
) -> RolloutShardRunResult:
    """Generate one shard of a plan, or skip it if it is finished.

    The config and the source must be those of the plan, else ShardDrift. `output_tmp` is the work folder of this shard,
    which may be on another file system than `output_final`. With `take_over` the work that another worker left is
    used, once its lease is over; rows that it finished are not made again. `lease_s` defaults to campaign.lease_s.
    """
    refuse_other_config(config, [shard_entry])
    return build_shard(
        shard_entry,
        _ShardBuilder(config, shard_entry, invocation, on_row),
        output_tmp=output_tmp,
        output_final=output_final,
        take_over=take_over,
        lease_s=config.campaign.lease_s if lease_s is None else lease_s,
        watch=watch,
    )


def refuse_other_config(
    config: RolloutDatasetWriterConfig, entries: Iterable[RolloutShardEntry]
) -> None:
    """Raises ShardDrift if the config would give other rollouts than the one that a shard was planned with."""
    given = config.config_hash
    for entry in entries:
        if entry.writer_config_hash != given:
            detail = (
                f"it was planned with the config {entry.writer_config_hash[:16]}, this one is "
                f"{given[:16]}: use the config of the plan, or plan again in a new folder"
            )
            raise ShardDrift(path=entry.shard_id, detail=detail)


@dataclasses.dataclass(frozen=True, slots=True)
class _ShardBuilder:
    config: RolloutDatasetWriterConfig
    entry: RolloutShardEntry
    invocation: RolloutStoreInvocation | None
    on_row: OnRow | None

    def __call__(self, folder: Path, progress: Callable[[int], None]) -> BuiltStore:
        store = dataclasses.replace(self.config.store, store_dir=folder, replace=False)
        writer = RolloutDatasetWriter(
            dataclasses.replace(self.config, store=store), stated_config=self.config
        )
        result: RolloutZarrWriteResult | None = None
        with suppress(NoRollouts):  # a finished shard all the same: the statistics say why
            try:
                result = self._run(writer, progress, "resume")
            except UnfinishedRun:
                # the rows were made by another version of the program: they are made again
                result = self._run(writer, progress, "discard")
        stats = dataclasses.asdict(writer.stats)
        return BuiltStore(result, stats, collect_runtime_provenance())

    def _run(
        self,
        writer: RolloutDatasetWriter,
        progress: Callable[[int], None],
        unfinished: Unfinished,
    ) -> RolloutZarrWriteResult:
        def on_row(done: int, total: int, stats: object) -> None:
            progress(done)
            if self.on_row is not None:
                self.on_row(done, total, writer.stats)

        return writer.run(
            invocation=self.invocation,
            shard_entry=self.entry,
            on_row=on_row,
            unfinished=unfinished,
        )
