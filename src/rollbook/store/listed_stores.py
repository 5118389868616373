"""ListedStores: the stores of a collection file. Each is opened when it is first used, and compared with the list.

A campaign has thousands of stores. Opening all of them would take minutes and more maps than a process may have, so
their sizes come from the list, and only some stay open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

from rollbook.errors import ChecksumMismatch, StorageError
from rollbook.files import AnyPath
from rollbook.store.checks.validate import RolloutZarrValidationResult, validate_rollout_zarr_store
from rollbook.store.checks.violation import Violation
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.schema import ROW_COUNTS
from rollbook.store.urls.remote import open_store
from rollbook.store.urls.url_folder import Options, local_path

_MOST_OPEN = 128
"""Reading all columns of a store takes a few hundred maps, and Linux allows a process 65,530."""


SIZE_ATTRS = {
    "A": "q_h_max_candidates",
    "N": "q_h_horizon",
    "H": "selected_depth_height_px",
    "W": "selected_depth_width_px",
    "P": "target_eval_crops_max_points",
}
"""Letter of the schema → the root attribute that has its size. F, the number of features, has none."""


@dataclass(frozen=True, slots=True)
class ListedStore:
    """What a list says about one store."""

    place: str
    """Path or URL."""
    content_sha256: str
    manifest_sha256: str
    counts: Mapping[str, int]
    """As in the manifest of the store."""


class ListedStores(Sequence[RolloutZarrStoreReader]):
    """Stores that were compared with each other when the list was made. All have the same columns."""

    def __init__(
        self,
        listed: Sequence[ListedStore],
        sizes: Mapping[str, int],
        *,
        cache_dir: AnyPath | None = None,
        storage_options: Options | None = None,
    ) -> None:
        """`sizes` has the largest size of every letter that the schema uses in the shape of a row."""
        self.listed = tuple(listed)
        self.sizes = sizes
        self._cache_dir = cache_dir
        self._storage_options = storage_options
        self._opened = lru_cache(_MOST_OPEN)(self._open)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.listed, self.sizes, self._cache_dir, self._storage_options)

    def __len__(self) -> int:
        return len(self.listed)

    @overload
    def __getitem__(self, index: int) -> RolloutZarrStoreReader: ...
    @overload
    def __getitem__(self, index: slice) -> list[RolloutZarrStoreReader]: ...
    def __getitem__(
        self, index: int | slice
    ) -> RolloutZarrStoreReader | list[RolloutZarrStoreReader]:
        if isinstance(index, slice):
            return [self._opened(each) for each in range(len(self))[index]]
        return self._opened(range(len(self))[index])

    def __iter__(self) -> Iterator[RolloutZarrStoreReader]:
        return map(self._opened, range(len(self)))

    def _open(self, index: int) -> RolloutZarrStoreReader:
        listed = self.listed[index]
        reader = open_store(
            listed.place, cache_dir=self._cache_dir, storage_options=self._storage_options
        )
        if reader.attrs["manifest_sha256"] != listed.manifest_sha256:
            raise ChecksumMismatch(path=listed.place, detail=_CHANGED)
        # offsets of rows come from the list, so an edited number would silently give rows of another store
        wide = any(reader.attrs.get(attr, 0) > self.sizes[at] for at, attr in SIZE_ATTRS.items())
        if wide or reader.store_manifest.payload["counts"] != listed.counts:
            raise ChecksumMismatch(path=listed.place, detail=_OTHER_SIZES)
        return reader

    def row_counts(self, table: str) -> list[int]:
        name = ROW_COUNTS[table].removeprefix("num_")
        return [each.counts.get(name, 0) for each in self.listed]

    def validate(self, index: int, deep: bool) -> RolloutZarrValidationResult:
        """What is wrong with one store. A store that is lost or was changed is a violation, not an exception."""
        listed = self.listed[index]
        try:
            return self[index].validate(deep=deep)
        except StorageError as error:
            folder = local_path(listed.place)
            if folder is not None:
                found = validate_rollout_zarr_store(folder)
                if not found.ok:
                    return found
            code = "manifest_mismatch" if isinstance(error, ChecksumMismatch) else "not_a_store"
            problem = Violation(code, "", str(error))
            return RolloutZarrValidationResult(Path(listed.place), 0, 0, 0, (problem,))


_OTHER_SIZES = "the collection names other counts or sizes than the store; merge the campaign again"
_CHANGED = "it is not the store that the collection was made of; merge the campaign again"


def _unpickled(
    listed: Sequence[ListedStore],
    sizes: Mapping[str, int],
    cache_dir: AnyPath | None,
    storage_options: Options | None,
) -> ListedStores:
    return ListedStores(listed, sizes, cache_dir=cache_dir, storage_options=storage_options)
