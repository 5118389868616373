"""Codecs of Zarr chunks: bytes of a chunk are unpacked to exactly the size that its array says, and never to more.

Only codecs of this list are made. Others, above all those that unpickle, are refused by their name before that.
docs/formats/zarr-buffer.md lists them.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.extras import library

_RUNS_CODE = frozenset({"pickle"})
_FILTERS = frozenset(
    {"astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle"}
)
_ZSTD_MAGIC = 0xFD2FB528
_SPARE = 4096
"""Bytes that a codec may add to data that cannot be packed."""


class UnreadableCodec(Exception):
    """The reason why an array cannot be unpacked."""


class DamagedChunk(Exception):
    """The bytes of a chunk are not what its codec wrote."""


def check_codecs(compressor: object, filters: object) -> None:
    """Refuse what cannot be unpacked. Nothing is made of the description."""
    name = codec_name(compressor)
    if name is not None and name not in _COMPRESSORS:
        raise UnreadableCodec(_refusal(name))
    if not isinstance(filters, list | None):
        raise UnreadableCodec("its filters are not a list")
    for each in filters or ():
        filter_name = codec_name(each)
        if filter_name not in _FILTERS:
            raise UnreadableCodec(_refusal(str(filter_name)))


def codec_name(described: object) -> str | None:
    if described is None:
        return None
    name = described.get("id") if isinstance(described, dict) else None
    if not isinstance(name, str):
        raise UnreadableCodec("a codec has no name")
    return name


def most_packed(size: int) -> int:
    """Bytes that a chunk may have when it is packed."""
    return size + size // 8 + _SPARE


def unpacked(
    data: bytes, compressor: Mapping[str, Any] | None, filters: list[Any] | None, size: int
) -> bytes | NDArray[Any]:
    """The bytes of a chunk. `size` is what they have to be."""
    try:
        plain: Any = data
        # a filter may store other types than the array has, so only the last size is known
        most = size if not filters else 16 * size + _SPARE
        if compressor is not None:
            plain = _COMPRESSORS[compressor["id"]](data, compressor, most)
        for each in reversed(filters or []):
            plain = library("numcodecs").get_codec(dict(each)).decode(plain)
    except DamagedChunk:
        raise
    except Exception as error:  # codecs raise whatever their library does
        raise DamagedChunk(f"it cannot be unpacked ({type(error).__name__}: {error})") from error
    found = plain.nbytes if isinstance(plain, np.ndarray) else len(plain)
    if found != size:
        raise DamagedChunk(f"it has {found} bytes unpacked; its array says {size}")
    return plain  # type: ignore[no-any-return]


def _refusal(name: str) -> str:
    if name in _RUNS_CODE:
        return f"its codec {name!r} would run code of the file; it is never decoded"
    return f"its codec {name[:80]!r} is not read"


# ---------------------------------------------------------------------------------------- one codec


def _blosc(data: bytes, described: Mapping[str, Any], most: int) -> bytes:
    if len(data) < 16:
        raise DamagedChunk("it is shorter than the header of Blosc")
    size, _, packed = struct.unpack_from("<3I", data, 4)
    if packed != len(data):
        raise DamagedChunk(f"it has {len(data)} bytes; its header says {packed}")
    _check_most(size, most)
    made: bytes = library("numcodecs").Blosc().decode(data)
    return made


def _lz4(data: bytes, described: Mapping[str, Any], most: int) -> bytes:
    if len(data) < 4:
        raise DamagedChunk("it is shorter than the header of LZ4")
    _check_most(struct.unpack_from("<I", data)[0], most)
    made: bytes = library("numcodecs").LZ4().decode(data)
    return made


def _zstd(data: bytes, described: Mapping[str, Any], most: int) -> bytes:
    _check_most(_zstd_size(data), most)
    made: bytes = library("numcodecs").Zstd().decode(data)
    return made


def _zstd_size(data: bytes) -> int:
    """The unpacked size in the header of a frame. A frame that does not say it is refused: it could be of any size."""
    if len(data) < 6 or struct.unpack_from("<I", data)[0] != _ZSTD_MAGIC:
        raise DamagedChunk("it is not a Zstandard frame")
    flags = data[4]
    single = flags >> 5 & 1
    width = (single, 2, 4, 8)[flags >> 6]
    at = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    if not width or len(data) < at + width:
        raise DamagedChunk("its Zstandard frame does not say its size")
    size = int.from_bytes(data[at : at + width], "little")
    return size + 256 if width == 2 else size


def _zlib(data: bytes, described: Mapping[str, Any], most: int) -> bytes:
    return _bounded(zlib.decompressobj(), data, most)


def _gzip(data: bytes, described: Mapping[str, Any], most: int) -> bytes:
    return _bounded(zlib.decompressobj(wbits=31), data, most)


def _bz2(data: bytes, described: Mapping[str, Any], most: int) -> bytes:
    return _bounded(bz2.BZ2Decompressor(), data, most)


def _lzma(data: bytes, described: Mapping[str, Any], most: int) -> bytes:
    if described.get("filters") is not None or described.get("format", 1) not in (1, 2):
        raise DamagedChunk("LZMA of a raw format is not read")
    return _bounded(lzma.LZMADecompressor(memlimit=1 << 28), data, most)


def _bounded(unpacker: Any, data: bytes, most: int) -> bytes:
    made: bytes = unpacker.decompress(data, most + 1)
    _check_most(len(made), most)
    if not unpacker.eof:
        raise DamagedChunk("it is cut off")
    return made


def _check_most(size: int, most: int) -> None:
    if size > most:
        raise DamagedChunk(f"it has {size} bytes or more unpacked; its array says {most}")


_COMPRESSORS: Mapping[str, Callable[[bytes, Mapping[str, Any], int], bytes]] = {
    "blosc": _blosc,
    "bz2": _bz2,
    "gzip": _gzip,
    "lz4": _lz4,
    "lzma": _lzma,
    "zlib": _zlib,
    "zstd": _zstd,
}
