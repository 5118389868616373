"""Trajectories from files: TUM text, Aria MPS, JSON lists of matrices, NeRF-style frames; detected from the content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import ConfigurationError, InvalidTrajectory
from rollbook.generate.geometry.poses import centres, compose, poses_of, rotations
from rollbook.generate.sources.import_mesh import Y_UP_TO_Z_UP, Up
from rollbook.generate.sources.import_text import Refuse, csv_columns, parsed_json, read_text

_ARIA_TIME = "tracking_timestamp_us"
_ARIA_POSE = (
    *("tx_world_device", "ty_world_device", "tz_world_device"),
    *("qx_world_device", "qy_world_device", "qz_world_device", "qw_world_device"),
)
_UNIT_TOLERANCE = 1e-2
_GL_TO_CV = np.diag([1.0, -1.0, -1.0])
"""Cameras in computer graphics look along -z with y up; ours look along +z with y down."""

Array = NDArray[np.float64]


class TrajectoryFormat(StrEnum):
    TUM = "tum"
    """Lines of `t tx ty tz qx qy qz qw`: poses of the camera in seconds and metres."""
    ARIA = "aria"
    """closed_loop_trajectory.csv of Aria's Machine Perception Services: poses of the device, not of a camera."""
    MATRICES = "matrices"
    """JSON: a list of 4x4 matrices, world from camera; the camera looks along +z."""
    NERF = "nerf"
    """JSON: {"frames": [{"transform_matrix": 4x4}]}; the camera looks along -z."""


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    poses: Array
    """[F, 12], world from camera."""
    t_ns: NDArray[np.int64]
    format: TrajectoryFormat
    times_known: bool
    """False if the file has no times; the frames then have equal time steps."""

    def __len__(self) -> int:
        return len(self.poses)

    def every(self, step: int) -> Trajectory:
        """Every `step`-th frame, starting with the first."""
        return Trajectory(self.poses[::step], self.t_ns[::step], self.format, self.times_known)

    def in_world(self, up: Up, scale: float) -> Trajectory:
        """The trajectory in metres with +Z up, for a file with the up axis `up` and `scale` metres per unit."""
        turn = Y_UP_TO_Z_UP if up == "y" else np.eye(3)
        poses = poses_of(turn @ rotations(self.poses), centres(self.poses) * scale @ turn.T)
        return Trajectory(poses, self.t_ns, self.format, self.times_known)


def load_trajectory(
    path: str | Path,
    *,
    format: TrajectoryFormat | None = None,
    device_from_camera: ArrayLike | None = None,
    frame_rate_hz: float = 10.0,
) -> Trajectory:
    """The poses of a file in order of time.

    `device_from_camera` [12] is the pose of the camera on the tracked device. `frame_rate_hz` is for files without
    times. Rounding errors of quaternions and rotations are corrected; larger errors are refused with their line.
    """
    place = Path(path)
    if not frame_rate_hz > 0:
        raise ConfigurationError(message=f"frame_rate_hz is {frame_rate_hz}, expected above 0")
    text = read_text(place, _refusal(place))
    chosen = format or _sniffed(text, place)
    poses, times = _READERS[chosen](text, place)
    known = times is not None
    if times is None:
        times = np.round(np.arange(len(poses)) * (1e9 / frame_rate_hz)).astype(np.int64)
    if device_from_camera is not None:
        poses = compose(poses, np.asarray(device_from_camera, np.float64))
    return Trajectory(poses, times, chosen, known)


def load_pose(path: str | Path) -> Array:
    """One 4x4 matrix from a JSON file, as pose [12]."""
    place = Path(path)
    parsed = parsed_json(read_text(place, _refusal(place)), _refusal(place))
    pose: Array = _of_matrices([parsed], lambda frame: "its matrix", place)[0]
    return pose


def _sniffed(text: str, place: Path) -> TrajectoryFormat:
    first = next((line for line in text.splitlines() if _counts(line)), "").strip()
    if not first:
        raise _refused(place, "it is empty")
    if _ARIA_TIME in first:
        return TrajectoryFormat.ARIA
    if first[0] == "[":
        return TrajectoryFormat.MATRICES
    if first[0] == "{":
        return TrajectoryFormat.NERF
    if len(first.split()) == 8:
        return TrajectoryFormat.TUM
    known = ", ".join(TrajectoryFormat)
    raise _refused(place, f"it is none of {known}: its first line is {first[:60]!r}")


def _counts(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _refused(place: Path, detail: str) -> InvalidTrajectory:
    return InvalidTrajectory(record=place.name, detail=detail)


def _refusal(place: Path) -> Refuse:
    return lambda detail: _refused(place, detail)


# ---------------------------------------------------------------------------------------- formats

Where = Callable[[int], str]
"""Names a frame in an error: by its line in a text file, or by its position in a list."""


def _read_tum(text: str, place: Path) -> tuple[Array, NDArray[np.int64]]:
    numbers, rows, times = [], [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not _counts(line):
            continue
        words = line.replace(",", " ").split()
        try:
            row = [float(word) for word in words]
            if len(row) != 8:
                raise ValueError(f"{len(row)} numbers")
            # Decimal: a float has too few digits for nanoseconds of an epoch time
            times.append(int((Decimal(words[0]) * 10**9).to_integral_value()))
        except (ValueError, InvalidOperation, OverflowError) as error:
            detail = f"line {number}: expected `t tx ty tz qx qy qz qw`, found {line[:60]!r}"
            raise _refused(place, detail) from error
        rows.append(row[1:])
        numbers.append(number)
    where = _lines(numbers)
    poses = _of_quaternions(np.array(rows, np.float64).reshape(-1, 7), where, place)
    return poses, _checked_times(np.array(times, np.int64), where, place)


def _read_aria(text: str, place: Path) -> tuple[Array, NDArray[np.int64]]:
    columns = csv_columns(text, (_ARIA_TIME, *_ARIA_POSE), _refusal(place))
    body = text.splitlines()[1:]
    where = _lines([number for number, line in enumerate(body, 2) if line.strip()])
    rows = np.column_stack([columns[name] for name in _ARIA_POSE]).reshape(-1, 7)
    poses = _of_quaternions(rows, where, place)
    return poses, _checked_times(columns[_ARIA_TIME].astype(np.int64) * 1000, where, place)


def _read_matrices(text: str, place: Path) -> tuple[Array, None]:
    parsed = parsed_json(text, _refusal(place))
    if not isinstance(parsed, list):
        raise _refused(place, "expected a list of 4x4 matrices")
    return _of_matrices(parsed, _frames, place), None


def _read_nerf(text: str, place: Path) -> tuple[Array, NDArray[np.int64] | None]:
    parsed = parsed_json(text, _refusal(place))
    frames = parsed.get("frames") if isinstance(parsed, dict) else None
    if not isinstance(frames, list) or not all(isinstance(frame, dict) for frame in frames):
        raise _refused(place, 'expected {"frames": [{"transform_matrix": 4x4}, …]}')
    poses = _of_matrices([frame.get("transform_matrix") for frame in frames], _frames, place)
    return poses_of(rotations(poses) @ _GL_TO_CV, centres(poses)), None


_READERS: dict[TrajectoryFormat, Callable[[str, Path], tuple[Array, NDArray[np.int64] | None]]] = {
    TrajectoryFormat.TUM: _read_tum,
    TrajectoryFormat.ARIA: _read_aria,
    TrajectoryFormat.MATRICES: _read_matrices,
    TrajectoryFormat.NERF: _read_nerf,
}


def _lines(numbers: list[int]) -> Where:
    return lambda row: f"line {numbers[row]}"


def _frames(row: int) -> str:
    return f"frame {row}"


# -------------------------------------------------------------------------------- poses and times


def _of_quaternions(rows: Array, where: Where, place: Path) -> Array:
    """[F, 12] from rows of tx ty tz qx qy qz qw."""
    _refuse_empty(rows, place)
    _refuse_not_finite(rows, where, place)
    length = np.linalg.norm(rows[:, 3:], axis=1)
    bad = np.flatnonzero(np.abs(length - 1) > _UNIT_TOLERANCE)
    if len(bad):
        detail = f"{where(int(bad[0]))}: its quaternion has length {length[bad[0]]:.4g}, expected 1"
        raise _refused(place, detail)
    x, y, z, w = (rows[:, 3:] / length[:, None]).T
    turned = np.stack(
        [
            *(1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
            *(2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
            *(2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
        ],
        axis=1,
    )
    return poses_of(turned.reshape(-1, 3, 3), rows[:, :3])


def _of_matrices(given: list[Any], where: Where, place: Path) -> Array:
    """[F, 12] from 4x4 matrices; rounding errors of their rotations are corrected."""
    matrices = np.zeros((len(given), 4, 4))
    for row, each in enumerate(given):
        try:
            matrix = np.array(each, np.float64)
        except (TypeError, ValueError):
            matrix = np.zeros(0)
        if matrix.shape not in ((4, 4), (3, 4)):
            raise _refused(place, f"{where(row)} is not a 4x4 matrix")
        matrices[row, : len(matrix)] = matrix
    _refuse_empty(matrices, place)
    flat = matrices[:, :3].reshape(-1, 12)
    _refuse_not_finite(flat, where, place)
    left, sizes, right = np.linalg.svd(matrices[:, :3, :3])
    turned = left @ right
    bad = np.flatnonzero(
        (np.abs(sizes - 1) > _UNIT_TOLERANCE).any(axis=1) | (np.linalg.det(turned) < 0)
    )
    if len(bad):
        shown = ", ".join(f"{size:.3g}" for size in sizes[bad[0]])
        detail = f"{where(int(bad[0]))}: its rotation scales by {shown} or mirrors, expected a pure rotation"
        raise _refused(place, detail)
    return poses_of(turned, matrices[:, :3, 3])


def _refuse_empty(rows: NDArray[Any], place: Path) -> None:
    if not len(rows):
        raise _refused(place, "there is no pose in it")


def _refuse_not_finite(rows: Array, where: Where, place: Path) -> None:
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        detail = f"{where(int(bad[0]))}: a value is not finite; this affects {len(bad)} poses"
        raise _refused(place, detail)


def _checked_times(times: NDArray[np.int64], where: Where, place: Path) -> NDArray[np.int64]:
    bad = np.flatnonzero(np.diff(times) <= 0)
    if len(bad):
        row = int(bad[0]) + 1
        detail = f"{where(row)}: its time {times[row]} ns is not after the one before, {times[row - 1]} ns"
        raise _refused(place, detail)
    return times
