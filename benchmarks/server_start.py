"""`rollbook serve`, from the command to the first answer: on an empty folder, where database, organisation and key are
made on the way, and again on the same folder."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

from benchmarks.servers import Server, rollbook_server
from benchmarks.stores import scratch
from benchmarks.timing import Claim

_STARTS = 5


def main(scale: float = 1.0) -> list[Claim]:
    """The median by the clock on the wall, which counts what others do as well; what it takes of a CPU beside it."""
    first: list[tuple[float, float, float]] = []
    again: list[tuple[float, float, float]] = []
    for _ in range(_STARTS if scale > 0.1 else 1):
        with scratch() as folder:
            for seen in (first, again):
                with rollbook_server(Path(folder)) as server:
                    seen.append(_spent(server))
    print(f"rollbook serve until it answers, load average {os.getloadavg()[0]:.1f}")
    for name, seen in (("first start", first), ("again", again)):
        wall, cpu, memory = (statistics.median(each) for each in zip(*seen, strict=True))
        print(f"  {name:12} {wall:5.2f} s  ({cpu:.2f} s of CPU)  {memory:4.0f} MB")
    wall, cpu, _ = (statistics.median(each) for each in zip(*first, strict=True))
    return [
        Claim("first start until it answers", wall, 2.0, "s", at_most=True),
        Claim("first start, CPU", cpu, 2.0, "s", at_most=True),
        Claim("memory of a fresh server", max(each[2] for each in first), 150, "MB", at_most=True),
    ]


def _spent(server: Server) -> tuple[float, float, float]:
    return server.started_s, server.cpu_s, server.memory_mb
