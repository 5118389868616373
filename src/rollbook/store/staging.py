"""StagedStore: a hidden folder in which a store is written before it gets its final name. One writer at a time."""

from __future__ import annotations

import os
import re
import shutil
import uuid
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from rollbook.digest import checksum
from rollbook.errors import LeaseHeld, StorageError, TargetExists
from rollbook.files import locked, make_folders, promote_folder, write_errors
from rollbook.store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    FileSums,
    content_sha256,
    group_metadata,
    json_bytes,
    manifest_sha256,
)


def not_a_store(folder: Path) -> str | None:
    """Why a folder may not be replaced; None for a store and for an empty folder."""
    names = os.listdir(folder) if folder.is_dir() else None
    if names is None or (names and "zarr.json" not in names):
        return "it is not a store"
    return None


class StagedStore:
    """A hidden folder beside the final one, under a lock. Without `finish` or `promote` it is removed at the end.

    `kept_because(path)` says why an existing folder must not be replaced; None allows it.
    """

    def __init__(
        self,
        final: Path,
        *,
        replace: bool,
        kept_because: Callable[[Path], str | None] = not_a_store,
    ) -> None:
        self.final = final.absolute()
        self.folder = self.final.with_name(f".{self.final.name}.stage-{uuid.uuid4().hex}")
        self._replace = replace
        self._kept_because = kept_because
        self._lock = ExitStack()

    def __enter__(self) -> StagedStore:
        self._refuse_existing()
        self._process = os.getpid()
        # Ctrl-C can come between any two steps, also before `__exit__` has done anything. Then the folder is removed as
        # soon as nobody has this object any more, at the latest when the interpreter ends.
        self._removal = weakref.finalize(self, _remove, self.folder, self._process)
        self._acquire()
        try:
            self._refuse_existing()
            self._sweep()
            with write_errors(self.folder):
                self.folder.mkdir(parents=True)
        except BaseException:
            self._close()
            raise
        return self

    def _acquire(self) -> None:
        lock = self.final.with_name(f".{self.final.name}.lock")
        try:
            with write_errors(lock):
                make_folders(lock.parent)
                self._lock.enter_context(locked(lock, wait=False))
        except StorageError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            wait = "wait for it, or write elsewhere"
            raise LeaseHeld(path=str(lock), owner="another writer", detail=wait) from error

    def _refuse_existing(self) -> None:
        """Only stores, complete or damaged, can be replaced. Nothing else is ever removed."""
        with write_errors(self.final):
            if not os.path.lexists(self.final):
                return
            why = (
                "it is a link and not a store"
                if self.final.is_symlink()
                else self._kept_because(self.final)
            )
        if why is not None:
            raise TargetExists(path=str(self.final), detail=f"{why}, so it stays")
        if not self._replace:
            raise TargetExists(path=str(self.final), detail="pass replace=True to replace it")

    def _sweep(self) -> None:
        """Remove what a killed writer left behind. The lock ensures that no other writer of this store is running."""
        name = self.final.name
        stages = re.compile(re.escape(f".{name}.stage-") + "[0-9a-f]{32}")
        replaced = re.compile(re.escape(f".{name}.") + r"[0-9a-f]{16}\.old")
        with write_errors(self.final.parent):
            left = os.listdir(self.final.parent)
        for each in left:
            # a replaced store is removed only if the store that replaced it exists
            if stages.fullmatch(each) or (replaced.fullmatch(each) and self.final.is_dir()):
                shutil.rmtree(self.final.with_name(each), ignore_errors=True)

    def write_groups(self, groups: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, str]]:
        """Write the attributes of every group. Returns size and checksum of every file."""
        files = {}
        for name, attrs in groups.items():
            data = group_metadata(attrs)
            with write_errors(self.folder / name):
                (self.folder / name).mkdir(exist_ok=True)
                (self.folder / name / "zarr.json").write_bytes(data)
            files[f"{name}/zarr.json"] = (len(data), checksum(data))
        return files

    def finish(self, described: Mapping[str, Any], files: FileSums) -> dict[str, Any]:
        """Write the manifest and the root group, then rename the folder to its final name. Returns the manifest."""
        payload = {
            **described,
            "files": {path: list(files[path]) for path in sorted(files)},
            "content_sha256": content_sha256(files),
        }
        digest = manifest_sha256(payload)
        root = group_metadata({**payload["root_attrs"], "manifest_sha256": digest})
        with write_errors(self.folder):
            (self.folder / ROLLOUT_MANIFEST_FILENAME).write_bytes(
                json_bytes(payload, "the manifest")
            )
            (self.folder / "zarr.json").write_bytes(root)
        self.promote()
        return {**payload, "manifest_sha256": digest}

    def promote(self) -> None:
        """Rename the folder to its final name. Its manifest must have been written."""
        promote_folder(self.folder, self.final, replace=self._replace)
        self._removal.detach()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        try:
            if self._removal.alive:  # it was not promoted
                _remove(self.folder, self._process)
                self._removal.detach()
        finally:
            self._lock.close()


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked process has a copy of the object, but not the folder
        shutil.rmtree(folder, ignore_errors=True)
