"""Benchmarks run, small, so that they cannot rot. Whether a bar is met is for `make bench` to say."""

from __future__ import annotations

from types import ModuleType

import pytest

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

ALL = (
    *(digests, pipeline, table_file, store_write, store_read, store_audit),
    *(raycast, oracle, generation),
    *(replay_metrics, rollup),
)
SERVERS = (server_start, server_search, artifacts, server_episodes, replay_run)
"""Each starts real servers, which takes longer than what it measures."""


@pytest.mark.parametrize(
    "benchmark",
    [*ALL, *(pytest.param(each, marks=pytest.mark.slow) for each in SERVERS)],
    ids=lambda module: module.__name__,
)
def test_a_benchmark_runs_small(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    claims = benchmark.main(scale=0.01)
    assert claims
    assert all(claim.value > 0 and claim.name in str(claim) for claim in claims)
    assert capsys.readouterr().out
