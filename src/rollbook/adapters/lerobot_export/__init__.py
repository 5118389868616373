"""Episodes become a LeRobot dataset of version 3.

`plan` decides features and frames, `losses` lists what would not come back, `clock` brings streams onto frames.
`tables`, `video` and `writer` write the dataset, `stats` its statistics. docs/formats/lerobot.md says what is kept.
"""

from __future__ import annotations

from rollbook.adapters.lerobot_export.exporter import FORMAT, LeRobotExporter

__all__ = ["FORMAT", "LeRobotExporter"]
