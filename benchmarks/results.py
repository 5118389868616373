"""Results of benchmarks, one file per benchmark, so that one can be measured again without the others."""

from __future__ import annotations

import io
import os
import platform
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np

from benchmarks.timing import Claim
from rollbook.files import make_folders, write_bytes

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".bench"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    """The first sentence of the benchmark's description."""
    claims: tuple[Claim, ...]
    printed: str
    """Every figure: ours, those of the peers, and the limit."""
    machine: str
    commit: str
    date: str
    took_s: float


class _Tee(io.StringIO):
    """Keeps what is printed, and shows it."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)  # type: ignore[union-attr]  # a program has one
        return super().write(text)


def measure(benchmark: ModuleType) -> Result:
    began = time.monotonic()
    with redirect_stdout(_Tee()) as printed:
        claims = tuple(benchmark.main())
    return Result(
        name=name_of(benchmark),
        title=" ".join((benchmark.__doc__ or "").split("\n\n")[0].split()),
        claims=claims,
        printed=printed.getvalue(),
        machine=machine(),
        commit=_commit(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        took_s=round(time.monotonic() - began, 1),
    )


def keep(result: Result, folder: Path = RESULTS) -> None:
    make_folders(folder)
    figures = msgspec.json.encode(result, enc_hook=float)  # some are numbers of NumPy
    write_bytes(folder / f"{result.name}.json", figures)


def kept(name: str, folder: Path = RESULTS) -> Result | None:
    try:
        return msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=Result)
    except (OSError, msgspec.MsgspecError):
        return None


def name_of(benchmark: ModuleType) -> str:
    return benchmark.__name__.rpartition(".")[2]


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{_processor()}, {cores} cores, {memory:.0f} GiB of memory, {platform.system()} "
        f"{platform.release().partition('-')[0]}, Python {platform.python_version()}, numpy {np.__version__}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
        return done.stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{changed}"
