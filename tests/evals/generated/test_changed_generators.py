"""A candidate is compared only in the generator that made the chains: whatever differs is named, and the run holds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rollbook.contracts.candidate_keys import HISTORY_KEY
from rollbook.contracts.evals import INFRASTRUCTURE, EvalResult
from rollbook.errors import ConfigurationError
from rollbook.evals import StoreBaselines, replay_store, rollup_store
from rollbook.generate.actor.features import FEATURES
from rollbook.generate.row_rollouts import RowRoller
from rollbook.store.config import RolloutZarrStoreConfig
from rollbook.store.manifest import (
    RolloutStoreInvocation,
    RolloutStoreManifestContext,
    collect_runtime_provenance,
)
from rollbook.store.writer import RolloutStoreWriter
from tests.evals.generated.generated_stores import (
    RECIPES,
    SOURCE,
    Observation,
    Widest,
    generated_store,
)
from tests.generate.tiny_source import tiny_config
from tests.learned.small_runs import small_run


def closed_loop(
    chains: StoreBaselines, policy: Any = Widest, source: Path | None = None
) -> list[EvalResult]:
    return replay_store(chains, policy, source=source or SOURCE(), isolation="thread")


def store_that_states_another_config(path: Path, **stated: Any) -> StoreBaselines:
    """The chains of the tiny config, with a manifest that says that another config made them."""
    made = tiny_config(path, recipes=RECIPES, max_samples=1)
    source, rows = made.setup_target().rows()
    said = tiny_config(path, **{"recipes": RECIPES} | stated).to_jsonable()
    context = RolloutStoreManifestContext(
        writer_config=said | {"actor_feature_names": list(FEATURES)},
        invocation=RolloutStoreInvocation.programmatic(),
        runtime=collect_runtime_provenance(),
        shard=None,
    )
    config = RolloutZarrStoreConfig(
        store_dir=path,
        source_offline_store_version=source.version,
        split_manifest_hash=source.split_manifest_hash,
        target_protocol_version=made.target_protocol,
        selected_depth_width_px=32,
        selected_depth_height_px=24,
        selected_depth_renderer="embree",
    )
    with RolloutStoreWriter(config, manifest_context=context) as store:
        for row in rows:
            for record in RowRoller(made, source).roll_out(row).records:
                store.append(record)
        store.finish()
    return StoreBaselines(path)


CHANGED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "the same config": ({}, []),
    "other samples on the surface": (
        {"target_scorer": {"render_size_px": 40, "target_samples": 400, "seed": 1}},
        ["config", "rewards"],
    ),
    "other candidates": ({"seed": 9}, ["config", "observations"]),
    "another renderer": ({"renderer": "bvh"}, ["config", "renderer"]),
    "no such recipe": (
        {"recipes": [{"name": "other", "selection_policy": "random_valid"}]},
        ["config"],
    ),
    "no such target": ({"target_selector": {"min_confidence": 1.0}}, ["config", "target"]),
}


LONG = ("the same config", "another renderer", "no such recipe")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] if case in LONG else []) for case in CHANGED],
)
def test_what_differs_is_named_and_holds(case: str, tmp_path: Path) -> None:
    stated, words = CHANGED[case]
    chains = store_that_states_another_config(tmp_path / "s.zarr", **stated)
    results = closed_loop(chains)
    for result in results:
        assert result.status == "complete"
        assert result.metrics["repro"]["verified"] is not bool(words)
        assert set(words) <= set(result.metrics["repro"]["env_changed"])
        assert bool(result.metrics["repro"]["env_changed"]) is bool(words)
    reasons = rollup_store(chains, results).decision.reasons
    assert {f"env_changed:{word}" for word in words} <= set(reasons)
    assert bool(words) is any(each.startswith("env_changed") for each in reasons)
    assert "nondeterministic_baseline" not in reasons


def test_where_there_is_no_root_any_more_nothing_is_measured(tmp_path: Path) -> None:
    stated, _ = CHANGED["no such target"]
    result = closed_loop(store_that_states_another_config(tmp_path / "s.zarr", **stated))[0]
    assert result.metrics["reward_total_candidate"] is None
    assert result.metrics["evidence"]["reward_total"] == "not_measured"
    assert result.metrics["reward_total_baseline"] is not None


def test_a_damaged_source_is_no_fault_of_the_candidate(tmp_path: Path) -> None:
    copy = tmp_path / "source"
    shutil.copytree(SOURCE(), copy)
    for file in (each for each in copy.rglob("oracle/**/*") if each.is_file()):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.chmod(0o644)
        file.write_bytes(data)
    for result in closed_loop(StoreBaselines(generated_store()), source=copy):
        assert result.status == "failed"
        assert str(result.error).startswith(INFRASTRUCTURE)
        assert "cannot be rolled out from" in str(result.error)


def test_a_source_with_another_manifest_is_refused_at_once(tmp_path: Path) -> None:
    copy = tmp_path / "source"
    shutil.copytree(SOURCE(), copy)
    manifest = copy / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_bytes(manifest.read_bytes()[:-20])
    with pytest.raises(ConfigurationError, match="the source cannot be rolled out from"):
        closed_loop(StoreBaselines(generated_store()), source=copy)


def test_the_policy_that_made_the_chains_need_not_be_there_any_more(tmp_path: Path) -> None:
    names = ("obb_area_frac", "target_unknown_per_ray", "remaining")
    folder = small_run(tmp_path / "run", names)
    learned = {"name": "own", "selection_policy": "oracle_greedy", "scorer": str(folder)}
    config = tiny_config(tmp_path / "s.zarr", recipes=[learned], max_samples=1)
    config.setup_target().run()
    chains = StoreBaselines(tmp_path / "s.zarr")
    shutil.rmtree(folder)
    assert closed_loop(chains)[0].metrics["repro"]["env_changed"] == []


def test_chains_of_one_step_have_no_history(tmp_path: Path) -> None:
    recipe = {"name": "one", "selection_policy": "random_valid", "horizon": 1}
    tiny_config(tmp_path / "s.zarr", recipes=[recipe], max_samples=1).setup_target().run()
    seen: list[Observation] = []

    class Watches(Widest):
        def act_batch(self, observations: Observation) -> Observation:
            seen.append(observations)
            return super().act_batch(observations)

    result = closed_loop(StoreBaselines(tmp_path / "s.zarr"), Watches)[0]
    assert result.metrics["repro"]["verified"] is True
    assert HISTORY_KEY not in seen[0]
    closed, recorded = result.metrics["reward_total_candidate"], result.metrics["counterfactual"]
    assert closed == recorded["chosen_total"], "in one step there is nothing to live with"
