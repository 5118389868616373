"""A leash: processes that tests start end with the tests, even when the tests are killed.

One small process watches over each process of pytest. It is told what was started, and when its parent is gone it ends
whatever still runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_WATCH = """
import os, select, shutil, sys

def born(pid):
    # a number may be given to another process later; the moment of its birth cannot
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(") ")[2].split()[19]
    except OSError:
        return None

parent, told, tied = int(sys.argv[1]), b"", []
while os.getppid() == parent:
    if select.select([0], [], [], 0.2)[0]:
        more = os.read(0, 65536)
        if not more:
            break
        *lines, told = (told + more).split(b"\\n")
        for line in lines:
            pid, how, folder = line.decode().split(" ", 2)
            tied.append((int(pid), int(how), folder, born(pid)))
for pid, how, folder, birth in tied:
    if birth is not None and born(pid) == birth:
        os.kill(pid, how)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
"""

_watchers: dict[int, subprocess.Popen[bytes]] = {}


def tie(pid: int, how: signal.Signals = signal.SIGKILL, folder: Path | None = None) -> None:
    """Ends the process by this signal when we are gone, and removes its folder."""
    watcher = _watchers.get(os.getpid())
    if watcher is None:
        watcher = _watchers[os.getpid()] = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _WATCH, str(os.getpid())],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is not for it
        )
    assert watcher.stdin is not None
    watcher.stdin.write(f"{pid} {int(how)} {folder or ''}\n".encode())
    watcher.stdin.flush()


def start_tied(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = subprocess.Popen(command, **options)
    tie(process.pid)
    return process
