"""Opens what a command names: a store, or the stores of a collection as one; in a folder or at a URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.cli.store_paths import existing_path, refuse_unmerged

if TYPE_CHECKING:
    from rollbook.cli.store_collection import View
    from rollbook.store.reader import RolloutZarrStoreReader


def opened_store(place: str) -> RolloutZarrStoreReader:
    from rollbook.store.urls.remote import open_store

    return open_store(existing_place(place))


def opened_view(place: str) -> View:
    """Open a store, or the stores of a collection as one."""
    from rollbook.store.collection import RolloutCollection
    from rollbook.store.shards.collection_file import find_collection

    found = find_collection(existing_place(place))
    return opened_store(place) if found is None else RolloutCollection(found.stores())


def existing_place(place: str) -> str:
    from rollbook.store.urls.url_folder import is_url

    if not is_url(place):
        refuse_unmerged(existing_path(Path(place)))
    return place
