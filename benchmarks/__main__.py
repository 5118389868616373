"""`make bench`: every performance claim, measured now, beside its peer and its limit."""

from __future__ import annotations

import platform

import numpy as np

from benchmarks import (
    artifacts,
    digests,
    generation,
    oracle,
    pipeline,
    raycast,
    replay_metrics,
    replay_run,
    rollup,
    server_episodes,
    server_search,
    server_start,
    store_audit,
    store_read,
    store_write,
    table_file,
)

_ALL = (
    *(digests, pipeline, table_file, store_write, store_read, store_audit),
    *(raycast, oracle, generation),
    *(server_start, server_search, artifacts, server_episodes),
    *(replay_metrics, replay_run, rollup),
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
