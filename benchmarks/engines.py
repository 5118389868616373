"""What an engine adds to one item, with a task that does nothing, beside the start of a process on this machine.

Workers are warm: each has done one item before. A campaign pays the figures once per shard.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.timing import Claim
from rollbook.engines import run_tasks
from rollbook.errors import ConfigurationError

_WORKERS = 2
_ITEMS = 1000


def nothing() -> Callable[[int], int]:
    return _same


def _same(item: int) -> int:
    return item


def _run(items: int, engine: str) -> tuple[float, float]:
    """Seconds until every worker has done an item, and seconds per item from then on."""
    began = time.perf_counter()
    results = run_tasks(nothing, range(_WORKERS + items), workers=_WORKERS, engine=engine)
    for _ in range(_WORKERS):
        next(results)
    warm = time.perf_counter()
    last = warm
    for done in results:
        assert done.failure is None
        last = time.perf_counter()
    return warm - began, (last - warm) / items


def _python_start() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import rollbook.engines"], check=True)
    return time.perf_counter() - began


def main(scale: float = 1.0) -> list[Claim]:
    items = max(10, int(_ITEMS * scale))
    process = min(_python_start() for _ in range(5))
    print(f"{items} items that do nothing, {_WORKERS} workers")
    print(f"  {'a Python process that imports the engines':42} {process * 1e3:8.1f} ms")
    per_item_ms: dict[str, float | None] = {"local": None, "ray": None}
    for name in per_item_ms:
        try:
            first, each = _run(items, engine=name)
        except ConfigurationError as error:
            print(f"  {name}: not measured: {error}")
            continue
        per_item_ms[name] = each * 1e3
        print(f"  {name + ': until every worker has done an item':42} {first * 1e3:8.1f} ms")
        print(f"  {name + ': every further item':42} {each * 1e3:8.2f} ms")
    return [
        Claim(f"engine {name}, overhead per item", per_item_ms[name], bar, "ms", at_most=True)
        for name, bar in (("local", 50), ("ray", 150))
    ]
