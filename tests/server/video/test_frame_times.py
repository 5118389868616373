"""When frames are shown, read from the index of a file: the same times as those of a decoder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from rollbook.server.blobs.file_blobs import LocalBlobs
from rollbook.server.video.frame_times import FrameTimes, frame_times
from tests.server.video.test_video import FPS, Clip, decoded

_KEY = "episodes/org/one/video.mp4"
_UNEVEN = tuple(np.cumsum([0.0, 0.03, 0.3, *([0.05] * 26), 0.9]).round(3).tolist())


def _times_in(content: bytes, folder: Path) -> FrameTimes | None:
    async def read() -> FrameTimes | None:
        blobs = LocalBlobs(folder / "blobs", b"secret")

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        await blobs.put(_KEY, chunks(), content_type="video/mp4")
        return await frame_times(blobs, _KEY)

    return asyncio.run(read())


@pytest.mark.parametrize(
    "clip",
    [
        Clip("libx264"),
        Clip("libx264", options=(("bf", "3"),)),
        Clip("libx264", container_options=(("movflags", "faststart"),)),
        Clip("libx264", times=_UNEVEN),
        Clip("libx264", times=_UNEVEN, options=(("bf", "2"),)),
        Clip("libx264", frames=1),
    ],
    ids=["constant", "B-frames", "index first", "uneven", "uneven with B-frames", "one frame"],
)
def test_they_are_those_of_a_decoder(clip: Clip, tmp_path: Path) -> None:
    path = clip.write(tmp_path)
    found = _times_in(path.read_bytes(), tmp_path)
    assert found is not None
    assert (found.frames, found.width, found.height) == (clip.frames, clip.width, clip.height)
    expected = [at for at, _ in decoded(path)]
    times = found.times or [frame / found.fps for frame in range(found.frames)]
    assert times == pytest.approx(expected, abs=1e-3)
    assert (found.times is None) == (clip.times is None)
    if clip.times is None:
        assert found.fps == FPS


def _nested(deep: int) -> bytes:
    sizes = range(8 * deep, 0, -8)
    inside = b"".join(size.to_bytes(4, "big") + b"trak" for size in sizes)
    return (len(inside) + 8).to_bytes(4, "big") + b"moov" + inside


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x00\x00\x01moov",
        b"\x00\x00\x00\x08moov",
        b"\x00\x00\x00\x10moov\xff\xff\xff\xfftrak",
        b"\x1a\x45\xdf\xa3webm" + b"\x00" * 90,
        b"\x00\x00\x00\x09ftyp\x00" * 3000,
        _nested(20_000),
    ],
    ids=["empty", "no size", "nothing inside", "cut", "WebM", "many boxes", "nested"],
)
def test_what_has_no_index_gives_nothing(content: bytes, tmp_path: Path) -> None:
    assert _times_in(content, tmp_path) is None


def test_a_damaged_index_gives_nothing_or_something_finite(tmp_path: Path) -> None:
    whole = Clip("libx264", options=(("bf", "2"),)).write(tmp_path).read_bytes()
    start = whole.index(b"moov")
    rng = np.random.default_rng(3)
    for place in rng.integers(start, len(whole), 150):
        broken = bytearray(whole)
        broken[place] ^= int(rng.integers(1, 256))
        found = _times_in(bytes(broken), tmp_path)
        if found is not None:
            assert np.isfinite(found.fps)
            assert np.isfinite(found.times or [0.0]).all()
