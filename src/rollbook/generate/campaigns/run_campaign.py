"""run_campaign: builds the shards of a plan with the workers of an engine.

Any number of drivers can run one plan at the same time, on one machine or several: they share the shards by their
leases, and each ends when all shards are finished. A driver keeps nothing that is not on disk, so one that was killed
is replaced by starting another.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from rollbook.engines import LATER, Cluster, Done, Parallel, TaskFailure, run_tasks
from rollbook.errors import (
    ConfigurationError,
    LeaseHeld,
    LeaseLost,
    RollbookError,
    ShardDrift,
    StorageError,
    TargetExists,
)
from rollbook.files import make_folders, write_errors
from rollbook.generate.campaign_config import CampaignConfig
from rollbook.generate.campaigns.run_shard import refuse_other_config, run_rollout_shard
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.store.manifest import RolloutStoreInvocation
from rollbook.store.shards.build_shard import failure_of, final_place, write_failure
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.lease_record import (
    LeaseRecord,
    LeaseWatch,
    Mark,
    mark_of,
    names_in,
    read_leases,
)
from rollbook.store.shards.leftovers import Leftovers
from rollbook.store.urls.url_folder import UrlFolder, local_path

_LOOK_S = 1.0
"""Seconds between two looks at the leases, or more where a look takes long."""
_REQUESTS = 16
"""Requests to an object store at the same time."""
_LOOK_SHARE = 0.05
"""Most of the driver's time that looking may take."""


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One attempt at a shard, as it is given to a worker."""

    entry: RolloutShardEntry
    output_tmp: Path
    output_final: str
    """A folder or a URL."""
    over: frozenset[Mark] = frozenset()
    """The lease of a worker before, which the driver has seen run out."""


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """What a worker answers."""

    skipped: bool
    """Whether the shard was finished before the worker began."""
    candidates: int = 0


ShardWork = Callable[[ShardTask], ShardOutcome]


@dataclass(frozen=True, slots=True)
class ShardEvent:
    shard_id: str
    what: Literal["built", "failed", "tried again"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CampaignProgress:
    """How far a campaign is, whoever built its shards."""

    shards: int
    shards_done: int
    shards_failed: int
    rows: int
    rows_done: int
    """Rows of finished shards, and those that workers have finished in the shards in work."""
    running: tuple[LeaseRecord, ...]
    """The shards in work, also those of other drivers."""
    seconds: float
    """Since this driver began."""
    rows_per_s: float | None
    """Of all drivers, since this one began; None before the first row."""
    candidates_per_s: float | None
    """Of this driver; None before its first shard."""

    @property
    def eta_s(self) -> float | None:
        """Seconds that are left at this speed."""
        return None if not self.rows_per_s else (self.rows - self.rows_done) / self.rows_per_s


@dataclass(slots=True)
class CampaignRun:
    """What became of the shards."""

    succeeded: list[str] = field(default_factory=list)
    """Built by this run."""
    skipped: list[str] = field(default_factory=list)
    """Finished before, or by another driver meanwhile."""
    failed: dict[str, str] = field(default_factory=dict)
    """Shards that failed as often as they may, with the last error."""
    held: list[str] = field(default_factory=list)
    """Other drivers were at work on them when this run was stopped."""
    left: list[str] = field(default_factory=list)
    """Nobody was at work on them when this run was stopped."""
    retries: int = 0
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        return not (self.failed or self.held or self.left)


def run_campaign(
    config: RolloutDatasetWriterConfig,
    entries: Sequence[RolloutShardEntry],
    *,
    final_root: str | os.PathLike[str],
    work_root: str | os.PathLike[str],
    engine: str = "local",
    address: str | None = None,
    parallel: Parallel = "process",
    workers: int = 1,
    max_retries: int | None = None,
    fail_fast: bool = False,
    timeout_s: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    on_update: Callable[[CampaignProgress], object] = lambda progress: None,
    on_event: Callable[[ShardEvent], object] = lambda event: None,
    invocation: RolloutStoreInvocation | None = None,
    start: Callable[[], ShardWork] | None = None,
) -> CampaignRun:
    """Build the shards that are not finished, with `workers` processes. A shard has one of them for itself.

    With another engine than `local`, the workers are on the cluster at `address`, and each has the resources that the
    config reserves for a shard.

    A shard whose worker raises, is lost, or takes longer than `timeout_s`, is tried again, `max_retries` times; both
    default to the config. A shard that another driver has is waited for: it is built here if its worker ends without
    finishing it. With `fail_fast`, no shard is begun after one has failed for good.

    As soon as `stop` returns True no shard is begun; those in work are finished. `on_update` is called every second
    or so. `start` replaces what a worker does. Workers that are threads, by `parallel`, cannot be killed: use them for
    debugging.
    """
    refuse_other_config(config, entries)
    campaign, root = config.campaign, _FinalRoot(final_root)
    driver = _Driver(
        entries,
        root,
        Path(work_root).absolute(),
        max_retries=campaign.max_retries if max_retries is None else max_retries,
        fail_fast=fail_fast,
        stop=stop,
        on_update=on_update,
        on_event=on_event,
    )
    try:
        if driver.has_work:
            root.prepare()
            tasks = run_tasks(
                start or partial(start_worker, config, invocation),
                driver.items(),
                engine=engine,
                cluster=_cluster(engine, address, campaign),
                parallel=parallel,
                workers=workers,
                timeout_s=campaign.timeout_s if timeout_s is None else timeout_s,
                stop=driver.must_stop,
                # no shard begins in a worker in which another one failed
                renew=lambda failure: not isinstance(failure.error, LeaseHeld | LeaseLost),
            )
            with closing(tasks):
                for done in tasks:
                    driver.take(done)
    finally:  # also when Ctrl-C has killed the workers
        driver.tidy()
    return driver.ended()


def _cluster(engine: str, address: str | None, needs: CampaignConfig) -> Cluster | None:
    if engine != "local":
        return Cluster(
            address=address,
            cpus=needs.cpus_per_shard,
            gpus=needs.gpus_per_shard,
            memory_mb=needs.memory_mb,
        )
    if address is not None:
        message = f"address is {address!r}, but the engine is 'local', which has no cluster"
        raise ConfigurationError(message=message)
    return None


def start_worker(
    config: RolloutDatasetWriterConfig, invocation: RolloutStoreInvocation | None
) -> ShardWork:
    """What a worker does: it generates the rollouts of a shard."""

    def work(task: ShardTask) -> ShardOutcome:
        result = run_rollout_shard(
            config,
            shard_entry=task.entry,
            output_tmp=task.output_tmp,
            output_final=task.output_final,
            invocation=invocation,
            take_over=True,
            watch=LeaseWatch(task.over),
        )
        written = result.store_result
        return ShardOutcome(result.skipped, 0 if written is None else written.num_candidates)

    return work


class _FinalRoot:
    """Where the finished shards go: a folder or a URL."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        folder = local_path(root)
        self.folder = None if folder is None else folder.absolute()
        self._root = str(root).rstrip("/") if self.folder is None else str(self.folder)

    def prepare(self) -> None:
        """Makes the folder, so that the driver can leave a marker even if no worker gets as far."""
        if self.folder is not None:
            with write_errors(self.folder):
                make_folders(self.folder)

    def output_final(self, entry: RolloutShardEntry) -> str:
        return f"{self._root}/{entry.shard_id}"

    def is_finished(self, entry: RolloutShardEntry) -> bool:
        """False also for a shard of something else: its worker says what is wrong with it."""
        with suppress(StorageError):
            return final_place(entry, self.output_final(entry)).is_finished()
        return False

    def finished(self, entries: Sequence[RolloutShardEntry]) -> list[bool]:
        """For each shard, whether it is finished. Raises StorageError if its place cannot be reached."""
        if self.folder is not None:
            there = set(names_in(self.folder))
            return [entry.shard_id in there and self.is_finished(entry) for entry in entries]
        begun = UrlFolder(self._root, None).names()
        with ThreadPoolExecutor(_REQUESTS) as requests:
            return list(
                requests.map(
                    lambda entry: entry.shard_id in begun and self.is_finished(entry), entries
                )
            )

    def leases(self, wanted: Iterable[RolloutShardEntry]) -> dict[str, LeaseRecord]:
        """The leases of the shards that somebody has. At a URL only the wanted ones are looked at."""
        if self.folder is not None:
            return read_leases(self.folder)
        places = [final_place(entry, self.output_final(entry)) for entry in wanted]
        found = [place.leases.highest(place.entry.shard_id) for place in places]
        return {lease.shard_id: lease for lease in found if lease is not None}


class _Driver:
    """Decides which shard is next, and what becomes of one whose worker has ended."""

    def __init__(
        self,
        entries: Sequence[RolloutShardEntry],
        final_root: _FinalRoot,
        work_root: Path,
        *,
        max_retries: int,
        fail_fast: bool,
        stop: Callable[[], bool],
        on_update: Callable[[CampaignProgress], object],
        on_event: Callable[[ShardEvent], object],
    ) -> None:
        self._entries = entries
        self._rows = sum(len(entry.rows) for entry in entries)
        self._final_root = final_root
        self._work_root = work_root
        self._max_retries = max_retries
        self._fail_fast = fail_fast
        self._stop = stop
        self._on_update = on_update
        self._on_event = on_event
        self._run = CampaignRun()
        self._unfinished: set[str] = set()
        self._began = time.monotonic()
        self._watch = LeaseWatch()
        self._leases: dict[str, LeaseRecord] = {}
        self._look_at = 0.0
        self._pending: deque[RolloutShardEntry] = deque()
        self._elsewhere: dict[str, RolloutShardEntry] = {}
        """Shards that other drivers are at work on."""
        self._given: dict[str, RolloutShardEntry] = {}
        """Shards that workers of this driver are at work on."""
        self._failures: Counter[str] = Counter()
        self._draining = False
        self._rows_done = self._candidates = 0
        self._sort_out(entries)
        self._rows_before = self._rows_done

    def _sort_out(self, entries: Sequence[RolloutShardEntry]) -> None:
        """Finds out which shards are finished, without starting a worker."""
        for entry, is_finished in zip(entries, self._final_root.finished(entries), strict=True):
            if is_finished:
                self._skip(entry)
            else:
                self._pending.append(entry)
                self._unfinished.add(entry.shard_id)

    @property
    def has_work(self) -> bool:
        return bool(self._pending)

    # ---------------------------------------------------------------------------------------- shards

    def items(self) -> Iterator[ShardTask]:
        """The next shard to build. There may be one later as long as one is in work, here or elsewhere."""
        self._look()
        while self._pending or self._elsewhere or self._given:
            yield self._next() or LATER

    def _next(self) -> ShardTask | None:
        while self._pending:
            entry = self._pending.popleft()
            if self._final_root.is_finished(entry):
                self._skip(entry)
                continue
            lease = self._leases.get(entry.shard_id)
            if lease is not None and not self._watch.is_over(lease):
                self._elsewhere[entry.shard_id] = entry
                continue
            self._given[entry.shard_id] = entry
            over = frozenset() if lease is None else frozenset({mark_of(lease)})
            return ShardTask(entry, *self._places(entry), over)
        return None

    def _places(self, entry: RolloutShardEntry) -> tuple[Path, str]:
        return self._work_root / entry.shard_id, self._final_root.output_final(entry)

    # --------------------------------------------------------------------------------------- results

    def take(self, done: Done[ShardTask, ShardOutcome]) -> None:
        entry = done.item.entry
        del self._given[entry.shard_id]
        if done.value is not None:
            self._succeed(entry, done.value)
        elif done.failure is not None and not self._is_elsewhere(entry, done.failure):
            self._fail(entry, done.failure)

    def _succeed(self, entry: RolloutShardEntry, outcome: ShardOutcome) -> None:
        if outcome.skipped:
            self._skip(entry)
            return
        self._run.succeeded.append(entry.shard_id)
        self._unfinished.discard(entry.shard_id)
        self._rows_done += len(entry.rows)
        self._candidates += outcome.candidates
        self._on_event(ShardEvent(entry.shard_id, "built"))

    def _skip(self, entry: RolloutShardEntry) -> None:
        self._run.skipped.append(entry.shard_id)
        self._unfinished.discard(entry.shard_id)
        self._rows_done += len(entry.rows)

    def _is_elsewhere(self, entry: RolloutShardEntry, failure: TaskFailure) -> bool:
        """Whether another driver has the shard. That is no failure."""
        if not isinstance(failure.error, LeaseHeld | LeaseLost):
            return False
        if isinstance(failure.error, LeaseLost) and self._is_free(entry):
            return False  # nobody took it: its lease could not be kept, for example because the disk is full
        self._elsewhere[entry.shard_id] = entry
        return True

    def _is_free(self, entry: RolloutShardEntry) -> bool:
        with suppress(StorageError):
            held = entry.shard_id in self._final_root.leases([entry])
            return not held and not self._final_root.is_finished(entry)
        return False

    def _fail(self, entry: RolloutShardEntry, failure: TaskFailure) -> None:
        shard_id = entry.shard_id
        tmp, final = self._places(entry)
        if failure.reason != "raised":  # the worker could not write it down itself
            if self._final_root.is_finished(entry):  # it was lost after its work was done
                self._succeed(entry, ShardOutcome(skipped=False))
                return
            marker = failure_of(entry, tmp, final, error_type=failure.kind, error=failure.message)
            with suppress(RollbookError):  # the disk may be full
                write_failure(entry, marker)
        self._failures[shard_id] += 1
        self._leases.pop(
            shard_id, None
        )  # it has ended; if it was only lost from sight, the next worker finds it
        everywhere = isinstance(failure.error, ConfigurationError | ShardDrift)
        # something else is in its place: somebody has to look at it
        in_the_way = isinstance(failure.error, TargetExists) and failure.error.path == final
        useless = everywhere or in_the_way
        if not useless and self._failures[shard_id] <= self._max_retries:
            self._run.retries += 1
            self._pending.append(entry)
            self._on_event(ShardEvent(shard_id, "tried again", str(failure)))
            return
        self._run.failed[shard_id] = str(failure)
        self._draining = self._draining or self._fail_fast or everywhere
        self._on_event(ShardEvent(shard_id, "failed", str(failure)))

    # ---------------------------------------------------------------------------------------- looking

    def must_stop(self) -> bool:
        """Called again and again by the engine."""
        if time.monotonic() >= self._look_at:
            self._look()
        return self._draining or self._stop()

    def _look(self) -> None:
        """Looks at the leases: which shards are free again, and how far the workers are."""
        began = time.monotonic()
        with suppress(
            StorageError
        ):  # a server that does not answer for a moment: what was seen last stays true
            known = [*self._given.values(), *self._elsewhere.values()]
            self._leases = self._final_root.leases(known)
        live = {
            shard_id: lease
            for shard_id, lease in self._leases.items()
            if not self._watch.is_over(lease)
        }
        for shard_id in [each for each in self._elsewhere if each not in live]:
            self._pending.append(self._elsewhere.pop(shard_id))
        self._on_update(self._progress(tuple(live.values())))
        ended = time.monotonic()
        self._look_at = ended + max(_LOOK_S, (ended - began) / _LOOK_SHARE)

    def _progress(self, running: tuple[LeaseRecord, ...]) -> CampaignProgress:
        seconds = time.monotonic() - self._began
        in_work = tuple(lease for lease in running if lease.shard_id in self._unfinished)
        rows_done = self._rows_done + sum(lease.rows_done for lease in in_work)
        rows_now = rows_done - self._rows_before
        return CampaignProgress(
            shards=len(self._entries),
            shards_done=len(self._run.succeeded) + len(self._run.skipped),
            shards_failed=len(self._run.failed),
            rows=self._rows,
            rows_done=rows_done,
            running=in_work,
            seconds=seconds,
            rows_per_s=rows_now / seconds if rows_now > 0 else None,
            candidates_per_s=self._candidates / seconds if self._candidates else None,
        )

    def tidy(self) -> None:
        """Removes what killed workers left. At a URL, workers do it when they take a shard over."""
        if self._final_root.folder is not None:
            with suppress(StorageError):  # nothing depends on it
                left = Leftovers(
                    self._entries,
                    final_root=self._final_root.folder,
                    work_root=self._work_root,
                    watch=self._watch,
                )
                left.remove(left.found())
        with suppress(OSError):
            self._work_root.rmdir()

    def ended(self) -> CampaignRun:
        run = self._run
        run.held = sorted(self._elsewhere)
        run.left = sorted([*self._given, *(entry.shard_id for entry in self._pending)])
        run.seconds = time.monotonic() - self._began
        self._on_update(self._progress(()))
        return run
