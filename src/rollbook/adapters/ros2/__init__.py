"""ROS 2 bags and MCAP files become episodes.

`bag` finds the files of a bag and what they declare; `sqlite_storage` and `mcap_storage` read messages; `definitions`,
`cdr`, `protobuf_messages` and `json_messages` turn them into columns; `cameras` makes the video; `importer` joins it.
"""

from __future__ import annotations

from rollbook.adapters.ros2.bag import FORMAT, looks_like
from rollbook.adapters.ros2.importer import Ros2Importer

__all__ = ["FORMAT", "Ros2Importer", "looks_like"]
