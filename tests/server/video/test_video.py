"""Real clips, made here in the codecs people bring: what is found out about them, and what their copies are like."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.server.video.inspect_video import VideoLimits, probe, transcode
from rollbook.server.video.process import probe_apart, transcode_apart
from tests.scheduling import ordinary_scheduling

Image = NDArray[np.uint8]
COLOURS = ((200, 30, 30), (30, 180, 40), (40, 60, 210), (230, 220, 40))
"""Of the four quarters: red and blue swapped, or a wrong matrix, show."""
FPS = 20


@dataclass(frozen=True)
class Clip:
    codec: str = "mpeg4"
    pixels: str = "yuv420p"
    suffix: str = ".mp4"
    frames: int = 30
    width: int = 96
    height: int = 64
    options: tuple[tuple[str, str], ...] = ()
    gop: int = 250
    container_options: tuple[tuple[str, str], ...] = ()
    times: tuple[float, ...] | None = None
    rotation: int = 0

    def write(self, folder: Path) -> Path:
        path = folder / f"clip{self.suffix}"
        options = dict(self.container_options)
        with ordinary_scheduling(), av.open(str(path), "w", options=options) as out:
            stream: Any = out.add_stream(self.codec, rate=FPS, options=dict(self.options))
            stream.width, stream.height, stream.pix_fmt = self.width, self.height, self.pixels
            stream.codec_context.gop_size = self.gop
            if self.times is not None:
                stream.codec_context.time_base = Fraction(1, 1000)
            if self.rotation:
                stream.set_display_rotation(self.rotation)
            for number in range(self.frames):
                frame = av.VideoFrame.from_ndarray(
                    picture(number, self.width, self.height), "rgb24"
                )
                if self.times is not None:
                    frame.pts, frame.time_base = round(self.times[number] * 1000), Fraction(1, 1000)
                out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
        return path


def picture(number: int, width: int, height: int) -> Image:
    """Four colours, and between them a bright block whose place tells which frame it is."""
    image = np.zeros((height, width, 3), np.uint8)
    rows, columns = height // 2, width // 2
    image[:rows, :columns], image[:rows, columns:] = COLOURS[0], COLOURS[1]
    image[rows:, :columns], image[rows:, columns:] = COLOURS[2], COLOURS[3]
    image[rows - 4 : rows + 4] = 0
    place = number % (width // 8) * 8
    image[rows - 4 : rows + 4, place : place + 8] = 255
    return image


def number_in(image: Image) -> int:
    """Modulo the places there are."""
    height, width, _ = image.shape
    band = image[height // 2 - 3 : height // 2 + 3, : width // 8 * 8].astype(float)
    return int(band.mean(axis=(0, 2)).reshape(-1, 8).mean(axis=1).argmax())


def quarters(image: Image) -> NDArray[np.float64]:
    """The mean colour inside each quarter, away from the edges."""
    height, width, _ = image.shape
    rows, columns = height // 2, width // 2
    inside = [
        image[top + 6 : top + rows - 6, left + 6 : left + columns - 6]
        for top in (0, rows)
        for left in (0, columns)
    ]
    return np.array([part.reshape(-1, 3).mean(axis=0) for part in inside])


def decoded(path: Path) -> list[tuple[float, Image]]:
    with av.open(str(path)) as source:
        return [
            (float(frame.time), np.asarray(frame.to_ndarray(format="rgb24"), np.uint8))
            for frame in source.decode(video=0)
        ]


def key_times(path: Path) -> list[float]:
    with av.open(str(path)) as source:
        packets = [packet for packet in source.demux(video=0) if packet.size]
        return sorted(float(p.pts * p.time_base) for p in packets if p.is_keyframe)  # type: ignore[operator]


H264 = Clip("libx264")
PLAYABLE = {
    "h264": H264,
    "h264, full range": Clip("libx264", "yuvj420p"),
    "vp9 in webm": Clip("libvpx-vp9", suffix=".webm"),
    "vp9 in mp4": Clip("libvpx-vp9"),
    "av1 in mp4": Clip("libsvtav1", options=(("preset", "12"),)),
}
NOT_PLAYABLE = {
    "mpeg4 part 2": Clip("mpeg4"),
    "hevc": Clip("libx265"),
    "hevc, ten bits": Clip("libx265", "yuv420p10le"),
    "h264, 4:2:2": Clip("libx264", "yuv422p"),
    "h264, 4:4:4": Clip("libx264", "yuv444p"),
    "h264, ten bits": Clip("libx264", "yuv420p10le"),
    "h264 in matroska": Clip("libx264", suffix=".mkv"),
    "mjpeg in avi": Clip("mjpeg", "yuvj420p", ".avi"),
    "rgb in avi": Clip("ffv1", "bgr0", ".avi"),
    "png in quicktime": Clip("png", "rgb24", ".mov"),
    "xvid in avi": Clip("mpeg4", suffix=".avi"),
}


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """Some encoders write to the terminal whatever one says."""


# --------------------------------------------------------------------------------------------- probe


@pytest.mark.parametrize("clip", PLAYABLE.values(), ids=PLAYABLE)
def test_what_browsers_play_is_playable(tmp_path: Path, clip: Clip) -> None:
    facts = probe(clip.write(tmp_path))
    assert (facts.playable, facts.decodable, facts.detail) == (True, True, None)
    assert (facts.width, facts.height, facts.frames) == (96, 64, 30)
    assert facts.fps == pytest.approx(FPS, rel=0.01)
    assert facts.duration_s == pytest.approx(1.5, abs=0.01)


@pytest.mark.parametrize("clip", NOT_PLAYABLE.values(), ids=NOT_PLAYABLE)
def test_what_browsers_do_not_play_is_not_playable_but_can_be_decoded(
    tmp_path: Path, clip: Clip
) -> None:
    facts = probe(clip.write(tmp_path))
    assert (facts.playable, facts.decodable) == (False, True)
    assert facts.detail is not None
    assert "browsers do not" in facts.detail
    assert facts.frames == 30
    assert facts.duration_s == pytest.approx(1.5, abs=0.06)


@pytest.mark.parametrize(("flags", "expected"), [("+faststart", True), ("", False)])
def test_an_index_before_the_frames_is_noticed(tmp_path: Path, flags: str, expected: bool) -> None:
    clip = Clip("libx264", container_options=(("movflags", flags),) if flags else ())
    assert probe(clip.write(tmp_path)).faststart is expected


@pytest.mark.parametrize(("gop", "gap_s"), [(1, 0.05), (5, 0.25), (10, 0.5), (250, 1.5)])
def test_the_longest_gap_between_key_frames_is_found(
    tmp_path: Path, gop: int, gap_s: float
) -> None:
    clip = Clip("libx264", gop=gop, options=(("sc_threshold", "0"),))
    assert probe(clip.write(tmp_path)).keyframe_gap_s == pytest.approx(gap_s, abs=1e-6)


def test_fragments_are_read_through(tmp_path: Path) -> None:
    flags = (("movflags", "frag_keyframe+empty_moov"),)
    facts = probe(Clip("libx264", gop=10, container_options=flags).write(tmp_path))
    assert (facts.playable, facts.frames, facts.faststart) == (True, 30, True)
    assert facts.keyframe_gap_s == pytest.approx(0.5, abs=0.06)


# --------------------------------------------------------------------------------------- bad content


def test_what_is_no_video_is_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    for content in (
        b"",
        b"x",
        b"hello, this is text" * 100,
        bytes(10_000),
        b"\x00\x00\x00\x08ftyp",
    ):
        path.write_bytes(content)
        facts = probe(path)
        assert (facts.playable, facts.decodable) == (False, False)
        assert facts.detail
        assert not transcode(path, tmp_path / "out.mp4").playable
        assert not (tmp_path / "out.mp4").exists()


@pytest.mark.parametrize("name", ["h264", "mpeg4 part 2"])
def test_a_video_that_was_cut_short_is_not_playable(tmp_path: Path, name: str) -> None:
    clip = {**PLAYABLE, **NOT_PLAYABLE}[name]
    for flags in ((("movflags", "+faststart"),), ()):
        path = Clip(clip.codec, container_options=flags).write(tmp_path)
        whole = path.read_bytes()
        for share in (0.1, 0.5, 0.9, 0.999):
            path.write_bytes(whole[: int(len(whole) * share)])
            facts = probe(path)
            assert not facts.playable
            assert facts.detail is not None
            assert "cut short" in facts.detail or "no index" in facts.detail


def test_an_mp4_with_sound_alone_is_not_playable(tmp_path: Path) -> None:
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        out.mux([*stream.encode(frame), *stream.encode(None)])
    facts = probe(path)
    assert (facts.playable, facts.detail) == (False, "there is no video in the file")


@pytest.mark.parametrize("name", ["h264", "mpeg4 part 2", "vp9 in webm", "mjpeg in avi"])
def test_damage_anywhere_is_an_answer_and_never_an_exception(tmp_path: Path, name: str) -> None:
    path = {**PLAYABLE, **NOT_PLAYABLE}[name].write(tmp_path)
    whole = path.read_bytes()
    chance = random.Random(name)
    damaged = tmp_path / f"damaged{path.suffix}"
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 8, 64))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        damaged.write_bytes(data)
        facts = probe(damaged)
        assert facts.playable or facts.detail


def test_a_playlist_that_calls_itself_a_video_is_not_followed(tmp_path: Path) -> None:
    secret = Clip("libx264", suffix=".ts").write(tmp_path)
    path = tmp_path / "evil.mp4"
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile://{secret}\n#EXT-X-ENDLIST\n"
    for content in (playlist, f"ffconcat version 1.0\nfile {secret}\n", "v=0\no=- 0 0 IN IP4 x\n"):
        path.write_text(content)
        assert probe(path).container is None
        assert not transcode(path, tmp_path / "out.mp4").playable


def test_a_file_that_does_not_exist_is_the_mistake_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        probe(tmp_path / "nothing.mp4")


def test_a_video_beyond_the_limits_is_not_decoded(tmp_path: Path) -> None:
    path, out = Clip("mpeg4").write(tmp_path), tmp_path / "out.mp4"
    for limits, reason in (
        (VideoLimits(most_pixels=96 * 64 - 1), "pixels"),
        (VideoLimits(most_duration_s=1.0), "longer"),
        (VideoLimits(most_frames=29), "frames"),
    ):
        for facts in (probe(path, limits), transcode(path, out, limits)):
            assert (facts.playable, facts.decodable) == (False, False)
            assert reason in (facts.detail or "")
        assert not out.exists()
    assert transcode(path, out, VideoLimits(96 * 64, 1.5, 30)).playable


def test_frames_that_grow_after_the_header_are_not_decoded(tmp_path: Path) -> None:
    """Two streams of H.264 one after the other under the header of the first, which is the smaller one."""
    small, large = (
        Clip("libx264", width=size, height=size, suffix=".h264", frames=3)
        .write(tmp_path)
        .read_bytes()
        for size in (64, 640)
    )
    path = tmp_path / "grows.mp4"
    (tmp_path / "both.h264").write_bytes(small + large)
    with (
        av.open(str(tmp_path / "both.h264")) as source,
        av.open(str(path), "w", options={"movflags": "+faststart"}) as out,
    ):
        stream = out.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size:
                packet.stream, packet.time_base = stream, Fraction(1, FPS)
                packet.pts = packet.dts = number
                packet.duration = 1
                out.mux(packet)
    assert probe(path).playable
    for most_pixels in (
        64 * 64,
        640 * 640 - 1,
    ):  # the decoder refuses, and where it does not, we do
        refused = transcode(path, tmp_path / "out.mp4", VideoLimits(most_pixels))
        assert not refused.playable
        assert "cannot be transcoded" in (refused.detail or "")
        assert not (tmp_path / "out.mp4").exists()
    grown = transcode(path, tmp_path / "out.mp4")
    assert (grown.playable, grown.width, grown.height, grown.frames) == (True, 64, 64, 6)


# ------------------------------------------------------------------------------------------ transcode


@pytest.mark.parametrize("clip", NOT_PLAYABLE.values(), ids=NOT_PLAYABLE)
def test_a_copy_plays_everywhere_and_looks_the_same(tmp_path: Path, clip: Clip) -> None:
    source, out = clip.write(tmp_path), tmp_path / "out.mp4"
    facts = transcode(source, out)
    assert (facts.playable, facts.codec, facts.container) == (True, "h264", "mp4")
    assert (facts.pixel_format, facts.faststart) == ("yuv420p", True)
    assert (facts.width, facts.height, facts.frames) == (96, 64, 30)
    assert facts.fps == pytest.approx(FPS, rel=0.01)
    assert facts.keyframe_gap_s is not None
    assert facts.keyframe_gap_s <= 0.5 + 1e-9
    before, after = decoded(source), decoded(out)
    assert len(before) == len(after) == 30
    for number, ((_, old), (_, new)) in enumerate(zip(before, after, strict=True)):
        assert np.abs(quarters(old) - quarters(new)).max() < 4
        assert number_in(new) == number % 12
    assert np.abs(quarters(after[15][1]) - np.array(COLOURS)).max() < 12
    assert [time for time, _ in after] == pytest.approx(
        [time - before[0][0] for time, _ in before], abs=0.002
    )


def test_key_frames_are_close_even_where_frames_come_unevenly(tmp_path: Path) -> None:
    steps = [
        0.01,
        0.03,
        0.2,
        0.4,
        0.05,
        0.45,
        0.001,
        0.3,
        0.1,
        0.02,
        0.8,
        0.04,
        0.49,
        0.25,
        0.26,
        0.1,
    ]
    times = tuple(np.cumsum([0.0, *steps * 3]).round(3).tolist())
    clip = Clip("mpeg4", frames=len(times), times=times)
    out = tmp_path / "out.mp4"
    assert transcode(clip.write(tmp_path), out).playable
    shown = [time for time, _ in decoded(out)]
    assert shown == pytest.approx(times, abs=0.002)
    keys = key_times(out)
    for before, after in pairwise(keys):
        between = [time for time in shown if before < time < after]
        assert after - before <= 0.501 or not between
    assert len(keys) < len(shown)


def test_any_moment_can_be_shown_by_decoding_half_a_second(tmp_path: Path) -> None:
    out = tmp_path / "out.mp4"
    transcode(Clip("mpeg4", frames=100).write(tmp_path), out)
    with av.open(str(out)) as copy:
        stream = copy.streams.video[0]
        for number in (0, 1, 37, 63, 99):
            moment = number / FPS
            copy.seek(round(moment / stream.time_base), stream=stream)  # type: ignore[operator]
            decodings = 0
            for frame in copy.decode(stream):
                decodings += 1
                if frame.time >= moment - 1e-6:
                    break
            assert frame.time == pytest.approx(moment, abs=1e-6)
            assert number_in(np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)) == number % 12
            assert decodings <= FPS / 2 + 1


def test_an_odd_size_is_rounded_up_without_stretching(tmp_path: Path) -> None:
    source = Clip("png", "rgb24", ".mov", width=95, height=63).write(tmp_path)
    facts = transcode(source, tmp_path / "out.mp4")
    assert (facts.playable, facts.width, facts.height) == (True, 96, 64)
    (_, old), (_, new) = decoded(source)[3], decoded(tmp_path / "out.mp4")[3]
    assert np.abs(quarters(old) - quarters(new[:63, :95])).max() < 4


@pytest.mark.parametrize("degrees", [90, -90, 180])
def test_a_turned_video_is_upright_afterwards(tmp_path: Path, degrees: int) -> None:
    source, out = Clip("mpeg4", rotation=degrees).write(tmp_path), tmp_path / "out.mp4"
    facts = transcode(source, out)
    sides = (96, 64) if degrees == 180 else (64, 96)
    assert (facts.playable, facts.width, facts.height) == (True, *sides)
    with av.open(str(out)) as copy:
        assert next(copy.decode(video=0)).rotation == 0
    upright = np.rot90(decoded(source)[3][1], degrees // 90)
    assert np.abs(quarters(upright) - quarters(decoded(out)[3][1])).max() < 4


def test_a_copy_of_a_single_frame_plays(tmp_path: Path) -> None:
    facts = transcode(Clip("mpeg4", frames=1).write(tmp_path), tmp_path / "out.mp4")
    assert (facts.playable, facts.frames) == (True, 1)


# --------------------------------------------------------------------------------- in its own process


def test_a_process_of_its_own_finds_the_same(tmp_path: Path) -> None:
    path, out = Clip("mpeg4").write(tmp_path), tmp_path / "out.mp4"

    async def both() -> None:
        assert await probe_apart(path) == probe(path)
        facts = await transcode_apart(path, out)
        assert facts.playable
        assert facts == probe(out)

    asyncio.run(both())


def commands() -> Iterator[bytes]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end while we look
            yield (process / "cmdline").read_bytes()


def test_a_process_that_takes_too_long_or_is_given_up_ends(tmp_path: Path) -> None:
    path, out = (
        Clip("mpeg4", width=1280, height=720, frames=200).write(tmp_path),
        tmp_path / "o.mp4",
    )

    async def given_up() -> None:
        task = asyncio.create_task(transcode_apart(path, out))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    facts = asyncio.run(transcode_apart(path, out, limit_s=0.05))
    assert (facts.playable, facts.decodable) == (False, False)
    assert "longer" in (facts.detail or "")
    asyncio.run(given_up())
    assert not out.exists()
    assert not any(str(path).encode() in command for command in commands())


def test_a_decoder_that_dies_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killer = tmp_path / "python"
    killer.write_text("#!/bin/sh\nkill -SEGV $$\n")
    killer.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(killer))
    facts = asyncio.run(probe_apart(Clip("mpeg4").write(tmp_path)))
    assert (facts.playable, facts.detail) == (False, "reading it brought the decoder down")


def test_a_long_video_is_probed_by_its_index(tmp_path: Path) -> None:
    path = Clip("mpeg4", frames=3000, width=32, height=32, gop=10).write(tmp_path)
    began = time.process_time()
    facts = probe(path)
    assert facts.frames == 3000
    assert time.process_time() - began < 1
