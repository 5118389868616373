"""What a store says about the program that wrote it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rollbook.store.manifest import collect_runtime_provenance


def test_the_state_of_git_is_read_without_writing_to_the_repository(tmp_path: Path) -> None:
    """A run that is killed must not leave a locked index, with which nobody can commit any more."""

    def git(*words: str) -> None:
        who = ("-c", "user.name=someone", "-c", "user.email=someone@example.com")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("content")
    git("add", "file")
    git("commit", "-m", "first")
    os.utime(tmp_path / "file", (1e9, 1e9))  # a plain `git status` would write this into its index
    index = (tmp_path / ".git" / "index").read_bytes()
    state = collect_runtime_provenance(tmp_path)["git"]
    assert (state["available"], state["dirty"]) == (True, False)
    assert (tmp_path / ".git" / "index").read_bytes() == index
