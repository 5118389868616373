"""Benchmarks run, small, so that they cannot rot. Whether a bar is met is for `make bench` to say."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

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
from benchmarks.timing import Claim

ALL = (
    *(digests, pipeline, tensors, table_file, store_write, store_read, store_audit),
    *(raycast, oracle, generation, environment),
    *(replay_metrics, rollup),
)
SERVERS = (server_start, server_search, artifacts, server_episodes, replay_run)
"""Each starts real servers, which takes longer than what it measures."""


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", [*ALL, *SERVERS], ids=lambda module: module.__name__)
def test_a_benchmark_runs_small(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    claims = benchmark.main(scale=0.01)
    assert claims
    assert all(claim.name in str(claim) for claim in claims)
    assert all(claim.value is None or claim.value > 0 for claim in claims)
    assert capsys.readouterr().out


def test_a_claim_without_its_peer_is_not_measured_and_never_met() -> None:
    for at_most in (False, True):
        claim = Claim("ours vs a peer", None, 0, "x", at_most=at_most)
        assert not claim.met
        assert str(claim).strip().startswith("not measured")


def test_an_absent_peer_leaves_its_claim_unmeasured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("zarr", "h5py", "torchrl.data"):
        monkeypatch.setitem(sys.modules, name, None)
    claims = {claim.name: claim for claim in store_read.main(scale=0.01)}
    for name in ("zarr-python, raw chunks", "h5py, flat", "TorchRL LazyMemmapStorage"):
        assert claims[f"reader.batches vs {name}"].value is None
    assert "not installed, not measured" in capsys.readouterr().out
