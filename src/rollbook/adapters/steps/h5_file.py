"""Opens HDF5 files of other people: errors get a type, and no link leads to another file.

HDF5 can point to other files in four ways: external links, soft links through them, raw data in external files, and
virtual datasets. None of them is followed. Objects are reached by hard links only, one name after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from rollbook.adapters.extras import library
from rollbook.adapters.steps.hdf5_heaps import check_heaps
from rollbook.errors import (
    DamagedRecording,
    RollbookError,
    TruncatedFile,
    UnknownFormat,
)
from rollbook.files import unreadable

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MOST_NAMES = 100_000
"""Names in one group that are looked at."""
_USER_BLOCKS = (0, 512, 1024, 2048)
"""Where the signature may be: a file may begin with a block of something else."""
_GIT_LFS = b"version https://git-lfs"
_RAISED_BY_H5PY = (
    *(OSError, RuntimeError, KeyError, ValueError, TypeError),
    *(OverflowError, MemoryError, AttributeError, IndexError, SystemError),
)
_NUMBER = re.compile(r"(\d+)")


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Sort key that puts demo_2 before demo_10."""
    parts = _NUMBER.split(name)
    return [(1, int(p), "") if i % 2 else (0, 0, p) for i, p in enumerate(parts)]


def has_signature(path: Path) -> bool:
    with open(path, "rb") as file:
        for at in _USER_BLOCKS:
            file.seek(at)
            if file.read(len(SIGNATURE)) == SIGNATURE:
                return True
    return False


class h5_errors:
    """Turn the exceptions of h5py, which are of many types, into DamagedRecording. Only h5py is called inside.

    A class, because it is entered several times for each dataset, and a generator takes four times as long.
    """

    __slots__ = ("_failed", "_path")

    def __init__(self, path: Path, failed: str) -> None:
        self._path = path
        self._failed = failed

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, _RAISED_BY_H5PY) or isinstance(error, RollbookError):
            return
        if isinstance(error, OSError) and "truncated file" in str(error):
            raise TruncatedFile(path=str(self._path), detail=_described(error)) from error
        detail = f"{self._failed}: {_described(error)}"
        raise DamagedRecording(path=str(self._path), detail=detail) from error


def _described(error: BaseException) -> str:
    text = str(error).strip("'\"")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The root group of the file, for reading."""
    _check_signature(path)
    _check_heaps_once(path)
    h5py = library("h5py")
    with h5_errors(path, "it cannot be opened"):
        file = h5py.File(path, "r", locking="best-effort")
    try:
        yield file
    finally:
        with h5_errors(path, "it cannot be closed"):
            file.close()


def _check_heaps_once(path: Path) -> None:
    """Attributes lie in heaps too, so heaps are checked before anything is read. A file that did not change is not
    read again."""
    try:
        facts = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    _check_heaps(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=4096)
def _check_heaps(path: Path, size: int, mtime_ns: int) -> None:
    check_heaps(path)


def _check_signature(path: Path) -> None:
    try:
        if not path.is_file():
            raise UnknownFormat(path=str(path), detail="there is no such file")
        if has_signature(path):
            return
        with open(path, "rb") as file:
            start = file.read(len(_GIT_LFS))
    except OSError as error:
        raise unreadable(path, error) from error
    detail = "it does not begin as an HDF5 file"
    if start == _GIT_LFS:
        detail = "it is a Git LFS pointer, not the file itself: run `git lfs pull`"
    raise UnknownFormat(path=str(path), detail=detail)


def object_names(group: Any, path: Path) -> list[tuple[str, bytes]]:
    """The names in a group in natural order, as text and as bytes. Bytes that are no text are shown escaped."""
    found: list[tuple[str, bytes]] = []
    with h5_errors(path, "the names in a group cannot be read"):
        for raw in group.id:
            if len(found) == MOST_NAMES:
                detail = f"{group.name} holds more than {MOST_NAMES} objects"
                raise DamagedRecording(path=str(path), detail=detail)
            found.append((raw.decode("utf-8", "backslashreplace"), raw))
    return sorted(found, key=lambda each: natural_order(each[0]))


def link_problem(group: Any, raw: bytes, path: Path) -> str | None:
    """Why the link is not followed; None for a hard link, which stays inside the file."""
    links = library("h5py.h5l")
    with h5_errors(path, "a link cannot be read"):
        info = group.id.links.get_info(raw)
        if info.type == links.TYPE_HARD:
            return None
        if info.type == links.TYPE_EXTERNAL:
            target, _ = group.id.links.get_val(raw)
            shown = target.decode("utf-8", "backslashreplace")
            return f"it is a link to the file {shown!r}, and other files are not opened"
        return "it is a soft link, which is not followed because it may lead to another file"


def object_at(group: Any, raw: bytes, path: Path) -> Any:
    """The id of a group or dataset. `raw` is a hard link."""
    with h5_errors(path, f"{raw.decode('utf-8', 'backslashreplace')} cannot be opened"):
        return library("h5py").h5o.open(group.id, raw)


def child(group: Any, name: str, path: Path) -> Any:
    """The group or dataset with this name; None where there is none, or only a link that is not followed."""
    h5py = library("h5py")
    raw = name.encode("utf-8", "surrogatepass")
    with h5_errors(path, f"{name} cannot be opened"):
        if not group.id.links.exists(raw):
            return None
    if link_problem(group, raw, path) is not None:
        return None
    found = object_at(group, raw, path)
    with h5_errors(path, f"{name} cannot be opened"):
        if isinstance(found, h5py.h5g.GroupID):
            return h5py.Group(found)
        return h5py.Dataset(found) if isinstance(found, h5py.h5d.DatasetID) else None


def descendant(group: Any, names: str, path: Path) -> Any:
    """Like `child`, for names joined by slashes."""
    found: Any = group
    for name in filter(None, names.split("/")):
        if found is None or not is_group(found):
            return None
        found = child(found, name, path)
    return found


def is_group(found: Any) -> bool:
    return found is not None and isinstance(found, library("h5py").Group)


def is_dataset(found: Any) -> bool:
    return found is not None and isinstance(found, library("h5py").Dataset)
