"""Recordings to look at, made with the SDK: one with a fault planted in it, one that went well, one with image arrays,
one with nothing, and one whose names try to break the page. Frames of a video carry their number in their pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.client import Battery, Client, EpisodeOutcome, JointState, Pose3D
from tests.server.running import Access, RunningServer

FPS = 25
RATE = 100
FAILED_AT_S = 5.64
FLAT_S = (5.8, 8.4)
BITS = 12
"""Bits of a frame number, painted as squares along the top of the frame, the lowest first."""
SQUARE = 16
HOSTILE = """"'><svg onload=alert(1)><script>alert(2)</script>"""
OTEL = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"}


@dataclass(frozen=True)
class EpisodesWorld:
    dropped: str
    """Failed: the wrench stops changing, and the gripper loses its force."""
    placed: str
    """The same task, done in less time."""
    pictures: str
    """Image arrays and no video."""
    bare: str
    """No file at all."""
    hostile: str


def seed_episodes(server: RunningServer, access: Access) -> EpisodesWorld:
    with Client(api_key=access.api_key, base_url=server.base_url) as client:
        return EpisodesWorld(
            dropped=_logged(client, **_task("Mug to bin, slot 3", 12.0, is_dropped=True)),
            placed=_logged(client, **_task("Mug to bin, slot 3", 9.0, is_dropped=False)),
            pictures=_logged(client, **_with_pictures()),
            bare=_logged(client, name=None, source="sim"),
            hostile=_logged(client, **_hostile()),
        )


def _logged(client: Client, **given: Any) -> str:
    episode_id = client.log_episode(**given).id
    assert episode_id is not None, "it was sent, and not put aside"
    return episode_id


# ----------------------------------------------------------------------------------------- recordings


def _task(name: str, duration_s: float, *, is_dropped: bool) -> dict[str, Any]:
    t = np.arange(round(duration_s * RATE)) / RATE
    joints = np.stack([np.sin(t * 0.5 + k) * (1.6 - 0.2 * k) for k in range(6)], axis=1)
    noise = np.random.default_rng(7).normal(0, 0.15, (len(t), 3))
    held = (t > 3.7) & (t < (FAILED_AT_S if is_dropped else duration_s - 1))
    force = noise + held[:, None] * [0.0, 0.0, -3.5]
    if is_dropped:
        flat = (t >= FLAT_S[0]) & (t < FLAT_S[1])
        force[flat] = force[flat][0]
    reward = 3.41 if is_dropped else 8.92
    return {
        "name": name,
        "source": "sim",
        "robot": "arm-2",
        "policy_version": "pick-act-v3" if is_dropped else "pick-act-v4",
        "env_version": "tabletop-bins@2.3.1",
        "git_sha": "9c2e71f0aa41b7",
        "seed": 481516,
        "fps": FPS,
        "duration_s": duration_s,
        "status": "failed" if is_dropped else "ready",
        "failure_time_s": FAILED_AT_S if is_dropped else None,
        "tags": ["nightly", "drop"] if is_dropped else ["nightly"],
        "video": numbered_frames(round(duration_s * FPS), 320, 240),
        "sensors": {
            "/joint_states/position": joints,
            "/joint_states/velocity": np.gradient(joints, axis=0) * RATE,
            "/gripper/effort": (held * 15.0 + np.abs(noise[:, 0])),
            "/wrench/force": force,
        },
        "actions": {"action/joint_target": joints + 0.01, "action/gripper": held * 90.0},
        "t_ns": (t * 1e9).astype(np.int64),
        "metadata": {
            "outcome": EpisodeOutcome(
                success=not is_dropped,
                reward_total=reward,
                collision_count=int(is_dropped),
                time_to_goal_s=None if is_dropped else 8.68,
            ),
            "battery": Battery(percent=62.5, voltage_v=23.4, current_a=1.75),
            "start": JointState(joints[0], names=["pan", "lift", "elbow", "w1", "w2", "w3"]),
            "target": Pose3D([0.41, -0.2, 0.05], [0.0, 0.0, 0.0, 1.0]),
            "operator": {"shift": "night", "notes": ["gripper was replaced", "camera cleaned"]},
            "otel": {**OTEL, "traceparent": f"00-{OTEL['trace_id']}-{OTEL['span_id']}-01"},
            **({"failure_reason": "object dropped"} if is_dropped else {}),
        },
    }


def _with_pictures() -> dict[str, Any]:
    frames = numbered_frames(20, 256, 64)
    return {
        "name": "Depth camera only",
        "source": "real",
        "sensors": {"/camera/image": frames, "/camera/exposure": np.linspace(0.1, 0.3, 20)},
        "t_ns": np.arange(20) * 100_000_000,
        "duration_s": 2.0,
        "fps": 10,
    }


def _hostile() -> dict[str, Any]:
    t = np.arange(50)
    return {
        "name": HOSTILE,
        "policy_version": HOSTILE,
        "env_version": HOSTILE,
        "git_sha": HOSTILE,
        "robot": HOSTILE,
        "tags": [HOSTILE],
        "sensors": {f"/{HOSTILE}/value": np.sin(t / 5.0)},
        "actions": {"action/nothing": np.full(50, np.nan), "action/constant": np.ones(50)},
        "t_ns": t * 20_000_000,
        "duration_s": 1.0,
        "status": "failed",
        "metadata": {
            HOSTILE: {"deep": [HOSTILE, {HOSTILE: HOSTILE}]},
            "failure_reason": HOSTILE,
            "arm": JointState([0.0, 1.0], names=[HOSTILE, "b"]),
            "otel": {"trace_id": HOSTILE, "span_id": HOSTILE},
        },
    }


# --------------------------------------------------------------------------------------------- frames


def numbered_frames(count: int, width: int, height: int) -> NDArray[np.uint8]:
    """A square that wanders over a slope; the number of the frame is in the first rows."""
    rows, columns = np.mgrid[0:height, 0:width]
    ground = (60 + 80 * rows / height + 60 * columns / width).astype(np.uint8)
    frames = np.repeat(ground[None, :, :, None], count, axis=0).repeat(3, axis=3)
    for number, frame in enumerate(frames):
        left = int((width - 40) * number / max(1, count - 1))
        frame[height // 2 : height // 2 + 20, left : left + 40] = (61, 72, 198)
        for bit in range(BITS):
            lit = 235 if number >> bit & 1 else 20
            frame[:SQUARE, bit * SQUARE : (bit + 1) * SQUARE] = lit
    return frames


def squares(count: int = BITS) -> list[int]:
    """Where, along x, each bit is read."""
    return [bit * SQUARE + SQUARE // 2 for bit in range(count)]
