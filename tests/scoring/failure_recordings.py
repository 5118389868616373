"""Recordings with a known fault, and many without: what detectors are measured on.

A recording is an arm that moves between random poses, with a gripper, a force sensor, a battery and a camera. Beside
them it has what real robots have and what looks like a fault and is none: channels that are constant or coarse by
design, pauses, jumps back to the start, a slow discharge, sensors that start late, samples that come only when
something happens, and NaN between the rows of a slow sensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.failures import FailureFinding, FindingCode
from rollbook.scoring.failures.recorded import (
    EpisodeFacts,
    JointLimits,
    PictureClock,
    RecordedArray,
    Recording,
)

Random: TypeAlias = np.random.Generator
Floats: TypeAlias = "NDArray[np.float64]"

DURATION_S = 12.0
RATE = 100
JOINTS = 6


@dataclass(frozen=True)
class Case:
    facts: EpisodeFacts
    recording: Recording
    fault: FindingCode | None = None
    begin: float = 0.0
    end: float = 0.0
    """Where the fault is."""

    def is_found(self, finding: FailureFinding) -> bool:
        """Whether this is the planted fault: its kind, and its time."""
        if finding.code != self.fault or finding.at_s is None:
            return False
        until = finding.at_s if finding.until_s is None else finding.until_s
        return finding.at_s <= self.end + 0.1 and until >= self.begin - 0.1


def _times(random: Random, rate: float = RATE) -> Floats:
    """A clock that jitters by a few percent of a step, as clocks do."""
    count = int(DURATION_S * rate)
    jittered: Floats = (
        np.arange(count) / rate
        + random.normal(0, 0.03 / rate, count).clip(-0.3 / rate, 0.3 / rate)
        + 0.5 / rate
    )
    return jittered


def _smooth(random: Random, seconds: Floats, channels: int) -> Floats:
    """From pose to pose, with pauses, slow at both ends of every move."""
    moves = int(random.integers(4, 8))
    knots = np.sort(random.uniform(0, DURATION_S, 2 * moves))
    knots[0], knots[-1] = 0.0, DURATION_S
    poses = random.uniform(-2, 2, (moves + 1, channels))
    out = np.empty((len(seconds), channels))
    out[:] = poses[0]
    for move in range(moves):
        begin, end = knots[2 * move], max(knots[2 * move + 1], knots[2 * move] + 0.3)
        share = np.clip((seconds - begin) / (end - begin), 0, 1)
        eased = 10 * share**3 - 15 * share**4 + 6 * share**5
        out += (poses[move + 1] - poses[move]) * eased[:, None]
    return out


def _array(
    topic: str, seconds: Floats, values: Floats, kind: str = "sensor", **more: object
) -> RecordedArray:
    two = values[:, None] if values.ndim == 1 else values
    names = (topic,) if two.shape[1] == 1 else tuple(f"{topic}/{i}" for i in range(two.shape[1]))
    return RecordedArray(topic, kind, names, seconds, two, **more)  # type: ignore[arg-type]


def ordinary(random: Random) -> dict[str, RecordedArray]:
    """A recording in which nothing went wrong."""
    seconds = _times(random)
    position = _smooth(random, seconds, JOINTS) + random.normal(0, 2e-4, (len(seconds), JOINTS))
    closes, opens = np.sort(random.uniform(1.5, 10.5, 2))
    opens = max(opens, closes + 1.5)
    commanded = np.where((seconds > closes) & (seconds < opens), 0.0, 92.0)
    holds = (seconds > closes + 0.15) & (seconds < opens + 0.05)
    effort = np.where(holds, random.uniform(8, 25), 0.2) + random.normal(0, 0.15, len(seconds))
    slow = _times(random, 10)
    volts = 24.5 - random.uniform(0, 3) * slow / DURATION_S + random.normal(0, 0.05, len(slow))
    volts -= 0.8 * (np.sin(slow * random.uniform(1, 4)) > 0.7)  # load
    events = np.sort(random.uniform(0, DURATION_S, 60))
    sparse = np.full(len(seconds), np.nan)
    sparse[:: int(random.integers(4, 10))] = 20.0
    late = random.normal(0, 1, len(seconds))
    late[: int(random.integers(1, 150))] = np.nan
    reset = position[:, 0].copy()
    reset[int(random.integers(300, 900)) :] -= reset[-1]
    arrays = [
        _array("/joint_states/position", seconds, position),
        _array("/joint_states/velocity", seconds, np.gradient(position, axis=0) * RATE),
        _array("/gripper/effort", seconds, effort),
        _array(
            "/gripper/width", seconds, commanded * 0.9 + 5 + random.normal(0, 0.05, len(seconds))
        ),
        _array("/wrench/force", seconds, random.normal(0, 0.4, (len(seconds), 3))),
        _array("/battery/voltage", slow, volts),
        _array("/battery/percentage", slow, np.linspace(0.8, 0.7, len(slow))),
        _array("/imu/accel", seconds, random.normal([0, 0, 9.81], 0.2, (len(seconds), 3))),
        _array("/safety/estop", seconds, np.zeros(len(seconds))),
        _array("/mode/state", seconds, np.floor(seconds / 3)),
        _array("/adc/coarse", seconds, np.round(random.normal(100, 0.6, len(seconds)))),
        _array("/contacts/count", events, np.arange(len(events), dtype=float)),
        _array("/temperature/value", seconds, sparse),
        _array("/range/value", seconds, late),
        _array("/odom/x", seconds, reset),
        _array(
            "/action/joint_target",
            seconds,
            position + random.normal(0, 1e-3, position.shape),
            "action",
        ),
        _array("/action/gripper", seconds, commanded, "action"),
    ]
    return {each.topic: each for each in arrays}


def _camera(random: Random) -> PictureClock:
    seconds = _times(random, 25)
    if random.random() < 0.5:  # any camera loses a frame
        seconds = np.delete(seconds, int(random.integers(20, 200)))
    return PictureClock("/camera/rgb", seconds)


def _case(arrays: dict[str, RecordedArray], camera: PictureClock, **more: object) -> Case:
    recording = Recording(arrays=tuple(arrays.values()), pictures=(camera,))
    return Case(EpisodeFacts(), recording, **more)  # type: ignore[arg-type]


def without_fault(random: Random) -> Case:
    return _case(ordinary(random), _camera(random))


# ------------------------------------------------------------------------------------- planted faults


def brownout(random: Random) -> Case:
    arrays = ordinary(random)
    battery = arrays["/battery/voltage"]
    begin, lasts = random.uniform(2, 9), random.uniform(0.1, 2.0)
    values = battery.values.copy()
    values[(battery.seconds >= begin) & (battery.seconds < begin + lasts)] *= random.uniform(
        0.45, 0.88
    )
    arrays["/battery/voltage"] = replace(battery, values=values)
    return _case(arrays, _camera(random), fault="battery_brownout", begin=begin, end=begin + lasts)


def beyond_a_limit(random: Random) -> Case:
    """The limits are in the metadata."""
    case = without_fault(random)
    arrays = {each.topic: each for each in case.recording.arrays}
    joints = arrays["/joint_states/position"]
    limits = JointLimits([-9.0] * JOINTS, [9.0] * JOINTS)
    begin, lasts = random.uniform(1, 10), random.uniform(0.05, 1.0)
    values = joints.values.copy()
    rows = (joints.seconds >= begin) & (joints.seconds < begin + lasts)
    beyond = random.choice([-1, 1]) * random.uniform(9.05, 9.6)
    values[rows, int(random.integers(JOINTS))] = beyond + random.normal(0, 2e-4, rows.sum())
    arrays["/joint_states/position"] = replace(joints, values=values)
    made = _case(arrays, _camera(random), fault="joint_limit", begin=begin, end=begin + lasts)
    return replace(made, facts=EpisodeFacts(joint_limits=limits))


def hard_stop(random: Random) -> Case:
    """The limits are not known: a joint runs into its stop, which is its extreme, and is held there."""
    arrays = ordinary(random)
    joints = arrays["/joint_states/position"]
    column = int(random.integers(JOINTS))
    begin, lasts = random.uniform(2, 9), random.uniform(0.5, 2.0)
    values = joints.values.copy()
    side = random.choice([-1, 1])
    stop = side * random.uniform(2.6, 3.0)
    near, after = joints.seconds >= begin - 0.5, joints.seconds >= begin
    rows = near & (joints.seconds < begin)
    started = values[rows, column][0]
    values[rows, column] = np.linspace(started, stop, rows.sum())
    held = after & (joints.seconds < begin + lasts)
    values[held, column] = stop + random.normal(0, 2e-4, held.sum())
    back = np.clip((joints.seconds - begin - lasts) / 0.5, 0, 1)
    values[:, column] = np.where(
        (back > 0) & (back < 1), stop + (values[:, column] - stop) * back, values[:, column]
    )
    arrays["/joint_states/position"] = replace(joints, values=values)
    return _case(arrays, _camera(random), fault="joint_limit", begin=begin, end=begin + lasts)


def dead_sensor(random: Random) -> Case:
    arrays = ordinary(random)
    topic = str(random.choice(["/wrench/force", "/imu/accel", "/gripper/effort"]))
    sensor = arrays[topic]
    begin, lasts = random.uniform(1, 8), random.uniform(0.4, 4.0)
    rows = np.flatnonzero((sensor.seconds >= begin) & (sensor.seconds < begin + lasts))
    values = sensor.values.copy()
    values[rows] = values[rows[0]]
    arrays[topic] = replace(sensor, values=values)
    return _case(arrays, _camera(random), fault="sensor_flatline", begin=begin, end=begin + lasts)


def not_numbers(random: Random) -> Case:
    arrays = ordinary(random)
    topic = str(random.choice(["/wrench/force", "/joint_states/velocity", "/action/joint_target"]))
    array = arrays[topic]
    first = int(random.integers(200, 1000))
    stop = first + int(random.integers(1, 150))
    values = array.values.copy()
    values[first:stop, int(random.integers(values.shape[1]))] = random.choice(
        [np.nan, np.nan, np.inf]
    )
    arrays[topic] = replace(array, values=values)
    begin, end = float(array.seconds[first]), float(array.seconds[stop - 1])
    return _case(arrays, _camera(random), fault="not_a_number", begin=begin, end=end)


def missing_samples(random: Random) -> Case:
    arrays = ordinary(random)
    topic = str(random.choice(["/joint_states/position", "/imu/accel"]))
    array = arrays[topic]
    first = int(random.integers(100, 900))
    count = int(random.integers(4, 150))
    kept = np.delete(np.arange(len(array.seconds)), np.s_[first : first + count])
    begin, end = float(array.seconds[first - 1]), float(array.seconds[first + count])
    arrays[topic] = replace(array, seconds=array.seconds[kept], values=array.values[kept])
    return _case(arrays, _camera(random), fault="clock_gap", begin=begin, end=end)


def lost_frames(random: Random) -> Case:
    camera = PictureClock("/camera/rgb", _times(random, 25))
    first = int(random.integers(20, 200))
    count = int(random.integers(2, 40))
    begin, end = float(camera.seconds[first - 1]), float(camera.seconds[first + count])
    kept = np.delete(camera.seconds, np.s_[first : first + count])
    made = _case(ordinary(random), PictureClock(camera.topic, kept))
    return replace(made, fault="dropped_frames", begin=begin, end=end)


def slipped(random: Random) -> Case:
    """The gripper holds something and then nothing, and was told to hold all the time."""
    arrays = ordinary(random)
    effort, command = arrays["/gripper/effort"], arrays["/action/gripper"]
    seconds = effort.seconds
    closes, at = 2.0, random.uniform(4.0, 9.0)
    pressed = random.uniform(8, 25)
    fall = random.uniform(0.01, 0.4)
    share = np.clip((at + fall - seconds) / fall, 0, 1) * (seconds > closes + 0.15)
    values = pressed * share + 0.3 + random.normal(0, 0.15, len(seconds))
    arrays["/gripper/effort"] = replace(effort, values=values[:, None])
    closed = np.where(seconds > closes, 0.0, 92.0)
    arrays["/action/gripper"] = replace(command, values=closed[:, None])
    return _case(arrays, _camera(random), fault="grip_lost", begin=at, end=at + fall)


FAULTS: dict[str, Callable[[Random], Case]] = {
    each.__name__: each
    for each in (
        brownout,
        beyond_a_limit,
        hard_stop,
        dead_sensor,
        not_numbers,
        missing_samples,
        lost_frames,
        slipped,
    )
}
