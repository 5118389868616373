"""The status of shards at a URL: from the names below the URL of each shard, its success object and its lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rollbook.errors import StorageError
from rollbook.store.shards.lease_record import LeaseRecord, LeaseWatch, lease_name
from rollbook.store.shards.object_shards import (
    LeaseObjects,
    ShardNames,
    described_foreign,
    find_finished_objects,
    read_failure_object,
)
from rollbook.store.shards.planned_shard import PlannedShard
from rollbook.store.shards.shard_state import (
    SHARD_NAME,
    has_work,
    succeeded,
    unfinished,
)
from rollbook.store.shards.shard_status import RolloutShardCampaignStatus, RolloutShardStatus
from rollbook.store.shards.sidecars import ROLLOUT_SHARD_SUCCESS_FILENAME
from rollbook.store.urls.url_folder import ListedFile, UrlFolder

_LOOKS = 5
"""A shard that changes while it is looked at is looked at this often."""
_AT_ONCE = 32
"""Shards that are looked at at the same time: each is a few requests."""
_REMOVE = "look at it, then remove what is below this URL: `rollbook campaign run` builds it again"

_Listed = Mapping[str, ListedFile]


class UrlWatch:
    """Looks at a campaign whose shards are at a URL. Finished shards are read again if their success object changed."""

    def __init__(
        self,
        manifest_path: Path,
        planned: Sequence[PlannedShard],
        final_root: str,
        work_root: Path | None,
    ) -> None:
        self._manifest_path = manifest_path
        self._planned = planned
        self._root = UrlFolder(final_root, None)
        self._work_root = work_root
        self._leases = LeaseWatch()
        self._finished: dict[str, tuple[str, RolloutShardStatus]] = {}

    def look(self) -> RolloutShardCampaignStatus:
        there = self._root.names()
        now = self._root.server_time()

        def told(shard: PlannedShard) -> RolloutShardStatus:
            if shard.shard_id in there:
                return self._looked_at(shard, now)
            return self._unfinished(shard, UrlFolder(self._url(shard), None), {}, None, now)

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            shards = tuple(threads.map(told, self._planned))
        planned = {shard.shard_id for shard in self._planned}
        return RolloutShardCampaignStatus(
            manifest_path=self._manifest_path,
            final_root=self._root.url,
            shards=shards,
            unplanned=tuple(sorted(filter(SHARD_NAME.fullmatch, there - planned))),
        )

    def _url(self, shard: PlannedShard) -> str:
        return f"{self._root.url}/{shard.shard_id}"

    def _looked_at(self, shard: PlannedShard, now: float) -> RolloutShardStatus:
        """What is said about a shard was true at one moment."""
        remote = UrlFolder(self._url(shard), None)
        listed = remote.listed()
        for _ in range(_LOOKS):
            status = self._told(shard, remote, listed, now)
            if status.status == "succeeded":
                break
            before, listed = listed, remote.listed()
            if before.keys() == listed.keys():
                break
        return status

    def _told(
        self, shard: PlannedShard, remote: UrlFolder, listed: _Listed, now: float
    ) -> RolloutShardStatus:
        problem = None
        if ROLLOUT_SHARD_SUCCESS_FILENAME in listed:
            version = listed[ROLLOUT_SHARD_SUCCESS_FILENAME].version
            known = self._finished.get(shard.shard_id)
            if known is not None and known[0] == version != "":
                return known[1]
            try:
                found = find_finished_objects(remote, shard)
                if found is not None:
                    status = succeeded(shard, remote.url, found.owner)
                    self._finished[shard.shard_id] = (version, status)
                    return status
            except StorageError as error:
                if (
                    error.path != remote.url
                ):  # it cannot be read now, so nothing can be said about the shard
                    raise
                problem = f"{error.detail}; {_REMOVE}"
        elif foreign := ShardNames.among(set(listed), shard.shard_id).foreign:
            problem = f"{described_foreign(foreign)}; {_REMOVE}"
        return self._unfinished(shard, remote, listed, problem, now)

    def _unfinished(
        self,
        shard: PlannedShard,
        remote: UrlFolder,
        listed: _Listed,
        problem: str | None,
        now: float,
    ) -> RolloutShardStatus:
        names = ShardNames.among(set(listed), shard.shard_id)
        failures = [read_failure_object(remote, name) for name in names.failures]
        lease = _read_lease(remote, shard.shard_id, names.tokens)
        beat = now
        if lease is not None:
            beat = listed[lease_name(shard.shard_id, lease.token)].modified or now
        failed_at = listed[names.failures[-1]].modified or now if names.failures else now
        return unfinished(
            shard,
            place=remote.url,
            markers=[f"{remote.url}/{name}" for name in names.failures],
            failures=failures,
            lease=lease,
            silent_s=now - beat,
            is_newer=beat > failed_at,
            problem=problem,
            left=bool(names.attempts) or has_work(self._work_root, shard.shard_id),
            watch=self._leases,
        )


def _read_lease(remote: UrlFolder, shard_id: str, tokens: Sequence[int]) -> LeaseRecord | None:
    return LeaseObjects(remote).read(shard_id, max(tokens)) if tokens else None
