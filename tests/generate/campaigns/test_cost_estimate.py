"""What a campaign would cost: measured on rows of its own plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollbook.errors import NoRollouts
from rollbook.generate.campaigns import cost_estimate
from rollbook.generate.campaigns.cost_estimate import MeasuredRows, estimate_cost, measure_rows
from rollbook.generate.campaigns.planning import plan_rollout_shards
from rollbook.store.shards.entry import RolloutShardEntry
from tests.generate.tiny_source import tiny_config
from tests.store.shards.planned import entry, plan

MEASURED = MeasuredRows(
    row_seconds=(2.0, 4.0),
    finish_seconds=1.0,
    candidates=600,
    row_bytes=2_000,
    shard_bytes=50,
    files=300,
    kept_bytes=6_000,
)


@pytest.fixture
def empty_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary folders are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_estimate_of_a_plan_is_what_its_shards_take(empty_temp: Path) -> None:
    """All rows are measured here, so the estimate can be compared with the shards themselves."""
    config = tiny_config(empty_temp / "unused")
    entries = plan_rollout_shards(config, rows_per_shard=1)
    seen: list[tuple[int, int]] = []
    measured = measure_rows(config, entries, on_row=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert not list(empty_temp.iterdir())
    estimate = estimate_cost(entries, measured)
    made = [store_of(each, empty_temp / each.shard_id) for each in entries]
    assert estimate.candidates == sum(candidates for _, _, candidates in made)
    assert estimate.bytes == pytest.approx(sum(size for size, _, _ in made), rel=0.1)
    assert estimate.files == pytest.approx(sum(files for _, files, _ in made), rel=0.1)
    assert 0 < estimate.least_seconds_per_row <= estimate.most_seconds_per_row


def store_of(shard: RolloutShardEntry, out: Path) -> tuple[int, int, int]:
    """Bytes, files and candidates."""
    own = tiny_config(out)
    assert own.config_hash == shard.writer_config_hash
    result = own.setup_target().run(shard_entry=shard)
    sizes = [each.stat().st_size for each in out.rglob("*") if each.is_file()]
    return sum(sizes), len(sizes), result.num_candidates


def test_rows_without_a_rollout_leave_nothing_behind(empty_temp: Path) -> None:
    config = tiny_config(empty_temp / "unused", min_valid_root_candidates=10_000)
    with pytest.raises(NoRollouts, match="low_valid_root_candidates"):
        measure_rows(config, plan_rollout_shards(config, rows_per_shard=1))
    assert not list(empty_temp.iterdir())


def test_the_rest_is_multiplied() -> None:
    estimate = estimate_cost(plan(5, rows_per_shard=4), MEASURED, workers=(1, 2, 3, 99))
    assert estimate.seconds_per_row == 3.0
    assert estimate.seconds == 20 * 3.0 + 5 * 1.0
    assert estimate.wall_seconds == {1: 65.0, 2: 3 * 13.0, 3: 2 * 13.0, 99: 13.0}
    assert estimate.candidates == 20 * 300
    assert estimate.bytes == 20 * 1_000 + 5 * 50
    assert estimate.files == 5 * 302
    assert estimate.work_bytes_per_worker == 4 * (1_000 + 3_000) + 50


@pytest.mark.parametrize(
    ("entries", "rows"),
    [
        (plan(10, rows_per_shard=6), [10, 30, 50]),
        (plan(1, rows_per_shard=2), [0, 1]),
        ([entry(0, [0]), entry(1, [7, 8], split="val"), entry(2, [9], split="val")], [7, 8, 9]),
    ],
)
def test_measured_rows_lie_apart_in_the_largest_split(
    entries: Sequence[RolloutShardEntry], rows: list[int]
) -> None:
    sample = cost_estimate._sample(entries)
    sample.validate()
    assert [row.sample_index for row in sample.rows] == rows


def test_an_estimate_is_plain_values() -> None:
    assert dataclasses.asdict(estimate_cost(plan(1), MEASURED))["wall_seconds"][64] == 7.0
