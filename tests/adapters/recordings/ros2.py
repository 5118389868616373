"""A small ROS 2 bag: joint states, commands and a camera. A bag is one episode."""

from __future__ import annotations

from pathlib import Path

from tests.adapters.pictures import numbered
from tests.adapters.ros2.ros2_bags import START_NS, TWIST, image_rows, joint_rows, twist, write_bag


def make(folder: Path) -> Path:
    rows = joint_rows(20)
    rows += [("/cmd_vel", TWIST, START_NS + i * 50_000_000, twist(i)) for i in range(8)]
    rows += image_rows(numbered(i) for i in range(4))
    return write_bag(folder / "drive", sorted(rows, key=lambda row: row[2]))
