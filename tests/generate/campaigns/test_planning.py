"""From a config to a plan, and from one planned shard to a store of exactly its rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollbook.errors import ConfigurationError, ShardDrift
from rollbook.generate.campaigns.planning import (
    plan_rollout_shards,
    write_rollout_shard_manifest_from_config,
)
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store
from rollbook.generate.sources.reader import SourceStore
from rollbook.generate.sources.splits import SplitConfig
from rollbook.store.manifest import read_manifest
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.shards.entry import RolloutShardEntry, split_hash
from rollbook.store.shards.shard_manifest import read_rollout_shard_manifest
from tests.generate.tiny_source import tiny_config


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four scenes of two rows. The splits take turns: train, val, train, val."""
    path = tmp_path_factory.mktemp("planning") / "source"
    halves = SplitConfig(train=0.5, val=0.5, test=0.0)
    scene = SceneConfig.of_difficulty("easy", max_edge_m=1.0)
    make_source_store(
        path, MakeSourcesConfig(scenes=4, rows_per_scene=2, seed=3, scene=scene, splits=halves)
    )
    return path


def config_of(source: Path, out: Path = Path("/never-written"), **changes: Any) -> Any:
    place = {"store_dir": str(source), "split": changes.pop("split", "all")}
    recipes = [{"name": "greedy", "selection_policy": "oracle_greedy", "horizon": 1}]
    return tiny_config(out, **{"source": place, "recipes": recipes} | changes)


def indices(entry: RolloutShardEntry) -> list[int]:
    return [row.sample_index for row in entry.rows]


# --------------------------------------------------------------------------------------- planning


def test_shards_hold_one_split_each_in_the_order_of_the_source(source: Path) -> None:
    plan = plan_rollout_shards(config_of(source), rows_per_shard=3)
    assert [(each.shard_id, each.split, indices(each)) for each in plan] == [
        ("shard-000000", "train", [0, 1, 4]),
        ("shard-000001", "train", [5]),
        ("shard-000002", "val", [2, 3, 6]),
        ("shard-000003", "val", [7]),
    ]
    store = SourceStore.open(source)
    for entry in plan:
        entry.validate()
        assert entry.writer_config_hash == config_of(source).config_hash
        assert entry.source_manifest_hash == store.manifest_digest
        assert entry.source_cache_version == store.version
        assert entry.source_store_dir == str(source)
        assert all(row.matches_record(store.index[row.sample_index]) for row in entry.rows)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["all", "train", "val"]))
def test_every_chosen_row_is_in_one_shard_and_a_plan_depends_on_nothing_else(
    source: Path, rows_per_shard: int, max_samples: int, split: str
) -> None:
    config = config_of(source, max_samples=max_samples, split=split)
    plan = plan_rollout_shards(config, rows_per_shard=rows_per_shard)
    _, chosen = config.setup_target().rows(one_split=False)
    assert sorted(index for each in plan for index in indices(each)) == sorted(chosen)
    assert all(len(each.rows) <= rows_per_shard for each in plan)
    elsewhere = dataclasses.replace(config, threads=2, workers=3)
    assert plan_rollout_shards(elsewhere, rows_per_shard=rows_per_shard) == plan


def test_another_seed_is_another_config_for_the_same_rows(source: Path) -> None:
    one, other = (
        plan_rollout_shards(config_of(source, seed=seed), rows_per_shard=8)[0] for seed in (0, 1)
    )
    assert one.split_manifest_hash == other.split_manifest_hash
    assert one.writer_config_hash != other.writer_config_hash


def test_the_written_plan_is_the_plan(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "shards.jsonl"
    plan = write_rollout_shard_manifest_from_config(
        config_of(source), manifest_path=file, rows_per_shard=2
    )
    assert list(read_rollout_shard_manifest(file)) == plan
    assert plan == plan_rollout_shards(config_of(source), rows_per_shard=2)


def test_a_shard_of_no_rows_cannot_be_planned(source: Path) -> None:
    with pytest.raises(ConfigurationError, match="rows_per_shard is 0, expected at least 1"):
        plan_rollout_shards(config_of(source), rows_per_shard=0)


# ------------------------------------------------------------------------------------ one shard


def test_a_shard_becomes_a_store_of_exactly_its_rows(source: Path, tmp_path: Path) -> None:
    """Whatever split and number of rows the config says. The rollouts are those of a run over the same rows."""
    config = config_of(source, tmp_path / "shard", max_samples=4)
    entry = plan_rollout_shards(config, rows_per_shard=4)[1]
    backwards = tuple(
        msgspec.structs.replace(row, order=order) for order, row in enumerate(entry.rows[::-1])
    )
    entry = msgspec.structs.replace(
        entry,
        rows=backwards,
        split_manifest_hash=split_hash(entry.source_manifest_hash, "val", backwards),
    )
    writer = dataclasses.replace(config, max_samples=1).setup_target()
    assert writer.run(shard_entry=entry).num_rollouts == 2
    reader = RolloutZarrStoreReader(tmp_path / "shard")
    assert [int(each) for each in reader.array("rollouts/source_row_id")] == [3, 2]
    generation = read_manifest(tmp_path / "shard").payload["generation"]
    assert RolloutShardEntry.from_jsonable(generation["shard"]) == entry


def test_a_shard_of_all_rows_has_the_bytes_of_a_run_without_shards(tmp_path: Path) -> None:
    (entry,) = plan_rollout_shards(tiny_config(tmp_path), rows_per_shard=2)
    shard = tiny_config(tmp_path / "shard").setup_target().run(shard_entry=entry)
    assert shard.content_sha256 == tiny_config(tmp_path / "run").setup_target().run().content_sha256


def drifted(entry: RolloutShardEntry, field: str) -> RolloutShardEntry:
    """The entry with another value, and a split hash that belongs to it."""
    if field in entry.__struct_fields__:
        changed = msgspec.structs.replace(entry, **{field: "0" * 64})
    else:
        other: Any = 99 if field in ("sample_index", "source_shard_row") else "other"
        second = msgspec.structs.replace(entry.rows[1], **{field: other})
        changed = msgspec.structs.replace(entry, rows=(entry.rows[0], second))
    digest = split_hash(changed.source_manifest_hash, changed.split, changed.rows)
    return msgspec.structs.replace(changed, split_manifest_hash=digest)


@pytest.mark.parametrize(
    "field",
    [
        *("writer_config_hash", "source_manifest_hash", "source_cache_version"),
        *("sample_index", "sample_key", "scene_id", "snippet_id"),
        *("source_shard_id", "source_shard_row"),
    ],
)
def test_a_shard_that_was_planned_with_something_else_is_refused(
    source: Path, tmp_path: Path, field: str
) -> None:
    config: RolloutDatasetWriterConfig = config_of(source, tmp_path / "shard")
    entry = drifted(plan_rollout_shards(config, rows_per_shard=2)[0], field)
    named = "no row 99" if field == "sample_index" else field
    with pytest.raises(ShardDrift, match=f"shard-000000: .*{named}.*plan again"):
        config.setup_target().run(shard_entry=entry)
    assert not list(tmp_path.iterdir())
