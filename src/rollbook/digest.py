"""Hashing of records and stores: canonical bytes, full SHA-256, Merkle trees, and checksums of stored bytes.

Canonical bytes are a type tag and a length before every value, so no two different values share an encoding:

    None  n                 bool  t | f            int   i + 16 bytes little-endian two's complement
    float d + 8 bytes       str   s + u64 + UTF-8  bytes b + u64 + bytes
    list  l + u64 + items   dict  m + u64 + (key, value) pairs in UTF-8 order of the keys

A digest always starts with its domain, a `str`, so that records of different kinds can never be confused.
Merkle trees follow RFC 6962: leaves and inner nodes are hashed under different prefixes, and an odd last
node is carried up unchanged.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import xxhash

Plain: TypeAlias = "bool | int | float | str | bytes | Sequence[Plain] | Mapping[str, Plain] | None"

_U64 = struct.Struct("<Q")
_F64 = struct.Struct("<d")
_LEAF, _NODE = b"\x00", b"\x01"

sha256 = hashlib.sha256
"""For files, and for the v1 recipes, which lay out their own bytes."""
piecewise_checksum = xxhash.xxh3_128
"""The hasher behind `checksum`, for bytes that come in pieces."""


def canonical_text(utf8: bytes) -> bytes:
    return b"s" + _U64.pack(len(utf8)) + utf8


def canonical_count(tag: bytes, count: int) -> bytes:
    """The first bytes of a list (`l`), dict (`m`) or bytes (`b`) with `count` entries."""
    return tag + _U64.pack(count)


def canonical(value: Plain) -> bytes:
    """The canonical bytes of `value`. Different values have different bytes."""
    if value is None:
        return b"n"
    if isinstance(value, str):
        return canonical_text(value.encode())
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return b"i" + value.to_bytes(16, "little", signed=True)
    if isinstance(value, float):
        return b"d" + _F64.pack(value)
    if isinstance(value, bytes):
        return canonical_count(b"b", len(value)) + value
    if isinstance(value, Mapping):
        pairs = [_canonical_key(key) + canonical(value[key]) for key in sorted(value, key=_utf8)]
        return canonical_count(b"m", len(pairs)) + b"".join(pairs)
    return canonical_count(b"l", len(value)) + b"".join(map(canonical, value))


# records of one kind share their keys
_utf8 = lru_cache(maxsize=4096)(str.encode)


@lru_cache(maxsize=4096)
def _canonical_key(key: str) -> bytes:
    return canonical_text(key.encode())


def digest_of(domain: str, value: Plain) -> str:
    """SHA-256 (64 hex digits) of a domain and a plain value."""
    return sha256(canonical(domain) + canonical(value)).hexdigest()


def checksum(data: memoryview | bytes) -> str:
    """Fast checksum of stored bytes. It finds damage by accident; only a digest proves that nobody changed them."""
    return xxhash.xxh3_128_hexdigest(data)


def file_sha256(path: str | os.PathLike[str]) -> tuple[int, str]:
    """Size and SHA-256 of a file, which is read in pieces."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def text_hash(text: str) -> int:
    """A 64-bit hash for comparing many texts cheaply. Equal hashes still need a comparison of the texts."""
    return xxhash.xxh3_64_intdigest(text.encode())


def _leaf_hashes(leaves: Sequence[bytes]) -> list[bytes]:
    return [sha256(_LEAF + leaf).digest() for leaf in leaves]


def _level_above(level: list[bytes]) -> list[bytes]:
    above = [
        sha256(_NODE + left + right).digest()
        for left, right in zip(level[::2], level[1::2], strict=False)
    ]
    if len(level) % 2:
        above.append(level[-1])
    return above


def _bound_to_count(domain: str, count: int, top: bytes) -> str:
    return digest_of(domain, [count, top])


def merkle_root(domain: str, leaves: Sequence[bytes]) -> str:
    """The root over the leaves in order. It also depends on their number."""
    level = _leaf_hashes(leaves)
    while len(level) > 1:
        level = _level_above(level)
    return _bound_to_count(domain, len(leaves), level[0] if level else b"")


def merkle_path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The sibling hashes, bottom up, that lead from leaf `index` to the root."""
    path = []
    level = _leaf_hashes(leaves)
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            path.append(level[sibling])
        level = _level_above(level)
        index //= 2
    return path


def merkle_root_from_path(
    domain: str, leaf: bytes, index: int, count: int, path: Sequence[bytes]
) -> str | None:
    """The root that `path` leads to. None if the path is too short or too long for `count` leaves."""
    if not 0 <= index < count:
        return None
    siblings = iter(path)
    node = sha256(_LEAF + leaf).digest()
    width = count
    while width > 1:
        if index ^ 1 < width:
            sibling = next(siblings, None)
            if sibling is None:
                return None
            pair = sibling + node if index % 2 else node + sibling
            node = sha256(_NODE + pair).digest()
        index //= 2
        width = (width + 1) // 2
    if next(siblings, None) is not None:
        return None
    return _bound_to_count(domain, count, node)
