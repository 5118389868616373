"""What killed workers left of shards at a URL, and on this disk of their work. None of it is needed to go on.

The files of an attempt at a shard that is not finished stay: a worker that was paused could still finish with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from rollbook.errors import StorageError
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.lease_record import LeaseWatch, lease_name
from rollbook.store.shards.leftovers import LEASE_S, Leftover, by_shard, remove_leftover
from rollbook.store.shards.object_shards import FinalUrl
from rollbook.store.shards.shard_lease import ShardLease
from rollbook.store.urls.url_folder import UrlFolder

_AT_ONCE = 32


class ObjectLeftovers:
    """What is left of the shards of a plan at a URL, and in a folder of work."""

    def __init__(
        self,
        entries: Sequence[RolloutShardEntry],
        *,
        final_root: str,
        work_root: Path,
        watch: LeaseWatch,
    ) -> None:
        self._entries = {entry.shard_id: entry for entry in entries}
        self._root = UrlFolder(final_root, None)
        self._work_root = work_root
        self._watch = watch

    def found(self) -> list[Leftover]:
        """Everything that can be removed, by shard. Nothing is changed."""
        there = self._root.names()
        begun = [entry for shard_id, entry in self._entries.items() if shard_id in there]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return [each for left in threads.map(self._left, begun) for each in left]

    def _place(self, shard_id: str) -> FinalUrl:
        return FinalUrl(self._entries[shard_id], f"{self._root.url}/{shard_id}")

    def _left(self, entry: RolloutShardEntry) -> list[Leftover]:
        shard_id, place = entry.shard_id, self._place(entry.shard_id)
        names = place.names()
        lease = place.leases.read(shard_id, max(names.tokens)) if names.tokens else None
        if lease is not None and not self._watch.is_over(lease):
            return []
        left = [("lease", lease_name(shard_id, token)) for token in names.tokens]
        store = place.finished_store() if names.is_finished else None
        if store is not None:
            left += [("failure marker", name) for name in names.failures]
            left += [("copy", name) for name in sorted(names.attempts - {store})]
        found = [Leftover(shard_id, what, f"{place.place}/{name}") for what, name in left]
        if store is not None and (self._work_root / shard_id).is_dir():
            found.append(Leftover(shard_id, "work folder", self._work_root / shard_id))
        return found

    def remove(self, found: Iterable[Leftover]) -> list[Leftover]:
        """Removes what was found, and returns it. A shard that a worker has taken meanwhile is left alone."""
        removed: list[Leftover] = []
        for shard_id, left in by_shard(found).items():
            place, work = self._place(shard_id), self._work_root / shard_id
            with suppress(StorageError):
                lease = ShardLease.acquire(
                    place.leases,
                    shard_id,
                    lease_s=LEASE_S,
                    take_over=True,
                    watch=self._watch,
                    work_root=work,
                )
                with lease:  # it removes the leases below its own
                    if any(each.what != "lease" for each in left):  # then the shard is finished
                        place.tidy()
                    if any(each.path == work for each in left):
                        remove_leftover(work)
                removed += [each for each in left if each.path != work or not work.exists()]
        with suppress(OSError):
            self._work_root.rmdir()
        return removed
