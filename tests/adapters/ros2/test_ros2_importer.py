"""A bag as a recording: what it holds, which columns its messages become, and what is named as left out."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rosbags.rosbag2 import CompressionMode, StoragePlugin
from ruamel.yaml import YAML

from rollbook.adapters.ros2 import Ros2Importer, looks_like
from rollbook.adapters.ros2.importer import is_action_topic
from rollbook.adapters.source_digest import SourceDigests
from rollbook.contracts.npz import read_npz
from rollbook.errors import (
    ConfigurationError,
    CountMismatch,
    DamagedRecording,
    StorageError,
    UnknownFormat,
    UnsupportedVersion,
)
from tests.adapters.pictures import BLUE, colour_of, decode, is_close, numbered
from tests.adapters.recordings.ros2 import make
from tests.adapters.ros2.ros2_bags import (
    JOINT_STATE,
    JOINTS,
    START_NS,
    STEP_NS,
    TWIST,
    data_file,
    header,
    image_rows,
    imported,
    joint_rows,
    joint_state,
    made,
    own_types,
    reasons,
    sensors,
    text_rows,
    write_bag,
)

both_storages = pytest.mark.parametrize("storage", [StoragePlugin.SQLITE3, StoragePlugin.MCAP])


def change_metadata(folder: Path, **changes: Any) -> None:
    yaml = YAML(typ="safe")
    content = yaml.load(folder / "metadata.yaml")
    content["rosbag2_bagfile_information"].update(changes)
    yaml.dump(content, folder / "metadata.yaml")


def information(folder: Path) -> dict[str, Any]:
    content = YAML(typ="safe").load(folder / "metadata.yaml")
    return dict(content["rosbag2_bagfile_information"])


# -------------------------------------------------------------------------------------------- scan


def test_the_bag_its_file_and_a_folder_without_metadata_are_recognised(tmp_path: Path) -> None:
    bag = make(tmp_path)
    assert looks_like(bag) == "metadata.yaml has rosbag2_bagfile_information"
    assert looks_like(data_file(bag)) == "it begins as an MCAP file does"
    (bag / "metadata.yaml").unlink()
    data_file(bag).rename(bag / "drive_0.mcap")
    assert looks_like(bag) == "drive_0.mcap is a file of a bag without metadata.yaml"
    other = tmp_path / "other"
    other.mkdir()
    (other / "metadata.yaml").write_text("name: something else\n")
    assert looks_like(other) is None
    assert looks_like(other / "metadata.yaml") is None


def test_scanning_names_topics_types_counts_and_files(tmp_path: Path) -> None:
    found = Ros2Importer().scan(make(tmp_path))
    assert {(s.name, s.slot, s.type, s.rows) for s in found.streams} == {
        ("/joint_states", "sensors", JOINT_STATE, 20),
        ("/cmd_vel", "actions", TWIST, 8),
        ("/camera/image", "video", "sensor_msgs/msg/Image", 4),
    }
    assert [(e.index, e.key, e.rows) for e in found.episodes] == [(0, "bag", 32)]
    assert found.episodes[0].duration_s == pytest.approx(0.38)
    assert {path.name for path in found.files} == {"metadata.yaml", "drive.mcap"}
    assert found.about["storage"] == "mcap"
    json.dumps(dict(found.about))


def test_the_same_bag_has_the_same_import_key_and_other_options_another(tmp_path: Path) -> None:
    importer = Ros2Importer()
    bag = make(tmp_path)
    keys = set()
    for each in (importer, importer, Ros2Importer(topics=("/cmd_vel",))):
        found = each.scan(bag)
        source = SourceDigests().of_episode(found, found.episodes[0], each.options())
        keys.add(source.import_key)
    assert len(keys) == 2


# ------------------------------------------------------------------------------------------- values


@both_storages
@pytest.mark.parametrize(
    "mode", [CompressionMode.NONE, CompressionMode.FILE, CompressionMode.MESSAGE]
)
def test_joint_states_come_back_from_every_storage_and_compression(
    storage: StoragePlugin, mode: CompressionMode, tmp_path: Path
) -> None:
    bag = write_bag(tmp_path / "bag", joint_rows(30), storage=storage, mode=mode)
    encoded = imported(bag, tmp_path / "out")
    arrays = sensors(encoded)
    steps = np.arange(30)
    assert np.array_equal(arrays["/joint_states/_t_ns"], START_NS + steps * STEP_NS)
    assert np.array_equal(arrays["/joint_states/header.stamp_ns"], 5 * 10**9 + steps)
    assert np.array_equal(arrays["/joint_states/position"], steps[:, None] + np.arange(3.0))
    assert np.array_equal(arrays["/joint_states/velocity"], -arrays["/joint_states/position"])
    assert set(arrays["/joint_states/header.frame_id"]) == {"base"}
    assert encoded.metadata["channels"] == {"/joint_states": list(JOINTS)}
    assert encoded.metadata["declared"] == encoded.metadata["read"] == {"/joint_states": 30}
    assert encoded.metadata["ros2_empty_fields"] == {"/joint_states": ["effort"]}
    assert "/joint_states/name" not in arrays
    assert encoded.duration_s == pytest.approx(29 * 0.02)
    json.dumps(encoded.metadata)


def test_zstd_chunks_are_unpacked(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", joint_rows(30), mode=CompressionMode.STORAGE)
    assert len(sensors(imported(bag, tmp_path / "out"))["/joint_states/_t_ns"]) == 30


@pytest.mark.parametrize("version", [8, 9])
def test_versions_of_the_metadata_are_read(version: int, tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", joint_rows(3), version=version)
    for older in (4, 5, 6, 7, version):
        change_metadata(bag, version=older)
        assert Ros2Importer().scan(bag).about["version"] == older


def test_joint_names_that_change_stay_a_column(tmp_path: Path) -> None:
    rows = joint_rows(2)
    rows.append((*rows[0][:2], START_NS + 2 * STEP_NS, joint_state(2, ("a", "b", "c"))))
    encoded = imported(write_bag(tmp_path / "bag", rows), tmp_path / "out")
    assert sensors(encoded)["/joint_states/name"].tolist() == [
        [*JOINTS],
        [*JOINTS],
        ["a", "b", "c"],
    ]
    assert encoded.metadata["channels"] == {}


def test_arrays_of_different_lengths_are_padded_and_their_lengths_kept(tmp_path: Path) -> None:
    rows = joint_rows(2)
    rows.append((*rows[0][:2], START_NS + 2 * STEP_NS, joint_state(7, ("one",))))
    arrays = sensors(imported(write_bag(tmp_path / "bag", rows), tmp_path / "out"))
    assert arrays["/joint_states/position._length"].tolist() == [3, 3, 1]
    last = arrays["/joint_states/position"][2]
    assert last[0] == 7
    assert np.isnan(last[1:]).all()
    assert arrays["/joint_states/name"][2].tolist() == ["one", "", ""]


def test_transforms_become_one_column_for_each_field(tmp_path: Path) -> None:
    def transform(i: int) -> Any:
        where = made("geometry_msgs/msg/Vector3", float(i), 1.0, 2.0)
        turn = made("geometry_msgs/msg/Quaternion", 0.0, 0.0, 0.0, 1.0)
        moved = made("geometry_msgs/msg/Transform", where, turn)
        kind = "geometry_msgs/msg/TransformStamped"
        return made(kind, header(i, f"frame {i}"), f"child {i}", moved)

    kind = "tf2_msgs/msg/TFMessage"
    rows = [
        ("/tf", kind, START_NS + n, made(kind, [transform(i) for i in range(n)])) for n in (1, 3, 2)
    ]
    arrays = sensors(
        imported(write_bag(tmp_path / "bag", sorted(rows, key=lambda r: r[2])), tmp_path / "out")
    )
    assert arrays["/tf/transforms._length"].tolist() == [1, 2, 3]
    assert arrays["/tf/transforms.child_frame_id"][1].tolist() == ["child 0", "child 1", ""]
    assert arrays["/tf/transforms.header.stamp_ns"][2].tolist() == [0, 1, 2]
    assert arrays["/tf/transforms.transform.translation.x"][2].tolist() == [0.0, 1.0, 2.0]


def test_texts_keep_every_letter_and_bytes_that_are_no_letters_are_counted(tmp_path: Path) -> None:
    texts = ["", "plain", "grün – 日本", "x" * 300]
    bag = write_bag(tmp_path / "bag", text_rows(texts), storage=StoragePlugin.SQLITE3)
    assert sensors(imported(bag, tmp_path / "out"))["/chatter/data"].tolist() == texts
    path = data_file(bag)
    path.write_bytes(path.read_bytes().replace(b"plain", b"pl\xffin"))
    encoded = imported(bag, tmp_path / "again")
    assert sensors(encoded)["/chatter/data"][1] == "pl�in"
    assert encoded.metadata["losses"] == [
        "/chatter: 1 texts are not UTF-8; their wrong bytes are replaced."
    ]


def test_texts_that_end_in_nul_are_counted(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", text_rows(["end\0", "in\0side", "", "\0"]))
    encoded = imported(bag, tmp_path / "out")
    assert sensors(encoded)["/chatter/data"].tolist() == ["end", "in\0side", "", ""]
    assert encoded.metadata["losses"] == [
        "/chatter: 2 texts end in NUL, which an array of text does not keep."
    ]


def test_a_message_without_fields_has_a_clock_only(tmp_path: Path) -> None:
    kind = "std_msgs/msg/Empty"
    rows = [("/tick", kind, START_NS + i, made(kind)) for i in range(3)]
    arrays = sensors(imported(write_bag(tmp_path / "bag", rows), tmp_path / "out"))
    assert list(arrays) == ["/tick/_t_ns"]


def test_own_types_are_read_from_their_definition(tmp_path: Path) -> None:
    kind = "my_robot/msg/Grip"
    types = own_types("float32 force\nbool is_closed\nuint8[2] code\n", kind)
    message = types.types[kind](2.5, True, np.array([3, 4], np.uint8))
    bag = write_bag(tmp_path / "bag", [("/grip", kind, START_NS, message)], types=types)
    arrays = sensors(imported(bag, tmp_path / "out"))
    assert arrays["/grip/force"].tolist() == [2.5]
    assert arrays["/grip/is_closed"].tolist() == [True]
    assert arrays["/grip/code"].tolist() == [[3, 4]]


# ------------------------------------------------------------------------------------------- clocks


def test_times_that_repeat_are_moved_and_the_recorded_ones_kept(tmp_path: Path) -> None:
    rows = [
        (topic, kind, START_NS + i // 2, m) for i, (topic, kind, _, m) in enumerate(joint_rows(5))
    ]
    encoded = imported(write_bag(tmp_path / "bag", rows), tmp_path / "out")
    arrays = sensors(encoded)
    assert (arrays["/joint_states/_t_ns"] - START_NS).tolist() == [0, 1, 2, 3, 4]
    assert (arrays["/joint_states/_log_t_ns"] - START_NS).tolist() == [0, 0, 1, 1, 2]
    [loss] = encoded.metadata["losses"]
    assert loss.startswith("/joint_states: 4 of 5 log times repeat")


@both_storages
def test_rows_out_of_order_are_ordered_by_log_time(storage: StoragePlugin, tmp_path: Path) -> None:
    rows = joint_rows(6)
    mixed = [rows[i] for i in (0, 2, 1, 5, 4, 3)]
    encoded = imported(write_bag(tmp_path / "bag", mixed, storage=storage), tmp_path / "out")
    arrays = sensors(encoded)
    assert arrays["/joint_states/position"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert (np.diff(arrays["/joint_states/_t_ns"]) == STEP_NS).all()
    [loss] = encoded.metadata["losses"]
    assert loss.startswith("/joint_states: 3 of 6 log times are before")


# -------------------------------------------------------------------------------------- left out


def test_topics_are_chosen_and_the_others_named(tmp_path: Path) -> None:
    encoded = imported(make(tmp_path), tmp_path / "out", topics=("/cmd_vel",))
    assert set(encoded.files) == {"actions"}
    assert reasons(encoded) == dict.fromkeys(
        ("/joint_states", "/camera/image"), "this topic was not chosen"
    )
    assert encoded.metadata["read"]["/joint_states"] == 20


def test_actions_are_those_that_are_named(tmp_path: Path) -> None:
    encoded = imported(
        make(tmp_path), tmp_path / "out", action_topics=("/joint_states",), cameras=()
    )
    assert "/joint_states/position" in read_npz(encoded.files["actions"])
    assert "/cmd_vel/linear.x" in sensors(encoded)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("/cmd_vel", True),
        ("/arm/command", True),
        ("/arm_controller/joint_trajectory", True),
        ("/actions/gripper", True),
        ("/gripper_cmd", True),
        ("/joint_states", False),
        ("/commander/state", False),
        ("", False),
    ],
)
def test_names_of_commands_are_actions(topic: str, expected: bool) -> None:
    assert is_action_topic(topic) is expected


@pytest.mark.parametrize("option", ["topics", "action_topics", "cameras"])
def test_a_topic_that_is_not_there_is_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean|known"):
        imported(make(tmp_path), tmp_path / "out", **{option: ("/camera/imag",)})


def unknown_type_bag(folder: Path, storage: StoragePlugin, change: bytes, to: bytes) -> Path:
    kind = "my_robot/msg/Grip"
    types = own_types("float32 force\n", kind)
    rows = [*joint_rows(2), ("/grip", kind, START_NS + 1, types.types[kind](1.0))]
    bag = write_bag(folder, rows, storage=storage, types=types)
    for path in (data_file(bag), bag / "metadata.yaml"):
        path.write_bytes(path.read_bytes().replace(change, to))
    return bag


def test_service_events_and_definitions_that_cannot_be_parsed_do_not_stop_the_rest(
    tmp_path: Path,
) -> None:
    changes = {
        (b"my_robot/msg/Grip", b"my_robot/srv/Grip"): "is a service event",
        (b"float32 force", b"float32 -force"[:13]): "cannot be parsed",
        (b"float32 force", b"float99 force"): "is not described",
    }
    for number, ((change, to), reason) in enumerate(changes.items()):
        bag = unknown_type_bag(tmp_path / f"bag{number}", StoragePlugin.SQLITE3, change, to)
        encoded = imported(bag, tmp_path / f"out{number}")
        assert reason in reasons(encoded)["/grip"]
        assert len(sensors(encoded)["/joint_states/_t_ns"]) == 2
        assert encoded.metadata["read"] == {"/joint_states": 2, "/grip": 1}


def test_a_bag_of_which_no_topic_can_be_read_is_refused_with_the_reasons(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", joint_rows(2), storage=StoragePlugin.SQLITE3)
    for path in (data_file(bag), bag / "metadata.yaml"):
        path.write_bytes(path.read_bytes().replace(b"cdr", b"xyz"))
    with pytest.raises(StorageError, match="/joint_states: messages in 'xyz' are not read"):
        Ros2Importer().scan(bag)


def test_a_file_without_definitions_needs_the_typestore_and_says_so(tmp_path: Path) -> None:
    kind = "my_robot/msg/Grip"
    types = own_types("float32 force\n", kind)
    rows = [*joint_rows(2), ("/grip", kind, START_NS + 1, types.types[kind](1.0))]
    bag = write_bag(tmp_path / "bag", rows, storage=StoragePlugin.SQLITE3, types=types)
    with sqlite3.connect(data_file(bag)) as database:
        database.execute("DROP TABLE message_definitions")
    database.close()
    encoded = imported(bag, tmp_path / "out", typestore="humble")
    assert "the typestore 'humble' does not have it" in reasons(encoded)["/grip"]
    assert "typestore 'humble'" in encoded.metadata["losses"][0]
    assert encoded.metadata["ros2_bag"]["typestore"] == "humble"
    assert len(sensors(encoded)["/joint_states/_t_ns"]) == 2


def test_a_wrong_definition_of_a_standard_type_is_replaced_and_said_so(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", text_rows(["hello"]), storage=StoragePlugin.SQLITE3)
    path = data_file(bag)
    path.write_bytes(path.read_bytes().replace(b"string data", b"uint8  data"))
    encoded = imported(bag, tmp_path / "out")
    assert sensors(encoded)["/chatter/data"].tolist() == ["hello"]
    assert "The file does not describe the types of /chatter" in encoded.metadata["losses"][0]


# ------------------------------------------------------------------------------------------- counts


@both_storages
def test_other_counts_than_declared_are_refused(storage: StoragePlugin, tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", joint_rows(5), storage=storage)
    topics = information(bag)["topics_with_message_count"]
    for count in (4, 6):
        topics[0]["message_count"] = count
        change_metadata(bag, topics_with_message_count=topics, message_count=count)
        with pytest.raises(CountMismatch, match="/joint_states") as caught:
            Ros2Importer().scan(bag)
        assert (caught.value.declared, caught.value.read) == (count, 5)
    change_metadata(bag, message_count=7)
    with pytest.raises(CountMismatch, match="add up"):
        Ros2Importer().scan(bag)


def test_quality_of_service_that_differs_does_not_hide_messages(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", joint_rows(5))
    topics = information(bag)["topics_with_message_count"]
    topics[0]["topic_metadata"]["offered_qos_profiles"] = "- history: 1\n  depth: 7\n"
    change_metadata(bag, topics_with_message_count=topics)
    assert len(sensors(imported(bag, tmp_path / "out"))["/joint_states/_t_ns"]) == 5


def test_split_files_are_one_episode_in_their_order(tmp_path: Path) -> None:
    rows = joint_rows(9)
    parts = [write_bag(tmp_path / f"part{i}", rows[i * 3 : i * 3 + 3]) for i in range(3)]
    bag = write_bag(tmp_path / "whole", rows)
    data_file(bag).unlink()
    names = []
    for number, part in enumerate(parts):
        names.append(f"whole_{number}.mcap")
        data_file(part).rename(bag / names[-1])
    change_metadata(bag, relative_file_paths=names)
    arrays = sensors(imported(bag, tmp_path / "out"))
    assert (np.diff(arrays["/joint_states/_t_ns"]) == STEP_NS).all()
    assert len(arrays["/joint_states/_t_ns"]) == 9
    (bag / "metadata.yaml").unlink()
    encoded = imported(bag, tmp_path / "without")
    assert np.array_equal(sensors(encoded)["/joint_states/_t_ns"], arrays["/joint_states/_t_ns"])
    assert "There is no metadata.yaml" in encoded.metadata["losses"][0]
    assert len(encoded.metadata["losses"]) == 1
    (bag / names[1]).unlink()
    encoded = imported(bag, tmp_path / "gap")
    assert len(sensors(encoded)["/joint_states/_t_ns"]) == 6
    assert encoded.metadata["losses"][1].endswith("those that are there: number 1.")


def test_a_killed_recorder_leaves_messages_in_the_journal_which_are_read(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", joint_rows(4), storage=StoragePlugin.SQLITE3)
    path = data_file(bag)
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(
        "INSERT INTO messages (topic_id, timestamp, data) SELECT topic_id, timestamp + 1, data FROM messages"
    )
    database.commit()
    alone = tmp_path / "killed.db3"
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{alone}{suffix}")
    database.close()
    before = {p.name for p in tmp_path.iterdir()}
    encoded = imported(alone, tmp_path / "out")
    assert len(sensors(encoded)["/joint_states/_t_ns"]) == 8
    assert {p.name for p in tmp_path.iterdir()} == before | {"out"}


# --------------------------------------------------------------------------------- wrong metadata


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"version": 10}, UnsupportedVersion),
        ({"version": "new"}, UnsupportedVersion),
        ({"relative_file_paths": ["../../secret.db3"]}, DamagedRecording),
        ({"relative_file_paths": [".."]}, DamagedRecording),
        ({"relative_file_paths": []}, DamagedRecording),
        ({"relative_file_paths": 3}, DamagedRecording),
        ({"topics_with_message_count": [3]}, DamagedRecording),
        ({"topics_with_message_count": "x"}, DamagedRecording),
        ({"compression_mode": "file", "compression_format": "rar"}, StorageError),
    ],
)
def test_wrong_metadata_is_refused(
    changes: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    bag = write_bag(tmp_path / "bag", joint_rows(2))
    change_metadata(bag, **changes)
    with pytest.raises(error):
        Ros2Importer().scan(bag)


@pytest.mark.parametrize("text", ["", "a: [", "rosbag2_bagfile_information: 3", "\0", "- - -"])
def test_metadata_that_is_not_that_of_a_bag_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "metadata.yaml").write_text(text)
    with pytest.raises((UnknownFormat, DamagedRecording)):
        Ros2Importer().scan(tmp_path)


def test_other_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mcap").write_bytes(b"no")
    with pytest.raises(UnknownFormat):
        Ros2Importer().scan(tmp_path / "a.mcap")
    with pytest.raises(UnknownFormat):
        Ros2Importer().scan(tmp_path)
    with pytest.raises(StorageError):
        Ros2Importer().scan(tmp_path / "nothing")


# ------------------------------------------------------------------------------------------- video


def test_pictures_become_a_video_and_their_times_stay(tmp_path: Path) -> None:
    encoded = imported(make(tmp_path), tmp_path / "out")
    assert decode(encoded.files["video"]).numbers == [0, 1, 2, 3]
    assert encoded.fps == pytest.approx(10)
    arrays = sensors(encoded)
    assert (arrays["/camera/image/_t_ns"] - START_NS).tolist() == [0, 10**8, 2 * 10**8, 3 * 10**8]
    assert arrays["/camera/image/video_frame"].tolist() == [0, 1, 2, 3]
    assert "/camera/image/data" not in arrays
    [tile] = encoded.metadata["video_cameras"]
    assert (tile["camera"], tile["width"], tile["height"]) == ("/camera/image", 64, 48)


def test_blue_first_pictures_keep_their_colours(tmp_path: Path) -> None:
    pictures = [numbered(i, BLUE)[:, :, ::-1] for i in range(2)]
    bag = write_bag(tmp_path / "bag", image_rows(pictures, encoding="bgr8"))
    video = decode(imported(bag, tmp_path / "out").files["video"])
    assert is_close(colour_of(video.pictures[0]), BLUE)


def test_two_cameras_are_side_by_side_and_pictures_that_are_not_shown_are_counted(
    tmp_path: Path,
) -> None:
    rows = image_rows((numbered(i) for i in range(6)), "/left")
    slow = image_rows((numbered(10 + i) for i in range(3)), "/right")
    rows += [(topic, kind, t + 250_000_000, message) for topic, kind, t, message in slow[:1]]
    rows += [
        (topic, kind, START_NS + 310_000_000 + i, m)
        for i, (topic, kind, _, m) in enumerate(slow[1:])
    ]
    bag = write_bag(tmp_path / "bag", sorted(rows, key=lambda row: row[2]))
    encoded = imported(bag, tmp_path / "out")
    video = decode(encoded.files["video"])
    assert (video.width, video.height) == (128, 48)
    assert video.numbers == [0, 1, 2, 3, 4, 5]
    right = [type(video)([], [], [p[:, 64:]], "", 0, 0).numbers[0] for p in video.pictures]
    assert right == [0, 0, 0, 10, 12, 12]
    assert sensors(encoded)["/right/video_frame"].tolist() == [3, -1, 4]
    assert any(
        "/right: 1 of 3 pictures are not in the video" in s for s in encoded.metadata["losses"]
    )


def test_a_camera_that_no_video_can_show_is_named(tmp_path: Path) -> None:
    depth = [np.zeros((4, 4, 2), np.uint8)]
    rows = [*joint_rows(2), *image_rows(depth, "/depth", "16UC1")]
    encoded = imported(write_bag(tmp_path / "bag", rows), tmp_path / "out")
    assert reasons(encoded) == {"/depth": "pictures in '16UC1' are not shown in a video"}
    assert "video" not in encoded.files


def test_a_broken_picture_repeats_the_one_before_it(tmp_path: Path) -> None:
    rows = image_rows([numbered(0), numbered(1)[:8], numbered(2)])
    encoded = imported(write_bag(tmp_path / "bag", rows), tmp_path / "out")
    assert decode(encoded.files["video"]).numbers == [0, 0, 2]
    assert any(
        "1 of 3 messages give no picture of its size" in s for s in encoded.metadata["losses"]
    )


def test_jpeg_pictures_become_a_video(tmp_path: Path) -> None:
    kind = "sensor_msgs/msg/CompressedImage"
    rows = []
    for i in range(3):
        packed = io.BytesIO()
        Image.fromarray(numbered(i)).save(packed, "JPEG", quality=95)
        data = np.frombuffer(packed.getvalue(), np.uint8)
        t_ns = START_NS + i * 50_000_000
        rows.append(("/camera", kind, t_ns, made(kind, header(t_ns), "jpeg", data)))
    encoded = imported(write_bag(tmp_path / "bag", rows), tmp_path / "out")
    assert decode(encoded.files["video"]).numbers == [0, 1, 2]
    assert sensors(encoded)["/camera/format"].tolist() == ["jpeg"] * 3
