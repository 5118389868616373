"""Merging: checks that the shards of a plan are complete and belong together, and lists them in a collection file.

Nothing is copied. All facts come from the sidecars and the manifest of each shard, so that 10,000 shards take seconds.
`verify` also validates every store, byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rollbook.errors import ConfigurationError, IncompatibleStores, ShardDrift, StorageError
from rollbook.files import AnyPath
from rollbook.store.collection import check_rollout_ids
from rollbook.store.listed_stores import ListedStores
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME
from rollbook.store.shards.alike_stores import (
    FEATURES_FILE,
    AlikeStores,
    ReadFile,
    StoreManifest,
    file_reader,
    read_manifest,
    relative_place,
)
from rollbook.store.shards.collection_file import (
    CollectedShard,
    CollectionFile,
    FoundCollection,
    write_collection_file,
)
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.object_shards import read_finished_objects
from rollbook.store.shards.sidecars import OwnerFile, read_finished
from rollbook.store.urls.url_folder import Options, UrlFolder, local_path

_MOST_LISTED = 5
_READ_AT_ONCE = 16
"""Shards at a URL that are looked at at the same time."""


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A shard whose sidecars say that it is complete and current."""

    owner: OwnerFile
    place: str
    """Path or URL of its store."""
    read: ReadFile


FindShards = Callable[[Sequence[RolloutShardEntry]], Iterator[FinishedShard | StorageError]]
"""Finds the finished shard of every entry, in their order; or the reason why a shard is not finished."""


def shards_at(final_root: AnyPath, *, storage_options: Options | None = None) -> FindShards:
    """Finds shards where a campaign puts them: in a folder, or below a URL."""
    folder = local_path(final_root)
    if folder is not None:
        return partial(_shards_in_folder, folder.absolute())
    return partial(_shards_at_url, str(final_root).rstrip("/"), storage_options)


def _shards_in_folder(
    root: Path, entries: Sequence[RolloutShardEntry]
) -> Iterator[FinishedShard | StorageError]:
    for entry in entries:
        folder = root / entry.shard_id
        try:
            owner = read_finished(folder, entry)
        except StorageError as error:
            yield error
        else:
            yield FinishedShard(owner, str(folder), file_reader(folder))


def _shards_at_url(
    root: str, options: Options | None, entries: Sequence[RolloutShardEntry]
) -> Iterator[FinishedShard | StorageError]:
    def find(entry: RolloutShardEntry) -> FinishedShard | StorageError:
        url = f"{root}/{entry.shard_id}"
        try:
            remote = UrlFolder(url, options)
            owner, store = read_finished_objects(remote, entry)
            wanted = [f"{store}/{name}" for name in (ROLLOUT_MANIFEST_FILENAME, FEATURES_FILE)]
            files = {} if owner.rollout_manifest_sha256 is None else remote.read_those_there(wanted)
        except StorageError as error:
            return error
        return FinishedShard(owner, f"{url}/{store}", lambda path: _was_read(files, store, path))

    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        yield from pool.map(find, entries)


def _was_read(files: Mapping[str, bytes | None], store: str, path: str) -> bytes:
    data = files[f"{store}/{path}"]
    if data is None:
        raise FileNotFoundError("there is no such file")
    return data


def merge_shards(
    entries: Sequence[RolloutShardEntry],
    find: FindShards,
    path: AnyPath,
    *,
    verify: bool = False,
    storage_options: Options | None = None,
    on_shard: Callable[[int, int], None] | None = None,
) -> CollectionFile:
    """Check all shards of a plan and write the collection file `path`. Nothing is written if a shard is refused.

    `find` finds the shards, as `shards_at(final_root)` does. `storage_options` are for `verify`. `on_shard` is called
    with the number of shards that were looked at and of all shards.
    """
    file = Path(path).absolute()
    if not entries:
        raise ConfigurationError(message="a collection needs the plan of at least one shard")
    merge = _Merge(file.parent)
    unfinished: list[str] = []
    for number, (entry, found) in enumerate(zip(entries, find(entries), strict=True), start=1):
        if isinstance(found, StorageError):
            unfinished.append(f"{entry.shard_id}: {found.detail}")
        else:
            merge.add(entry, found)
        if on_shard is not None:
            on_shard(number, len(entries))
    if unfinished:
        raise _incomplete(file, unfinished, len(entries))
    collection = merge.collection(file)
    if verify:
        listed = FoundCollection(collection, str(file.parent))
        _verify(listed.stores(storage_options=storage_options))
    write_collection_file(file, collection)
    return collection


def _incomplete(file: Path, unfinished: list[str], planned: int) -> StorageError:
    shown = "; ".join(unfinished[:_MOST_LISTED])
    more = f"; and {len(unfinished) - _MOST_LISTED} more" if len(unfinished) > _MOST_LISTED else ""
    detail = f"{len(unfinished)} of {planned} shards are not finished: {shown}{more}"
    return StorageError(path=str(file), detail=f"{detail}. Run the campaign again, then merge it")


class _Merge:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plan: RolloutShardEntry | None = None
        self._alike = AlikeStores()
        self._shards: list[CollectedShard] = []
        self._row_owners: dict[int, str] = {}

    def add(self, entry: RolloutShardEntry, finished: FinishedShard) -> None:
        self._check_plan(entry, finished)
        owner = finished.owner
        manifest = None
        if owner.rollout_manifest_sha256 is not None:
            manifest = read_manifest(finished.place, finished.read)
            self._check_rows(entry, finished.place, manifest)
            self._alike.add(finished.place, finished.read, manifest)
        self._shards.append(
            CollectedShard(
                shard_id=entry.shard_id,
                split=entry.split,
                source_rows=len(entry.rows),
                path=None if manifest is None else relative_place(finished.place, self._folder),
                content_sha256=None if manifest is None else manifest.content_sha256,
                manifest_sha256=owner.rollout_manifest_sha256,
                counts={} if manifest is None else manifest.counts,
                bytes=0 if manifest is None else owner.bytes,
            )
        )

    def _check_plan(self, entry: RolloutShardEntry, finished: FinishedShard) -> None:
        first = self._plan = self._plan or entry
        for name in ("writer_config_hash", "source_manifest_hash"):
            planned, now = getattr(first, name), getattr(entry, name)
            if planned != now:
                detail = f"{name} of {first.shard_id} is {planned}, that of {entry.shard_id} {now}"
                raise ShardDrift(
                    path=finished.place, detail=f"{detail}; merge the shards of one plan"
                )

    def _check_rows(self, entry: RolloutShardEntry, place: str, manifest: StoreManifest) -> None:
        planned = {row.sample_index for row in entry.rows}
        for source in manifest.source_coverage.sources:
            index = source.source_sample_index
            if index is None or index not in planned:
                detail = f"it has rollouts of source row {index}, which {entry.shard_id} does not have in the plan"
                raise StorageError(path=place, detail=detail)
            owner = self._row_owners.setdefault(index, place)
            if owner != place:
                detail = f"both have rollouts of source row {index}"
                raise IncompatibleStores(path=owner, other=place, detail=detail)

    def collection(self, file: Path) -> CollectionFile:
        if self._plan is None or self._alike.empty:
            detail = "no shard has a rollout: all of their targets were skipped"
            raise StorageError(path=str(file), detail=detail)
        return self._alike.collection(
            self._shards,
            writer_config_hash=self._plan.writer_config_hash,
            source_manifest_hash=self._plan.source_manifest_hash,
        )


def _verify(stores: ListedStores) -> None:
    """Refuse a collection with a store that is not valid, and a rollout that two stores have."""
    for index, listed in enumerate(stores.listed):
        result = stores.validate(index, deep=True)
        if not result.ok:
            detail = "; ".join(result.errors[:_MOST_LISTED])
            raise StorageError(path=listed.place, detail=f"the store is not valid: {detail}")
    check_rollout_ids(stores)
