"""Two episodes of a LeRobot dataset that were imported into folders before."""

from __future__ import annotations

from pathlib import Path

from rollbook.adapters.importing import ImportFolder, import_recording
from rollbook.adapters.lerobot import LeRobotImporter
from tests.adapters.recordings import lerobot


def make(folder: Path) -> Path:
    target = ImportFolder(folder / "episodes")
    import_recording(LeRobotImporter(), lerobot.make(folder / "before"), target)
    return folder / "episodes"
