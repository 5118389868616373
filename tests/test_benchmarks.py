"""Benchmarks run, small, so that they cannot rot. Whether a bar is met is for `make bench` to say."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import (
    artifacts,
    campaign_run,
    campaign_scale,
    campaign_slopes,
    compare,
    digests,
    engines,
    environment,
    generation,
    learning,
    oracle,
    pipeline,
    portal_lists,
    portal_tracks,
    portal_view3d,
    raycast,
    recorder,
    recordings,
    replay_metrics,
    replay_run,
    rollup,
    rounds,
    server_episodes,
    server_search,
    server_start,
    store_audit,
    store_read,
    store_write,
    table_file,
    tensors,
)
from benchmarks.page import page
from benchmarks.results import Result, keep, kept
from benchmarks.timing import Claim

ALL = (
    *(digests, pipeline, tensors, table_file, store_write, store_read, store_audit),
    *(raycast, oracle, generation, environment, learning, rounds),
    *(campaign_slopes, campaign_scale),
    *(recordings, recorder),
    *(replay_metrics, rollup, compare, portal_tracks, portal_view3d),
)
SERVERS = (
    server_start,
    server_search,
    portal_lists,
    artifacts,
    server_episodes,
    replay_run,
    engines,
    campaign_run,
)
"""Each starts real servers or a Ray cluster, which takes longer than what it measures."""


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", [*ALL, *SERVERS], ids=lambda module: module.__name__)
def test_a_benchmark_runs_small_and_its_claims_can_be_kept(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    claims = benchmark.main(scale=0.01)
    keep(_result("some", *claims), tmp_path)
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


def _result(name: str, *claims: Claim, machine: str = "a machine") -> Result:
    return Result(
        name=name,
        title=f"What {name} is.",
        claims=claims,
        printed="  ours 1 ms\n",
        machine=machine,
        commit="abc1234",
        date="2026-01-02",
        took_s=1.5,
    )


def test_the_page_has_every_claim_with_its_bar_and_verdict() -> None:
    met, missed = Claim("reads vs a|b", 2.5, 2, "x"), Claim("memory", 300, 250, "MB", at_most=True)
    text = page(
        [_result("reading", met, missed), _result("writing", Claim("rows", None, 1, "x"))], []
    )
    assert "1 claims met, 1 missed, 1 not measured." in text
    assert "| [reading](#reading) | reads vs a\\|b | 2.50 x | at least 2 x | met |" in text
    assert "| [reading](#reading) | memory | 300.00 MB | at most 250 MB | MISSED |" in text
    assert "| [writing](#writing) | rows |  | at least 1 x | not measured |" in text
    assert "## reading\n\nWhat reading is.\n\n```text\n  ours 1 ms\n```" in text
    assert text.count("a machine; 2026-01-02, commit abc1234") == 1


def test_the_page_says_what_was_not_run_and_what_was_run_elsewhere() -> None:
    here, there = _result("reading"), _result("writing", machine="another machine")
    text = page([here, there], ["rollup"])
    assert "Not run: `rollup`." in text
    assert "- another machine; 2026-01-02, commit abc1234: `writing`" in text


def test_results_are_kept_for_the_next_page(tmp_path: Path) -> None:
    result = _result("reading", Claim("reads", 2.5, 2, "x"))
    keep(result, tmp_path / "new")
    assert kept("reading", tmp_path / "new") == result
    assert kept("writing", tmp_path / "new") is None
    (tmp_path / "new" / "reading.json").write_text("{")
    assert kept("reading", tmp_path / "new") is None
