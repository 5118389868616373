"""A program that records with several threads until it is killed, and says on its output what was acknowledged.

python -m tests.contracts.rl.killed_recorder FILE THREADS SYNC
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import numpy as np

from rollbook.contracts import Recorder
from tests.contracts.rl.agent_responses import begin

_printing = threading.Lock()


def tokens(name: str, turn: int) -> Sequence[int]:
    """The tokens of a turn of a rollout: known, and of many different lengths."""
    thread, number = map(int, name.split(".")[1:])
    return np.random.default_rng([thread, number, turn]).integers(
        0, 2**32, 1 + (7 * turn + 997 * number) % 3_000, dtype=np.uint32
    )  # type: ignore[return-value]


def _say(line: str) -> None:
    with _printing:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _work(book: Recorder, life: int, thread: int) -> None:
    for number in range(10**6):
        name = f"{life}.{thread}.{number}"
        rollout = begin(book, artifact_id=name, prompt=tokens(name, 99))
        for turn in range(4):
            ids = tokens(name, turn)
            rollout.add_tokens(ids, np.full(len(ids), -0.5, np.float32), finish_reason="stop")
            _say(f"turn {name} {turn}")
        rollout.close(reward=float(thread))
        _say(f"closed {name} 0")


def run(path: str, threads: int, sync: bool) -> None:
    with Recorder(path, name="run", sync=sync) as book:
        for name in book.unfinished:
            book.resume(name).discard("its process was killed")
        life = book._journal.begun
        _say("started - 0")
        workers = [threading.Thread(target=_work, args=(book, life, n)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "sync")
