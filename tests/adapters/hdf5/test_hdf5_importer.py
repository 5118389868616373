"""HDF5 files of each layout as recordings: what is found, kept, named as lost, and refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.adapters.encoded import EncodedEpisode
from rollbook.adapters.hdf5 import Hdf5Importer, looks_like
from rollbook.adapters.importing import ImportFolder, import_recording
from rollbook.adapters.recording import Recording
from rollbook.adapters.source_digest import SourceDigests
from rollbook.contracts.npz import read_npz
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.errors import ConfigurationError, CountMismatch, DamagedRecording, UnknownFormat
from tests.adapters.hdf5.hdf5_files import (
    SIZE,
    jpeg,
    numbers,
    pictures,
    write_aloha,
    write_droid,
    write_libero,
    write_robomimic,
    write_robosuite,
)
from tests.adapters.recordings import hdf5 as recording_maker

Write = Callable[[Path], Path]


def scan(path: Path, **options: Any) -> Recording:
    return Hdf5Importer(**options).scan(path)


def encode(path: Path, index: int = 0, **options: Any) -> EncodedEpisode:
    importer = Hdf5Importer(**options)
    folder = path.parent / f"out-{path.stem}-{index}-{len(list(path.parent.iterdir()))}"
    folder.mkdir()
    encoded = importer.encode(importer.scan(path), index, folder)
    plain_metadata(encoded.metadata)  # JSON can hold it
    return encoded


def arrays(encoded: EncodedEpisode, kind: str) -> dict[str, NDArray[Any]]:
    return read_npz(encoded.files[kind])  # type: ignore[index]


def frames(path: Path) -> NDArray[np.uint8]:
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def changed(path: Path, change: Callable[[Any], object]) -> Path:
    with h5py.File(path, "r+") as file:
        change(file)
    return path


# ------------------------------------------------------------------------------------------ layouts


@pytest.mark.parametrize(
    ("write", "layout", "fps", "reason"),
    [
        (write_robomimic, "robomimic", 20, "control_freq in env_args"),
        (write_libero, "libero", 20, "control_freq in env_args"),
        (write_robosuite, "robosuite", 25, "control_freq in env_info"),
        (write_aloha, "aloha", 50, "the rate of ALOHA's writer"),
        (write_droid, "droid", 15, "the rate of DROID's robots"),
    ],
)
def test_the_layout_and_the_rate_of_a_file_are_found(
    write: Write, layout: str, fps: float, reason: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "file.hdf5")
    assert looks_like(path) == "it begins as an HDF5 file"
    about = scan(path).about
    assert (about["layout"], about["fps"], about["fps_from"]) == (layout, fps, reason)
    assert encode(path).metadata["hdf5_layout"] == layout


def test_a_robomimic_file_gives_every_dataset_of_a_demonstration(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5", lengths=(5, 4))
    recording = scan(path)
    assert [(e.index, e.key, e.rows, e.duration_s) for e in recording.episodes] == [
        (0, "demo_0", 5, 0.25),
        (1, "demo_1", 4, 0.2),
    ]
    slots = {stream.name: (stream.slot, stream.type, stream.rows) for stream in recording.streams}
    assert slots["actions"] == ("actions", "float64[7]", 9)
    assert slots["obs/object"] == ("sensors", "float32[10]", 9)
    encoded = encode(path, 1)
    sensors = arrays(encoded, "sensors")
    with h5py.File(path) as file:
        demo = file["data/demo_1"]
        for name in ("states", "rewards", "dones", "obs/object", "next_obs/robot0_eef_pos"):
            assert np.array_equal(sensors[f"{name}/value"], demo[name][()])
            assert sensors[f"{name}/value"].dtype == demo[name].dtype
        assert np.array_equal(arrays(encoded, "actions")["actions/value"], demo["actions"][()])
    assert sensors["states/_t_ns"].tolist() == [0, 50_000_000, 100_000_000, 150_000_000]
    assert encoded.name == "lift demo_1"
    assert (encoded.robot, encoded.env_version, encoded.fps) == ("Panda", "Lift 1.4.1", 20)


def test_counts_masks_and_attributes_are_in_the_metadata(tmp_path: Path) -> None:
    metadata = encode(write_robomimic(tmp_path / "lift.hdf5")).metadata
    assert metadata["adapter"] == "hdf5"
    assert metadata["declared"] == metadata["read"]
    assert (metadata["steps"], metadata["read"]["obs/object"]) == (5, 5)
    assert metadata["hdf5_masks"] == ["all", "train"]
    assert metadata["hdf5_attributes"]["episode"]["model_file"] == "<mujoco/>"
    assert json.loads(metadata["hdf5_attributes"]["data"]["env_args"])["env_name"] == "Lift"
    assert metadata["timestamps_assumed"] is True
    assert "1/20 s apart (control_freq in env_args)" in metadata["losses"][-1]
    assert (metadata["outcome"].reward_total, metadata["outcome"].success) == (10.0, None)


def test_demonstrations_come_in_natural_order(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5", lengths=(1,) * 12)
    assert [e.key for e in scan(path).episodes] == [f"demo_{i}" for i in range(12)]


def test_rewards_and_dones_that_libero_made_up_are_no_outcome(tmp_path: Path) -> None:
    encoded = encode(write_libero(tmp_path / "drawer.hdf5"))
    metadata = encoded.metadata
    assert metadata["tasks"] == ["open the drawer"]
    outcome = metadata["outcome"]
    assert (outcome.success, outcome.reward_total) == (None, None)
    assert arrays(encoded, "sensors")["rewards/value"].tolist() == [0, 0, 0, 0, 0, 1]
    assert any("makes up rewards and dones" in loss for loss in metadata["losses"])
    assert any("first 5 steps" in loss for loss in metadata["losses"])


def test_an_attribute_that_is_too_long_for_the_metadata_becomes_an_array(tmp_path: Path) -> None:
    path = write_libero(tmp_path / "drawer.hdf5")
    encoded = encode(path)
    assert "model_file" not in encoded.metadata["hdf5_attributes"]["episode"]
    kept = arrays(encoded, "sensors")["hdf5_attributes/episode/model_file/value"]
    with h5py.File(path) as file:
        assert kept[0].decode() == file["data/demo_0"].attrs["model_file"]


def test_raw_robosuite_files_begin_at_demo_1_and_declare_nothing(tmp_path: Path) -> None:
    path = write_robosuite(tmp_path / "demo.hdf5")
    assert [(e.key, e.rows) for e in scan(path).episodes] == [("demo_1", 4), ("demo_2", 3)]
    encoded = encode(path, 1)
    assert arrays(encoded, "sensors")["joint_torques/value"].shape == (3, 7)
    assert (encoded.robot, encoded.env_version) == ("Panda", "Stack 1.0.0")


def test_a_folder_of_aloha_files_is_one_recording(tmp_path: Path) -> None:
    folder = tmp_path / "sponge"
    for number in (0, 2, 10):
        write_aloha(folder / f"episode_{number}.hdf5", steps=3 + number, seed=number)
    assert looks_like(folder) == "episode_0.hdf5 begins as an HDF5 file"
    recording = scan(folder)
    keys = [(e.key, e.rows, [file.name for file in e.files]) for e in recording.episodes]
    assert keys == [
        ("episode_0", 3, ["episode_0.hdf5"]),
        ("episode_2", 5, ["episode_2.hdf5"]),
        ("episode_10", 13, ["episode_10.hdf5"]),
    ]
    alone = scan(folder / "episode_2.hdf5")
    digests = SourceDigests()
    both = [(recording, recording.episodes[1]), (alone, alone.episodes[0])]
    assert len({digests.of_episode(one, episode, {}).import_key for one, episode in both}) == 1


def test_aloha_actions_of_arms_and_base_are_actions(tmp_path: Path) -> None:
    encoded = encode(write_aloha(tmp_path / "episode_0.hdf5"), cameras=())
    assert set(arrays(encoded, "actions")) == {
        *("action/value", "action/_t_ns", "base_action/value", "base_action/_t_ns"),
    }
    assert arrays(encoded, "sensors")["observations/qpos/value"].dtype == np.float32
    assert encoded.metadata["hdf5_attributes"]["episode"] == {"compress": False, "sim": False}
    assert "video" not in encoded.files


def test_droid_steps_have_the_times_of_the_file(tmp_path: Path) -> None:
    path = write_droid(tmp_path / "trajectory.h5")
    (tmp_path / "recordings" / "MP4").mkdir(parents=True)
    (tmp_path / "recordings" / "MP4" / "123.mp4").touch()
    encoded = encode(path)
    times = arrays(encoded, "actions")["action/cartesian_position/_t_ns"]
    assert times.tolist() == [(1_700_000_000_000 + 67 * i) * 1_000_000 for i in range(4)]
    assert "timestamps_assumed" not in encoded.metadata
    assert encoded.metadata["tasks"] == ["Move the cup"]
    assert encoded.metadata["outcome"].success is True
    assert [s.name for s in scan(path).skipped] == ["recordings/MP4/123.mp4"]


def test_droid_times_that_do_not_rise_are_replaced_by_the_rate(tmp_path: Path) -> None:
    def stop(file: Any) -> None:
        for name in ("control/step_start", "robot_state/read_start"):
            file[f"observation/timestamp/{name}"][:] = 7

    encoded = encode(changed(write_droid(tmp_path / "trajectory.h5"), stop))
    assert encoded.metadata["timestamps_assumed"] is True
    times = arrays(encoded, "actions")["action/gripper_position/_t_ns"]
    assert times.tolist() == [0, 66_666_667, 133_333_333, 200_000_000]


def test_a_layout_that_may_be_two_has_to_be_named(tmp_path: Path) -> None:
    path = tmp_path / "unknown.hdf5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/actions"] = numbers((3, 2), 0)
    with pytest.raises(
        ConfigurationError, match="robomimic or robosuite; name it with the option layout"
    ):
        scan(path)
    assert encode(path, layout="robosuite").metadata["hdf5_layout"] == "robosuite"
    with h5py.File(path, "r+") as file:
        file["data"].attrs["total"] = 3
        file["action"] = numbers((3, 2), 0)
        file["observations/qpos"] = numbers((3, 2), 0)
    with pytest.raises(ConfigurationError, match="robomimic or aloha"):
        scan(path)


def test_a_named_layout_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match="aloha needs `action` and `observations`"):
        scan(write_robomimic(tmp_path / "lift.hdf5"), layout="aloha")
    with pytest.raises(UnknownFormat, match="libero needs a group `data`"):
        scan(write_aloha(tmp_path / "episode_0.hdf5"), layout="libero")


def test_files_of_other_layouts_are_refused_by_what_they_hold(tmp_path: Path) -> None:
    path = tmp_path / "other.hdf5"
    with h5py.File(path, "w") as file:
        file["temperature"] = np.arange(3)
    with pytest.raises(UnknownFormat, match="it holds temperature"):
        scan(path)
    (tmp_path / "text.hdf5").write_text("not HDF5")
    with pytest.raises(UnknownFormat, match="does not begin as an HDF5 file"):
        scan(tmp_path / "text.hdf5")
    pointer = tmp_path / "pointer.hdf5"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
    with pytest.raises(UnknownFormat, match="Git LFS pointer"):
        scan(pointer)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnknownFormat, match=r"no \.hdf5 or \.h5 file"):
        scan(tmp_path / "empty")
    with pytest.raises(UnknownFormat, match="no such file"):
        scan(tmp_path / "missing.hdf5")


def test_two_layouts_in_one_folder_are_refused(tmp_path: Path) -> None:
    write_aloha(tmp_path / "a" / "episode_0.hdf5")
    write_robomimic(tmp_path / "a" / "lift.hdf5")
    with pytest.raises(ConfigurationError, match="one by one"):
        scan(tmp_path / "a")


def test_parts_of_a_minari_dataset_are_left_to_its_importer(tmp_path: Path) -> None:
    data = tmp_path / "cartpole" / "data"
    write_robomimic(data / "main_data.hdf5")
    assert looks_like(data) is not None
    (data / "metadata.json").write_text("{}")
    assert looks_like(data) is None
    assert looks_like(data / "main_data.hdf5") is None
    with pytest.raises(UnknownFormat, match="import the folder as minari"):
        scan(data / "main_data.hdf5")


# ------------------------------------------------------------------------------------------ counts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f["data"].attrs.modify("total", 12), "declares 12 steps, but 9 were read"),
        (lambda f: f["data"].attrs.create("num_demos", 3), "declares 3 demonstrations, but 2"),
    ],
)
def test_totals_that_do_not_add_up_are_refused(
    change: Callable[[Any], object], message: str, tmp_path: Path
) -> None:
    path = changed(write_robomimic(tmp_path / "lift.hdf5"), change)
    with pytest.raises(CountMismatch, match=message):
        scan(path)


@pytest.mark.parametrize("count", [4.0, np.array([4]), np.uint16(4)])
def test_counts_of_any_number_type_are_compared(count: Any, tmp_path: Path) -> None:
    def change(file: Any) -> None:
        file["data/demo_0"].attrs["num_samples"] = count
        del file["data"].attrs["total"]

    path = changed(write_robomimic(tmp_path / "lift.hdf5"), change)
    with pytest.raises(CountMismatch, match="declares 4 rows of /data/demo_0/actions, but 5"):
        scan(path)


def _shorten(name: str) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        demo = file["data/demo_1"]
        values = demo[name][:-1]
        del demo[name]
        demo[name] = values

    return change


@pytest.mark.parametrize("name", ["actions", "rewards", "obs/object", "next_obs/object"])
def test_a_dataset_with_too_few_rows_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = changed(write_robomimic(tmp_path / "lift.hdf5"), _shorten(name))
    with pytest.raises(CountMismatch, match=f"declares 4 rows of /data/demo_1/{name}, but 3"):
        encode(path, 1)
    assert encode(path, 0).metadata["steps"] == 5


def test_a_demonstration_without_actions_is_refused(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5")
    changed(path, lambda file: file["data/demo_1"].pop("actions"))
    with pytest.raises(DamagedRecording, match="no actions"):
        encode(path, 1)


def test_a_demonstration_without_steps_is_named(tmp_path: Path) -> None:
    def add(file: Any) -> None:
        demo = file["data"].create_group("demo_9")
        demo.attrs["num_samples"] = 0
        demo["actions"] = np.empty((0, 7))

    recording = scan(changed(write_robomimic(tmp_path / "lift.hdf5"), add))
    assert ("data/demo_9", "it has no steps") in [(s.name, s.reason) for s in recording.skipped]
    assert len(recording.episodes) == 2


def test_a_mask_that_names_a_missing_demonstration_is_reported(tmp_path: Path) -> None:
    def add(file: Any) -> None:
        file["mask/test"] = np.array([b"demo_0", b"demo_77"])
        file["mask/none"] = np.array([], "S6")
        file["mask/odd"] = np.arange(3)

    path = changed(write_robomimic(tmp_path / "lift.hdf5"), add)
    recording = scan(path)
    assert "mask/test names 'demo_77', which the file does not hold." in recording.losses
    assert [s.name for s in recording.skipped] == ["mask/odd"]
    assert encode(path).metadata["hdf5_masks"] == ["all", "test", "train"]


# ------------------------------------------------------------------------------- other kinds of data


def test_datasets_that_nobody_knows_are_kept_by_their_path(tmp_path: Path) -> None:
    def add(file: Any) -> None:
        demo = file["data/demo_0"]
        demo["extra/deep/force"] = numbers((5, 3), 9, ">f4")
        demo["extra/contact"] = np.array([0, 1, 1, 0, 1], bool)
        demo["intrinsics"] = np.eye(3)
        demo["mass"] = 1.5
        demo["extra/words"] = np.array(["a", "bc", "", "d", "é"], h5py.string_dtype())
        demo["language_instruction"] = "lift the cube"
        demo["extra/kind"] = np.array(
            [2, 1, 2, 1, 2], h5py.enum_dtype({"open": 1, "closed": 2}, basetype="i2")
        )

    path = changed(write_robomimic(tmp_path / "lift.hdf5"), add)
    encoded = encode(path)
    sensors = arrays(encoded, "sensors")
    assert np.array_equal(sensors["extra/deep/force/value"], numbers((5, 3), 9, "f4"))
    assert sensors["extra/contact/value"].dtype == np.bool_
    assert np.array_equal(sensors["intrinsics/value"], np.eye(3))
    assert sensors["mass/value"].tolist() == [1.5]
    assert sensors["extra/words/value"].tolist() == ["a", "bc", "", "d", "é"]
    assert sensors["extra/kind/value"].tolist() == [2, 1, 2, 1, 2]
    metadata = encoded.metadata
    assert metadata["hdf5_texts"] == {"language_instruction": "lift the cube"}
    assert metadata["tasks"] == ["lift the cube"]
    shapes = {"intrinsics": [3, 3], "mass": [], "language_instruction": []}
    assert metadata["hdf5_not_per_step"] == shapes
    assert any(loss.startswith("intrinsics of shape [3, 3]") for loss in metadata["losses"])


def test_values_that_are_neither_numbers_nor_text_are_left_out_by_name(tmp_path: Path) -> None:
    def add(file: Any) -> None:
        demo = file["data/demo_0"]
        demo.create_dataset("refs", (5,), h5py.ref_dtype)
        demo["refs"][0] = demo["actions"].ref
        demo["pairs"] = np.zeros(5, [("a", "f4"), ("b", "i4")])
        demo["opaque"] = np.zeros(5, "V4")
        ragged = demo.create_dataset("ragged", (5,), h5py.vlen_dtype(np.int32))
        ragged[0] = [1, 2]
        blobs = demo.create_dataset("blobs", (5,), h5py.vlen_dtype(np.uint8))
        blobs[0] = np.frombuffer(b"no picture", np.uint8)
        demo["latin"] = np.array([b"\xff\xfe"] * 5)
        demo["nothing"] = h5py.Empty("f4")
        demo["empty"] = np.empty((5, 0))
        demo.attrs["ref"] = demo["actions"].ref
        demo.attrs["unset"] = h5py.Empty("f4")

    encoded = encode(changed(write_robomimic(tmp_path / "lift.hdf5"), add))
    reasons = {each["name"]: each["reason"] for each in encoded.metadata["skipped"]}
    assert set(reasons) == {
        *("refs", "pairs", "opaque", "ragged", "blobs", "latin", "nothing", "empty"),
        *("episode@ref", "episode@unset"),
    }
    assert "references" in reasons["refs"]
    assert "compound" in reasons["pairs"]
    assert "UTF-8" in reasons["latin"]


def test_numbers_of_attributes_that_json_cannot_hold_become_arrays(tmp_path: Path) -> None:
    def add(file: Any) -> None:
        file["data/demo_0"].attrs["limit"] = np.array([np.inf, 1.0])
        file["data/demo_0"].attrs["many"] = np.arange(2000)
        file["data/demo_0/obs/object"].attrs["unit"] = "m"

    encoded = encode(changed(write_robomimic(tmp_path / "lift.hdf5"), add))
    sensors = arrays(encoded, "sensors")
    assert sensors["hdf5_attributes/episode/limit/value"].tolist() == [[np.inf, 1.0]]
    assert sensors["hdf5_attributes/episode/many/value"].shape == (1, 2000)
    assert encoded.metadata["hdf5_attributes"]["episode/obs/object"] == {"unit": "m"}


# ------------------------------------------------------------------------------------------ cameras


@pytest.mark.parametrize("compress", [False, True])
def test_cameras_are_shown_side_by_side(compress: bool, tmp_path: Path) -> None:
    path = write_aloha(tmp_path / "episode_0.hdf5", steps=4, compress=compress)
    encoded = encode(path)
    shown = frames(encoded.files["video"])
    height, width = SIZE
    assert shown.shape == (4, height, 2 * width, 3)
    assert np.abs(shown[:, :, 4 : width - 4].mean((0, 1, 2)) - (220, 30, 30)).max() < 12
    assert np.abs(shown[:, :, width + 4 : -4].mean((0, 1, 2)) - (30, 30, 220)).max() < 12
    names = [tile["camera"] for tile in encoded.metadata["video_cameras"]]
    assert names == ["observations/images/cam_high", "observations/images/cam_left"]
    assert encoded.metadata["read"]["observations/images/cam_high"] == 4
    assert encoded.fps == 50


@pytest.mark.parametrize("compress", [False, True])
def test_blue_green_red_is_turned_and_recorded(compress: bool, tmp_path: Path) -> None:
    path = write_aloha(tmp_path / "episode_0.hdf5", steps=2, compress=compress)
    encoded = encode(path, colour_order="bgr", cameras=("cam_high",))
    shown = frames(encoded.files["video"])
    assert np.abs(shown.mean((0, 1, 2)) - (30, 30, 220)).max() < 12
    assert encoded.metadata["hdf5_colour_order"] == "bgr"
    assert Hdf5Importer(colour_order="bgr").options()["colour_order"] == "bgr"
    left_out = {each["name"]: each["reason"] for each in encoded.metadata["skipped"]}
    assert left_out["observations/images/cam_left"] == "this camera was not chosen"


def test_lengths_of_compressed_pictures_are_compared(tmp_path: Path) -> None:
    def change(file: Any) -> None:
        file["compress_len"][0, 1] += 1

    path = changed(write_aloha(tmp_path / "episode_0.hdf5", compress=True), change)
    with pytest.raises(DamagedRecording, match=r"cam_left are in no row of compress_len"):
        encode(path)


def test_a_compressed_picture_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    def change(file: Any) -> None:
        file["observations/images/cam_high"][2, 300:] = 0

    path = changed(write_aloha(tmp_path / "episode_0.hdf5", compress=True), change)
    with pytest.raises(DamagedRecording, match="cam_high in row 2 is cut off"):
        encode(path)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_pictures_as_lists_of_bytes_become_a_video(form: str, tmp_path: Path) -> None:
    def add(file: Any) -> None:
        made = file["data/demo_0"].create_dataset("obs/front", (5,), h5py.vlen_dtype(np.uint8))
        for row, frame in enumerate(pictures(5)):
            made[row] = np.frombuffer(jpeg(frame, form), np.uint8)

    encoded = encode(changed(write_robomimic(tmp_path / "lift.hdf5"), add))
    assert np.abs(frames(encoded.files["video"]).mean((0, 1, 2)) - (200, 40, 90)).max() < 12
    assert encoded.metadata["video_cameras"][0]["camera"] == "obs/front"


def test_depth_is_kept_as_numbers_and_pictures_of_next_obs_are_named(tmp_path: Path) -> None:
    def add(file: Any) -> None:
        demo = file["data/demo_0"]
        demo["obs/depth"] = np.arange(5 * 6).reshape(5, 2, 3, 1).astype("u2")
        demo["obs/mask"] = np.zeros((5, 4, 4, 1), "u1")
        demo["next_obs/agentview_image"] = pictures(5)

    path = changed(write_robomimic(tmp_path / "lift.hdf5", with_camera=True), add)
    encoded = encode(path)
    sensors = arrays(encoded, "sensors")
    assert sensors["obs/depth/value"].dtype == np.uint16
    assert sensors["obs/mask/value"].shape == (5, 4, 4, 1)
    assert [tile["camera"] for tile in encoded.metadata["video_cameras"]] == ["obs/agentview_image"]
    assert [each["name"] for each in encoded.metadata["skipped"]] == ["next_obs/agentview_image"]
    both = encode(path, cameras=("agentview_image", "next_obs/agentview_image"))
    assert len(both.metadata["video_cameras"]) == 2
    with pytest.raises(ConfigurationError, match="no camera 'wrist'; known: next_obs/"):
        scan(path, cameras=("wrist",))


def test_the_rate_can_be_named(tmp_path: Path) -> None:
    path = write_droid(tmp_path / "trajectory.h5")
    encoded = encode(path, fps=10.0)
    assert (encoded.fps, encoded.duration_s) == (10.0, 0.4)
    assert encoded.metadata["timestamps_assumed"] is True
    assert encoded.metadata["hdf5_fps_from"] == "the option fps"
    with pytest.raises(ConfigurationError, match="above 0"):
        scan(path, fps=0.0)


def test_options_are_checked(tmp_path: Path) -> None:
    path = write_droid(tmp_path / "trajectory.h5")
    with pytest.raises(ConfigurationError, match="one of auto, robomimic"):
        scan(path, layout="zarr")
    with pytest.raises(ConfigurationError, match="rgb or bgr"):
        scan(path, colour_order="grb")
    importer = Hdf5Importer()
    with pytest.raises(ConfigurationError, match="no episode 5"):
        importer.encode(importer.scan(path), 5, tmp_path)


def test_a_missing_library_is_named_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_droid(tmp_path / "trajectory.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert looks_like(path) is not None
    with pytest.raises(ConfigurationError, match="h5py, which is not installed: pip install"):
        scan(path)


def test_the_sample_recording_is_valid(tmp_path: Path) -> None:
    assert [e.rows for e in scan(recording_maker.make(tmp_path)).episodes] == [5, 4]


def test_what_is_left_out_beside_the_episodes_is_named_in_each_of_them(tmp_path: Path) -> None:
    """A stopped recorder leaves an empty group. It, and a demonstration behind a link, do not vanish without a word."""

    def change(file: Any) -> None:
        file.move("data/demo_0", "data/demo_5")
        file.create_group("data/demo_0")
        file["data/demo_7"] = h5py.SoftLink("/data/demo_1")
        file["mask/numbers"] = np.arange(3)

    path = changed(write_robomimic(tmp_path / "lift.hdf5"), change)
    done = import_recording(Hdf5Importer(), path, ImportFolder(tmp_path / "out"))
    assert [each.key for each in done] == ["demo_1", "demo_5"]
    for each in done:
        assert each.metadata is not None
        found = {skip["name"]: skip["reason"] for skip in each.metadata["skipped"]}
        assert found["data/demo_0"] == "it has no steps"
        assert "soft link" in found["data/demo_7"]
        assert found["mask/numbers"] == "it is not a list of names"


def test_times_of_droid_that_64_bits_of_nanoseconds_do_not_hold_are_no_clock(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trajectory.h5"
    with h5py.File(path, "w") as file:
        file["action/position"] = np.zeros((4, 6))
        file["observation/state"] = np.zeros((4, 7))
        times = np.array([-(2**63), 2, 3, 4])
        file["observation/timestamp/control/step_start"] = times
    importer = Hdf5Importer()
    (tmp_path / "out").mkdir()
    encoded = importer.encode(importer.scan(path), 0, tmp_path / "out")
    assert encoded.metadata["timestamps_assumed"] is True
