"""LeaseRecord: who works on a shard, as it stands in a lease file. LeaseWatch: whether that worker is still there.

No decision uses a wall clock. Clocks of two machines differ, and one clock can be set back.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from rollbook.errors import StorageError
from rollbook.store.manifest import utc_timestamp

_RECORD_BYTES = 1024
"""Least size of a lease file. A heartbeat overwrites the record in place, so every record of a lease has one size."""
_UNREADABLE_LEASE_S = 120.0
"""How long a lease file that cannot be read must stay unchanged before it is over."""
_NAME = re.compile(r"_LEASE\.(?P<shard_id>shard-\d{6,})\.(?P<token>\d{6,})\.json")


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process. A process id alone is used again by others; with its start and its machine it is not."""

    host: str
    pid: int
    started: str
    """Start of the process, in ticks since the machine started; empty where the system does not say."""
    machine: str
    """Start of the machine and namespace of the process ids; empty where the system does not say."""

    @classmethod
    def this(cls) -> Process:
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            started=_started(os.getpid()),
            machine=_machine(),
        )

    def is_gone(self) -> bool:
        """Whether the process has certainly ended. Only its own machine can know that."""
        if not self.machine or self.machine != _machine():
            return False
        started = _started(self.pid)
        return started != self.started and not (started == "" and _is_hidden(self.pid))


@lru_cache(maxsize=1)
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Empty if there is no such process. A process that has ended and was not waited for does not count."""
    try:
        # the name of the program, in brackets, may contain spaces and brackets
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _is_hidden(pid: int) -> bool:
    """Whether a process of another user exists: /proc may show only one's own (its mount option hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a lease file. `token` is its number, which only grows: the highest one has the shard."""

    shard_id: str
    token: int
    nonce: str
    """A random text of this holder."""
    process: Process
    role: Literal["building", "promoting"] = "building"
    lease_s: float
    beat: int = 0
    """Grows with every heartbeat."""
    rows_done: int = 0
    rows_total: int = 0
    work_folder: str = ""
    started_at: str = msgspec.field(default_factory=utc_timestamp)
    beat_at: str = msgspec.field(default_factory=utc_timestamp)
    """For people. Whether the holder is alive is decided by `beat`."""

    @property
    def owner(self) -> str:
        return f"process {self.process.pid} on {self.process.host}"

    def encode(self, size: int = 0) -> bytes:
        """At least `size` bytes; spaces at the end keep the size for longer numbers."""
        data = msgspec.json.encode(self)
        return data.ljust(max(size, _RECORD_BYTES, len(data) + 64) - 1) + b"\n"


def lease_name(shard_id: str, token: int) -> str:
    return f"_LEASE.{shard_id}.{token:06d}.json"


def lease_path(folder: Path, shard_id: str, token: int) -> Path:
    return folder / lease_name(shard_id, token)


def lease_files(folder: Path) -> Iterator[tuple[str, int]]:
    """The shard and the token of every lease file in a folder."""
    yield from leases_among(names_in(folder))


def names_in(folder: Path) -> list[str]:
    """The names in a folder of shards; none if there is no such folder yet."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        detail = f"the folder of the shards cannot be read ({error.strerror or error})"
        raise StorageError(path=str(folder), detail=detail) from error


def leases_among(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The shard and the token of every lease file among the names of a folder."""
    for name in names:
        found = _NAME.fullmatch(name)
        if found is not None:
            yield found["shard_id"], int(found["token"])


def read_lease(folder: Path, shard_id: str, token: int) -> LeaseRecord | None:
    """None if the file is gone. A record that cannot be read has no nonce and no process: only time can end it."""
    path = lease_path(folder, shard_id, token)
    record = unreadable_lease(shard_id, token)
    for _ in range(3):  # a reader can meet a heartbeat in the middle
        try:
            record = decoded_lease(path.read_bytes(), shard_id, token)
        except FileNotFoundError:
            return None
        except OSError:
            pass
        if record.nonce:
            break
        time.sleep(0.01)
    return record


def decoded_lease(data: bytes, shard_id: str, token: int) -> LeaseRecord:
    """The record in a lease file. One that names another shard or token was edited, and cannot be believed."""
    try:
        record = msgspec.json.decode(data, type=LeaseRecord)
    except (ValueError, RecursionError):  # also text that is not UTF-8
        return unreadable_lease(shard_id, token)
    if (record.shard_id, record.token) != (shard_id, token):
        return unreadable_lease(shard_id, token)
    return record


def unreadable_lease(shard_id: str, token: int) -> LeaseRecord:
    """What is known of a lease file that cannot be read: it has no nonce, and nobody knows its process."""
    unknown = Process(host="unknown", pid=0, started="", machine="")
    return LeaseRecord(
        shard_id=shard_id, token=token, nonce="", process=unknown, lease_s=_UNREADABLE_LEASE_S
    )


def read_leases(folder: Path) -> dict[str, LeaseRecord]:
    """The record of the highest token of every shard that somebody holds or left."""
    highest: dict[str, int] = {}
    for shard_id, token in lease_files(folder):
        highest[shard_id] = max(token, highest.get(shard_id, 0))
    records = (read_lease(folder, shard_id, token) for shard_id, token in highest.items())
    return {each.shard_id: each for each in records if each is not None}


Mark = tuple[str, int, int]
"""What changes while a holder is alive: nonce, token and beat."""


def mark_of(record: LeaseRecord) -> Mark:
    return record.nonce, record.token, record.beat


class LeaseWatch:
    """Watches leases. A lease is over when its process is gone, or when its beat has not changed for `lease_s`.

    The time is that of this process's own monotonic clock, since this object first saw the beat. A lease that is
    looked at for the first time is therefore never over by time alone. `over` are marks that another watch has seen
    run out.
    """

    def __init__(
        self,
        over: frozenset[Mark] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._over = set(over)
        self._clock = clock
        self._seen: dict[str, tuple[Mark, float]] = {}

    def is_over(self, record: LeaseRecord) -> bool:
        mark = mark_of(record)
        if mark in self._over or record.process.is_gone():
            self._over.add(mark)
            return True
        last, since = self._seen.get(record.shard_id, (None, 0.0))
        if last != mark:
            since = self._clock()
            self._seen[record.shard_id] = (mark, since)
        if self._clock() - since >= record.lease_s:
            self._over.add(mark)
            return True
        return False

    @property
    def over(self) -> frozenset[Mark]:
        return frozenset(self._over)
