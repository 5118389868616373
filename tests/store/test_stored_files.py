"""StoredFiles compares a folder with the list of its manifest: names and sizes, and bytes when asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollbook.digest import checksum
from rollbook.errors import ChecksumMismatch, StorageError, TruncatedFile
from rollbook.store.manifest import StoreManifest
from rollbook.store.stored_files import StoredFiles, file_checksums

FILES = {
    "top": b"top",
    "a/one": b"one",
    "a/b/two": b"two",
    "a/b/c/three": b"three",
    "ab/four": b"four",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, data in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    return tmp_path


def stored(folder: Path, files: Any = None) -> StoredFiles:
    if files is None:
        files = {path: [len(data), checksum(data)] for path, data in FILES.items()}
    return StoredFiles(StoreManifest(folder, {"files": files}, {}), remedy="fetch it again")


def test_a_folder_stands_for_its_files_at_every_depth(folder: Path) -> None:
    files = stored(folder)
    assert sorted(files.below("")) == sorted(FILES)
    assert files.below("a") == ["a/one", "a/b/two", "a/b/c/three"]
    assert files.below("a/b") == ["a/b/two", "a/b/c/three"]
    assert files.below("a/b/c") == ["a/b/c/three"]
    assert files.below("top") == ["top"]
    assert files.below("not there") == []


def test_a_whole_folder_passes_every_check(folder: Path) -> None:
    files = stored(folder)
    files.check("")
    files.verify("")
    assert files.read("a/b/two") == b"two"


@pytest.mark.parametrize("asked", ["a/b/two", "a/b", "a", ""])
def test_a_lost_or_a_short_file_is_found_from_every_folder_above_it(
    folder: Path, asked: str
) -> None:
    place = folder / "a/b/two"
    place.write_bytes(b"tw")
    with pytest.raises(TruncatedFile, match="2 bytes, the manifest says 3; fetch it again"):
        stored(folder).check(asked)
    place.unlink()
    with pytest.raises(TruncatedFile, match="missing, the manifest lists it; fetch it again"):
        stored(folder).verify(asked)


@pytest.mark.parametrize("asked", ["a/b/two", "a/b", "a", ""])
def test_changed_bytes_are_found_by_reading_and_by_verifying(folder: Path, asked: str) -> None:
    (folder / "a/b/two").write_bytes(b"TWO")
    files = stored(folder)
    files.check(asked)
    with pytest.raises(ChecksumMismatch, match="not those that the manifest lists; fetch it again"):
        files.verify(asked)
    with pytest.raises(ChecksumMismatch, match="a/b/two"):
        files.read("a/b/two")


def test_a_file_that_cannot_be_read_is_said_to_be_so(folder: Path) -> None:
    (folder / "top").unlink()
    (folder / "top").mkdir()
    with pytest.raises(StorageError, match="cannot be read"):
        stored(folder).read("top")


@pytest.mark.parametrize("files", [5, {"top": 3}, {"top": [3]}, {"top": [1, "x", 2]}])
def test_a_manifest_without_a_list_of_files_is_named(folder: Path, files: Any) -> None:
    with pytest.raises(StorageError, match="no valid list of files"):
        stored(folder, files).check("")


def test_the_disk_is_not_asked_twice_for_what_was_complete(folder: Path) -> None:
    files = stored(folder)
    files.check("a")
    (folder / "a/one").unlink()
    files.check("a")
    with pytest.raises(TruncatedFile):
        files.check("a/one")


def test_large_and_small_files_have_the_checksum_of_their_bytes(tmp_path: Path) -> None:
    """Large files are mapped and read by threads, small ones are not."""
    large = 1 << 20
    data = {str(size): bytes([size % 251]) * size for size in (0, 1, large - 1, large, large + 1)}
    for name, each in data.items():
        (tmp_path / name).write_bytes(each)
    (tmp_path / "folder").mkdir()
    sizes = {name: len(each) for name, each in data.items()}
    assert file_checksums(tmp_path, sizes) == {name: checksum(each) for name, each in data.items()}
    lost = file_checksums(tmp_path, {"lost": large, "gone": 1, "folder": 1})
    assert lost == {"lost": None, "gone": None, "folder": "unreadable"}
