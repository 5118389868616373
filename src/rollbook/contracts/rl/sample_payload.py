"""The bytes of the samples in the v1 artifact recipe, `|sample|<id>|<f32>|<f32>|<f32>`, for many samples at once.

A row has 23 bytes plus the digits of its token id, so rows start at irregular places. Two numpy assignments through
views with a stride of one byte write them: first `|sample|<id>|`, padded to a fixed width, then the 14 bytes of
floats at the end of each row. The padding always lies inside the float area of the same row (19 <= 23 + digits), so
the second assignment overwrites it.

Ids of a usual vocabulary have at most 7 digits: `<id>|` is then one 8-byte word from a table that fits into the cache
of the processor. The digits of larger ids are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.rl.sample import Column

_LABEL = b"|sample|"
_LABEL_WORD = int.from_bytes(_LABEL, "little")
_MAX_DIGITS = 10
_BESIDE_DIGITS = len(_LABEL) + 1 + 14
_FLOATS = np.dtype([("lp", "<f4"), ("p", "u1"), ("r", "<f4"), ("q", "u1"), ("a", "<f4")])
_POWERS = 10 ** np.arange(_MAX_DIGITS, dtype=np.uint64)
CHUNK = 8192
"""Samples per step. The buffers of one step fit into the cache of the processor."""
_LARGEST_TABLE = 1 << 18
"""Token ids below this are looked up (2 MB at most); others are computed."""

Prefixes = NDArray[np.void]
Lengths = NDArray[np.uint8]


def _spelled(ids: NDArray[np.uint64], width: int) -> tuple[NDArray[np.uint8], Lengths]:
    """`<id>|` in `width` bytes, filled up with zeros, and the length of the whole row."""
    digits = np.maximum(np.searchsorted(_POWERS, ids, side="right"), 1)
    text = np.zeros((len(ids), width), np.uint8)
    every = np.arange(len(ids))
    for place in range(min(_MAX_DIGITS, width - 1)):
        has = digits > place
        text[every[has], digits[has] - 1 - place] = ord("0") + ids[has] // _POWERS[place] % 10
    text[every, digits] = ord("|")
    return text, (_BESIDE_DIGITS + digits).astype(np.uint8)


def _computed_prefixes(ids: NDArray[np.uint32]) -> tuple[Prefixes, Lengths]:
    text, lengths = _spelled(ids.astype(np.uint64), _MAX_DIGITS + 1)
    label = np.broadcast_to(np.frombuffer(_LABEL, np.uint8), (len(ids), len(_LABEL)))
    rows = np.concatenate([label, text], axis=1)
    return rows.view(f"V{rows.shape[1]}").ravel(), lengths


class PrefixTable:
    """`<id>|` of small token ids as 8-byte words. The table grows on demand; all digests of a process share it."""

    def __init__(self) -> None:
        self._grow(0)

    def _grow(self, size: int) -> None:
        text, lengths = _spelled(np.arange(size, dtype=np.uint64), 8)
        self._words, self._lengths = text.view("<u8").ravel(), lengths

    def prefixes(self, ids: NDArray[np.uint32]) -> tuple[Prefixes, Lengths]:
        """`|sample|<id>|` padded to one width, and the length of each row."""
        highest = int(ids.max(initial=0))
        if highest >= _LARGEST_TABLE:
            return _computed_prefixes(ids)
        if highest >= len(self._words):
            self._grow(1 << max(10, highest.bit_length()))
        index = ids.astype(np.intp)
        rows = np.empty((len(ids), 2), "<u8")
        rows[:, 0] = _LABEL_WORD
        rows[:, 1] = self._words.take(index)
        return rows.view("V16").ravel(), self._lengths.take(index)


_TABLE = PrefixTable()


def sample_payload(
    samples: Mapping[str, Column], start: int, end: int
) -> tuple[bytearray, NDArray[np.int64]]:
    """The bytes of samples start..end, and where each row begins; one more entry says where the last row ends."""
    prefixes, lengths = _TABLE.prefixes(samples["token_id"][start:end])
    begins = np.zeros(len(lengths) + 1, np.int64)
    np.add.accumulate(lengths, out=begins[1:])
    payload = bytearray(int(begins[-1]))
    if not len(lengths):
        return payload, begins
    _byte_view(payload, prefixes.dtype)[begins[:-1]] = prefixes
    floats = np.empty(len(lengths), _FLOATS)
    floats["lp"] = samples["logprob"][start:end]
    floats["p"] = floats["q"] = ord("|")
    floats["r"] = samples["reward"][start:end]
    floats["a"] = samples["advantage"][start:end]
    blob = np.dtype(f"V{_FLOATS.itemsize}")
    _byte_view(payload, blob)[begins[1:] - _FLOATS.itemsize] = floats.view(blob)
    return payload, begins


def _byte_view(buffer: bytearray, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Element k is the `dtype.itemsize` bytes that start at byte k."""
    count = len(buffer) - dtype.itemsize + 1
    return np.ndarray((count,), dtype, buffer, strides=(1,))


def chunks(total: int) -> Iterator[tuple[int, int]]:
    for start in range(0, total, CHUNK):
        yield start, min(start + CHUNK, total)
