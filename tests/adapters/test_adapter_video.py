"""Videos that adapters write: right colours, right times, quick to seek in, whole or not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rollbook.adapters.video_source import VideoSource
from rollbook.client.tiles import Tile, tiled, tiles
from rollbook.client.video import VideoWriter, picture
from rollbook.errors import ConfigurationError, StorageError, TruncatedFile
from tests.adapters.pictures import (
    BLUE,
    GREEN,
    RED,
    colour_of,
    decode,
    is_close,
    numbered,
    top_level_boxes,
    write_video,
)


def write(path: Path, fps: float, frames: list[np.ndarray]) -> Path:
    with VideoWriter(path, fps) as video:
        for frame in frames:
            video.add(frame)
    return path


@pytest.mark.parametrize("colour", [RED, GREEN, BLUE, (255, 255, 255), (0, 0, 0), (200, 100, 50)])
def test_a_colour_comes_back_as_itself(tmp_path: Path, colour: tuple[int, int, int]) -> None:
    path = write(tmp_path / "video.mp4", 10, [numbered(1, colour)] * 3)
    assert is_close(colour_of(decode(path).pictures[-1]), colour)


@pytest.mark.parametrize("fps", [1, 7, 29.97, 30, 62.5, 120])
def test_every_frame_comes_at_its_time(tmp_path: Path, fps: float) -> None:
    found = decode(write(tmp_path / "video.mp4", fps, [numbered(i) for i in range(12)]))
    assert found.numbers == list(range(12))
    assert found.times == pytest.approx([i / fps for i in range(12)], abs=1e-4)


@pytest.mark.parametrize("fps", [3, 10, 50])
def test_key_frames_are_at_most_half_a_second_apart(tmp_path: Path, fps: float) -> None:
    found = decode(write(tmp_path / "video.mp4", fps, [numbered(0)] * int(fps * 2)))
    assert found.is_key[0]
    assert found.longest_key_gap_s <= 0.5


def test_the_index_is_in_front_and_the_codec_one_that_browsers_play(tmp_path: Path) -> None:
    path = write(tmp_path / "video.mp4", 10, [numbered(i) for i in range(5)])
    boxes = top_level_boxes(path)
    assert boxes.index("moov") < boxes.index("mdat")
    assert decode(path).codec == "h264"


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 2), (31, 47), (48, 63)])
def test_a_size_that_h264_cannot_have_is_filled_up(tmp_path: Path, height: int, width: int) -> None:
    frame = np.zeros((height, width, 3), np.uint8)
    frame[:] = GREEN
    found = decode(write(tmp_path / "video.mp4", 10, [frame] * 3))
    assert (found.height, found.width) == (height + height % 2, width + width % 2)
    assert is_close(tuple(found.pictures[0][-1, -1].tolist()), GREEN, 6)


def test_a_video_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="frame 1 is"):
        write(tmp_path / "video.mp4", 10, [numbered(0), numbered(1, height=64)])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        write(tmp_path / "nowhere" / "video.mp4", 10, [numbered(0)])


@pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf"), 1e6, True, "30"])
def test_a_rate_that_is_none_is_refused(tmp_path: Path, fps: float) -> None:
    with pytest.raises(ConfigurationError, match="fps="):
        VideoWriter(tmp_path / "video.mp4", fps)


def test_grey_and_transparent_pictures_become_plain_ones() -> None:
    grey = picture(np.full((4, 6), 7, np.uint8), "it")
    assert grey.shape == (4, 6, 3)
    assert (grey == 7).all()
    clear = picture(np.dstack([numbered(0), np.zeros((48, 64, 1), np.uint8)]), "it")
    assert (clear == numbered(0)).all()


@pytest.mark.parametrize(
    "value",
    [None, np.zeros((4, 4, 3)), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4, 3), np.uint8)],
)
def test_what_is_no_picture_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="what render"):
        picture(value, "what render() returned")


def test_cameras_of_different_sizes_lie_side_by_side() -> None:
    small, large = numbered(0, RED, 16, 64), numbered(0, BLUE, 48, 80)
    layout = tiles(["left", "right"], [small, large])
    assert layout == [Tile("left", 0, 0, 64, 16), Tile("right", 64, 0, 80, 48)]
    both = tiled(layout, [small, large])
    assert both.shape == (48, 144, 3)
    assert (both[:16, :64] == small).all()
    assert (both[16:, :64] == 0).all()
    assert (both[:, 64:] == large).all()


def test_many_cameras_lie_in_rows_without_overlap() -> None:
    pictures = [numbered(i, height=16 + i, width=64 + i) for i in range(7)]
    layout = tiles([str(i) for i in range(7)], pictures)
    assert len({tile.y for tile in layout}) == 3
    shown = tiled(layout, pictures)
    for tile, each in zip(layout, pictures, strict=True):
        cut = shown[tile.y : tile.y + tile.height, tile.x : tile.x + tile.width]
        assert (cut == each).all()


# --------------------------------------------------------------------------------- other's videos


def test_frames_are_found_by_time_in_the_middle_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "long.mp4"
    write_video(path, [numbered(i) for i in range(90)], 30)
    source = VideoSource(path, fps=30, count=20, start_s=40 / 30)
    write(tmp_path / "cut.mp4", 30, list(source.frames()))
    assert decode(tmp_path / "cut.mp4").numbers == list(range(40, 60))


def test_frames_past_the_end_are_missed(tmp_path: Path) -> None:
    path = tmp_path / "short.mp4"
    write_video(path, [numbered(i) for i in range(10)], 30)
    with pytest.raises(TruncatedFile, match=r"short\.mp4 .*frame 6 of 9, at 0\.333 s"):
        list(VideoSource(path, fps=30, count=9, start_s=4 / 30).frames())


def test_a_video_of_another_rate_is_refused_rather_than_shown_too_fast(tmp_path: Path) -> None:
    path = tmp_path / "slow.mp4"
    write_video(path, [numbered(i) for i in range(10)], 15)
    with pytest.raises(TruncatedFile):
        list(VideoSource(path, fps=30, count=10).frames())


def test_a_whole_video_is_taken_over_bit_for_bit_with_its_index_in_front(tmp_path: Path) -> None:
    path, copy = tmp_path / "whole.mp4", tmp_path / "copy.mp4"
    write_video(path, [numbered(i) for i in range(10)], 30)
    source = VideoSource(path, fps=30, count=10)
    assert source.is_the_whole_file()
    source.copy(copy)
    boxes = top_level_boxes(copy)
    assert boxes.index("moov") < boxes.index("mdat")
    before, after = decode(path), decode(copy)
    assert after.times == before.times
    assert all((a == b).all() for a, b in zip(after.pictures, before.pictures, strict=True))


@pytest.mark.parametrize("cut", [1, 40, 300])
def test_a_video_with_its_index_in_front_that_was_cut_short_is_noticed(
    tmp_path: Path, cut: int
) -> None:
    path = write(tmp_path / "video.mp4", 30, [numbered(i) for i in range(10)])
    path.write_bytes(path.read_bytes()[:-cut])
    source = VideoSource(path, fps=30, count=10)
    assert not source.is_the_whole_file()
    with pytest.raises(StorageError, match=r"video\.mp4"):
        list(source.frames())


@pytest.mark.parametrize("codec", ["mpeg4", "libx265"])
def test_a_codec_that_browsers_do_not_play_is_not_taken_over(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "other.mp4"
    write_video(path, [numbered(i) for i in range(5)], 30, codec)
    assert not VideoSource(path, fps=30, count=5).is_the_whole_file()


def test_a_file_that_is_no_video_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.mp4"
    path.write_text("#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n")
    with pytest.raises(StorageError, match=r"text\.mp4: it is not a complete video"):
        list(VideoSource(path, fps=30, count=1).frames())
    with pytest.raises(StorageError, match="missing"):
        list(VideoSource(tmp_path / "none.mp4", fps=30, count=1).frames())


def test_a_file_that_points_to_another_is_not_followed(tmp_path: Path) -> None:
    write_video(tmp_path / "other.mp4", [numbered(i) for i in range(5)], 30)
    path = tmp_path / "list.mp4"
    path.write_text("ffconcat version 1.0\nfile other.mp4\n")
    with pytest.raises(StorageError, match=r"list\.mp4"):
        list(VideoSource(path, fps=30, count=5).frames())
