"""WatchedFiles: what a power cut would leave of the files that a test writes.

A killed process does not lose what it wrote, because the system keeps it: only a power cut shows a missing sync. So the
calls are watched instead. A file keeps the bytes that it had at its last fsync, a folder keeps the names.

    with WatchedFiles(tmp_path) as watched:
        write_bytes(tmp_path / "file", b"new")
    assert watched.named_before_sync == []
    assert watched.after_power_cut(tmp_path / "file") == b"new"

Only writes of this process are seen. What was in the folder before the block counts as durable.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias
from unittest import mock

from rollbook import files

Inode: TypeAlias = tuple[int, int]
"""Device and number: the identity of a file, whatever its name."""


class Step(NamedTuple):
    """One watched call."""

    call: Literal["sync", "name"]
    """`name`: a rename, a replacement, an exchange or a link gave a file or folder a new name."""
    path: Path
    """What was synced, or the new name."""


class WatchedFiles:
    """Watches the syncs and the renames below a folder, in all threads of this process."""

    def __init__(
        self, folder: Path, *, at_each_step: Callable[[WatchedFiles], None] | None = None
    ) -> None:
        """`at_each_step` is called after every watched call: a power cut could come at that moment."""
        self.folder = folder.resolve()
        self.steps: list[Step] = []
        self.named_before_sync: list[Path] = []
        """New names of files and folders whose content was not on disk yet: a power cut could leave them empty."""
        self._at_each_step = at_each_step
        self._lock = threading.RLock()
        self._bytes: dict[Inode, bytes] = {}
        self._names: dict[Inode, dict[str, Inode]] = {}
        self._held: dict[Inode, int] = {}
        self._patches = [
            mock.patch.object(os, "fsync", self._watched_fsync),
            mock.patch.object(os, "rename", self._watched_naming(os.rename)),
            mock.patch.object(os, "replace", self._watched_naming(os.replace)),
            mock.patch.object(os, "link", self._watched_naming(os.link)),
            mock.patch.object(files, "_renameat2", self._watched_naming(files._renameat2)),
        ]

    def __enter__(self) -> WatchedFiles:
        self._fsync = os.fsync
        for folder, _, names in os.walk(self.folder):
            for path in (Path(folder), *(Path(folder, name) for name in names)):
                if not path.is_symlink():
                    self._keep(os.open(path, os.O_PATH))
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for patch in self._patches:
            patch.stop()
        for descriptor in self._held.values():
            os.close(descriptor)

    # ------------------------------------------------------------------------------ what remains

    def after_power_cut(self, path: Path) -> bytes | set[str] | None:
        """The bytes of a file or the names in a folder that are certain to be on disk. None without the path itself."""
        inode: Inode | None = _inode(os.stat(self.folder))
        for name in path.absolute().relative_to(self.folder).parts:
            inode = self._names.get(inode, {}).get(name) if inode else None
        if inode is None:
            return None
        if inode in self._names:
            return set(self._names[inode])
        return self._bytes.get(inode, b"")  # a name without a synced content is an empty file

    def is_durable(self, path: Path) -> bool:
        """Whether the file, or the folder with everything in it, would be the same after a power cut."""
        left = self.after_power_cut(path)
        if path.is_dir():
            return left == set(os.listdir(path)) and all(map(self.is_durable, path.iterdir()))
        return left == path.read_bytes()

    # ----------------------------------------------------------------------------- watched calls

    def _watched_fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_relative_to(self.folder):
            with self._lock:
                # the file itself is held, not its open description: a lock on it ends when its owner closes it
                self._keep(os.open(f"/proc/self/fd/{descriptor}", os.O_PATH))
                self._note(Step("sync", path))

    def _watched_naming(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(source: Any, target: Any, *arguments: Any, **options: Any) -> Any:
            folder = options.get("dst_dir_fd")
            path = Path(os.readlink(f"/proc/self/fd/{folder}") if folder else "", target).absolute()
            if not path.is_relative_to(self.folder):
                return call(source, target, *arguments, **options)
            with self._lock:
                done = call(source, target, *arguments, **options)
                if done is not False:  # renameat2, where the system has none
                    if not self._has_synced_content(path):
                        self.named_before_sync.append(path)
                    self._note(Step("name", path))
                return done

        return watched

    def _has_synced_content(self, path: Path) -> bool:
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode):
            names = {
                entry.name: _inode(entry.stat(follow_symlinks=False)) for entry in os.scandir(path)
            }
            same = self._names.get(_inode(found)) == names
            return same and all(map(self._has_synced_content, path.iterdir()))
        return stat.S_ISLNK(found.st_mode) or self._bytes.get(_inode(found)) == path.read_bytes()

    def _keep(self, descriptor: int) -> None:
        """Notes the content. The descriptor stays open, so that no other file gets the same number."""
        found = os.fstat(descriptor)
        if self._held.setdefault(_inode(found), descriptor) != descriptor:
            os.close(descriptor)
        place = f"/proc/self/fd/{self._held[_inode(found)]}"
        if stat.S_ISDIR(found.st_mode):
            entries = list(os.scandir(place))
            self._names[_inode(found)] = {
                entry.name: _inode(entry.stat(follow_symlinks=False)) for entry in entries
            }
        else:
            self._bytes[_inode(found)] = Path(place).read_bytes()

    def _note(self, step: Step) -> None:
        self.steps.append(step)
        if self._at_each_step is not None:
            self._at_each_step(self)


def _inode(found: os.stat_result) -> Inode:
    return found.st_dev, found.st_ino
