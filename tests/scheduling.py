"""How the operating system schedules the process of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

STARTED_AS = os.sched_getscheduler(0)


@contextmanager
def ordinary_scheduling() -> Iterator[None]:
    """Around the use of an AV1 encoder. As root, SVT-AV1 makes its process a real-time one, which takes the cores from
    every other process, and from whatever the process starts later, until it ends."""
    try:
        yield
    finally:
        restore_scheduling()


def restore_scheduling() -> bool:
    """True if something had changed it."""
    if os.sched_getscheduler(0) == STARTED_AS:
        return False
    os.sched_setscheduler(0, STARTED_AS, os.sched_param(0))
    return True
