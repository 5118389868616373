"""Frames that are logged one by one become a video while the episode is recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.client.frame_log import FRAMES_FILE, FrameLog
from rollbook.client.step_files import FinishedSteps, finish_steps
from rollbook.errors import ConfigurationError, InvalidValue, RollbookError
from rollbook.server.video.inspect_video import probe
from tests.adapters.pictures import BLUE, GREEN, RED, Decoded, colour_of, decode, is_close, numbered
from tests.client.conftest import MakeClient
from tests.client.faulty_server import FaultyServer

AnyClient = Callable[..., Any]


def finished(log: FrameLog, folder: Path) -> tuple[FinishedSteps, Decoded]:
    log.close()
    found = finish_steps(folder)
    assert probe(found.files["video"]).playable
    return found, decode(found.files["video"])


@pytest.mark.parametrize(
    ("fps", "times", "shown"),
    [
        (10.0, [None] * 4, [0.0, 0.1, 0.2, 0.3]),
        (None, [5.0, 5.25, 6.0, 9.5], [0.0, 0.25, 1.0, 4.5]),
        (10.0, [5.0, 5.25, 6.0, 9.5], [0.0, 0.25, 1.0, 4.5]),
    ],
    ids=["by fps", "by t", "by t although there is fps"],
)
def test_frames_are_shown_at_their_times(
    tmp_path: Path, fps: float | None, times: list[Any], shown: list[float]
) -> None:
    log = FrameLog(tmp_path, fps)
    for number, t in enumerate(times):
        log.add(numbered(number), None, t, None)
    _, video = finished(log, tmp_path)
    assert video.numbers == [0, 1, 2, 3]
    assert video.times == pytest.approx(shown, abs=1e-4)


@pytest.mark.parametrize("every_s", [0.02, 0.1, 0.4, 1.5])
def test_a_player_can_start_every_half_second_at_any_rate(tmp_path: Path, every_s: float) -> None:
    """Frames that come by their own times do not come at the rate that the encoder was told."""
    log = FrameLog(tmp_path, None)
    for number in range(60):
        log.add(numbered(number % 4), None, number * every_s, None)
    found, _ = finished(log, tmp_path)
    gap = probe(found.files["video"]).keyframe_gap_s
    assert gap is not None
    assert gap <= max(0.5, every_s) + 1e-6


@pytest.mark.parametrize("shape", [(1, 1, 3), (31, 47), (5, 7, 1), (2, 3, 4)])
def test_grey_and_odd_pictures_become_a_video(tmp_path: Path, shape: tuple[int, ...]) -> None:
    log = FrameLog(tmp_path, 30.0)
    for _ in range(3):
        log.add(np.full(shape, 200, np.uint8)[::-1], None, None, None)
    _, video = finished(log, tmp_path)
    assert (video.height, video.width) == tuple(length + length % 2 for length in shape[:2])
    assert is_close(tuple(int(v) for v in video.pictures[2][0, 0]), (200, 200, 200))


def test_cameras_are_shown_side_by_side_and_a_slower_one_keeps_its_last_picture(
    tmp_path: Path,
) -> None:
    log = FrameLog(tmp_path, 10.0)
    for number in range(4):
        log.add(numbered(number, RED), "front", None, None)
        if number != 2:
            log.add(numbered(number, BLUE, 32, 64), "wrist", None, None)
    found, video = finished(log, tmp_path)
    assert [each["camera"] for each in found.cameras] == ["front", "wrist"]
    assert found.ending({}, {})["metadata"]["video_cameras"] == found.cameras
    assert (video.width, video.height) == (128, 48)
    assert video.numbers == [0, 1, 2, 3]
    wrist = [picture[:32, 64:] for picture in video.pictures]
    assert all(is_close(colour_of(each), BLUE) for each in wrist)
    assert Decoded(video.times, [], wrist, "", 0, 0).numbers == [0, 1, 1, 3]


@pytest.mark.parametrize(
    ("image", "camera", "t", "says"),
    [
        (np.zeros((48, 64, 3)), "a", 1, r"frame at row 1: .* is float64 of shape .*\* 255"),
        (np.zeros((48, 64, 2), np.uint8), "a", 1, "frame at row 1: .* not a picture"),
        (np.zeros((0, 64, 3), np.uint8), "a", 1, "frame at row 1: .* 0 x 64 pixels"),
        ("frame.png", "a", 1, "frame at row 1: .* not a picture"),
        (
            np.zeros((48, 32, 3), np.uint8),
            "a",
            1,
            r"row 1: image of camera 'a' is of size \(48, 32\)",
        ),
        (numbered(1), "b", 1, "row 1: camera is 'b', expected one of the first frame: a"),
        (numbered(1), None, 1, "row 1: camera is None, expected a name for every camera"),
        (numbered(1), 3, 1, "row 1: camera is 3, expected the name of a camera"),
        (numbered(1), "", 1, "row 1: camera is '', expected the name of a camera"),
        (numbered(1), "a", 0, "row 1: t is 0 ns, expected later"),
        (numbered(1), "a", None, "row 1: t is missing"),
    ],
)
def test_a_picture_that_does_not_fit_is_refused_with_its_row(
    tmp_path: Path, image: Any, camera: Any, t: Any, says: str
) -> None:
    log = FrameLog(tmp_path, None)
    log.add(numbered(0), "a", 0, None)
    log.add(numbered(0, GREEN), "a", 0.5, None)  # now it is known that there is one camera
    with pytest.raises((InvalidValue, ConfigurationError), match=says.replace("row 1", "row 2")):
        log.add(image, camera, t if t is None else t / 2, None)
    log.add(numbered(2), "a", 1, None)
    assert finished(log, tmp_path)[1].times == [0, 0.5, 1]


def test_frames_hours_apart_are_shown_at_their_times_and_a_longer_pause_is_refused(
    tmp_path: Path,
) -> None:
    log = FrameLog(tmp_path, None)
    log.add(numbered(0), None, 0, None)
    with pytest.raises(InvalidValue, match=r"row 1: t is 30000 s after .*start another"):
        log.add(numbered(1), None, 30_000, None)
    for number, t in enumerate((3_600, 20_000, 40_000), 1):
        log.add(numbered(number), None, t, None)
    log.close()
    assert decode(finish_steps(tmp_path).files["video"]).times == [0, 3_600, 20_000, 40_000]


def test_the_times_of_every_camera_have_to_rise(tmp_path: Path) -> None:
    """Also those of a camera whose pictures come second in each frame."""
    log = FrameLog(tmp_path, None)
    log.add(numbered(0), "front", 1, None)
    log.add(numbered(0), "wrist", 1.01, None)
    log.add(numbered(1), "front", 2, None)
    for t in (0.5, 1.01, None):
        with pytest.raises(InvalidValue, match="t is "):
            log.add(numbered(1), "wrist", t, None)
    log.add(numbered(1), "wrist", 2.01, None)
    assert finished(log, tmp_path)[1].times == [0, 1]


def test_frames_without_pyav_say_how_to_install_it(
    wire: FaultyServer, client_of: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with client_of(wire).start_episode() as episode:
        episode.step(obs=1.0)
        with pytest.raises(ConfigurationError, match=r"pip install 'rollbook\[video\]'"):
            episode.frame(numbered(0))
    assert wire.episodes[str(episode.id)]["status"] == "ready"


@pytest.mark.parametrize("cut", [0, 1, 400])
def test_a_video_that_is_cut_has_every_whole_frame_before_the_cut(
    tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where PyAV is not installed in the process that recovers it."""
    log = FrameLog(tmp_path, 10.0)
    for number in range(9):
        log.add(numbered(number), None, None, None)
    frames = tmp_path / FRAMES_FILE
    frames.write_bytes(frames.read_bytes()[: frames.stat().st_size - cut])
    for has_pyav in (False, True):
        with monkeypatch.context() as patch:
            if not has_pyav:
                patch.setitem(sys.modules, "av", None)
            path = finish_steps(tmp_path).files["video"]
        found = decode(path).numbers
        assert found == list(range(len(found)))
        assert len(found) >= 8 - 2 * (cut > 0) - (cut > 200)
        assert probe(path).playable


def test_steps_and_frames_of_one_episode_go_together(
    wire: FaultyServer, any_client_of: AnyClient
) -> None:
    client = any_client_of(wire)
    with client.start_episode(fps=10) as episode:
        for number in range(3):
            episode.step(obs={"n": number})
            episode.frame(numbered(number), camera="front")
    found = client.episode(episode.id)
    assert decode(found.video()).numbers == found.sensors()["observation.n/value"].tolist()
    assert found.metadata["video_cameras"][0]["camera"] == "front"
    assert found.missing_artifacts == ["actions"]


def test_a_broken_frame_does_not_end_the_episode(wire: FaultyServer, client_of: MakeClient) -> None:
    client = client_of(wire)
    with client.start_episode() as episode:
        episode.frame(numbered(0))
        with pytest.raises(RollbookError):
            episode.frame(np.zeros((4, 4), np.float32))
        episode.frame(numbered(1))
    assert decode(client.episode(str(episode.id)).video()).numbers == [0, 1]
