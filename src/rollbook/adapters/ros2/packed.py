"""Unpacking of zstd and lz4, which never makes more bytes than the caller allows."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from rollbook.adapters.extras import library
from rollbook.adapters.ros2.storage import LARGEST_MESSAGE
from rollbook.errors import DamagedRecording

_PIECE = 1 << 20
_MOST_FILE = 1 << 30
_MOST_RATIO = 1000
"""A file may unpack to `_MOST_FILE` bytes, or to this many times its own size."""


@cache
def _zstd() -> Any:
    return library("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def unpacked(
    data: bytes | memoryview, method: str, most: int = LARGEST_MESSAGE, *, is_cut: bool = False
) -> bytes:
    """The bytes of one zstd or lz4 frame, or what can be had of one that is cut off. ValueError says what is wrong."""
    if method == "zstd":
        maker, failures = _zstd().ZstdDecompressor, (_zstd().ZstdError, EOFError)
    elif method == "lz4":
        maker, failures = library("lz4.frame").LZ4FrameDecompressor, (RuntimeError, EOFError)
    else:
        raise ValueError(f"the compression {method!r} is not known")
    unpacker = maker()
    try:
        made: bytes = unpacker.decompress(data, max_length=most + 1)
    except (*failures, ValueError) as error:
        raise ValueError(f"its {method} data is damaged ({error})") from error
    if len(made) > most:
        raise ValueError(f"its {method} data unpacks to more than {most} bytes")
    if not unpacker.eof and not is_cut:
        raise ValueError(f"its {method} data is cut off")
    return made


def unpack_file(packed: Path, target: Path) -> str | None:
    """Unpack a zstd file. Returns why it could not be unpacked to its end; what was unpacked before stays."""
    most = max(_MOST_FILE, packed.stat().st_size * _MOST_RATIO)
    unpacker = _zstd().ZstdDecompressor()
    written = 0
    with open(packed, "rb") as source, open(target, "wb") as out:
        piece = source.read(_PIECE)
        while True:
            try:
                made = unpacker.decompress(piece, max_length=_PIECE)
            except (_zstd().ZstdError, EOFError) as error:
                return f"it cannot be unpacked after byte {written} ({error})"
            out.write(made)
            written += len(made)
            if written > most:
                detail = f"it unpacks to more than {most} bytes"
                raise DamagedRecording(path=str(packed), detail=detail)
            if unpacker.eof:
                piece = unpacker.unused_data or source.read(_PIECE)
                if not piece:
                    return None
                unpacker = _zstd().ZstdDecompressor()  # a file may hold several frames
            elif unpacker.needs_input:
                piece = source.read(_PIECE)
                if not piece:
                    return f"it is cut off after byte {written} of the unpacked file"
            else:
                piece = b""
