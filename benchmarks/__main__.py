"""`make bench`: every performance claim, measured now, beside its peer and its limit."""

from __future__ import annotations

import platform
import sys

import numpy as np

from benchmarks import (
    artifacts,
    digests,
    environment,
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
    tensors,
)

_ALL = (
    *(digests, pipeline, tensors, table_file, store_write, store_read, store_audit),
    *(raycast, oracle, generation, environment),
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
    unmeasured = sum(claim.value is None for claim in claims)
    met = sum(claim.met for claim in claims)
    print(f"{met} met, {len(claims) - met - unmeasured} missed, {unmeasured} not measured")
    sys.exit(met < len(claims))


main()
