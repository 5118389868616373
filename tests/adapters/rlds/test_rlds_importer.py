"""RLDS: every checksum is compared, every value comes back in its declared type, and a cut shard says what it lost."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.adapters.rlds import RldsImporter, looks_like
from rollbook.adapters.rlds.tfrecord import masked
from rollbook.errors import (
    ConfigurationError,
    CountMismatch,
    DamagedRecording,
    StorageError,
    UnknownFormat,
    UnsupportedVersion,
)
from tests.adapters.damaged_files import outcomes_of_damage
from tests.adapters.encoded_files import Imported, import_all, imported
from tests.adapters.pictures import decode
from tests.adapters.rlds_datasets import (
    checksum,
    crc32c,
    field,
    group,
    image,
    listed,
    record,
    robot_episode,
    steps,
    tensor,
    text,
    varint,
    write,
    write_robot,
)

FIRST = "robot-train.tfrecord-00000-of-00002"


def one(tmp_path: Path, episode: dict[str, Any], features: Any = None, **options: Any) -> Imported:
    path = write(tmp_path / "set", {"train": [[episode]]}, features)
    (found,) = import_all(RldsImporter(**options), path, tmp_path)
    return found


def test_the_checksums_are_those_of_the_format() -> None:
    """CRC-32C of RFC 3720, an empty record, and the length with which event files of TensorBoard begin."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"123456789") == 0xE3069283
    assert checksum(b"123456789") == masked(0xE3069283).to_bytes(4, "little")
    assert record(b"").hex() == "000000000000000029039807d8ea82a2"
    assert record(bytes(24)).hex().startswith("1800000000000000a37f4b22")


def test_values_come_back_as_they_were_declared(tmp_path: Path) -> None:
    given = robot_episode(1, 6)
    found = one(tmp_path, given)
    state = found.sensors["observation.state/value"]
    assert state.dtype == np.float32
    assert state.tobytes() == given["steps/observation/state"].tobytes()
    assert found.actions["action/value"].tobytes() == given["steps/action"].tobytes()
    assert found.sensors["gripper/value"].dtype == np.int32
    assert found.sensors["gripper/value"].tolist() == given["steps/gripper"].tolist()
    assert found.sensors["is_last/value"].tolist() == [False] * 5 + [True]
    assert found.sensors["is_last/value"].dtype == np.bool_
    assert found.sensors["reward/value"].dtype == np.float32
    assert found.sensors["language_instruction/value"].tolist() == ["pick up cube 1"] * 6
    assert found.sensors["gripper/_t_ns"].tolist() == [i * 100_000_000 for i in range(6)]
    assert found.metadata["tasks"] == ["pick up cube 1"]
    assert found.metadata["outcome"]["success"] is True
    assert found.metadata["outcome"]["reward_total"] == 1.0
    assert found.metadata["ended_by"] == "terminated"
    assert found.metadata["rlds_episode_metadata"]["episode_metadata.file_path"] == "raw/1.npy"
    assert found.metadata["declared"] == {"records": 1}
    assert found.metadata["read"]["action"] == 6
    assert found.metadata["timestamps_assumed"] is True
    losses = " ".join(found.metadata["losses"])
    assert "reward is declared float64" in losses
    assert "last step mean nothing" in losses


def test_pictures_become_a_video(tmp_path: Path) -> None:
    found = one(tmp_path, robot_episode(1, 6), fps=5.0)
    film = decode(found.encoded.files["video"])
    shades = [int(each.mean()) for each in film.pictures]
    assert shades == pytest.approx([40 + 16 * i for i in range(6)], abs=3)
    assert film.times == pytest.approx([i / 5 for i in range(6)])
    assert found.metadata["video_cameras"][0]["camera"] == "observation.image"


def test_a_dataset_is_scanned_without_reading_its_records(tmp_path: Path) -> None:
    path = write_robot(tmp_path)
    assert looks_like(path) is not None
    assert looks_like(path.parent) is None
    recording = RldsImporter().scan(path)
    assert [each.key for each in recording.episodes] == ["train_0", "train_1", "train_2", "val_0"]
    assert recording.name == "robot"
    assert {each.slot for each in recording.streams} == {"sensors", "actions", "video"}
    only = RldsImporter(splits=("val",)).scan(path)
    assert [each.key for each in only.episodes] == ["val_0"]
    assert sorted(each.name for each in only.skipped)[0] == FIRST
    with pytest.raises(ConfigurationError, match="no split 'test'"):
        RldsImporter(splits=("test",)).scan(path)


def test_an_episode_that_does_not_terminate_was_truncated(tmp_path: Path) -> None:
    found = one(tmp_path, robot_episode(2, 3, terminal=False), cameras=())
    assert (found.metadata["terminated"], found.metadata["ended_by"]) == (False, "truncated")
    assert "video" not in found.encoded.files
    assert "steps/observation/image" in [each["name"] for each in found.metadata["skipped"]]


def test_features_of_every_kind(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    raw, packed = rng.normal(size=(3, 2, 2)), rng.integers(0, 9, (3, 4)).astype(np.int16)
    inside = group(
        raw=tensor("float64", 2, 2, encoding="bytes"),
        packed=tensor("int16", 4, encoding="zlib"),
        same=listed(tensor("float32", 2)),
        uneven=listed(tensor("int64")),
        depth=image(32, 32, 1, dtype="uint16"),
        label={"pythonClassName": "x.ClassLabel", "classLabel": {"numClasses": "4"}},
        sound={"pythonClassName": "x.Audio", "audio": {}},
        free=tensor("float32", -1),
        small=tensor("uint8", 2),
        huge=tensor("uint64"),
        words=group(said=text()),
    )
    given = {
        "steps/raw": [each.tobytes() for each in raw],
        "steps/packed": [zlib.compress(each.tobytes()) for each in packed],
        "steps/same/ragged_flat_values": np.arange(12, dtype=np.float32),
        "steps/same/ragged_row_lengths_0": np.array([2, 2, 2]),
        "steps/uneven/ragged_flat_values": np.arange(3),
        "steps/uneven/ragged_row_lengths_0": np.array([2, 0, 1]),
        "steps/depth": [b"x"] * 3,
        "steps/label": np.array([0, 3, 1]),
        "steps/small": np.array([[0, 255], [1, 2], [127, 128]]),
        "steps/huge": np.array([-1, 0, 5]),
        "steps/words/said": ["é", "", "abc"],
        "steps/free": np.zeros(5, np.float32),
        "steps/stowaway": np.zeros(3, np.float32),
    }
    found = one(tmp_path, given, group(steps=steps(inside)))
    assert found.sensors["raw/value"].tobytes() == raw.tobytes()
    assert found.sensors["raw/value"].dtype == np.float64, "bytes keep all digits"
    assert np.array_equal(found.sensors["packed/value"], packed)
    assert found.sensors["same/value"].shape == (3, 2, 2)
    assert found.sensors["label/value"].tolist() == [0, 3, 1]
    assert found.sensors["small/value"].dtype == np.uint8
    assert found.sensors["huge/value"].tolist() == [2**64 - 1, 0, 5]
    assert found.sensors["words.said/value"].tolist() == ["é", "", "abc"]
    skipped = {each["name"]: each["reason"] for each in found.metadata["skipped"]}
    assert skipped.keys() == {
        *("steps/uneven", "steps/depth", "steps/sound", "steps/free", "steps/stowaway")
    }
    assert "differ in length" in skipped["steps/uneven"]
    assert "does not declare" in skipped["steps/stowaway"]


def test_lists_that_are_not_packed_are_read_too(tmp_path: Path) -> None:
    """Protocol Buffers allow one field for each number; TensorFlow does not write it so."""
    singles = b"".join(varint(1 << 3) + varint(each) for each in (1, 300, -5))
    floats = b"".join(varint(1 << 3 | 5) + np.float32(each).tobytes() for each in (1.5, -2, 3))
    entries = [
        field(1, b"steps/a") + field(2, field(3, singles)),
        field(1, b"steps/b") + field(2, field(2, floats)),
    ]
    path = write(
        tmp_path / "set",
        {"train": [[{}]]},
        group(steps=steps(group(a=tensor("int64"), b=tensor("float32")))),
    )
    data = field(1, b"".join(field(1, each) for each in entries))
    (path / "robot-train.tfrecord-00000-of-00001").write_bytes(record(data))
    (found,) = import_all(RldsImporter(), path, tmp_path)
    assert found.sensors["a/value"].tolist() == [1, 300, -5]
    assert found.sensors["b/value"].tolist() == [1.5, -2, 3]


# ----------------------------------------------------------------------------------------- damage


def test_a_record_with_a_wrong_checksum_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = write_robot(tmp_path / "sets")
    shard = path / FIRST
    data = bytearray(shard.read_bytes())
    data[-100] ^= 1
    shard.write_bytes(data)
    importer = RldsImporter(cameras=())
    recording = importer.scan(path)
    imported(importer, recording, 0, tmp_path)
    with pytest.raises(DamagedRecording, match="record 1 do not have its checksum") as caught:
        imported(importer, recording, 1, tmp_path)
    assert FIRST in caught.value.path


def test_a_length_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    path = write_robot(tmp_path)
    data = bytearray((path / FIRST).read_bytes())
    data[2] ^= 4
    (path / FIRST).write_bytes(data)
    with pytest.raises(DamagedRecording, match="length of record 0, at byte 0"):
        RldsImporter().scan(path)


def test_a_shard_that_is_cut_off_is_imported_up_to_there_and_says_so(tmp_path: Path) -> None:
    path = write_robot(tmp_path / "sets")
    data = (path / FIRST).read_bytes()
    (path / FIRST).write_bytes(data[:-10])
    importer = RldsImporter(cameras=())
    recording = importer.scan(path)
    assert [each.key for each in recording.episodes] == ["train_0", "train_1", "val_0"]
    assert "1 of 2 episodes are lost" in recording.about["damage"][0]
    found = imported(importer, recording, 0, tmp_path)
    assert "in record 1" in found.metadata["damage"]["detail"]
    assert found.metadata["declared"] == {"records": 2}
    assert found.metadata["read"]["records"] == 1
    assert FIRST in [each["name"] for each in found.metadata["skipped"]]


def test_a_shard_with_fewer_or_more_records_than_declared_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "set", {"train": [[robot_episode(0, 2), robot_episode(1, 2)]]})
    info = json.loads((path / "dataset_info.json").read_text())
    for length in ("1", "3"):
        info["splits"][0]["shardLengths"] = [length]
        (path / "dataset_info.json").write_text(json.dumps(info))
        with pytest.raises(CountMismatch, match=f"declares {length} episodes, but 2 were read"):
            RldsImporter().scan(path)


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    path = write_robot(tmp_path)
    (path / FIRST).unlink()
    with pytest.raises(CountMismatch, match="declares 2 shards of the split train, but 1"):
        RldsImporter().scan(path)


def test_features_of_different_length_are_refused(tmp_path: Path) -> None:
    given = robot_episode(0, 4)
    given["steps/action"] = given["steps/action"][:3]
    with pytest.raises(CountMismatch, match="steps/action has another number"):
        one(tmp_path, given)
    del given["steps/action"]
    with pytest.raises(CountMismatch, match="but 0 were read"):
        one(tmp_path / "2", given)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("steps/action", np.zeros(7, np.float32), "do not fill rows of 2"),
        ("steps/action", np.zeros(8, np.int64), "stored as a list of int"),
        ("steps/gripper", np.array([2**40, 0, 0, 0]), "not int32"),
        ("steps/is_last", np.array([0, 0, 0, 2]), "not bool"),
        ("steps/observation/image", [b"\xff\xd8\xff broken"] * 4, "cannot be decoded|damaged"),
        ("steps/observation/image", [b"GIF89a"] * 4, "neither PNG nor JPEG"),
    ],
)
def test_values_that_are_not_as_declared_are_refused(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match=message):
        one(tmp_path, {**robot_episode(0, 4), key: value})


def test_text_that_cannot_be_stored_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = robot_episode(0, 4)
    given["steps/language_instruction"] = [b"\xff\xfe"] * 4
    found = one(tmp_path, given)
    assert found.metadata["skipped"][-1]["name"] == "steps/language_instruction"
    assert found.metadata["tasks"] == []
    monkeypatch.setattr("rollbook.adapters.steps.text_column._MOST_BYTES", 1000)
    monkeypatch.setattr("rollbook.adapters.steps.text_column._MOST_GROWTH", 4)
    long = robot_episode(0, 4)
    long["steps/language_instruction"] = ["x" * 200, "", "", ""]
    found = one(tmp_path / "2", long)
    assert "language_instruction/value" not in found.sensors
    assert "200 characters" in found.metadata["skipped"][-1]["reason"]


def test_a_packed_tensor_cannot_grow_beyond_its_shape(tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(1 << 24))
    features = group(steps=steps(group(x=tensor("uint8", 4, encoding="zlib"))))
    with pytest.raises(DamagedRecording, match="has not the 4 bytes"):
        one(tmp_path, {"steps/x": [bomb]}, features)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"fileFormat": "array_record"}, UnsupportedVersion, "only tfrecord"),
        ({"splits": []}, DamagedRecording, "does not list its splits"),
        ({"splits": [{"name": "train", "shardLengths": ["-1"]}]}, DamagedRecording, "whole number"),
        ({"splits": [{"name": "a/../../b", "shardLengths": ["1"]}]}, DamagedRecording,
         "not the name of a file"),
        ({"splits": [{"name": "train", "shardLengths": ["1"], "filepathTemplate": "/etc/passwd"}]},
         DamagedRecording, "not the name of a file"),
    ],
)  # fmt: skip
def test_a_description_that_is_wrong_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = write_robot(tmp_path)
    file = path / "dataset_info.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(error, match=message):
        RldsImporter().scan(path)


def test_a_folder_above_names_the_one_that_is_meant(tmp_path: Path) -> None:
    path = write_robot(tmp_path)
    with pytest.raises(UnknownFormat, match=r"1\.0\.0 has one"):
        RldsImporter().scan(path.parent)
    (path / "features.json").write_text('{"type": "old", "content": {}}')
    with pytest.raises(UnsupportedVersion, match=r"before version 4\.5"):
        RldsImporter().scan(path)


def test_damaged_files_give_errors_of_rollbook(tmp_path: Path) -> None:
    counts = outcomes_of_damage(write_robot, RldsImporter(cameras=()), tmp_path, most=30)
    assert counts["refused"] > 40
    assert counts["damage said"] > 0
