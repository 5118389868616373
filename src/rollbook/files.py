"""Files that are whole or not there at all: atomic write, promote a finished folder, lease."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeAlias

from rollbook.errors import ConfigurationError, LeaseHeld, StorageError, TargetExists

AnyPath: TypeAlias = "str | os.PathLike[str]"

_AT_FDCWD = -100
_SYNCS_AT_ONCE = 8
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


def _storage_error(path: Path, failed: str, error: OSError) -> StorageError:
    about = "" if error.filename in (None, str(path)) else f" ({error.filename})"
    return StorageError(path=str(path), detail=f"{failed}: {error.strerror or error}{about}")


@contextmanager
def _storage_errors(path: Path, failed: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except FileExistsError as error:
        raise TargetExists(path=str(path), detail="it was not to be replaced") from error
    except OSError as error:
        raise _storage_error(path, failed, error) from error


def _beside(path: Path, suffix: str) -> Path:
    """A hidden name of our own in the same folder; the name is cut because names have a limit."""
    return path.with_name(f".{path.name[:40]}.{os.urandom(8).hex()}{suffix}")


def _fsync(path: AnyPath, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: AnyPath) -> None:
    """Makes the names in a folder last: without it a crash can undo a rename that was seen."""
    with _storage_errors(Path(path), "the folder cannot be synced"):
        try:
            _fsync(path, os.O_DIRECTORY)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise  # those two: a network filesystem on which folders cannot be synced


# ---------------------------------------------------------------------------------- atomic write


@contextmanager
def atomic_write(path: AnyPath, *, replace: bool = True) -> Iterator[BinaryIO]:
    """A stream whose bytes become `path` when the block ends, and are dropped when it fails.

    Readers see the old file or the whole new one, also after a crash. `replace=False` raises
    TargetExists rather than touch a file that is already there, even one that appeared meanwhile.
    A symbolic link is replaced, not followed. A killed process leaves its `.*.tmp` file behind.
    """
    final = Path(path)
    temp = _beside(final, ".tmp")
    with _storage_errors(final, "cannot be written"):
        if not replace:
            _refuse_existing(final)
        # Not mkstemp, whose files are private to their owner: the umask is to decide.
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    stream = os.fdopen(descriptor, "wb")
    try:
        with _stream_errors(final):
            yield stream
        with _storage_errors(final, "cannot be written"):
            stream.flush()
            os.fsync(descriptor)
            stream.close()
            _put_in_place(temp, final, replace)
            fsync_folder(final.parent)
    finally:
        with suppress(OSError):  # what failed to be written before fails again when it is flushed
            stream.close()
        with suppress(OSError):
            temp.unlink()


def write_bytes(
    path: AnyPath, data: bytes | bytearray | memoryview, *, replace: bool = True
) -> None:
    """`atomic_write` for bytes that are already in memory."""
    with atomic_write(path, replace=replace) as stream:
        stream.write(data)


@contextmanager
def _stream_errors(final: Path) -> Iterator[None]:
    """The caller's block may fail with OSErrors of its own, about other files or about sockets.

    Those pass. A failed write to our stream is a bare OSError (full disk, quota, size limit, bad
    medium: none has a subclass) that names no file.
    """
    try:
        yield
    except OSError as error:
        if type(error) is not OSError or error.filename is not None:
            raise
        raise _storage_error(final, "cannot be written", error) from error


def _refuse_existing(final: Path) -> None:
    if os.path.lexists(final):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final))


def _put_in_place(temp: Path, final: Path, replace: bool) -> None:
    if replace:
        os.replace(temp, final)
    else:
        os.link(temp, final)  # refuses an existing name, where a rename would overwrite it


# --------------------------------------------------------------------------------- promote a folder


def promote_folder(finished: AnyPath, final: AnyPath, *, replace: bool = False) -> None:
    """Makes `finished` last on disk, then gives it the name `final` in one step.

    With `replace=True` an existing folder is exchanged for the new one and then removed, so that
    readers find the old folder or the new one, also after a crash. Accepted cost: a crash before
    the removal leaves the old folder beside `final` as `.*.old`, or for an instant under the name
    `finished`. Where the filesystem cannot exchange two names, the old one is moved aside first:
    a crash at that instant leaves no `final`, but both folders whole under their other names.
    """
    source, target = Path(finished), Path(final)
    old = None
    with _storage_errors(target, "the folder cannot be promoted"):
        _check_promotion(source, target)
        if not replace:
            _refuse_existing(target)
        _fsync_tree(source)
        try:
            _rename_to_new_name(source, target)
        except FileExistsError:
            if not replace:
                raise
            old = _exchange(source, target)
        fsync_folder(target.parent)
    if old is not None:
        with _storage_errors(target, f"promoted, but the folder it replaced remains as {old}"):
            shutil.rmtree(old)


def _check_promotion(source: Path, target: Path) -> None:
    for path in (source, target):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise StorageError(path=str(path), detail="not a folder, so it cannot be promoted")
    if source.stat().st_dev != target.parent.stat().st_dev:
        detail = f"on another filesystem than {source}: finish the folder beside its final name"
        raise StorageError(path=str(target), detail=detail)
    if target.exists() and source.samefile(target):
        raise StorageError(path=str(target), detail="a folder cannot replace itself")


def _fsync_tree(folder: AnyPath) -> None:
    """Files, then folders. A disk takes many syncs at once better than one after the other."""
    files: list[str] = []
    folders = [os.fspath(folder)]
    for each in folders:  # grows while it is walked
        with os.scandir(each) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    files.append(entry.path)
    with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
        list(pool.map(_fsync, files))
        list(pool.map(fsync_folder, folders))


def _rename_to_new_name(source: Path, target: Path) -> None:
    if not _renameat2(source, target, _RENAME_NOREPLACE):
        _refuse_existing(target)  # a plain rename replaces an empty folder without a word
        os.rename(source, target)


def _exchange(source: Path, target: Path) -> Path:
    """Puts `source` in the place of `target`; returns where the old folder is now."""
    aside = _beside(target, ".old")
    if _renameat2(source, target, _RENAME_EXCHANGE):
        os.rename(source, aside)  # at once: the old folder must not pass for a finished new one
        return aside
    os.rename(target, aside)
    try:
        os.rename(source, target)
    except BaseException:
        os.rename(aside, target)
        raise
    return aside


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    """Rename with flags; False where the system or this filesystem does not know them."""
    import ctypes  # here, because most programs that load this module never promote a folder

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(source), None, str(target))


# -------------------------------------------------------------------------------------------- lease


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Holder:
    """What a lease file says."""

    owner: str
    token: str
    acquired_at: float
    expires_at: float

    def __post_init__(self) -> None:
        if not all(type(text) is str for text in (self.owner, self.token)):
            raise TypeError("owner and token have to be text")
        times = (self.acquired_at, self.expires_at)
        if not all(type(when) in (int, float) and math.isfinite(when) for when in times):
            raise ValueError("its times have to be numbers")


class Lease:
    """The right to work on something, held by one process until a time and then free again.

    `path` is a small JSON file that names the holder. It is changed only under a lock on
    `<path>.lock`, which stays behind: removing it would let two processes lock different files.
    Processes may run on several machines if their filesystem has `flock` across machines and
    shows a rename at once, and if their clocks agree to well within `ttl_s`. A holder that is late
    to renew may already have lost the lease, so `ttl_s` has to outlast its longest pause.
    """

    def __init__(
        self, path: Path, holder: _Holder, ttl_s: float, clock: Callable[[], float]
    ) -> None:
        """For `acquire`, which is the way to get one."""
        self.path = path
        self._holder = holder
        self._ttl_s = ttl_s
        self._clock = clock

    @classmethod
    def acquire(
        cls,
        path: AnyPath,
        *,
        owner: str,
        ttl_s: float,
        clock: Callable[[], float] = time.time,
    ) -> Lease:
        """Takes a free or expired lease; raises LeaseHeld while anyone has it, even `owner`."""
        if not 0 < ttl_s < math.inf:
            raise ConfigurationError(message=f"a lease needs ttl_s above 0, not {ttl_s}")
        file = Path(path)
        with _locked(file):
            now = clock()
            current = _read_holder(file)
            if current is not None and now < current.expires_at:
                raise _held(file, current, f"its lease ends in {current.expires_at - now:.1f} s")
            holder = _Holder(
                owner=owner, token=os.urandom(16).hex(), acquired_at=now, expires_at=now + ttl_s
            )
            _write_holder(file, holder)
        return cls(file, holder, ttl_s, clock)

    @property
    def owner(self) -> str:
        return self._holder.owner

    @property
    def token(self) -> str:
        """Differs for every acquisition, so it can mark which holder wrote something."""
        return self._holder.token

    @property
    def acquired_at(self) -> float:
        return self._holder.acquired_at

    @property
    def expires_at(self) -> float:
        return self._holder.expires_at

    def renew(self) -> None:
        """Extends the lease to `ttl_s` from now, even when it ran out, as long as nobody took it.

        Raises LeaseHeld when someone did, and StorageError when the file is gone: then someone may
        have held it in between, so the work under this lease cannot go on either.
        """
        with _locked(self.path):
            current = _read_holder(self.path)
            if current is None:
                detail = f"the lease of {self.owner} is gone; someone else may have had it"
                raise StorageError(path=str(self.path), detail=detail)
            if current.token != self.token:
                raise _held(self.path, current, f"{self.owner} lost it by not renewing in time")
            renewed = dataclasses.replace(self._holder, expires_at=self._clock() + self._ttl_s)
            _write_holder(self.path, renewed)
            self._holder = renewed

    def release(self) -> None:
        """Frees the lease; does nothing when it was lost or released before."""
        with _locked(self.path):
            current = _read_holder(self.path)
            if current is not None and current.token == self.token:
                self.path.unlink()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = path.with_name(f"{path.name}.lock")
    with _storage_errors(path, "the lease cannot be used"), open(lock, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing the file unlocks it, and so does dying
        yield


def _held(path: Path, holder: _Holder, detail: str) -> LeaseHeld:
    return LeaseHeld(path=str(path), owner=holder.owner, detail=detail)


def _write_holder(path: Path, holder: _Holder) -> None:
    write_bytes(path, json.dumps(dataclasses.asdict(holder)).encode())


def _read_holder(path: Path) -> _Holder | None:
    """None when there is no file. Garbage is an error: a guess could free a lease that is held."""
    try:
        return _Holder(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise StorageError(path=str(path), detail=f"not a lease file: {error}") from error
