"""One shard of a real plan: generated, promoted, skipped, resumed, and refused when config or source changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollbook.errors import ConfigurationError, GenerationFailed, ShardDrift
from rollbook.generate.campaigns.planning import plan_rollout_shards
from rollbook.generate.campaigns.run_shard import run_rollout_shard
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.row_rollouts import RowRoller
from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.manifest import read_manifest
from rollbook.store.shards.build_shard import RolloutShardRunResult
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.sidecars import failures_of, read_failure, read_finished
from tests.generate.tiny_source import tiny_config


def small(**changes: Any) -> RolloutDatasetWriterConfig:
    recipes = [{"name": "random", "selection_policy": "random_valid", "horizon": 1}]
    return tiny_config(Path("/never-written"), **{"recipes": recipes} | changes)


@pytest.fixture(scope="module")
def entry() -> RolloutShardEntry:
    return plan_rollout_shards(small(), rows_per_shard=2)[0]


def run(
    root: Path, entry: RolloutShardEntry, config: RolloutDatasetWriterConfig, **options: Any
) -> RolloutShardRunResult:
    return run_rollout_shard(
        config,
        shard_entry=entry,
        output_tmp=root / "work" / entry.shard_id,
        output_final=root / "shards" / entry.shard_id,
        **options,
    )


def content(result: RolloutShardRunResult) -> str:
    return str(read_manifest(result.final_dir).payload["content_sha256"])


def test_a_shard_is_generated_and_then_skipped(tmp_path: Path, entry: RolloutShardEntry) -> None:
    seen: list[tuple[int, int]] = []
    result = run(tmp_path, entry, small(), on_row=lambda done, total, _: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert validate_rollout_zarr_store(result.final_dir, deep=True).ok
    owner = read_finished(result.final_dir, entry)
    assert owner.stats["samples_seen"] == 2
    assert owner.stats["rollouts_written"] == owner.counts.rollouts > 0
    assert run(tmp_path, entry, small()).skipped
    stated = read_manifest(result.final_dir).payload["generation"]["writer_config"]
    assert stated["store"]["store_dir"] == "/never-written", "not the work folder of the attempt"


def test_a_second_attempt_makes_only_the_rows_that_the_first_did_not_finish(
    tmp_path: Path, entry: RolloutShardEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled_out: list[int] = []
    roll_out = RowRoller.roll_out
    last = entry.rows[1].sample_index

    def failing_once(self: RowRoller, index: int) -> Any:
        if index == last and index not in rolled_out:
            rolled_out.append(index)
            raise GenerationFailed(sample_index=index, sample_key="key", detail="lost its mesh")
        rolled_out.append(index)
        return roll_out(self, index)

    monkeypatch.setattr(RowRoller, "roll_out", failing_once)
    with pytest.raises(GenerationFailed):
        run(tmp_path / "a", entry, small())
    (marker,) = failures_of(tmp_path / "a" / "shards", entry.shard_id)
    assert getattr(read_failure(marker), "sample_index", None) == last
    resumed = run(tmp_path / "a", entry, small(), take_over=True)
    assert rolled_out == [entry.rows[0].sample_index, last, last]
    assert content(resumed) == content(run(tmp_path / "b", entry, small()))


def test_another_config_is_refused_and_nothing_is_made(
    tmp_path: Path, entry: RolloutShardEntry
) -> None:
    with pytest.raises(ShardDrift, match="planned with the config"):
        run(tmp_path, entry, small(seed=1))
    assert not list(tmp_path.iterdir())


def test_settings_that_do_not_change_the_result_may_differ(entry: RolloutShardEntry) -> None:
    changed = small(threads=2, workers=3, campaign={"rows_per_shard": 5, "lease_s": 9.0})
    assert changed.config_hash == entry.writer_config_hash


def test_a_source_that_is_not_the_planned_one_is_refused(
    tmp_path: Path, entry: RolloutShardEntry
) -> None:
    scene = SceneConfig.of_difficulty("easy", max_edge_m=1.0)
    source = tmp_path / "source"
    make_source_store(source, MakeSourcesConfig(scenes=2, seed=4, scene=scene))
    with pytest.raises(ShardDrift, match="source_manifest_hash"):
        run(tmp_path, entry, small(source={"store_dir": str(source), "split": "train"}))
    assert not (tmp_path / "shards" / entry.shard_id).exists()


def test_a_shard_without_any_rollout_is_finished(tmp_path: Path, entry: RolloutShardEntry) -> None:
    impossible = small(min_valid_root_candidates=10_000)
    planned = plan_rollout_shards(impossible, rows_per_shard=2)[0]
    result = run(tmp_path, planned, impossible)
    owner = read_finished(result.final_dir, planned)
    assert result.store_result is None
    assert owner.counts.rollouts == 0
    assert sum(owner.stats["skipped_reasons"].values()) > 0
    assert run(tmp_path, planned, impossible).skipped


def test_campaign_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"campaign\.rows_per_shard is 0"):
        small(campaign={"rows_per_shard": 0})
