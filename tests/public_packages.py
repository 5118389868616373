"""Packages that are not part of Rollbook, taken from the registry for slow tests: independent readers, and real files.

They are kept outside of the tree, in the cache of the user, and made once for each machine. Where the registry does not
have a package, or cannot be reached, the test is skipped with pip's last line as the reason.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollbook.files import locked, promote_folder

_MINUTES = 15


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "rollbook-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def reader_python(*packages: str, without_dependencies: Sequence[str] = ()) -> Path:
    """The interpreter of an environment of its own with these packages. `without_dependencies` are installed as they
    are, for packages that pin what cannot be installed here."""
    wanted = "\n".join([sys.version, *packages, "--no-deps", *without_dependencies])
    folder = _cache() / f"reader-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
    python = folder / "bin" / "python"
    ready = folder / "ready"
    with locked(folder.with_suffix(".lock")):
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            if packages:
                _pip(python, "install", *packages)
            if without_dependencies:
                _pip(python, "install", "--no-deps", *without_dependencies)
            ready.touch()
    return python


def public_source(package: str, version: str) -> Path:
    """The unpacked source archive of a release."""
    folder = _cache() / f"source-{package}-{version}"
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            scratch = folder.with_suffix(".part")
            shutil.rmtree(scratch, ignore_errors=True)
            pinned = f"{package}=={version}"
            options = ["--no-deps", "--no-binary", package, "-d", str(scratch)]
            _pip(Path(sys.executable), "download", *options, pinned)
            [archive] = scratch.glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(scratch, filter="data")
            archive.unlink()
            promote_folder(scratch, folder)
    [only] = folder.iterdir()
    return only


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", *arguments]
    command += ["--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MINUTES * 60)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        pytest.skip(f"{' '.join(arguments[-1:])} cannot be had here: {last}")
