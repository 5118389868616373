"""Leftovers: what killed workers left beside the shards in a folder. None of it is needed to go on.

Never a finished shard, never anything of a worker that may be alive, and never the finished rows of a shard that is not
finished: the next attempt goes on with those.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rollbook.errors import StorageError
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.final_place import ABANDONED, COPY_NAME, FinalFolder, abandon, overlap
from rollbook.store.shards.lease_files import LeaseFolder
from rollbook.store.shards.lease_record import LeaseRecord, LeaseWatch, read_leases
from rollbook.store.shards.shard_lease import ShardLease

LEASE_S = 60.0
_KINDS = {
    "lease": re.compile(r"_LEASE\.(shard-\d{6,})\.\d{6,}\.json", re.ASCII),
    "failure marker": re.compile(r"_FAILED\.(shard-\d{6,})\..+\.json", re.ASCII),
    "copy": COPY_NAME,
    "abandoned folder": re.compile(rf"\..*(shard-\d{{6,}})\..*{re.escape(ABANDONED)}", re.ASCII),
    "unnamed file": re.compile(r"\.(?:_LEASE|_FAILED)\.(shard-\d{6,})\..*\.tmp", re.ASCII),
}
"""What lies beside the shards, by names that contain the id of the shard."""


class Leftover(NamedTuple):
    shard_id: str
    what: str
    path: Path | str
    """A path of this disk, or a URL."""


class Leftovers:
    """What is left of the shards of a plan, in a folder of finished shards and a folder of work."""

    def __init__(
        self,
        entries: Iterable[RolloutShardEntry],
        *,
        final_root: Path,
        work_root: Path,
        watch: LeaseWatch,
    ) -> None:
        self._entries = {entry.shard_id: entry for entry in entries}
        self._final_root = final_root
        self._work_root = work_root
        self._watch = watch
        if overlap(work_root, final_root):  # a finished shard would be taken for its work folder
            detail = f"it and the folder of the work, {work_root}, must not contain each other"
            raise StorageError(path=str(final_root), detail=detail)

    def found(self) -> list[Leftover]:
        """Everything that can be removed, by shard. Nothing is changed."""
        beside = self._beside()
        in_work = {name for name in _names(self._work_root) if name in self._entries}
        leases = read_leases(self._final_root)
        found: list[Leftover] = []
        for shard_id in sorted({*beside, *in_work} & self._entries.keys()):
            if self._is_alive(leases.get(shard_id)):
                continue
            is_finished = self._is_finished(shard_id)
            found += [
                each
                for each in beside.get(shard_id, ())
                if is_finished or each.what != "failure marker"
            ]
            if shard_id in in_work:
                found += self._in_work(shard_id, is_finished)
        return found

    def remove(self, found: Iterable[Leftover]) -> list[Leftover]:
        """Removes what was found, and returns it. A shard that a worker has taken meanwhile is left alone."""
        removed: list[Leftover] = []
        for shard_id, left in by_shard(found).items():
            with suppress(StorageError):
                lease = ShardLease.acquire(
                    LeaseFolder(self._final_root),
                    shard_id,
                    lease_s=LEASE_S,
                    take_over=True,
                    watch=self._watch,
                    work_root=self._work_root / shard_id,
                )
                with (
                    lease
                ):  # it removes the leases below its own, and may itself have a name that was found
                    for each in left:
                        if each.what != "lease":
                            remove_leftover(Path(each.path))
                removed += [each for each in left if each.what == "lease" or not _is_there(each)]
        with suppress(OSError):
            self._work_root.rmdir()
        return removed

    def _beside(self) -> Mapping[str, list[Leftover]]:
        beside: dict[str, list[Leftover]] = {}
        for name in sorted(_names(self._final_root)):
            for what, pattern in _KINDS.items():
                known = pattern.fullmatch(name)
                if known is not None:
                    left = Leftover(known[1], what, self._final_root / name)
                    beside.setdefault(known[1], []).append(left)
                    break
        return beside

    def _in_work(self, shard_id: str, is_finished: bool) -> Iterator[Leftover]:
        folder = self._work_root / shard_id
        if is_finished:
            yield Leftover(shard_id, "work folder", folder)
            return
        for name in _names(folder):
            if name.endswith(ABANDONED):
                yield Leftover(shard_id, "abandoned folder", folder / name)

    def _is_alive(self, lease: LeaseRecord | None) -> bool:
        return lease is not None and not self._watch.is_over(lease)

    def _is_finished(self, shard_id: str) -> bool:
        with suppress(StorageError):
            place = FinalFolder(self._entries[shard_id], self._final_root / shard_id)
            return place.is_finished()
        return False


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def by_shard(found: Iterable[Leftover]) -> dict[str, list[Leftover]]:
    """What was found of each shard."""
    grouped: dict[str, list[Leftover]] = {}
    for each in found:
        grouped.setdefault(each.shard_id, []).append(each)
    return grouped


def _is_there(left: Leftover) -> bool:
    return os.path.lexists(left.path)


def remove_leftover(path: Path) -> None:
    """Removes a file or a folder, if this user may."""
    with suppress(OSError):
        if path.is_dir():
            abandon(path)
        else:
            path.unlink()
