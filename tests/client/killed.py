"""SDK work in processes that are killed in the middle of it.

This file is run as a program: it imports the SDK once and forks for every piece of work, so that a death costs
milliseconds. A piece of work may be told to die (SIGKILL, by its own hand) at its n-th step on the file system.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.leash import tie

_STEPS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "socket.connect")
_DONE = 0
_FAILED = 3


@dataclass(frozen=True)
class Ended:
    killed: bool
    steps: int
    """Taken, when it was not killed."""


class Mortals:
    """The parent's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        tie(self._process.pid)
        self.pid = 0
        """Of the work under way."""

    def run(self, work: str, *, die_at: int | None = None, **options: Any) -> Ended:
        self.begin(work, die_at=die_at, **options)
        return self.end()

    def begin(self, work: str, *, die_at: int | None = None, **options: Any) -> None:
        assert self._process.stdin is not None
        line = json.dumps({"work": work, "die_at": die_at, **options})
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        self.pid = self._read()["pid"]
        tie(self.pid)

    def end(self) -> Ended:
        ended = self._read()
        assert ended["status"] in (_DONE, -signal.SIGKILL), "the work failed; see standard error"
        return Ended(ended["status"] != _DONE, ended["steps"])

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def __enter__(self) -> Mortals:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


# ------------------------------------------------------------------------------------ the program


class _Steps:
    """Of the main thread: how often others renew a lease depends on the time of day."""

    def __init__(self, die_at: int | None) -> None:
        self._die_at = die_at
        self.taken = 0

    def __call__(self, event: str, arguments: Any) -> None:
        if event not in _STEPS or threading.current_thread() is not threading.main_thread():
            return
        self.taken += 1
        if self.taken == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def _work(asked: dict[str, Any], write_end: int) -> None:
    from rollbook.client import Client, Retries, Spool

    steps = _Steps(asked["die_at"])
    sys.addaudithook(steps)
    client = Client(
        api_key=asked["api_key"],
        base_url=asked["base_url"],
        spool=Spool(asked["spool"], lease_s=0.2),
        retries=Retries(attempts=1),
        multipart_above=asked.get("multipart_above", 1 << 30),
    )
    if asked["work"] == "log":
        client.log_episode(
            name="offline", sensors=asked["sensors"], actions={"a": [1, 2]}, t_ns=[0, 1]
        )
    elif asked["work"] == "steps":
        with client.start_episode(name="steps", artifacts=["sensors", "actions"]) as episode:
            for row in range(5):
                episode.step(obs=row, action=[row, 1], reward=1.0)
    else:
        report = client.deliver(for_any_server=True)
        assert not report.waiting, report
        assert not report.refused, report
    os.write(write_end, str(steps.taken).encode())


def _fork(asked: dict[str, Any]) -> None:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        status = _FAILED
        try:
            _work(asked, write_end)
            status = _DONE
        finally:
            sys.stderr.flush()
            if status == _FAILED:
                sys.excepthook(*sys.exc_info())
            os._exit(status)
    os.close(write_end)
    _say(pid=pid)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    steps = os.read(read_end, 100) or b"0"
    os.close(read_end)
    _say(status=status, steps=int(steps))


def _say(**facts: int) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    import anyio.to_thread  # noqa: F401 - so that no fork has to import anything

    import rollbook.client  # noqa: F401

    for line in sys.stdin:
        _fork(json.loads(line))
