"""Pictures of the video in observations: the right one for every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.evals.baselines import Baseline
from rollbook.evals.open_loop import replay_one
from rollbook.evals.options import ReplayOptions
from rollbook.evals.policies.policy import as_policy

FPS = 10
FRAMES = 58


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every picture is of one grey, which says its number; key frames are three seconds apart."""
    path = tmp_path_factory.mktemp("video") / "video.mp4"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.options = {"g": "30", "crf": "1"}
        for number in range(FRAMES):
            picture = np.full((48, 64, 3), grey(number), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def grey(number: int) -> int:
    return 20 + 4 * number


def number_of(picture: Any) -> int:
    assert picture.shape == (48, 64, 3)
    assert picture.dtype == np.uint8
    return round((float(picture.mean()) - 20) / 4)


def seen(video: Path | None, seconds: Any, **options: Any) -> list[int]:
    """The picture that a policy was shown at each step."""
    t_ns = 5_000_000_000 + (np.asarray(seconds) * 1e9).astype(np.int64)
    sensors = {"/arm/position": np.zeros((len(t_ns), 2)), "/arm/_t_ns": t_ns}
    given = Baseline("ep-1", EpisodeRecord(id="ep-1", status="ready"), sensors, None, video)
    found: list[int] = []

    def policy(obs: Any) -> Any:
        found.append(number_of(obs["/video/rgb"]))
        return {}

    replay_one(
        given,
        as_policy(policy),
        ReplayOptions(policy_callable=policy, **{"frames": True, **options}),
    )
    return found


def test_steps_at_the_rate_of_the_video_see_one_picture_each(video: Path) -> None:
    rounded_down = np.arange(FRAMES) * int(1e9 / FPS) / 1e9
    assert seen(video, rounded_down) == list(range(FRAMES))


def test_a_faster_clock_sees_pictures_again_and_a_slower_one_leaves_some_out(video: Path) -> None:
    assert seen(video, np.arange(9) / 30) == [0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert seen(video, np.arange(5) * 0.7) == [0, 7, 14, 21, 28]


def test_held_pictures_are_never_from_the_future(video: Path) -> None:
    assert seen(video, np.arange(9) / 30, align="hold") == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_far_steps_and_steps_after_the_end_are_found(video: Path) -> None:
    assert seen(video, [0, 5.3, 5.6, 100]) == [0, 53, 56, FRAMES - 1]


def test_steps_without_a_clock_go_by_the_rate_of_the_episode(video: Path) -> None:
    record = EpisodeRecord(id="ep-1", status="ready", fps=5.0)
    sensors = {"/arm/position": np.zeros((4, 2))}
    found: list[int] = []

    def policy(obs: Any) -> Any:
        found.append(number_of(obs["/front/rgb"]))
        return {}

    options = ReplayOptions(policy_callable=policy, frames={"video": "/front/rgb"})
    replay_one(Baseline("ep-1", record, sensors, None, video), as_policy(policy), options)
    assert found == [0, 2, 4, 6]


def test_batches_have_pictures_too(video: Path) -> None:
    shapes = []

    class Batched:
        def act_batch(self, obs: Any) -> Any:
            shapes.append(obs["/video/rgb"].shape)
            return {}

    t_ns = np.arange(5, dtype=np.int64) * 100_000_000
    sensors = {"/arm/position": np.zeros((5, 2)), "/arm/_t_ns": t_ns}
    given = Baseline("ep-1", None, sensors, None, video)
    replay_one(
        given, as_policy(Batched), ReplayOptions(policy_callable=Batched, frames=True, batch=3)
    )
    assert shapes == [(3, 48, 64, 3), (2, 48, 64, 3)]


def test_an_episode_without_video_cannot_give_pictures(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="video is missing"):
        seen(None, [0.0])
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video at all")
    with pytest.raises(InvalidValue, match="unreadable"):
        seen(broken, [0.0])


def test_what_frames_may_be_is_said() -> None:
    with pytest.raises(ConfigurationError, match="frames is"):
        seen(None, [0.0], frames={"camera": "/x"})
