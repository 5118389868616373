"""Compiled code: where it is kept when the package's own folder is not to be written."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from rollbook.generate.raycast.compiled import _cache_folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_compiled_code_is_kept_where_only_its_owner_writes(temporary: Path) -> None:
    folder = _cache_folder()
    assert folder == _cache_folder() == str(temporary / f"rollbook-numba-{os.getuid()}")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


@pytest.mark.parametrize("trap", ["writable", "link"])
def test_a_folder_that_others_could_have_filled_is_not_used(temporary: Path, trap: str) -> None:
    expected = temporary / f"rollbook-numba-{os.getuid()}"
    if trap == "link":
        (temporary / "elsewhere").mkdir()
        expected.symlink_to(temporary / "elsewhere")
    else:
        expected.mkdir()
        expected.chmod(0o777)
    folder = Path(_cache_folder())
    assert folder != expected
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
