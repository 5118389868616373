"""The sample part of the v1 artifact recipe as bytes: `|sample|<id>|<f32>|<f32>|<f32>` per sample, vectorised.

A row is 23 bytes plus the digits of its token id, so rows start at irregular places. Two scatters through views
with a stride of one byte put them there: first `|sample|<id>|`, padded to a fixed width, then the 14 bytes of
floats at each row's end. The padding of the first falls inside the row's own float area (19 <= 23 + digits) and is
overwritten by the second, so the order in which numpy stores elements does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.sample import Column

_LABEL = b"|sample|"
_MAX_DIGITS = 10
_PREFIX_WIDTH = len(_LABEL) + _MAX_DIGITS + 1
_FLOATS = np.dtype([("lp", "<f4"), ("p", "u1"), ("r", "<f4"), ("q", "u1"), ("a", "<f4")])
_PREFIX = np.dtype(f"V{_PREFIX_WIDTH}")
_POWERS = 10 ** np.arange(_MAX_DIGITS, dtype=np.uint64)
CHUNK = 8192
"""Samples per step: the buffers of one step stay in the processor's cache."""
_LARGEST_TABLE = 1 << 18
"""Token ids below this get their prefix from a table (a usual vocabulary, 5 MB); others are computed."""


def _digit_counts(ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    return np.maximum(np.searchsorted(_POWERS, ids, side="right"), 1)


def _prefixes(ids: NDArray[np.uint64]) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """`|sample|<id>|` padded to one width, and the length of the whole row it starts."""
    digits = _digit_counts(ids)
    rows = np.zeros((len(ids), _PREFIX_WIDTH), np.uint8)
    rows[:, : len(_LABEL)] = np.frombuffer(_LABEL, np.uint8)
    every = np.arange(len(ids))
    for place in range(_MAX_DIGITS):
        has = digits > place
        column = len(_LABEL) + digits - 1 - place
        rows[every[has], column[has]] = 48 + (ids[has] // _POWERS[place] % 10).astype(np.uint8)
    rows[every, len(_LABEL) + digits] = ord("|")
    return rows.view(_PREFIX).ravel(), 23 + digits


class PrefixTable:
    """Prefixes of the small token ids, grown on demand and shared by all digests of a process."""

    def __init__(self) -> None:
        self._rows, self._lengths = _prefixes(np.arange(0, dtype=np.uint64))

    def lookup(self, ids: NDArray[np.uint32]) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        rows, lengths = self._rows, self._lengths
        highest = int(ids.max(initial=0))
        if highest >= _LARGEST_TABLE:
            return _prefixes(ids.astype(np.uint64))
        if highest >= len(rows):
            size = 1 << max(10, highest.bit_length())
            rows, lengths = _prefixes(np.arange(size, dtype=np.uint64))
            self._rows, self._lengths = rows, lengths
        return rows.take(ids), lengths.take(ids)


_TABLE = PrefixTable()


def sample_payload(
    samples: Mapping[str, Column], start: int, end: int
) -> tuple[bytearray, NDArray[np.int64]]:
    """The bytes of samples start..end, and where each row begins (one more entry: where the last ends)."""
    prefixes, lengths = _TABLE.lookup(samples["token_id"][start:end])
    begins = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=begins[1:])
    payload = bytearray(int(begins[-1]))
    if not len(lengths):
        return payload, begins
    _byte_view(payload, _PREFIX)[begins[:-1]] = prefixes
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
