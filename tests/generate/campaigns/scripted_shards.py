"""Campaigns for tests of the driver: plans without a source, and workers that do what a script says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rollbook.errors import GenerationFailed, ShardDrift
from rollbook.generate.campaigns.run_campaign import (
    CampaignRun,
    ShardOutcome,
    ShardTask,
    ShardWork,
    run_campaign,
)
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.store.shards.build_shard import BuiltStore, build_shard
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.lease_record import LeaseWatch
from tests.store.shards import planned
from tests.store.shards.shard_plans import SmallBuilder

CONFIG = RolloutDatasetWriterConfig.from_table(
    {"source": {"store_dir": "source"}, "store": {"store_dir": "store"}}, folder=Path("/")
)

Script = Mapping[int, Sequence[str]]
"""What the attempts at a shard do, one after the other; attempts beyond the last one build the shard."""


def plan(shards: int) -> list[RolloutShardEntry]:
    rows = 2
    return [
        planned.entry(number, range(number * rows, (number + 1) * rows), config=CONFIG.config_hash)
        for number in range(shards)
    ]


def attempts(root: Path, number: int) -> int:
    """How often a worker began to build a shard."""
    return len(list((root / "attempts").glob(f"{number:06d}.*")))


def start_scripted(root: Path, script: Script, lease_s: float = 60.0) -> ShardWork:
    def work(task: ShardTask) -> ShardOutcome:
        number = int(task.entry.shard_id.removeprefix("shard-"))
        result = build_shard(
            task.entry,
            _ScriptedBuilder(root, number, task.entry, script.get(number, ())),
            output_tmp=task.output_tmp,
            output_final=task.output_final,
            take_over=True,
            lease_s=lease_s,
            watch=LeaseWatch(task.over),
        )
        if script.get(number) == ["die after the rename"] and not result.skipped:
            result.success_path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return ShardOutcome(result.skipped, 4)

    return work


@dataclass(frozen=True, slots=True)
class _ScriptedBuilder:
    """Builds shards without rollouts, which cost little. Whatever happens, happens at the second of their rows."""

    root: Path
    number: int
    entry: RolloutShardEntry
    script: Sequence[str]

    def __call__(self, folder: Path, progress: Callable[[int], None]) -> BuiltStore:
        progress(1)
        action = self._action()
        if action == "raise":
            raise GenerationFailed(sample_index=1, sample_key="key", detail="the policy raised")
        if action == "drift":
            raise ShardDrift(path="source", detail="it has changed")
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        while action == "hang":
            time.sleep(0.05)
        while action == "wait" and not (self.root / "go").exists():
            time.sleep(0.02)
        progress(2)
        if action == "damage":
            built = SmallBuilder(self.entry)(folder, progress)
            (folder / "manifest.json").write_bytes(b"{}")
            return built
        return BuiltStore(None, {"skipped_reasons": {"no_target": 2}})

    def _action(self) -> str:
        before = attempts(self.root, self.number)
        (self.root / "attempts").mkdir(exist_ok=True)
        (self.root / "attempts" / f"{self.number:06d}.{before}").touch()
        return self.script[before] if before < len(self.script) else "build"


def run(
    root: Path,
    entries: Sequence[RolloutShardEntry],
    script: Script | None = None,
    *,
    start: Callable[[], ShardWork] | None = None,
    **options: Any,
) -> CampaignRun:
    """Runs a campaign in `root`. Workers are threads unless `parallel` says otherwise."""
    return run_campaign(
        CONFIG,
        entries,
        work_root=root / "work",
        start=start or partial(start_scripted, root, script or {}),
        **{"final_root": root / "shards", "parallel": "thread", **options},
    )
