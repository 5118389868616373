"""Files that are either complete or absent: atomic write, promotion of a finished folder, lease."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeAlias, TypeVar

from rollbook.errors import ConfigurationError, LeaseHeld, StorageError, TargetExists

AnyPath: TypeAlias = "str | os.PathLike[str]"
_Path = TypeVar("_Path", str, Path)

_AT_FDCWD = -100
_SYNCS_AT_ONCE = 8
_LONGEST_HIDDEN = 40
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


def _storage_error(path: Path, failed: str, error: OSError) -> StorageError:
    folder, name = os.path.split(str(error.filename))
    # neither the path itself nor the hidden file beside it, which would have got its name, says more
    known = folder == str(path.parent) and name.startswith(f".{path.name[:_LONGEST_HIDDEN]}.")
    about = "" if known or error.filename in (None, str(path)) else f" ({error.filename})"
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


def unreadable(path: AnyPath, error: OSError) -> StorageError:
    """The error that says why a file cannot be read."""
    return StorageError(path=str(path), detail=f"it cannot be read: {error.strerror or error}")


@contextmanager
def write_errors(path: AnyPath) -> Iterator[None]:
    """Turn the OSErrors of a block that writes `path` into StorageError."""
    try:
        yield
    except OSError as error:
        detail = f"cannot be written ({error.strerror or error})"
        raise StorageError(path=str(path), detail=detail) from error


def _hidden_name_beside(path: Path, suffix: str) -> Path:
    """A new hidden name in the same folder. The name is shortened, because file systems limit its length."""
    return path.with_name(f".{path.name[:_LONGEST_HIDDEN]}.{os.urandom(8).hex()}{suffix}")


def _fsync(path: AnyPath, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: AnyPath) -> None:
    """Make the names in a folder durable. Without this, a crash can undo a rename that others have already seen."""
    with _storage_errors(Path(path), "the folder cannot be synced"):
        _fsync_names(path)


def _fsync_names(path: AnyPath) -> None:
    try:
        _fsync(path, os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise  # these two codes come from network filesystems that cannot sync folders


def make_folders(path: AnyPath, *, mode: int = 0o777) -> None:
    """`mkdir -p` whose new folders survive a power cut: a file in a folder is only as durable as the folder's name.

    `mode` is for the folder itself, not for the folders above it. Raises OSError, as `Path.mkdir` does.
    """
    folder = Path(path).absolute()
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    for each in missing:
        _fsync_names(each.parent)


# ---------------------------------------------------------------------------------- atomic write


@contextmanager
def atomic_write(path: AnyPath, *, replace: bool = True) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file `path` when the block ends. If the block fails, they are removed.

    Readers see the old file or the complete new one, also after a crash. With `replace=False` an existing file raises
    TargetExists, even if it appeared while the block ran. A symbolic link is replaced, not followed. A killed process
    leaves its `.*.tmp` file behind.
    """
    final = Path(path)
    temp = _hidden_name_beside(final, ".tmp")
    with _storage_errors(final, "cannot be written"):
        if not replace:
            _refuse_existing(final)
        # mkstemp would make files private to their owner; here the umask decides
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    stream = os.fdopen(descriptor, "wb")
    try:
        with _stream_errors(final):
            yield stream
        with _storage_errors(final, "cannot be written"):
            stream.flush()
            os.fsync(descriptor)
            stream.close()
            if replace:
                os.replace(temp, final)
            else:
                _name_new(temp, final)
            fsync_folder(final.parent)
    finally:
        with suppress(OSError):  # a write that failed before fails again here, when it is flushed
            stream.close()
        with suppress(OSError):
            temp.unlink()


def _name_new(temp: Path, final: Path) -> None:
    """Give a file a name that must not exist, which a plain rename would overwrite."""
    try:
        os.link(temp, final)
    except OSError as error:
        without_links = error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
        if not without_links or not _renameat2(temp, final, _RENAME_NOREPLACE):
            raise


def write_bytes(
    path: AnyPath, data: bytes | bytearray | memoryview, *, replace: bool = True
) -> None:
    """`atomic_write` for bytes that are already in memory."""
    with atomic_write(path, replace=replace) as stream:
        stream.write(data)


def write_files(contents: Mapping[Path, bytes]) -> None:
    """`write_bytes` for many files: the files are synced side by side, and each of their folders once.

    If a file cannot be written, none gets its name. A crash may leave some of them, each complete.
    """
    temps = {final: _hidden_name_beside(final, ".tmp") for final in contents}

    def write(final: Path) -> None:
        with _storage_errors(final, "cannot be written"), open(temps[final], "xb") as stream:
            stream.write(contents[final])
            stream.flush()
            os.fsync(stream.fileno())

    try:
        _side_by_side(write, list(contents))
        for final, temp in temps.items():
            with _storage_errors(final, "cannot be written"):
                os.replace(temp, final)
        _side_by_side(fsync_folder, list({final.parent for final in contents}))
    finally:
        for temp in temps.values():
            with suppress(OSError):
                temp.unlink()


@contextmanager
def _stream_errors(final: Path) -> Iterator[None]:
    """Turn a failed write to the stream into a StorageError.

    Other OSErrors of the block (about other files or sockets) pass unchanged. A failed write is a plain OSError
    without a file name: full disk, quota, size limit and bad medium have no subclass.
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


# --------------------------------------------------------------------------------- promote a folder


def promote_folder(finished: AnyPath, final: AnyPath, *, replace: bool = False) -> None:
    """Make `finished` durable on disk, then rename it to `final` in one step.

    With `replace=True` an existing folder is exchanged for the new one and then removed, so readers find the old folder
    or the new one, also after a crash. A crash before the removal leaves the old folder beside `final` as `.*.old`, or
    for a moment under the name `finished`. Where the filesystem cannot exchange two names, the old folder is renamed
    first: a crash at that moment leaves no `final`, but both folders are complete under their other names.
    """
    source, target = Path(finished), Path(final)
    old = None
    with _storage_errors(target, "the folder cannot be promoted"):
        _check_promotion(source, target)
        if not replace:
            _refuse_existing(target)
        _fsync_tree(source)
        try:
            if not _renameat2(source, target, _RENAME_NOREPLACE):
                _refuse_existing(target)  # a plain rename silently replaces an empty folder
                os.rename(source, target)
        except FileExistsError:
            if not replace:
                raise
            old = _exchange(source, target)
        fsync_folder(target.parent)
    if old is not None:
        with _storage_errors(target, f"promoted, but the folder it replaced remains as {old}"):
            try:
                shutil.rmtree(old)
            except KeyboardInterrupt:
                # the new folder is in place: only a second Ctrl-C leaves the old one behind
                shutil.rmtree(old, ignore_errors=True)
                raise


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
    """Sync all files, then all folders, each once. Many syncs at once are faster than one after the other.

    The order of the folders does not matter: until the rename, nobody can find any of them.
    """
    files: list[str] = []
    folders = [os.fspath(folder)]
    for each in folders:  # the loop appends to this list
        with os.scandir(each) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    files.append(entry.path)
    _side_by_side(_fsync, files)
    _side_by_side(fsync_folder, folders)


def _side_by_side(call: Callable[[_Path], None], paths: Sequence[_Path]) -> None:
    """Call it for every path, in several threads. After a failure or Ctrl-C no further call starts.

    Each thread gets its share at once. Handing out one path after the other keeps the main thread busy with locks, and
    a Ctrl-C at that moment ends in a RuntimeError of the standard library.
    """
    stopped = threading.Event()

    def call_all(share: Sequence[_Path]) -> None:
        for path in share:
            if stopped.is_set():
                return
            try:
                call(path)
            except BaseException:
                stopped.set()
                raise

    shares = [paths[first::_SYNCS_AT_ONCE] for first in range(min(_SYNCS_AT_ONCE, len(paths)))]
    with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
        try:
            list(pool.map(call_all, shares))
        except BaseException:
            stopped.set()
            raise


def _exchange(source: Path, target: Path) -> Path:
    """Put `source` in the place of `target`. Returns the new path of the old folder."""
    aside = _hidden_name_beside(target, ".old")
    if _renameat2(source, target, _RENAME_EXCHANGE):
        os.rename(source, aside)  # at once: nobody may take the old folder for a finished new one
        return aside
    os.rename(target, aside)
    try:
        os.rename(source, target)
    except BaseException:
        os.rename(aside, target)
        raise
    return aside


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    """Rename with flags. Returns False if the system or the filesystem does not support them."""
    import ctypes  # imported here, because most programs never promote a folder

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(source), None, str(target))


# --------------------------------------------------------------------------------------------- lock


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock on the file `path`, which exists only meanwhile. It ends with the process, however that ends.

    A process that is forked in the block has a copy of the block, but not the lock: leaving it there changes nothing.

    With `wait=False`, raises BlockingIOError if another process has the lock.
    """
    process = os.getpid()
    descriptor = _locked_descriptor(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    try:
        yield
    finally:
        try:
            with suppress(OSError):
                if os.getpid() == process:
                    path.unlink()  # before the lock is given up: afterwards it would be the file of the next holder
        finally:
            os.close(descriptor)


@contextmanager
def held_alone(folder: Path, lock: Path) -> Iterator[None]:
    """Only one process works in the folder. The lock ends with the process. Another process gets LeaseHeld."""
    with write_errors(folder):
        make_folders(lock.parent)
    with ExitStack() as held:
        try:
            held.enter_context(locked(lock, wait=False))
        except BlockingIOError as error:
            detail = "wait until it ends, or choose another folder"
            raise LeaseHeld(path=str(folder), owner="another process", detail=detail) from error
        yield


def _locked_descriptor(path: Path, how: int) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, how)
            # while we waited, the former holder removed the name: then another process can lock a new file
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


# -------------------------------------------------------------------------------------------- lease


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Holder:
    """The content of a lease file."""

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
    """The exclusive right to work on something, held by one process until it expires.

    `path` is a small JSON file that names the holder. It is changed only under a lock on `<path>.lock`, which exists
    only while somebody uses it. Processes may run on several machines if their filesystem has `flock` across machines
    and shows a rename at once, and if their clocks differ by much less than `ttl_s`. A holder that renews late may have
    lost the lease, so `ttl_s` must be longer than its longest pause.
    """

    def __init__(
        self, path: Path, holder: _Holder, ttl_s: float, clock: Callable[[], float]
    ) -> None:
        """Called by `acquire` only."""
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
        """Take a free or expired lease. Raises LeaseHeld while anybody holds it, even `owner`."""
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
        """A new token for every acquisition. It can mark what this holder wrote."""
        return self._holder.token

    @property
    def acquired_at(self) -> float:
        return self._holder.acquired_at

    @property
    def expires_at(self) -> float:
        return self._holder.expires_at

    def renew(self) -> None:
        """Extend the lease to `ttl_s` from now. An expired lease can be renewed if nobody else took it.

        Raises LeaseHeld if somebody took it. Raises StorageError if the file is gone: somebody may have held the lease
        in between, so the work under this lease must stop too.
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
        """Free the lease. Does nothing if it was lost or released before."""
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
    with _storage_errors(path, "the lease cannot be used"), locked(lock):
        yield


def _held(path: Path, holder: _Holder, detail: str) -> LeaseHeld:
    return LeaseHeld(path=str(path), owner=holder.owner, detail=detail)


def _write_holder(path: Path, holder: _Holder) -> None:
    write_bytes(path, json.dumps(dataclasses.asdict(holder)).encode())


def _read_holder(path: Path) -> _Holder | None:
    """The holder, or None when there is no file. A damaged file is an error: ignoring it could free a held lease."""
    try:
        return _Holder(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise StorageError(path=str(path), detail=f"not a lease file: {error}") from error
