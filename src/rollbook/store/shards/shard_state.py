"""From facts about one shard to its state, wherever the shard is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from rollbook.store.shards.lease_record import LeaseRecord, LeaseWatch
from rollbook.store.shards.planned_shard import PlannedShard
from rollbook.store.shards.shard_status import (
    BuiltShard,
    RolloutShardStatus,
    ShardState,
    ShardWorker,
)
from rollbook.store.shards.sidecars import FailureMarker, OwnerFile

SHARD_NAME = re.compile(r"shard-\d{6,}", re.ASCII)
_GOES_ON = "`rollbook campaign run` goes on with it"


def succeeded(shard: PlannedShard, place: str, owner: OwnerFile) -> RolloutShardStatus:
    return RolloutShardStatus(
        shard_id=shard.shard_id,
        split=shard.split,
        place=place,
        status="succeeded",
        num_source_rows=shard.num_rows,
        failures=owner.failures,
        built=BuiltShard(
            counts=owner.counts,
            bytes=owner.bytes,
            seconds=owner.seconds,
            first_attempt=owner.token == 1 and not owner.failures,
            built_at=owner.built_at,
            host=owner.built_by.host,
            skipped_reasons=_skipped_reasons(owner.stats),
        ),
    )


def _skipped_reasons(stats: Mapping[str, Any]) -> dict[str, int]:
    try:
        return msgspec.convert(stats.get("skipped_reasons", {}), dict[str, int])
    except msgspec.ValidationError:  # a builder is free in what it counts
        return {}


def unfinished(
    shard: PlannedShard,
    *,
    place: str,
    markers: Sequence[str],
    failures: Sequence[FailureMarker | None],
    lease: LeaseRecord | None,
    silent_s: float,
    is_newer: bool,
    problem: str | None,
    left: bool,
    watch: LeaseWatch,
) -> RolloutShardStatus:
    """The status of a shard that has not succeeded.

    `markers` are the places of its failure markers, `failures` their content, oldest first. `silent_s`: time since the
    last heartbeat of its lease; `is_newer`: whether that was after the last failure. `problem`: what is wrong with its
    final place. `left`: whether there are files of an attempt.
    """
    worker, ended, failed = None, None, None
    if lease is not None:
        worker = _worker_of(lease, shard.num_rows, silent_s)
        ended = _ended_worker(lease, worker, watch)
    if markers and (lease is None or not is_newer):
        failed = _described(failures[-1], markers[-1].rpartition("/")[2])
    in_work = lease is not None and ended is None
    state, error = _state_of(
        in_work=in_work, problem=problem, failed=failed, ended=ended, left=left
    )
    return RolloutShardStatus(
        shard_id=shard.shard_id,
        split=shard.split,
        place=place,
        status=state,
        num_source_rows=shard.num_rows,
        marker_places=tuple(markers),
        errors=() if error is None else (error,),
        worker=worker,
        failures=tuple(each.attempt for each in failures if each is not None),
    )


def _state_of(
    *, in_work: bool, problem: str | None, failed: str | None, ended: str | None, left: bool
) -> tuple[ShardState, str | None]:
    """The state of a shard that has not succeeded, and what to say about it.

    `in_work`: a worker that is alive has it. `problem`: what is wrong with its final place. `failed`: how its last
    attempt failed. `ended`: why nobody is believed to work on it. `left`: whether there are files of an attempt.
    """
    if in_work:  # also when there is something in its final place: the success file comes last
        return "running", None
    if problem is not None:
        return "incomplete", problem
    if failed is not None:
        return "failed", failed
    if ended is not None:
        return "incomplete", f"{ended}; {_GOES_ON}"
    if left:
        return "incomplete", f"an attempt was stopped before its end; {_GOES_ON}"
    return "missing", None


def _worker_of(lease: LeaseRecord, rows: int, silent_s: float) -> ShardWorker:
    return ShardWorker(
        host=lease.process.host,
        pid=lease.process.pid,
        role=lease.role,
        rows_done=max(0, min(lease.rows_done, rows)),
        rows_total=rows,
        started_at=lease.started_at,
        beat_at=lease.beat_at,
        silent_s=round(max(0.0, silent_s), 1),
    )


def _ended_worker(lease: LeaseRecord, worker: ShardWorker, watch: LeaseWatch) -> str | None:
    """Why nobody is believed to work on the shard; None if its worker is alive."""
    if lease.process.is_gone():
        return f"its worker ({lease.owner}) has ended"
    lease_text = f"longer than its lease of {lease.lease_s:g} s"
    if worker.silent_s > lease.lease_s:
        silent = f"for {worker.silent_s:.0f} s, {lease_text}"
    elif watch.is_over(lease):  # by the clock of this process: that of the file server was set back
        silent = f"for {lease_text}"
    else:
        return None
    return f"its worker ({lease.owner}) has been silent {silent}"


def _described(failure: FailureMarker | None, name: str) -> str:
    """`name` is that of the marker."""
    if failure is None:
        return f"its last attempt failed; {name} cannot be read"
    where = f"on {failure.process.host} at {failure.failed_at}"
    return f"{failure.error_type} {where}: {failure.error}"


def has_work(work_root: Path | None, shard_id: str) -> bool:
    """Whether an attempt has left something in the work folder of a shard."""
    if work_root is None:
        return False
    with suppress(OSError):
        names = os.listdir(work_root / shard_id)
        return any(not name.startswith(".") for name in names)
    return False
