"""Memory does not grow with the length of a bag."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from rosbags.rosbag2 import StoragePlugin

from tests.adapters.ros2.ros2_bags import imported, joint_rows, text_rows, write_bag


@pytest.mark.slow
@pytest.mark.parametrize("storage", [StoragePlugin.SQLITE3, StoragePlugin.MCAP])
def test_ten_times_as_many_messages_need_the_same_memory(
    storage: StoragePlugin, tmp_path: Path
) -> None:
    peaks = []
    for count in (10_000, 100_000):
        rows = [*joint_rows(count), *text_rows(["hello"] * (count // 10))]
        bag = write_bag(tmp_path / f"{count}", rows, storage=storage)
        imported(bag, tmp_path / f"warm{count}", topics=("/chatter",))
        tracemalloc.start()
        encoded = imported(bag, tmp_path / f"out{count}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert encoded.metadata["read"]["/joint_states"] == count
    assert peaks[1] < peaks[0] * 1.3 + (4 << 20)
