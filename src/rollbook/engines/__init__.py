"""Engines run many independent tasks on threads or processes of this machine, or on Ray. Nobody else starts workers.

    for done in run_tasks(start, items, parallel="process", workers=8, retries=1, timeout_s=600):
        ...

`start` is called once in every worker. It returns the function that this worker calls with each item. An item that
fails is retried or reported; the other items go on. A process that takes too long is killed. A thread cannot be killed,
so it is abandoned and another thread takes its place. The parent alone handles Ctrl-C, and workers end with their
parent. With `stop` a run ends early and loses nothing that it has begun. This room imports nothing but
`rollbook.errors`.
"""

from rollbook.engines.cluster import Cluster
from rollbook.engines.running import Engine, Parallel, check_engine, run_in_order, run_tasks
from rollbook.engines.tasks import LATER, Done, Progress, TaskFailure, expect

__all__ = [
    "LATER",
    "Cluster",
    "Done",
    "Engine",
    "Parallel",
    "Progress",
    "TaskFailure",
    "check_engine",
    "expect",
    "run_in_order",
    "run_tasks",
]
