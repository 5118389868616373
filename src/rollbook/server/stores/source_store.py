"""The source store from which a rollout store was made, if the server may read it.

A rollout store states where its source store was when it was made. It is looked for there and beside the rollout store,
and only in the store roots of the organisation.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from rollbook.errors import ChecksumMismatch, RollbookError, StorageError
from rollbook.generate.sources.layout import MANIFEST_FILE
from rollbook.generate.sources.reader import SourceStore
from rollbook.server.context import ServerContext
from rollbook.server.stores.opened import OpenedStore, place_of
from rollbook.store.manifest import stated_source

_KEPT_OPEN = 8


async def source_folders(
    context: ServerContext, org_id: str, opened: OpenedStore
) -> tuple[Path, ...]:
    """Where the source store may be, without a look at the disk."""
    stated = stated_source(opened.reader.store_manifest.payload)
    if stated is None:
        return ()
    name = stated.replace("\\", "/").rstrip("/").rpartition("/")[2]
    beside = f"{os.path.dirname(opened.row.place)}/{name}"
    places = [await place_of(context, org_id, text) for text in (stated, beside)]
    found = (place.folder for place in places if place is not None and not place.root.is_url)
    return tuple(dict.fromkeys(found))


def open_source(folders: tuple[Path, ...], manifest_digest: str | None) -> SourceStore:
    """The source store with this digest. Blocks: call it in a thread.

    Raises StorageError with the reason; ChecksumMismatch when it was changed, or another is in its place."""
    reason = "no source store is named, or it lies in no store root of this organisation"
    changed = None
    for folder in folders:
        try:
            source = _opened(folder, _identity(folder))
        except FileNotFoundError:
            reason = "there is no source store where the rollout store says, nor beside it"
        except ChecksumMismatch as error:
            changed = str(error)
        except (RollbookError, OSError) as error:
            reason = str(error)
        else:
            if source.manifest_digest == manifest_digest:
                return source
            changed = f"the source store that is there has the digest {source.manifest_digest}"
    if changed is not None:
        raise ChecksumMismatch(path="source store", detail=changed)
    raise StorageError(path="source store", detail=reason)


@lru_cache(_KEPT_OPEN)
def _opened(folder: Path, identity: object) -> SourceStore:
    """`identity` changes when another store takes the place of this one."""
    _refuse_links(folder)
    return SourceStore.open(folder)


def _identity(folder: Path) -> tuple[int, int, int]:
    found = os.stat(folder / MANIFEST_FILE, follow_symlinks=False)
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _refuse_links(folder: Path) -> None:
    """A link could lead to the files of another organisation."""
    if folder.resolve() != folder:
        raise StorageError(path=str(folder), detail="a part of its path is a link")
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(os.path.join(at, name)):
                detail = "it contains a link, and the server follows none; copy the files"
                raise StorageError(path=os.path.join(at, name), detail=detail)
