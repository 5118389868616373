"""Engines: many independent tasks, on threads or processes of this machine or on Ray, each result as it comes.

    for done in run_tasks(start, items, parallel="process", workers=8, retries=1, timeout_s=600):
        ...

`start` is called once in every worker and gives the function that the worker calls with each item; what is made there
is the worker's own. An item that fails is tried again or reported, and the others go on. A process that takes too long
is killed; a thread cannot be, so it is left to itself and another takes its place.
"""

from rollbook.engines.running import Engine, Parallel, run_tasks
from rollbook.engines.tasks import Done, Progress, TaskFailure, expect

__all__ = ["Done", "Engine", "Parallel", "Progress", "TaskFailure", "expect", "run_tasks"]
