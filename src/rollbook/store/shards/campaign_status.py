"""How a campaign stands: known from the names in the folder of the shards and three small files of each finished one.

Workers go on while the status is taken. A shard whose files appear or go meanwhile is looked at again, so what is said
about a shard was true at one moment.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from rollbook.errors import StorageError
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME
from rollbook.store.shards.final_place import COPY_NAME
from rollbook.store.shards.lease_record import (
    LeaseRecord,
    LeaseWatch,
    lease_path,
    leases_among,
    names_in,
    read_lease,
)
from rollbook.store.shards.object_status import UrlWatch
from rollbook.store.shards.planned_shard import PlannedShard, read_planned_shards
from rollbook.store.shards.shard_state import (
    SHARD_NAME,
    has_work,
    succeeded,
    unfinished,
)
from rollbook.store.shards.shard_status import RolloutShardCampaignStatus, RolloutShardStatus
from rollbook.store.shards.sidecars import (
    ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_SHARD_SUCCESS_FILENAME,
    failure_files,
    read_failure,
    read_finished,
)
from rollbook.store.urls.url_folder import local_path

_FINISHED_BY = (
    ROLLOUT_SHARD_SUCCESS_FILENAME,
    ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_MANIFEST_FILENAME,
)
_LOOKS = 5
"""Shards that change while they are looked at are looked at this often."""
_THREADS = 16
_SLOW_S = 0.001
"""A shard whose files take longer than this to read is not on a local disk."""
_AT_ONCE = 64
"""Shards that a thread is given at once."""


def summarize_rollout_shard_campaign(
    manifest_path: str | os.PathLike[str],
    *,
    final_root: str | os.PathLike[str],
    work_root: str | os.PathLike[str] | None = None,
) -> RolloutShardCampaignStatus:
    """The status of every shard of a plan. Nothing is changed, and no array of a store is read.

    With `work_root` also work that an interrupted worker left there is known.
    """
    planned = read_planned_shards(manifest_path)
    return CampaignWatch(manifest_path, planned, final_root=final_root, work_root=work_root).look()


class CampaignWatch:
    """Looks at a campaign as often as asked. Finished shards are read again only when their files have changed."""

    def __init__(
        self,
        manifest_path: str | os.PathLike[str],
        planned: Sequence[PlannedShard],
        *,
        final_root: str | os.PathLike[str],
        work_root: str | os.PathLike[str] | None = None,
    ) -> None:
        manifest, folder = Path(manifest_path), local_path(final_root)
        work = None if work_root is None else Path(work_root)
        self._watch: _FolderWatch | UrlWatch
        if folder is None:
            self._watch = UrlWatch(manifest, planned, str(final_root), work)
        else:
            self._watch = _FolderWatch(manifest, planned, folder, work)

    def look(self) -> RolloutShardCampaignStatus:
        return self._watch.look()


class _FolderWatch:
    """Looks at a campaign whose shards are in a folder."""

    def __init__(
        self,
        manifest_path: Path,
        planned: Sequence[PlannedShard],
        final_root: Path,
        work_root: Path | None,
    ) -> None:
        self._manifest_path = manifest_path
        self._planned = planned
        self._final_root = final_root
        self._work_root = work_root
        self._leases = LeaseWatch()
        self._finished: dict[str, tuple[_Signature, RolloutShardStatus]] = {}

    def look(self) -> RolloutShardCampaignStatus:
        looked_at: Iterable[PlannedShard] = self._planned
        before: _Names | None = None
        shards: dict[str, RolloutShardStatus] = {}
        for _ in range(_LOOKS):
            names = _Names.listed(self._final_root)
            if before is not None:
                changed = names.differences(before)
                looked_at = [each for each in self._planned if each.shard_id in changed]
                if not looked_at:
                    break
            shards |= self._looked_at(looked_at, names)
            before = names
        return RolloutShardCampaignStatus(
            manifest_path=self._manifest_path,
            final_root=self._final_root,
            shards=tuple(shards.values()),
            unplanned=tuple(sorted(names.folders - shards.keys())),
        )

    def _looked_at(
        self, planned: Iterable[PlannedShard], names: _Names
    ) -> dict[str, RolloutShardStatus]:
        look = _Look(self._final_root, self._work_root, names, self._leases)
        there = [each for each in planned if each.shard_id in names.folders]
        finals = dict(self._all_finals(there))
        found = {}
        for shard in planned:
            final = finals.get(shard.shard_id)
            if not isinstance(final, RolloutShardStatus):
                final = self._unfinished(shard, final, look)
            found[shard.shard_id] = final
        return found

    def _unfinished(
        self, shard: PlannedShard, problem: StorageError | None, look: _Look
    ) -> RolloutShardStatus:
        status = look.unfinished(shard, problem=problem)
        if problem is None or status.status == "running":
            return status
        again = self._final(shard)  # its worker may have finished it since, and ended
        return status if isinstance(again, StorageError) else again

    def _all_finals(self, planned: Sequence[PlannedShard]) -> Iterable[_Final]:
        """Reads side by side where files are slow, as on a file server. On a local disk threads only cost time."""
        parts = [planned[at : at + _AT_ONCE] for at in range(0, len(planned), _AT_ONCE)]
        started = time.monotonic()
        first = self._finals(parts[0]) if parts else []
        if time.monotonic() - started < _SLOW_S * len(first):
            return chain(first, *map(self._finals, parts[1:]))
        with ThreadPoolExecutor(_THREADS) as threads:
            return chain(first, *threads.map(self._finals, parts[1:]))

    def _finals(self, planned: Sequence[PlannedShard]) -> list[_Final]:
        return [(each.shard_id, self._final(each)) for each in planned]

    def _final(self, shard: PlannedShard) -> RolloutShardStatus | StorageError:
        """The status of a shard that has succeeded, or what is wrong with its final folder."""
        folder = self._final_root / shard.shard_id
        signature = _signature(folder)
        known = self._finished.get(shard.shard_id)
        if known is not None and known[0] == signature:
            return known[1]
        try:
            status = succeeded(shard, str(folder), read_finished(folder, shard))
        except StorageError as error:
            return error
        if signature is not None:
            self._finished[shard.shard_id] = (signature, status)
        return status


_Final = tuple[str, RolloutShardStatus | StorageError]
"""The id of a shard that has a final folder, and its status or what is wrong with the folder."""
_Signature = tuple[tuple[int, int, int], ...]
"""Of the files by which a shard is known to be finished: it changes whenever one of them does."""


def _signature(folder: Path) -> _Signature | None:
    """None if one of the files is not there; a shard without rollouts has no manifest, and is read every time."""
    try:
        stats = [os.stat(f"{folder}/{name}") for name in _FINISHED_BY]
    except OSError:
        return None
    return tuple([(each.st_ino, each.st_size, each.st_mtime_ns) for each in stats])


# ------------------------------------------------------------------------------------- unfinished


@dataclass(frozen=True)
class _Names:
    """The names in the folder of the shards, sorted by what they mean."""

    folders: set[str]
    tokens: dict[str, int]
    """The highest token of every shard that has a lease file."""
    failures: dict[str, tuple[str, ...]]
    """The failure markers of a shard, oldest first."""
    incoming: set[str]
    """Shards of which a copy was begun."""

    @classmethod
    def listed(cls, final_root: Path) -> _Names:
        found = names_in(final_root)
        folders = set(filter(SHARD_NAME.fullmatch, found))
        others = sorted(set(found) - folders)
        tokens: dict[str, int] = {}
        for shard_id, token in leases_among(others):
            tokens[shard_id] = max(token, tokens.get(shard_id, 0))
        failures: dict[str, tuple[str, ...]] = {}
        for shard_id, name in failure_files(others):
            failures[shard_id] = (*failures.get(shard_id, ()), name)
        incoming = {match[1] for match in map(COPY_NAME.fullmatch, others) if match is not None}
        return cls(folders, tokens, failures, incoming)

    def differences(self, before: _Names) -> set[str]:
        """The shards that have other names than before."""
        pairs = (self.tokens.items() ^ before.tokens.items()) | (
            self.failures.items() ^ before.failures.items()
        )
        return (
            {shard_id for shard_id, _ in pairs}
            | (self.folders ^ before.folders)
            | (self.incoming ^ before.incoming)
        )


class _Look:
    """One look at the shards that have not succeeded."""

    def __init__(
        self, final_root: Path, work_root: Path | None, names: _Names, leases: LeaseWatch
    ) -> None:
        self._final_root = final_root
        self._work_root = work_root
        self._names = names
        self._leases = leases

    def unfinished(
        self, shard: PlannedShard, *, problem: StorageError | None
    ) -> RolloutShardStatus:
        """`problem` is what is wrong with the final folder; None if there is none."""
        shard_id = shard.shard_id
        markers = [self._final_root / name for name in self._names.failures.get(shard_id, ())]
        failures = list(map(read_failure, markers))
        lease = self._lease(shard_id)
        return unfinished(
            shard,
            place=str(self._final_root / shard_id),
            markers=[str(each) for each in markers],
            failures=failures,
            lease=lease,
            silent_s=0.0 if lease is None else self._now - self._beat_time(lease),
            is_newer=lease is not None and self._is_newer(lease, markers),
            problem=None if problem is None else self._told(shard_id, problem),
            left=shard_id in self._names.incoming or has_work(self._work_root, shard_id),
            watch=self._leases,
        )

    # ----------------------------------------------------------------------------------- its worker

    def _lease(self, shard_id: str) -> LeaseRecord | None:
        token = self._names.tokens.get(shard_id)
        return None if token is None else read_lease(self._final_root, shard_id, token)

    @cached_property
    def _now(self) -> float:
        """The clock of the file server, which also stamps every heartbeat. Clocks of other machines may differ."""
        with suppress(OSError), tempfile.TemporaryFile(dir=self._final_root) as unnamed:
            return os.fstat(unnamed.fileno()).st_mtime
        return time.time()

    def _beat_time(self, lease: LeaseRecord) -> float:
        path = lease_path(self._final_root, lease.shard_id, lease.token)
        with suppress(OSError):
            return path.stat().st_mtime
        return self._now

    def _is_newer(self, lease: LeaseRecord, markers: Sequence[Path]) -> bool:
        """Whether the worker was alive after the last failure. Both times are those of the file server."""
        with suppress(OSError):
            return not markers or self._beat_time(lease) > markers[-1].stat().st_mtime
        return True

    # ------------------------------------------------------------------------------------ its files

    def _has(self, shard_id: str, name: str) -> bool:
        return os.path.lexists(self._final_root / shard_id / name)

    def _told(self, shard_id: str, problem: StorageError) -> str:
        """What is wrong with the final folder of a shard, and what to do."""
        if problem.path != str(self._final_root / shard_id):
            what = f"{os.path.basename(problem.path)}: {problem.detail}"
            return f"{what}, so nobody can say whether the shard is finished"
        promoted = self._has(shard_id, ROLLOUT_SHARD_OWNER_FILENAME)
        if promoted and not self._has(shard_id, ROLLOUT_SHARD_SUCCESS_FILENAME):
            return f"{problem.detail}; `rollbook campaign run` checks it and finishes it"
        advice = "look at it, then remove the folder: `rollbook campaign run` builds it again"
        return f"{problem.detail}; {advice}"
