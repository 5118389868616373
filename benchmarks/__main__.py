"""`make bench`: every performance claim, measured now, beside its peer and its limit."""

from __future__ import annotations

import platform

import numpy as np

from benchmarks import (
    digests,
    generation,
    oracle,
    pipeline,
    raycast,
    store_audit,
    store_read,
    store_write,
    table_file,
)

_ALL = (
    *(digests, pipeline, table_file, store_write, store_read, store_audit),
    *(raycast, oracle, generation),
)


def main() -> None:
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}\n")
    claims = []
    for benchmark in _ALL:
        claims += benchmark.main()
        print()
    print("claims:")
    for claim in claims:
        print(claim)


main()
