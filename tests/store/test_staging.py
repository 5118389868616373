"""StagedStore: what is left beside a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollbook.errors import LeaseHeld
from rollbook.store.staging import StagedStore
from tests.interrupts import interrupted_everywhere


def test_ctrl_c_at_any_moment_leaves_no_hidden_folder(tmp_path: Path) -> None:
    def write_half() -> None:
        with StagedStore(tmp_path / "x.zarr", replace=False) as stage:
            (stage.folder / "half").mkdir()

    moments = 0
    for where in interrupted_everywhere(write_half):
        assert list(tmp_path.glob(".x.zarr.stage-*")) == [], where  # a lock file does no harm
        moments += 1
    assert moments > 100
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_removes_neither_the_folder_nor_the_lock_of_its_parent(
    tmp_path: Path,
) -> None:
    with StagedStore(tmp_path / "x.zarr", replace=False) as stage:
        child = os.fork()
        if not child:
            stage.__exit__(None, None, None)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert stage.folder.is_dir()
        with pytest.raises(LeaseHeld), StagedStore(tmp_path / "x.zarr", replace=False):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_made_by_a_forked_process_is_removed_by_it(tmp_path: Path) -> None:
    stage = StagedStore(tmp_path / "x.zarr", replace=False)
    child = os.fork()
    if not child:
        with stage:
            pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert list(tmp_path.iterdir()) == []
