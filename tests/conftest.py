"""Settings for all tests."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import settings

from tests.engines.ray_cluster import ray_address, ray_cluster
from tests.scheduling import restore_scheduling
from tests.scratch import scratch_root

__all__ = ["ray_address", "ray_cluster"]

# a slow moment of the machine is not a mistake of the code
settings.register_profile("rollbook", deadline=None)
settings.load_profile("rollbook")

# where pytest makes the folders of `tmp_path`, unless --basetemp says otherwise
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(scratch_root()))

# A shell that starts the tests with & has Ctrl-C ignored, also in commands that tests start in order to interrupt them.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

USE_KERNELS = ("test_benchmarks.py", "test_cli_generate.py", "test_cli_source.py")


def _turn(item: pytest.Item) -> int:
    """test_readme.py takes longest, so one worker starts with it. It also compiles most kernels of generation.

    Other tests that use the kernels come last: they load what is compiled, rather than compile it a second time.
    """
    if item.path.name == "test_readme.py":
        return 0
    return 2 if item.path.name in USE_KERNELS or "generate" in item.path.parts else 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


# Thousands of collected tests stay until the end. Looking through them for garbage again and again took a tenth of
# the whole time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores: many tests wait for a server, a lock or a time limit, and then a core is free."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A test that leaves its process a real-time one slows every later test down, and those beside it even more."""
    assert not restore_scheduling(), f"{item.nodeid} changed how its process is scheduled"
