"""The built wheel holds every file that an installed Rollbook needs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(
        ["git", "ls-files", "src/rollbook"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    tracked = {name.removeprefix("src/") for name in listed.stdout.splitlines()}
    there = {name for name in tracked if (ROOT / "src" / name).exists()}
    assert {"rollbook/py.typed", "rollbook/server/db/migrations/env.py"} <= there
    assert there <= packed
