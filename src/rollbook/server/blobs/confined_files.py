"""Files below a root folder that no name and no symbolic link can leave.

Every step of a path is opened relative to the folder before it and must not be a link. What is checked is what is used,
so a link that is planted in between changes nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Opening a pipe must not block; it is refused after it is open."""
_NOT_OURS = (errno.ELOOP, errno.ENOTDIR)


class ConfinedFiles:
    """Paths are given as tuples of plain names. The caller has checked them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def folder(self, names: Sequence[str], *, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder while the block runs. FileNotFoundError when there is no folder, or a link."""
        descriptor = self._open_root()
        try:
            for name in names:
                below = _step_into(descriptor, name, create)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def _open_root(self) -> int:
        """The root itself may be a link, because the operator put it there. A missing root is an error."""
        try:
            return os.open(self.root, _FOLDER & ~os.O_NOFOLLOW)
        except FileNotFoundError:
            raise OSError(errno.ENODEV, "its folder is gone: is the disk mounted?") from None

    def open(self, names: Sequence[str]) -> FileIO:
        """A plain file for reading; FileNotFoundError for anything else."""
        with self.folder(names[:-1]) as folder, _links_are_not_there(names[-1]):
            file = FileIO(os.open(names[-1], _FILE, dir_fd=folder))
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise FileNotFoundError(errno.ENOENT, "not a plain file", names[-1])
        return file

    def stat(self, names: Sequence[str]) -> os.stat_result:
        """The status of a plain file; FileNotFoundError for anything else."""
        with self.folder(names[:-1]) as folder:
            found = os.stat(names[-1], dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a plain file", names[-1])
        return found

    def remove(self, names: Sequence[str]) -> None:
        """Removes the name, and the folders that this leaves empty. Does nothing when the name does not exist."""
        try:
            with self.folder(names[:-1]) as folder:
                os.unlink(names[-1], dir_fd=folder)
                os.fsync(folder)
        except FileNotFoundError:
            return
        for depth in range(len(names) - 1, 0, -1):
            try:
                with self.folder(names[: depth - 1]) as above:
                    os.rmdir(names[depth - 1], dir_fd=above)
            except OSError:
                return  # not empty, or already removed

    def entries(self, names: Sequence[str]) -> list[tuple[str, os.stat_result]]:
        """The names in a folder and their kinds, without following links. Empty when there is no such folder."""
        found = []
        try:
            with self.folder(names) as folder:
                for name in os.listdir(folder):
                    try:
                        found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
                    except FileNotFoundError:
                        continue  # removed during the scan
        except FileNotFoundError:
            return []
        return found


def _step_into(folder: int, name: str, create: bool) -> int:
    try:
        with _links_are_not_there(name):
            return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        pass  # made by another thread, or not a folder; the next line finds out
    else:
        os.fsync(folder)
    return os.open(name, _FOLDER, dir_fd=folder)


@contextmanager
def _links_are_not_there(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise FileNotFoundError(errno.ENOENT, "not a plain name", name) from error
        raise
