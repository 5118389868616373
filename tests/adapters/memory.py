"""The memory that an import needs at most, as Python and NumPy allocate it."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path

from rollbook.adapters.recording import Importer


def most_memory_of_import(importer: Importer, path: Path, folder: Path) -> int:
    """Bytes, for all episodes one after the other."""
    out = folder / "memory"
    tracemalloc.start()
    try:
        recording = importer.scan(path)
        for episode in recording.episodes:
            out.mkdir()
            importer.encode(recording, episode.index, out)
            shutil.rmtree(out)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
