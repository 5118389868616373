"""Saving and opening a table against the disk: the same number of bytes written, synced and read back cold."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks.rollouts import many_lengths, random_table
from benchmarks.timing import Claim, best
from rollbook.contracts import open_table, save_table


def _forget(path: Path) -> None:
    """Asks the system to drop the file from its cache, so that reading it means the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> None:
    buffer = bytearray(8 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def main(scale: float = 1.0) -> list[Claim]:
    table = random_table(many_lengths(max(2, int(19_300 * scale))))
    with tempfile.TemporaryDirectory(dir=os.environ.get("ROLLBOOK_BENCH_DIR")) as folder:
        ours, plain = Path(folder) / "ours.table", Path(folder) / "plain"
        save_table(table, ours)
        data = ours.read_bytes()
        _write(plain, data)

        def save() -> None:
            ours.unlink()
            save_table(table, ours)
            _forget(ours)

        def write() -> None:
            plain.unlink()
            _write(plain, data)
            _forget(plain)

        seconds = best(
            {
                "save": save,
                "disk, write and sync": write,
                "open, all bytes verified, cold": lambda: open_table(ours, verify="bytes"),
                "disk, read cold": lambda: _read(plain),
                "open, lazily": lambda: open_table(ours),
                "open and read one rollout": lambda: open_table(ours)[7].columns,
            },
            repeats=7,
            clock=time.perf_counter,
        )
    print(f"table file: {table.sample_count} samples, {len(data) / 1e6:.1f} MB")
    for name, spent in seconds.items():
        print(f"  {name:32} {spent * 1e3:9.2f} ms  {len(data) / spent / 1e9:8.2f} GB/s")
    disk = seconds["disk, write and sync"] + seconds["disk, read cold"]
    mine = seconds["save"] + seconds["open, all bytes verified, cold"]
    return [
        Claim("save and verified re-open vs the disk itself", disk / mine * 100, 50, "%"),
        Claim("open 1e7 samples", seconds["open, lazily"] * 1e3, 10, "ms", at_most=True),
    ]
