"""The whole loop twice, from flats to a decision: with one seed and one time, every digest is the same."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.command import rollbook

FLATS = """
scenes = 10
seed = 3
splits = { train = 0.7, val = 0.0, test = 0.3 }
scene = { max_edge_m = 1.0 }
walk = { frames = 8 }
sensing = { points_per_frame = 80 }
"""
ROLLOUTS = """
max_targets_per_sample = 2
target_source = "actor_visible_selector"
source = { store_dir = "sources" }
store = { store_dir = "not-written.zarr" }
target_scorer = { render_size_px = 24, scene_samples = 200, target_samples = 200 }
selected_depth = { enabled = false }

[[recipes]]
name = "random_valid"
selection_policy = "random_valid"
horizon = 2

[[recipes]]
name = "oracle_greedy"
selection_policy = "oracle_greedy"
horizon = 2
"""


def told(*words: str) -> dict[str, Any]:
    """What a command prints for scripts."""
    done = rollbook(*words, "--json")
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def the_loop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every digest and every number that the loop leaves, by name."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "flats.toml").write_text(FLATS)
    (folder / "rollouts.toml").write_text(ROLLOUTS)
    of_sources = told("source", "make", "sources", "--config", "flats.toml", "--difficulty", "easy")
    found: dict[str, Any] = {"sources": of_sources["manifest_digest"]}
    for split, store in (("train", "train.zarr"), ("test", "held-out.zarr")):
        campaign = f"campaign-{split}"
        chosen = ("--config", "rollouts.toml", "--split", split, "--rows-per-shard", "3")
        told("campaign", "plan", *chosen, "--out", campaign)
        told("campaign", "run", campaign, "--workers", "2")
        merged = told("campaign", "merge", campaign, "--compact", store)
        found[f"collection {split}"] = merged["collection_sha256"]
        found[store] = [merged["compact"][f"{each}_sha256"] for each in ("content", "manifest")]
        assert told("store", "validate", "--deep", store)["ok"]
    told("store", "to-artifacts", "train.zarr", "--out", "rollouts.table")
    told("train", "run", "--store", "train.zarr", "--out", "run", "--iterations", "20")
    against = ("--store", "held-out.zarr", "--store-policy", "random_valid", "--policy", "run")
    for name, more in (
        ("counterfactual", ()),
        ("closed loop", ("--closed-loop", "--source", "sources")),
    ):
        report = told("replay", "run", *against, *more)
        assert report["summary"]["reward_mean"]["n_pairs"] >= 3
        found[name] = report["summary"]
    walked = told("lineage", "show", "run", "--in", ".")
    assert walked["state"] == "verified"
    files = [Path("rollouts.table"), *(each for each in Path("run").rglob("*") if each.is_file())]
    return found | {str(each): sha256(each.read_bytes()).hexdigest() for each in files}


@pytest.mark.slow
def test_the_whole_loop_twice_has_equal_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1760000000")
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    loop = tmp_path / "loop"
    first = the_loop(loop, monkeypatch)
    loop.rename(tmp_path / "first")
    second = the_loop(loop, monkeypatch)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    made = " ".join(first)
    for each in ("run/run.json", "run/revision.json", "run/checkpoint/head-01.txt", "run/batches/"):
        assert each in made
