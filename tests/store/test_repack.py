"""Repacking keeps every value, and there and back gives the same bytes. Damage is refused, never repacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    StorageError,
    TargetExists,
    TruncatedFile,
    UnsupportedVersion,
)
from rollbook.store.manifest import read_manifest
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.repack import Profile, repack_store
from rollbook.store.schema import ROLLOUT_ZARR_SCHEMA_VERSION, TABLES
from rollbook.store.stored_tables import migrate_store
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records
from tests.store.tampering import copy_store, flip_bit, replace_file


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


# ------------------------------------------------------------------------------------------- damage

KINDS = {
    "local": (
        "q_h/td_reward/c/0",  # a chunk of a derived column
        "candidates/pose_world_cam/c/0/0",  # a chunk of a factual column
        "targets/scores/c/0/0",  # columns that share an array
        "candidates/target_rri/zarr.json",
        "steps/cumulative_target_rri/zarr.json",
        "selected_depth/depth_m/c.0.0.0",  # images, which are copied
        "rollouts/beam_width/zarr.json",  # a constant column: its value is in this file
        "dictionaries/zarr.json",
    ),
    "archive": ("q_h/td_reward/c/0", "candidates/pose_world_cam/c/0/0", "metadata/zarr.json"),
}
DAMAGED = [(source, name) for source, names in KINDS.items() for name in names]


def assert_not_repacked(store: Path, profile: Profile, kind: type[StorageError], name: str) -> None:
    with pytest.raises(kind) as caught:
        repack_store(store, store.with_name("out"), profile)
    assert name in str(caught.value)
    assert [each.name for each in store.parent.iterdir() if "out" in each.name] == []


@pytest.mark.parametrize("profile", ["local", "archive"])
@pytest.mark.parametrize(("source", "name"), DAMAGED)
def test_a_flipped_bit_is_not_repacked(
    packed: Path, tmp_path: Path, source: str, name: str, profile: Profile
) -> None:
    store = copy_store(packed / source, tmp_path / "store")
    flip_bit(store / name, 8 * ((store / name).stat().st_size // 2) + 1)
    assert_not_repacked(store, profile, ChecksumMismatch, name)


@pytest.mark.parametrize("profile", ["local", "archive"])
@pytest.mark.parametrize(("source", "name"), DAMAGED)
def test_a_lost_file_is_not_repacked(
    packed: Path, tmp_path: Path, source: str, name: str, profile: Profile
) -> None:
    store = copy_store(packed / source, tmp_path / "store")
    (store / name).unlink()
    assert_not_repacked(store, profile, TruncatedFile, name)


@pytest.mark.parametrize("profile", ["local", "archive"])
def test_a_short_file_is_not_repacked(packed: Path, tmp_path: Path, profile: Profile) -> None:
    store = copy_store(packed / "local", tmp_path / "store")
    chunk = store / "selected_depth/depth_m/c.0.0.0"
    replace_file(chunk, chunk.read_bytes()[:-1])
    assert_not_repacked(store, profile, TruncatedFile, chunk.name)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["local", "archive"])
def test_no_file_of_a_store_escapes_the_comparison(
    packed: Path, tmp_path: Path, source: Profile
) -> None:
    """Every file in turn: about 300 repacks."""
    store = copy_store(packed / source, tmp_path / "store")
    for name in sorted(read_manifest(store).files):
        flip_bit(store / name, 5)
        assert_not_repacked(store, "local", ChecksumMismatch, name)
        flip_bit(store / name, 5)
