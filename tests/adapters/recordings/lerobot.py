"""A small LeRobot dataset of version 3: two episodes, one camera."""

from __future__ import annotations

from pathlib import Path

from tests.adapters.lerobot_datasets import Plan, write_v3


def make(folder: Path) -> Path:
    return write_v3(folder / "pusht", Plan(lengths=(5, 4)))
