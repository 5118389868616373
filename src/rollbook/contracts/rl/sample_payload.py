"""The sample part of the v1 artifact recipe as bytes: `|sample|<id>|<f32>|<f32>|<f32>` per sample, vectorised.

A row is 23 bytes plus the digits of its token id, so rows start at irregular places. Two scatters through views
with a stride of one byte put them there: first `|sample|<id>|`, padded to a fixed width, then the 14 bytes of
floats at each row's end. The padding of the first falls inside the row's own float area (19 <= 23 + digits) and is
overwritten by the second, so the order in which numpy stores elements does not matter.

Ids of a usual vocabulary have at most 7 digits: `<id>|` is then one 8-byte word, looked up in a table small enough
to stay in the processor's cache. Larger ids are spelled out arithmetically.
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
"""Samples per step: the buffers of one step stay in the processor's cache."""
_LARGEST_TABLE = 1 << 18
"""Token ids below this are looked up (2 MB at most); others are computed."""

Prefixes = NDArray[np.void]
Lengths = NDArray[np.uint8]


def _spelled(ids: NDArray[np.uint64], width: int) -> tuple[NDArray[np.uint8], Lengths]:
    """`<id>|` in `width` bytes, zeros behind, and the length of the whole row."""
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
    """`<id>|` of the small token ids as 8-byte words, grown on demand and shared by all digests of a process."""

    def __init__(self) -> None:
        self._grow(0)

    def _grow(self, size: int) -> None:
        text, lengths = _spelled(np.arange(size, dtype=np.uint64), 8)
        self._words, self._lengths = text.view("<u8").ravel(), lengths

    def prefixes(self, ids: NDArray[np.uint32]) -> tuple[Prefixes, Lengths]:
        """`|sample|<id>|` padded to one width, and the length of the row it begins."""
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
    """The bytes of samples start..end, and where each row begins (one more entry: where the last ends)."""
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
