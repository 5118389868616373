"""Repacking keeps every value, and there and back gives the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.errors import ConfigurationError, TargetExists, UnsupportedVersion
from rollbook.store.manifest import read_manifest
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.repack import repack_store
from rollbook.store.schema import ROLLOUT_ZARR_SCHEMA_VERSION, TABLES
from rollbook.store.stored_tables import migrate_store
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local store, its archive, and the archive made local again."""
    folder = tmp_path_factory.mktemp("repack")
    write_rollout_zarr_store(
        folder / "local",
        make_records(12, seed=5, depth=(12, 16), features=3, branching=True),
        selected_depth_width_px=16,
        selected_depth_height_px=12,
    )
    repack_store(folder / "local", folder / "archive", "archive")
    repack_store(folder / "archive", folder / "again", "local")
    return folder


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_there_and_back_gives_the_same_files(packed: Path) -> None:
    first, again = read_manifest(packed / "local"), read_manifest(packed / "again")
    assert first.files == again.files
    assert first.payload["content_sha256"] == again.payload["content_sha256"]


def test_an_archive_holds_the_same_values_in_less_room(packed: Path) -> None:
    local, archive = (
        RolloutZarrStoreReader(packed / "local"),
        RolloutZarrStoreReader(packed / "archive"),
    )
    for table in TABLES:
        assert local.column_names(table) == archive.column_names(table)
        for name in local.column_names(table):
            left, right = local.array(f"{table}/{name}"), archive.array(f"{table}/{name}")
            assert left.dtype == right.dtype
            assert left.tobytes() == right.tobytes(), name
    assert size(packed / "archive") < size(packed / "local")
    assert archive.attrs["profile"] == "archive"


def test_an_archive_validates_deeply_and_gives_the_same_batches(packed: Path) -> None:
    local, archive = (
        RolloutZarrStoreReader(packed / "local"),
        RolloutZarrStoreReader(packed / "archive"),
    )
    assert archive.validate(deep=True).errors == []
    for left, right in zip(local.batches(7, seed=3), archive.batches(7, seed=3), strict=True):
        for name in left:
            assert left[name].tobytes() == right[name].tobytes()
    shown: Any = archive.selected_depth(2)
    assert np.array_equal(shown["depth_m"], local.selected_depth(2)["depth_m"])  # type: ignore[index]


def test_an_unknown_profile_and_an_existing_target_are_refused(packed: Path) -> None:
    with pytest.raises(ConfigurationError, match="local or archive"):
        repack_store(packed / "local", packed / "x", "tar")  # type: ignore[arg-type]
    with pytest.raises(TargetExists):
        repack_store(packed / "local", packed / "archive", "archive")
    assert not (packed / "x").exists()


def test_a_current_store_needs_no_migration(packed: Path) -> None:
    assert ROLLOUT_ZARR_SCHEMA_VERSION in migrate_store(packed / "local")


def test_a_store_of_another_version_is_refused_by_name(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.store.stored_tables.ROLLOUT_ZARR_SCHEMA_VERSION", "9.9")
    with pytest.raises(UnsupportedVersion, match=r"1\.0-target-rollout-core"):
        migrate_store(packed / "local")
