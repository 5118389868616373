"""The bytes of the samples in the v1 artifact recipe, `|sample|<id>|<f32>|<f32>|<f32>`, for many samples at once.

A row has 23 bytes plus the digits of its token id, so rows start at irregular places. Two numpy assignments through
views with a stride of one byte write them: first `|sample|<id>|`, padded to a fixed width, then the 14 bytes of
floats at the end of each row. The padding always lies inside the float area of the same row (a prefix has at most 24
bytes, a row at least 24), so the second assignment overwrites it.

Digits are computed four at a time from a small constant table, so no call has to prepare anything for larger ids. For
a few samples `sample_rows` is faster, because numpy needs about as long for one sample as for a hundred.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.rl.sample import Column

_LABEL_WORD = int.from_bytes(b"|sample|", "little")
_BAR = np.uint64(ord("|"))
_BESIDE_DIGITS = 23
_FLOATS = np.dtype([("lp", "<f4"), ("p", "u1"), ("r", "<f4"), ("q", "u1"), ("a", "<f4")])
_POWERS = tuple(np.uint32(10**power) for power in range(10))
_RAW_FLOAT = np.dtype("V4")
CHUNK = 8192
"""Samples per step. The buffers of one step fit into the cache of the processor."""
FEW = 192
"""Up to this number of samples in a table, `sample_rows` is faster (benchmarks/digests.py)."""

Words = NDArray[np.uint64]
Digits = NDArray[np.uint8]


def _four_digits() -> NDArray[np.uint32]:
    """The text of 0000 to 9999, each as one word whose lowest byte is the first digit."""
    numbers = np.arange(10_000, dtype=np.uint32)
    digits = np.stack([numbers // power % 10 for power in _POWERS[3::-1]], axis=1) + ord("0")
    return digits.astype(np.uint8).view("<u4").ravel()


_FOUR_DIGITS = _four_digits()


def _two_words(first: NDArray[np.uint32], second: NDArray[np.uint32]) -> Words:
    """The eight digits of two numbers below 10 000."""
    pairs = np.empty((len(first), 2), "<u4")
    pairs[:, 0] = _FOUR_DIGITS.take(first)
    pairs[:, 1] = _FOUR_DIGITS.take(second)
    return pairs.view("<u8").ravel()


def _digit_counts(ids: NDArray[np.uint32], most: int) -> Digits:
    counts = np.ones(len(ids), np.uint8)
    for power in _POWERS[1:most]:
        counts += ids >= power
    return counts


def _prefixes(ids: NDArray[np.uint32]) -> tuple[NDArray[np.void], Digits]:
    """`|sample|<id>|` padded to one width, and the number of digits of each id."""
    most = len(str(ids.max()))
    digits = _digit_counts(ids, most)
    high = ids // _POWERS[4]
    low = ids - high * _POWERS[4]
    words = (_short_words if most < 8 else _long_words)(high, low, digits)
    rows = np.empty((len(ids), 1 + len(words)), "<u8")
    rows[:, 0] = _LABEL_WORD
    for place, word in enumerate(words, 1):
        rows[:, place] = word
    return rows.view(f"V{rows.shape[1] * 8}").ravel(), digits


def _short_words(
    high: NDArray[np.uint32], low: NDArray[np.uint32], digits: Digits
) -> tuple[Words, ...]:
    """`<id>|` of at most 7 digits in one word: leading zeros are shifted out."""
    bits = digits.astype(np.uint64) * np.uint64(8)
    return ((_two_words(high, low) >> (np.uint64(64) - bits)) | (_BAR << bits),)


def _long_words(
    high: NDArray[np.uint32], low: NDArray[np.uint32], digits: Digits
) -> tuple[Words, ...]:
    """`<id>|` of at most 10 digits in two words: leading zeros of 12 digits are shifted out across both words.

    A shift by 64 bits or more gives 0, and so does one by a difference that wraps below 0.
    """
    top = high // _POWERS[4]
    first = _two_words(top, high - top * _POWERS[4])
    second: Words = _FOUR_DIGITS.take(low) | (_BAR << np.uint64(32))
    bits: Words = (np.uint64(12) - digits) * np.uint64(8)
    word = np.uint64(64)
    return (first >> bits) | (second << (word - bits)) | (second >> (bits - word)), second >> bits


def sample_rows(samples: Mapping[str, Column]) -> list[bytes]:
    """The bytes of each sample, made one by one."""
    # floats as raw bytes: a Python float does not keep the bits of every NaN
    floats = [
        samples[name].view(_RAW_FLOAT).tolist() for name in ("logprob", "reward", "advantage")
    ]
    ids = samples["token_id"].tolist()
    return [b"|sample|%d|%b|%b|%b" % row for row in zip(ids, *floats, strict=True)]


def sample_payload(
    samples: Mapping[str, Column], start: int, end: int
) -> tuple[bytearray, NDArray[np.int64]]:
    """The bytes of samples start..end, and where each row begins; one more entry says where the last row ends."""
    prefixes, digits = _prefixes(samples["token_id"][start:end])
    begins = np.zeros(len(digits) + 1, np.int64)
    np.add.accumulate(digits + np.uint8(_BESIDE_DIGITS), out=begins[1:])
    payload = bytearray(int(begins[-1]))
    _byte_view(payload, prefixes.dtype)[begins[:-1]] = prefixes
    floats = np.empty(len(digits), _FLOATS)
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
