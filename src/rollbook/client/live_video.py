"""LiveVideo: a video that is written frame by frame and survives the end of its program at any moment.

While it grows, every frame is a fragment of its own, so that the file can be cut anywhere and has all frames before the
cut. At the end the fragments are joined into a plain MP4 file, in which browsers seek better. Nothing is encoded again.
"""

from __future__ import annotations

import os
import shutil
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

from rollbook.client.video import (
    Picture,
    VideoEncoder,
    exact_rate,
    pyav,
    video_errors,
)
from rollbook.contracts.video_file import mp4_boxes
from rollbook.files import write_errors

_ASSUMED_RATE = Fraction(30)
TICKS_PER_SECOND = 90_000
"""Of frames with times of their own. As fine as other writers of video have it."""
LONGEST_GAP_S = (2**31 - 1) // TICKS_PER_SECOND
"""Between two frames: almost 7 hours. The file has 31 bits for it, and the writer says nothing if they overflow."""
_FRAGMENTS = "frag_every_frame+empty_moov+default_base_moof"


class LiveVideo:
    """With `fps`, frame `i` is shown at `i / fps`. Otherwise each frame has its own time."""

    def __init__(self, path: Path, fps: float | None) -> None:
        rate = _ASSUMED_RATE if fps is None else exact_rate(fps)
        self._encoder = VideoEncoder(
            path,
            rate=rate,
            time_base=Fraction(1, TICKS_PER_SECOND) if fps is None else 1 / rate,
            movflags=_FRAGMENTS,
            tune="zerolatency",  # the encoder holds no frame back
        )

    @property
    def frames(self) -> int:
        return self._encoder.frames

    def add(self, frame: Picture, ticks: int) -> None:
        """`ticks`: the number of the frame, or without fps its time in ticks."""
        self._encoder.add(frame, ticks)

    def close(self) -> None:
        self._encoder.finish()
        self._encoder.close()


def join_fragments(path: Path, target: Path) -> bool:
    """Makes a plain MP4 file of the complete frames. False when there are none.

    Where PyAV is not installed, the fragments stay as they are: also a video, but one in which seeking is slow.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        ends = (end for kind, end in mp4_boxes(file) if kind == b"mdat" and end <= size)
        complete = max(ends, default=0)
    if not complete:
        return False
    with write_errors(target):
        os.truncate(path, complete)
        if find_spec("av") is None:
            shutil.copyfile(path, target)
            return True
    av = pyav()
    with (
        video_errors(path, "its frames cannot be joined"),
        av.open(os.fspath(path), format="mp4") as source,
        av.open(os.fspath(target), "w", format="mp4", options={"movflags": "faststart"}) as joined,
    ):
        stream = source.streams.video[0]
        copy = joined.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.dts is not None:
                packet.stream = copy
                joined.mux(packet)
    return True
