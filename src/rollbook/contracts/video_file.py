"""Video files: which container the first bytes announce, and the boxes of an MP4 file. Read without any library.

The SDK refuses what the server could not look into, so both use this rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Literal, TypeAlias

Container: TypeAlias = Literal["mp4", "webm", "matroska", "avi"]

CONTAINERS = "MP4, WebM, Matroska or AVI"
_MP4_OPENINGS = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp")


def container_of(file: BinaryIO) -> Container | None:
    """From the first bytes; None for anything that is not a video."""
    start = file.read(64)
    if start[4:8] in _MP4_OPENINGS:
        return "mp4"
    if start.startswith(b"\x1a\x45\xdf\xa3"):
        return "webm" if b"webm" in start else "matroska"
    if start.startswith(b"RIFF") and start[8:12] == b"AVI ":
        return "avi"
    return None


def mp4_boxes(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Kind and end of each box of an MP4 file, in their order. The last one may end after the end of the file."""
    at = 0
    while True:
        file.seek(at)
        head = file.read(16)
        if len(head) < 8:
            return
        size = int.from_bytes(head[:4], "big")
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if size == 0:  # until the end of the file
            size = file.seek(0, 2) - at
        if size < 8:
            return
        at += size
        yield head[4:8], at
