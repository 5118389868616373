"""Stores are found and looked at, whatever state they are in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollbook.store.audit import discover_rollout_store_paths, rollout_store_inventory_rows
from rollbook.store.manifest import RolloutStoreManifestContext
from rollbook.store.schema import ROLLOUT_ZARR_SCHEMA_VERSION
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.audited import written
from tests.store.synthetic import spec_fixture_records
from tests.store.tampering import copy_store, edit_group, replace_file, sign


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture whose numbers are known in advance: 3 rollouts of 2 steps with 8 candidates, all valid."""
    folder = tmp_path_factory.mktemp("known")
    records = spec_fixture_records(depth=False)
    return written(folder / "known.zarr", records, selected_depth_enabled=False)


@pytest.fixture
def copied(known: Path, tmp_path: Path) -> Path:
    return copy_store(known, tmp_path / "copy.zarr")


def stale(store: Path) -> Path:
    sign(store, schema_version="0.5-selected-depth")
    return store


def test_discovery_finds_folders_and_the_newest_first(tmp_path: Path) -> None:
    for at, name in enumerate(("b/old.zarr", "new.zarr", "c/same.zarr", "a/same.zarr")):
        (tmp_path / name).mkdir(parents=True)
        stamp = 1_000_000 + (0 if at == 0 else 50 if at > 1 else 100)
        os.utime(tmp_path / name, (stamp, stamp))
    (tmp_path / "file.zarr").write_text("not a folder")
    (tmp_path / "new.zarr/inner.zarr").mkdir()
    os.utime(tmp_path / "new.zarr", (1_000_100, 1_000_100))
    found = discover_rollout_store_paths(tmp_path)
    assert found == [
        tmp_path / name for name in ("new.zarr", "a/same.zarr", "c/same.zarr", "b/old.zarr")
    ]
    assert discover_rollout_store_paths(tmp_path, pattern="a/*.zarr") == [tmp_path / "a/same.zarr"]
    assert discover_rollout_store_paths(tmp_path / "nowhere") == []


def test_an_inventory_of_good_stale_and_unreadable_stores(known: Path, tmp_path: Path) -> None:
    good = copy_store(known, tmp_path / "good.zarr")
    old = stale(copy_store(known, tmp_path / "old.zarr"))
    (tmp_path / "empty.zarr").mkdir()
    rows = rollout_store_inventory_rows([tmp_path / "empty.zarr", old, good], validate=True)
    assert [row["schema_status"] for row in rows] == ["current", "stale", "unreadable"]
    first, second, third = rows
    assert (first["validation_ok"], first["validation_status"]) == (True, "ok")
    assert first["validator_candidates"] == first["observed_candidates"] == 48
    assert second["observed_candidates"] == 48
    assert (second["observed_rollouts"], second["observed_steps"]) == (3, 6)
    assert second["validator_rollouts"] == second["validator_candidates"] == 0
    assert second["validation_status"] == "failed"
    assert "0.5-selected-depth" in second["first_error"]
    assert ROLLOUT_ZARR_SCHEMA_VERSION in second["first_error"]
    assert third["required_groups_present"] == 0
    assert third["observed_rollouts"] is None
    assert third["first_error"]
    assert {tuple(row) for row in rows} == {tuple(first)}
    json.dumps(rows, allow_nan=False)


def test_an_inventory_counts_what_a_store_holds(known: Path) -> None:
    row = rollout_store_inventory_rows([known])[0]
    files = [path for path in known.rglob("*") if path.is_file()]
    assert row["size_bytes"] == sum(path.stat().st_size for path in files)
    assert row["file_count"] == len(files)
    assert (row["manifest_scene_count"], row["manifest_split_count"]) == (1, 1)
    assert row["policy_summary"] == "oracle_greedy (1), random_valid (1), temperature_softmax (1)"
    assert (row["horizon_summary"], row["branch_factor_summary"]) == ("2 (3)", "1 (3)")
    assert (row["actor_action_fraction"], row["q_train_fraction"], row["selected_count"]) == (
        1,
        1,
        6,
    )
    assert (row["required_groups_missing"], row["missing_required_groups"]) == (0, [])
    assert row["manifest_profile"] == "local"


def test_an_inventory_validates_only_when_asked(known: Path) -> None:
    row = rollout_store_inventory_rows([known])[0]
    assert (row["validation_ok"], row["validation_status"]) == (None, "unknown")
    assert row["validator_rollouts"] is row["validation_error_count"] is None


def test_an_inventory_names_the_config_a_store_was_made_with(tmp_path: Path) -> None:
    config = tmp_path / "night-run.toml"
    config.write_text("horizon = 2\n")
    context = RolloutStoreManifestContext.from_cli(
        writer_config=None, argv=["rollbook"], config_path=config
    )
    write_rollout_zarr_store(
        tmp_path / "s.zarr",
        spec_fixture_records(depth=False),
        manifest_context=context,
        selected_depth_enabled=False,
    )
    assert rollout_store_inventory_rows([tmp_path / "s.zarr"])[0]["manifest_config"] == "night-run"


@pytest.mark.parametrize(
    "damage",
    [
        lambda store: (store / "manifest.json").unlink(),
        lambda store: replace_file(store / "manifest.json", b"{}"),
        lambda store: replace_file(store / "zarr.json", b"[1, 2"),
        lambda store: replace_file(store / "zarr.json", b'{"attributes": 7}'),
        lambda store: (store / "candidates/selected_mask/zarr.json").unlink(),
    ],
)
def test_an_inventory_never_raises(copied: Path, damage: Callable[[Path], Any]) -> None:
    damage(copied)
    for validate in (False, True):
        (row,) = rollout_store_inventory_rows([copied], validate=validate)
        assert row["schema_status"] in ("current", "unreadable")
    assert row["validation_ok"] is False


def test_a_foreign_group_attribute_does_not_hide_a_store(copied: Path) -> None:
    edit_group(copied, "metadata", lambda attrs: attrs.update(note="seen"))
    assert rollout_store_inventory_rows([copied])[0]["schema_status"] == "current"
