"""Damaged source stores: validation names everything that is wrong, and reading refuses what it would be misled by."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rollbook.errors import ChecksumMismatch, NotASourceStore, StorageError, UnsupportedVersion
from rollbook.generate.sources.documents import SourceManifest
from rollbook.generate.sources.layout import SEALED_FILES
from rollbook.generate.sources.reader import SourceStore
from rollbook.generate.sources.validation import CODES, validate_source_store
from rollbook.store.manifest import json_bytes
from tests.generate.source_rows import write_store

KNOWN_CODES = {code for codes in CODES.values() for code in codes}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sources") / "good"
    write_store(path, scenes=5, rows=2, rows_per_shard=3)
    return path


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "store"))


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def resealed(store: Path, **changes: Any) -> Path:
    """Puts the digests of changed documents into the manifest, as a wrong writer would."""
    said = json.loads((store / "manifest.json").read_bytes()) | changes
    said["files"] = {
        name: hashlib.sha256((store / name).read_bytes()).hexdigest() for name in SEALED_FILES
    }
    manifest = msgspec.convert(said, SourceManifest)
    said["manifest_digest"] = manifest.computed_digest()
    (store / "manifest.json").write_bytes(json_bytes(said, "manifest"))
    return store


def edit_index(store: Path, line: int, **changes: Any) -> Path:
    lines = (store / "index.jsonl").read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | changes)
    (store / "index.jsonl").write_text("\n".join(lines) + "\n")
    return store


def edit_splits(store: Path, **changes: Any) -> Path:
    said = json.loads((store / "splits.json").read_bytes()) | changes
    (store / "splits.json").write_bytes(json_bytes(said, "splits"))
    return store


def edit_text(store: Path, name: str, old: str, new: str) -> Path:
    (store / name).write_text((store / name).read_text().replace(old, new))
    return store


def linked(store: Path, path: str) -> None:
    shutil.move(store / path, store.parent / "elsewhere")
    os.symlink(store.parent / "elsewhere", store / path)


def edit_array(store: Path, path: str, change: Callable[[Any], Any]) -> None:
    np.save(store / path, change(np.load(store / path)))


def a_mesh(store: Path) -> str:
    return str(next(iter(sorted((store / "oracle/meshes").iterdir()))).relative_to(store))


def test_a_good_store_has_nothing_wrong_with_it(good: Path) -> None:
    for deep in (False, True):
        found = validate_source_store(good, deep=deep)
        assert found.ok
        assert (found.rows, found.scenes) == (10, 5)


SHARD = "shard-000001"
FAR = np.array([0] * 9 + [99, 0, 0], np.float32)
DAMAGE: dict[str, tuple[Callable[[Path], object], bool]] = {
    "manifest_mismatch": (
        lambda s: edit_text(s, "manifest.json", '"rows": 10', '"rows": 11'),
        False,
    ),
    "document_mismatch": (lambda s: edit_splits(s, seed=9), False),
    "document_missing": (lambda s: (s / "index.jsonl").unlink(), False),
    "document_unreadable": (lambda s: (s / "splits.json").write_text("{"), False),
    "missing_array": (lambda s: (s / f"actor/{SHARD}/points/xyz.npy").unlink(), False),
    "unlisted_file": (lambda s: (s / "oracle/notes.txt").write_text("x"), False),
    "oracle_in_actor": (
        lambda s: shutil.copy(
            s / f"oracle/{SHARD}/boxes/inst_id.npy", s / f"actor/{SHARD}/detections/inst_id.npy"
        ),
        False,
    ),
    "linked_file": (lambda s: linked(s, f"actor/{SHARD}/points/xyz.npy"), False),
    "unreadable_array": (
        lambda s: (s / f"actor/{SHARD}/points/xyz.npy").write_bytes(b"\x93NUMPY\x01"),
        False,
    ),
    "wrong_array": (
        lambda s: edit_array(s, f"actor/{SHARD}/frames/t_ns.npy", lambda a: a[1:]),
        False,
    ),
    "checksum_mismatch": (lambda s: flip(s / f"actor/{SHARD}/detections/sem_id.npy"), True),
    "scene_in_two_splits": (
        lambda s: resealed(edit_splits(s, test=["scene-000"])),
        False,
    ),
    "scene_without_split": (lambda s: resealed(edit_splits(s, train=[])), False),
    "unknown_scene": (lambda s: resealed(edit_splits(s, test=["scene-999"])), False),
    "split_differs": (lambda s: resealed(edit_index(s, 0, split="test")), False),
    "split_hash_mismatch": (lambda s: resealed(edit_splits(s, seed=9)), False),
    "wrong_order": (
        lambda s: resealed(edit_index(s, 0, snippet_id="z", sample_key="scene-000/z")),
        False,
    ),
    "wrong_place": (lambda s: resealed(edit_index(s, 1, row=2)), False),
    "wrong_key": (lambda s: resealed(edit_index(s, 1, sample_key="scene-000/x")), False),
    "wrong_digest": (lambda s: resealed(edit_index(s, 1, row_sha256="0" * 64)), False),
    "wrong_count": (lambda s: resealed(s, config={"seed": 1}), False),
    "wrong_offsets": (
        lambda s: edit_array(s, f"actor/{SHARD}/points/offsets.npy", lambda a: a[::-1]),
        False,
    ),
    "unreadable_row": (lambda s: (s / f"oracle/{SHARD}/boxes/extents.npy").unlink(), False),
    "pose_not_rigid": (
        lambda s: edit_array(s, f"actor/{SHARD}/frames/pose.npy", np.negative),
        False,
    ),
    "time_not_increasing": (
        lambda s: edit_array(s, f"oracle/{SHARD}/continuation/t_ns.npy", np.negative),
        False,
    ),
    "point_not_finite": (
        lambda s: edit_array(s, f"actor/{SHARD}/points/xyz.npy", lambda a: a * np.float32(np.inf)),
        False,
    ),
    "point_of_no_frame": (
        lambda s: edit_array(s, f"actor/{SHARD}/points/frame.npy", lambda a: a + 50),
        False,
    ),
    "std_negative": (
        lambda s: edit_array(s, f"actor/{SHARD}/points/dist_std.npy", np.negative),
        False,
    ),
    "camera_invalid": (
        lambda s: edit_array(s, f"actor/{SHARD}/camera/pinhole.npy", np.negative),
        False,
    ),
    "box_not_finite": (
        lambda s: edit_array(
            s, f"oracle/{SHARD}/boxes/confidence.npy", lambda a: a * np.float32(np.nan)
        ),
        False,
    ),
    "box_without_extent": (
        lambda s: edit_array(s, f"oracle/{SHARD}/boxes/extents.npy", np.negative),
        False,
    ),
    "box_not_rigid": (
        lambda s: edit_array(s, f"oracle/{SHARD}/boxes/pose_world_object.npy", lambda a: a * 2),
        False,
    ),
    "root_outside_mesh": (
        lambda s: edit_array(s, f"actor/{SHARD}/frames/pose.npy", lambda a: a + FAR),
        False,
    ),
    "continuation_before_root": (
        lambda s: edit_array(s, f"actor/{SHARD}/frames/t_ns.npy", lambda a: a + 10**15),
        False,
    ),
    "mesh_mismatch": (lambda s: flip(s / a_mesh(s) / "vertices.npy", -2), True),
    "wrong_scene_facts": (
        lambda s: resealed(edit_text(s, "oracle/scenes.jsonl", '"faces":12', '"faces":13')),
        True,
    ),
}


@pytest.mark.parametrize("code", DAMAGE)
def test_validation_names_what_is_wrong(code: str, store: Path) -> None:
    damage, deep = DAMAGE[code]
    damage(store)
    found = validate_source_store(store, deep=deep)
    assert code in {each.code for each in found.violations}, found.violations
    assert {each.code for each in found.violations} <= KNOWN_CODES
    if deep:
        assert validate_source_store(store).ok


def test_every_code_is_met_by_a_test() -> None:
    opening = {"not_a_source_store", "unsupported_version"}
    by_writer_only = {"wrong_column", "no_frames"}
    assert set(DAMAGE) == KNOWN_CODES - opening - by_writer_only


def test_validation_goes_on_after_the_first_problem(store: Path) -> None:
    (store / f"actor/{SHARD}/points/xyz.npy").unlink()
    edit_splits(store, test=["scene-000"])
    edit_array(store, "actor/shard-000000/frames/pose.npy", np.negative)
    codes = {each.code for each in validate_source_store(store).violations}
    assert codes >= {
        *("missing_array", "scene_in_two_splits", "document_mismatch"),
        *("pose_not_rigid", "unreadable_row"),
    }


def test_an_array_that_begins_like_an_archive_is_unreadable(store: Path) -> None:
    (store / f"actor/{SHARD}/points/xyz.npy").write_bytes(b"PK\x03\x04 and no archive")
    found = {each.code for each in validate_source_store(store).violations}
    assert "unreadable_array" in found


def test_a_folder_that_is_no_store_is_one_violation(tmp_path: Path, store: Path) -> None:
    (violation,) = validate_source_store(tmp_path / "nothing").violations
    assert violation.code == "not_a_source_store"
    edit_text(store, "manifest.json", 'schema_version": "1"', 'schema_version": "9"')
    (violation,) = validate_source_store(store).violations
    assert violation.code == "unsupported_version"
    with pytest.raises(UnsupportedVersion, match="'9'"):
        SourceStore.open(store)
    (store / "manifest.json").write_text('{"schema_id": "something.else"}')
    with pytest.raises(NotASourceStore, match=r"something\.else"):
        SourceStore.open(store)
    (store / "manifest.json").write_text("[")
    with pytest.raises(NotASourceStore):
        SourceStore.open(store)


def test_reading_a_damaged_row_is_refused_and_its_neighbours_are_not(store: Path) -> None:
    flip(store / "actor/shard-000000/detections/sem_id.npy")
    opened = SourceStore.open(store)
    assert opened.row(0).actor.detections.sem_id.size
    with pytest.raises(ChecksumMismatch, match="scene-001/row-000"):
        opened.row(2)
    flip(store / a_mesh(store) / "vertices.npy", -2)
    with pytest.raises(ChecksumMismatch):
        [opened.mesh(scene) for scene in opened.scenes]
    (store / f"actor/{SHARD}/points/xyz.npy").write_bytes(b"")
    with pytest.raises(StorageError, match="copy the store again"):
        opened.row(4)


def test_a_row_that_is_not_in_its_shard_is_refused(store: Path) -> None:
    edit_index(store, 3, row=40)
    edit_index(store, 4, row=2)
    resealed(store)
    opened = SourceStore.open(store)
    with pytest.raises(StorageError, match="there is no row 40"):
        opened.row(3)
    with pytest.raises(ChecksumMismatch, match="other values at row 2"):
        opened.row(4)


def test_pickles_are_never_loaded(store: Path) -> None:
    values = np.array([{"a": 1}] * 3, object)
    np.save(store / f"actor/{SHARD}/points/xyz.npy", values, allow_pickle=True)
    with pytest.raises(StorageError):
        SourceStore.open(store).row(4)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("index.jsonl", '"shard-000000"', '"../../etc"'),
        ("index.jsonl", '"scene-000"', '"../x"'),
        ("splits.json", '"in_turn"', '"else"'),
    ],
)
def test_documents_cannot_point_out_of_the_store(
    store: Path, file: str, old: str, new: str
) -> None:
    resealed(edit_text(store, file, old, new))
    with pytest.raises(NotASourceStore):
        SourceStore.open(store)
