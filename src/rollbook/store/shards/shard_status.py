"""The status of a campaign: what is known about every shard, and what follows from it for all of them together."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from rollbook.store.shards.sidecars import (
    ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_SHARD_SUCCESS_FILENAME,
    FailedAttempt,
    ShardCounts,
)
from rollbook.store.urls.url_folder import folder_at

ShardState = Literal["succeeded", "failed", "incomplete", "missing", "running"]
STATES: tuple[ShardState, ...] = get_args(ShardState)
_RECENT = 100
"""The pace of a worker is that of the shards that were finished last."""


class ShardWorker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The worker that has a shard, or had it last."""

    host: str
    pid: int
    role: Literal["building", "promoting"]
    rows_done: int
    rows_total: int
    started_at: str
    beat_at: str
    """Its last heartbeat by the clock of its machine, for people."""
    silent_s: float
    """Seconds since its last heartbeat, by the clock of the file server."""


class BuiltShard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the owner file of a finished shard says."""

    counts: ShardCounts
    bytes: int
    seconds: float
    """What the last attempt took."""
    first_attempt: bool
    """Whether `seconds` is the time of all its rows: a later attempt does not make finished rows again."""
    built_at: str
    host: str
    skipped_reasons: dict[str, int]


class RolloutShardStatus(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One shard of a plan.

    - succeeded: complete, and made from this plan;
    - running: a worker that is alive has it;
    - failed: its last attempt ended with an error;
    - incomplete: there is something of it that nobody works on; `errors` says what and what to do;
    - missing: nobody has begun it.
    """

    shard_id: str
    split: str
    place: str
    """The folder of the shard, or its URL."""
    status: ShardState
    num_source_rows: int
    marker_places: tuple[str, ...] = ()
    """The paths or URLs of its failure markers."""
    errors: tuple[str, ...] = ()
    worker: ShardWorker | None = None
    built: BuiltShard | None = None
    failures: tuple[FailedAttempt, ...] = ()
    """Attempts that failed, oldest first."""

    @property
    def final_dir(self) -> Path:
        """The folder of the shard. A shard at a URL has none."""
        return folder_at(self.place)

    @property
    def failed_markers(self) -> tuple[Path, ...]:
        return tuple(map(folder_at, self.marker_places))

    @property
    def success_path(self) -> Path:
        return self.final_dir / ROLLOUT_SHARD_SUCCESS_FILENAME

    @property
    def owner_path(self) -> Path:
        return self.final_dir / ROLLOUT_SHARD_OWNER_FILENAME

    @property
    def rows_done(self) -> int:
        """Source rows that are finished and kept, as far as is known."""
        if self.status == "succeeded":
            return self.num_source_rows
        return 0 if self.worker is None else self.worker.rows_done

    def to_jsonable(self) -> dict[str, Any]:
        return {
            "shard_id": self.shard_id,
            "split": self.split,
            "status": self.status,
            "num_source_rows": self.num_source_rows,
            "rows_done": self.rows_done,
            "final_dir": self.place,
            "success_path": f"{self.place}/{ROLLOUT_SHARD_SUCCESS_FILENAME}",
            "owner_path": f"{self.place}/{ROLLOUT_SHARD_OWNER_FILENAME}",
            "failed_markers": list(self.marker_places),
            "errors": list(self.errors),
            "failures": msgspec.to_builtins(self.failures),
            "worker": msgspec.to_builtins(self.worker),
            "built": msgspec.to_builtins(self.built),
        }


class CampaignPace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a campaign is. A value is None while there is nothing to measure it from."""

    workers: int
    """Workers that are alive."""
    rows_per_s_per_worker: float | None
    rows_per_s: float | None
    """Of all workers that are alive."""
    candidates_per_s: float | None
    eta_s: float | None
    """Seconds until all rows are done, if as many workers go on at this pace."""


class CampaignTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the finished shards."""

    rollouts: int
    steps: int
    candidates: int
    bytes: int
    worker_seconds: float
    empty_shards: int
    """Finished shards whose rows gave no rollout."""


class RolloutShardCampaignStatus(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All shards of a plan, in its order."""

    manifest_path: Path
    final_root: Path | str
    """The folder of the shards, or its URL."""
    shards: tuple[RolloutShardStatus, ...]
    unplanned: tuple[str, ...] = ()
    """Folders in `final_root` that are named like shards and are not in the plan."""

    @cached_property
    def counts(self) -> dict[ShardState, int]:
        """Number of shards in each state. Every state is a key."""
        found = Counter(each.status for each in self.shards)
        return {state: found[state] for state in STATES}

    @property
    def is_complete(self) -> bool:
        """Whether every shard has succeeded."""
        return self.counts["succeeded"] == len(self.shards)

    def problems(self) -> Iterator[RolloutShardStatus]:
        """The shards that have not succeeded and that nobody works on; those that nobody has begun come last."""
        for state in ("failed", "incomplete", "missing"):
            yield from (each for each in self.shards if each.status == state)

    @property
    def running(self) -> list[RolloutShardStatus]:
        return [each for each in self.shards if each.status == "running"]

    @cached_property
    def rows(self) -> int:
        return sum(each.num_source_rows for each in self.shards)

    @cached_property
    def rows_done(self) -> int:
        return sum(each.rows_done for each in self.shards)

    @cached_property
    def _built(self) -> list[BuiltShard]:
        return [each.built for each in self.shards if each.built is not None]

    @cached_property
    def totals(self) -> CampaignTotals:
        built = self._built
        return CampaignTotals(
            rollouts=sum(each.counts.rollouts for each in built),
            steps=sum(each.counts.steps for each in built),
            candidates=sum(each.counts.candidates for each in built),
            bytes=sum(each.bytes for each in built),
            worker_seconds=round(sum(each.seconds for each in built), 3),
            empty_shards=sum(each.counts.rollouts == 0 for each in built),
        )

    @cached_property
    def skipped_reasons(self) -> dict[str, int]:
        """Why rows and targets of the finished shards were skipped, most frequent first."""
        total: Counter[str] = Counter()
        for each in self._built:
            total.update(each.skipped_reasons)
        return dict(sorted(total.items(), key=lambda pair: (-pair[1], pair[0])))

    @cached_property
    def pace(self) -> CampaignPace:
        """Uses durations that a worker measured itself, so clocks of machines that differ do not matter."""
        workers = len(self.running)
        each = self._rows_per_s_of_a_worker()
        together = None if each is None or not workers else each * workers
        rows = sum(one.num_source_rows for one in self.shards if one.built is not None)
        left = self.rows - self.rows_done
        return CampaignPace(
            workers=workers,
            rows_per_s_per_worker=each,
            rows_per_s=together,
            candidates_per_s=together * self.totals.candidates / rows
            if together and rows
            else None,
            eta_s=left / together if together else None,
        )

    def _rows_per_s_of_a_worker(self) -> float | None:
        whole = [one for one in self.shards if one.built is not None and one.built.first_attempt]
        recent = heapq.nlargest(_RECENT, whole, key=_built_at)
        rows = sum(one.num_source_rows for one in recent)
        seconds = sum(one.built.seconds for one in recent if one.built is not None)
        if not rows or not seconds:  # nothing is finished yet
            workers = [one.worker for one in self.running if one.worker is not None]
            rows = sum(one.rows_done for one in workers)
            seconds = sum(_worked_s(one) for one in workers)
        return rows / seconds if rows and seconds > 0 else None

    def to_jsonable(self) -> dict[str, Any]:
        return {
            "manifest_path": str(self.manifest_path),
            "final_root": str(self.final_root),
            "num_shards": len(self.shards),
            "counts": dict(self.counts),
            "complete": self.is_complete,
            "rows": self.rows,
            "rows_done": self.rows_done,
            "totals": msgspec.to_builtins(self.totals),
            "pace": msgspec.to_builtins(self.pace),
            "skipped_reasons": self.skipped_reasons,
            "unplanned": list(self.unplanned),
            "shards": [each.to_jsonable() for each in self.shards],
        }


def _built_at(shard: RolloutShardStatus) -> str:
    return "" if shard.built is None else shard.built.built_at


def _worked_s(worker: ShardWorker) -> float:
    """From the start of a worker to its last heartbeat: both by its own clock."""
    try:
        started, beat = map(datetime.fromisoformat, (worker.started_at, worker.beat_at))
        return max((beat - started).total_seconds(), 0.0)
    except (TypeError, ValueError):  # a lease file that was edited
        return 0.0
