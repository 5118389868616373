"""HDF5 files in the layouts that the importer knows, written by h5py as their tools write them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from PIL import Image

ENV_ARGS = {
    "env_name": "Lift",
    "env_version": "1.4.1",
    "type": 1,
    "env_kwargs": {"robots": ["Panda"], "control_freq": 20},
}
SIZE = (16, 24)
"""Height and width of the pictures."""


def numbers(shape: tuple[int, ...], seed: int, dtype: str = "f8") -> NDArray[Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def pictures(steps: int, colour: tuple[int, int, int] = (200, 40, 90)) -> NDArray[np.uint8]:
    """Pictures of one colour each, which a video keeps nearly as they are."""
    frames = np.empty((steps, *SIZE, 3), np.uint8)
    frames[:] = colour
    return frames


def jpeg(frame: NDArray[np.uint8], form: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame).save(out, form, quality=95)
    return out.getvalue()


def write_demo(demo: Any, steps: int, seed: int, *, with_camera: bool = False) -> None:
    demo.attrs["num_samples"] = steps
    demo.attrs["model_file"] = "<mujoco/>"
    demo["actions"] = numbers((steps, 7), seed)
    demo["states"] = numbers((steps, 9), seed + 1)
    demo["rewards"] = np.arange(steps, dtype="f8")
    demo["dones"] = np.arange(steps) == steps - 1
    for name, offset in (("obs", 0), ("next_obs", 1)):
        demo[f"{name}/robot0_eef_pos"] = numbers((steps, 3), seed + 2 + offset)
        demo[f"{name}/object"] = numbers((steps, 10), seed + 4 + offset, "f4")
    if with_camera:
        demo.create_dataset("obs/agentview_image", data=pictures(steps), compression="gzip")


def write_robomimic(
    path: Path, lengths: tuple[int, ...] = (5, 4), *, with_camera: bool = False
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(lengths)
        data.attrs["env_args"] = json.dumps(ENV_ARGS)
        for number, steps in enumerate(lengths):
            write_demo(
                data.create_group(f"demo_{number}"), steps, 100 * number, with_camera=with_camera
            )
        file["mask/train"] = np.array([b"demo_0"])
        file["mask/all"] = np.array([f"demo_{i}".encode() for i in range(len(lengths))])
    return path


def write_libero(path: Path, lengths: tuple[int, ...] = (6, 5)) -> Path:
    problem = {"problem_name": "libero", "language_instruction": '"open the drawer"'}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(lengths)
        data.attrs["num_demos"] = len(lengths)
        data.attrs["env_args"] = json.dumps(ENV_ARGS)
        data.attrs["problem_info"] = json.dumps(problem)
        data.attrs["bddl_file_name"] = "bddl_files/open_the_drawer.bddl"
        data.attrs["bddl_file_content"] = "(define (problem libero))"
        for number, steps in enumerate(lengths):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = steps
            demo.attrs["model_file"] = "<mujoco>" + "x" * 20_000 + "</mujoco>"
            demo.attrs["init_state"] = numbers((9,), number)
            demo["actions"] = numbers((steps, 7), number)
            demo["robot_states"] = numbers((steps, 9), number + 1)
            last = (np.arange(steps) == steps - 1).astype("u1")
            demo["rewards"], demo["dones"] = last, last
            demo["obs/ee_pos"] = numbers((steps, 3), number + 2)
            demo["obs/agentview_rgb"] = pictures(steps)
            demo["obs/eye_in_hand_rgb"] = pictures(steps, (10, 200, 30))
    return path


def write_robosuite(path: Path, lengths: tuple[int, ...] = (4, 3)) -> Path:
    info = {"env_name": "Stack", "robots": "Panda", "control_freq": 25}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env"] = "Stack"
        data.attrs["env_info"] = json.dumps(info)
        data.attrs["repository_version"] = np.bytes_(b"1.0.0")
        for number, steps in enumerate(lengths, start=1):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["model_file"] = f"model_{number}.xml"
            demo["actions"] = numbers((steps, 7), number)
            demo["states"] = numbers((steps, 9), number + 1)
            demo["joint_torques"] = numbers((steps, 7), number + 2)
    return path


def write_aloha(path: Path, steps: int = 5, *, compress: bool = False, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    views = {
        "cam_high": pictures(steps, (220, 30, 30)),
        "cam_left": pictures(steps, (30, 30, 220)),
    }
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = False
        file.attrs["compress"] = compress
        file["action"] = numbers((steps, 14), seed, "f4")
        file["base_action"] = numbers((steps, 2), seed + 1)
        for number, name in enumerate(("qpos", "qvel", "effort")):
            file[f"observations/{name}"] = numbers((steps, 14), seed + 2 + number, "f4")
        if not compress:
            for name, frames in views.items():
                file.create_dataset(
                    f"observations/images/{name}", data=frames, chunks=(1, *SIZE, 3)
                )
            return path
        packed = {name: [jpeg(frame) for frame in frames] for name, frames in views.items()}
        width = max(len(data) for each in packed.values() for data in each) + 5
        for name, each in packed.items():
            rows = np.frombuffer(b"".join(data.ljust(width, b"\0") for data in each), np.uint8)
            file.create_dataset(
                f"observations/images/{name}", data=rows.reshape(steps, width), chunks=(1, width)
            )
        # the order of the rows is that of a config, not that of the names in the file
        lengths = [[len(data) for data in packed[name]] for name in ("cam_left", "cam_high")]
        file["compress_len"] = np.array(lengths, np.float32)
    return path


def write_droid(path: Path, steps: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    times = 1_700_000_000_000 + np.arange(steps) * 67
    with h5py.File(path, "w") as file:
        file.attrs["success"] = True
        file.attrs["failure"] = False
        file.attrs["current_task"] = "Move the cup"
        file["action/cartesian_position"] = numbers((steps, 6), 1)
        file["action/gripper_position"] = numbers((steps,), 2)
        file["observation/robot_state/joint_positions"] = numbers((steps, 7), 3)
        file["observation/controller_info/movement_enabled"] = np.ones(steps, bool)
        file["observation/timestamp/control/step_start"] = times
        file["observation/timestamp/robot_state/read_start"] = times + 1
    return path
