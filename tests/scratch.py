"""Where tests write: in memory, where there is room for it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
_ROOM = 4 << 30
"""Bytes that have to be free. The quick tests hold a few hundred megabytes at once."""


def scratch_root() -> Path:
    """Tests make and remove hundreds of thousands of small files: on a disk this took a sixth of all CPU time."""
    try:
        roomy = shutil.disk_usage(MEMORY).free >= _ROOM and os.access(MEMORY, os.W_OK)
        # tests write programs too, and run them
        runs = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    except OSError:
        roomy = runs = False
    return MEMORY if roomy and runs else Path(tempfile.gettempdir())


def another_file_system(than: Path) -> Path | None:
    """A folder that can be written to on another file system."""
    for each in (MEMORY, Path(tempfile.gettempdir()), Path.cwd()):
        if os.access(each, os.W_OK) and each.stat().st_dev != than.stat().st_dev:
            return each
    return None
