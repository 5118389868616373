"""Benchmarks run, small, so that they cannot rot. Whether a bar is met is for `make bench` to say."""

from __future__ import annotations

from types import ModuleType

import pytest

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

ALL = (
    *(digests, pipeline, table_file, store_write, store_read, store_audit),
    *(raycast, oracle, generation),
)


@pytest.mark.parametrize(
    "benchmark",
    ALL,
    ids=lambda module: module.__name__,
)
def test_a_benchmark_runs_small(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    claims = benchmark.main(scale=0.01)
    assert claims
    assert all(claim.value > 0 and claim.name in str(claim) for claim in claims)
    assert capsys.readouterr().out
