"""A store whose files are links is not read, also when a link is planted while the store is open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rollbook.errors import StorageError
from rollbook.server.store_files.confined_reader import ConfinedReader, open_confined
from rollbook.server.store_files.roots import StorePlace, StoreRoot
from tests.portal.stores_world import small_store


def opened(store: Path) -> ConfinedReader:
    return open_confined(StorePlace(StoreRoot(None, str(store.parent)), (store.name,)))


def plant(store: Path, inside: str, elsewhere: Path) -> None:
    shutil.move(store / inside, elsewhere / "moved")
    (store / inside).symlink_to(elsewhere / "moved")


def read_something_of_everything(reader: ConfinedReader) -> None:
    reader.words("policy")
    reader.array("candidates/target_rri")
    reader.selected_depth(0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return small_store(tmp_path / "root" / "a.zarr", 3)


@pytest.mark.parametrize(
    "inside",
    [
        "zarr.json",
        "manifest.json",
        "dictionaries",
        "dictionaries/zarr.json",
        "candidates",
        "candidates/target_rri",
        "candidates/target_rri/c",
        "selected_depth/depth_m",
    ],
)
def test_a_link_inside_a_store_is_refused(store: Path, tmp_path: Path, inside: str) -> None:
    plant(store, inside, tmp_path)
    with pytest.raises(StorageError, match="is a link"):
        read_something_of_everything(opened(store))


def test_a_link_that_is_planted_after_opening_is_refused(store: Path, tmp_path: Path) -> None:
    reader = opened(store)
    reader.array("steps/step_index")
    plant(store, "candidates", tmp_path)
    with pytest.raises(StorageError, match="is a link"):
        read_something_of_everything(reader)


def test_a_store_without_links_reads_as_ever(store: Path) -> None:
    read_something_of_everything(opened(store))


def test_the_root_itself_may_be_a_link(store: Path, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(store.parent)
    place = StorePlace(StoreRoot(None, str(tmp_path / "data")), (store.name,))
    read_something_of_everything(open_confined(place))
