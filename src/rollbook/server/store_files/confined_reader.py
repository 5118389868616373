"""ConfinedReader: a store on this disk, none of whose files is a link.

A link inside a store could lead to the files of another organisation. Other programs write the store, so every file is
looked at before it is opened, and again afterwards: if a link was planted in between, what was read is not handed out.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rollbook.errors import StorageError
from rollbook.server.blobs.confined_files import ConfinedFiles
from rollbook.server.store_files.roots import StorePlace
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME
from rollbook.store.reader import RolloutZarrStoreReader

_ROOT_FILES = ("zarr.json", ROLLOUT_MANIFEST_FILENAME)


class ConfinedReader(RolloutZarrStoreReader):
    def __init__(self, folder: Path) -> None:
        """`folder` is where the store must be, without any link."""
        super().__init__(folder)
        if self.store_dir != folder:
            raise _link(folder)
        self._refuse_links(_ROOT_FILES)

    def local(self, path: str) -> Path:
        self._refuse_links(self.files.below(path))
        found = super().local(path)
        self._refuse_links(self.files.below(path))
        return found

    def _open_array(self, path: str) -> NDArray[Any]:
        values: NDArray[Any] = super()._open_array(path)
        self._refuse_links(self.files.below(path))
        return values

    def _refuse_links(self, paths: tuple[str, ...] | list[str]) -> None:
        folders = {path[:end] for path in paths for end in _slashes(path)}
        for each in (*folders, *paths):
            place = self.store_dir / each
            try:
                mode = os.lstat(place).st_mode
            except OSError:
                continue  # a missing file is reported by its own check
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise _link(place)


def _slashes(path: str) -> list[int]:
    return [at for at, character in enumerate(path) if character == "/"]


def open_confined(place: StorePlace) -> ConfinedReader:
    """A local store. A missing root is an error of its own: the disk may not be mounted."""
    folder = place.folder
    try:
        with ConfinedFiles(Path(place.root.place)).folder(place.names):
            pass
    except FileNotFoundError as error:
        detail = "there is no such folder, or a part of its path is a link; check the path"
        raise StorageError(path=place.text, detail=detail) from error
    except OSError as error:
        detail = f"cannot be read: {error.strerror}"
        raise StorageError(path=place.text, detail=detail) from error
    return ConfinedReader(folder)


def _link(path: Path) -> StorageError:
    detail = "it is a link, and the server follows none in a store; copy the store with its files"
    return StorageError(path=str(path), detail=detail)
