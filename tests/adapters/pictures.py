"""Pictures that say which they are, and videos read back to see whether they still do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from tests.scheduling import ordinary_scheduling

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
_BITS = 8
_BLOCK = 8


def numbered(
    number: int, colour: tuple[int, int, int] = RED, height: int = 48, width: int = 64
) -> NDArray[np.uint8]:
    """All of one colour, but for a row of black and white blocks on top that spell the number."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = colour
    for bit in range(_BITS):
        block = slice(bit * _BLOCK, (bit + 1) * _BLOCK)
        picture[:_BLOCK, block] = 255 if number >> bit & 1 else 0
    return picture


def number_of(picture: NDArray[np.uint8]) -> int:
    middle = _BLOCK // 2
    bits = [picture[middle, bit * _BLOCK + middle].mean() > 127 for bit in range(_BITS)]
    return sum(1 << bit for bit, is_set in enumerate(bits) if is_set)


def colour_of(picture: NDArray[np.uint8]) -> tuple[int, ...]:
    return tuple(int(value) for value in picture[-4, 4])


def is_close(found: tuple[int, ...], expected: tuple[int, ...], most: int = 4) -> bool:
    return all(abs(a - b) <= most for a, b in zip(found, expected, strict=True))


@dataclass(frozen=True)
class Decoded:
    times: list[float]
    is_key: list[bool]
    pictures: list[NDArray[np.uint8]]
    codec: str
    width: int
    height: int

    @property
    def numbers(self) -> list[int]:
        return [number_of(picture) for picture in self.pictures]

    @property
    def longest_key_gap_s(self) -> float:
        keys = [t for t, is_key in zip(self.times, self.is_key, strict=True) if is_key]
        return float(max(np.diff([*keys, self.times[-1]])))


def decode(path: Path) -> Decoded:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        return Decoded(
            [float(frame.time or 0) for frame in frames],
            [frame.key_frame for frame in frames],
            [np.asarray(frame.to_ndarray(format="rgb24"), np.uint8) for frame in frames],
            stream.codec_context.codec.canonical_name,
            stream.width,
            stream.height,
        )


def write_video(
    path: Path,
    pictures: Iterable[NDArray[np.uint8]],
    fps: float,
    codec: str = "libx264",
    **codec_options: Any,
) -> None:
    """As other tools write them: key frames far apart, frames that refer to later ones, the index at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rate = Fraction(fps).limit_denominator(1001)
    with ordinary_scheduling(), av.open(str(path), "w", format="mp4") as container:
        options = {"crf": "12", "g": "250", **codec_options}
        stream: Any = container.add_stream(codec, rate=rate, options=options)
        stream.pix_fmt = "yuv420p"
        for i, picture in enumerate(pictures):
            if not i:
                stream.height, stream.width = picture.shape[:2]
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = i, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def top_level_boxes(path: Path) -> list[str]:
    """The parts an mp4 file is made of, in order."""
    data, at, names = path.read_bytes(), 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        names.append(data[at + 4 : at + 8].decode())
        at += size
    return names
