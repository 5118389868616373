"""Real bags that nobody here made: the test data of evo."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from tests.adapters.ros2.ros2_bags import imported, sensors
from tests.public_packages import public_source

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data() -> Path:
    return public_source("evo", "1.38.1") / "test" / "data"


def test_every_message_of_the_nav2_recording_is_imported(data: Path, tmp_path: Path) -> None:
    path = data / "nav2_turtlebot.mcap"
    encoded = imported(path, tmp_path / "out")
    assert sum(encoded.metadata["read"].values()) == 8197
    assert encoded.metadata["read"] == encoded.metadata["declared"]
    assert encoded.metadata["skipped"] == []
    arrays = sensors(encoded)
    types = get_typestore(Stores.LATEST)
    with Reader(path) as reader:
        for connection in reader.connections:
            own = get_types_from_msg(connection.msgdef.data, connection.msgtype)
            types.register({k: v for k, v in own.items() if k not in types.fielddefs})
        rows = 0
        for connection, t_ns, raw in reader.messages():
            if connection.topic != "/odom":
                continue
            message = types.deserialize_cdr(raw, connection.msgtype)
            assert arrays["/odom/_log_t_ns"][rows] == t_ns
            position = message.pose.pose.position  # type: ignore[attr-defined]
            assert arrays["/odom/pose.pose.position.x"][rows] == position.x
            covariance = message.pose.covariance  # type: ignore[attr-defined]
            assert np.array_equal(arrays["/odom/pose.covariance"][rows], covariance)
            rows += 1
    assert rows == len(arrays["/odom/_t_ns"]) == 2639
    # header stamps are simulated time, far from the log time
    assert abs(arrays["/odom/header.stamp_ns"][0] - arrays["/odom/_t_ns"][0]) > 1.7e18
    assert (np.diff(arrays["/tf/_t_ns"]) > 0).all()


def test_the_nav2_recording_cut_off_is_imported_up_to_there(data: Path, tmp_path: Path) -> None:
    whole = (data / "nav2_turtlebot.mcap").read_bytes()
    path = tmp_path / "cut.mcap"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    encoded = imported(path, tmp_path / "out")
    assert 1000 < sum(encoded.metadata["read"].values()) < 8197
    assert encoded.metadata["damage"]["at"].startswith("cut.mcap, byte ")


def test_the_sqlite_bag_of_transforms_is_imported(data: Path, tmp_path: Path) -> None:
    encoded = imported(data / "tf_example", tmp_path / "out")
    assert encoded.metadata["read"] == encoded.metadata["declared"]
    arrays = sensors(encoded)
    assert len(arrays["/tf/_t_ns"]) == 517
    assert set(arrays["/tf/transforms.header.frame_id"].ravel()) == {"odom"}
    rotation = [arrays[f"/tf/transforms.transform.rotation.{axis}"] for axis in "xyzw"]
    assert np.allclose(sum(each**2 for each in rotation), 1)
