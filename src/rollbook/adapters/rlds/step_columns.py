"""StepColumn: the values of one feature over the steps of an episode, in the type that features.json declares.

A record stores only int64, float32 and bytes. Whole numbers and truth values get their declared type back, because
that changes nothing. A float64 stays float32: its other digits were lost when the record was written.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.rlds.example import BytesValues, FloatValues, IntValues, Values
from rollbook.adapters.rlds.features import Feature
from rollbook.adapters.steps.text_column import UnstorableText, check_width, text_array

_BLOCK = 4 << 20
_TEXT_ROWS = 1 << 16
_RUNS = 256
"""Texts that are put together at once."""


class UnreadableColumn(Exception):
    """The reason why a column is left out."""


class DamagedColumn(Exception):
    """The values of a column are not as declared."""


@dataclass(frozen=True, slots=True)
class StepColumn:
    feature: Feature
    values: Values
    rows: int

    @classmethod
    def of(cls, feature: Feature, example: Mapping[str, Values]) -> StepColumn:
        if feature.ragged:
            return _of_lists(feature, example)
        values = example.get(feature.key)
        if values is None:
            return cls(feature, FloatValues((), 0), 0)
        _check_kind(feature, values)
        if not _is_listed(feature):
            return cls(feature, values, values.count)
        if not feature.size:
            raise UnreadableColumn(f"its shape {feature.shape} holds no values")
        rows, rest = divmod(values.count, feature.size)
        if rest:
            detail = f"{values.count} values, which do not fill rows of {feature.size}"
            raise DamagedColumn(detail)
        return cls(feature, values, rows)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """The rows in their order."""
        if self.feature.kind == "text":
            yield from self._texts()
        elif self.feature.encoding != "none":
            yield from self._tensors()
        else:
            assert not isinstance(self.values, BytesValues)
            at_once = max(1, _BLOCK // (8 * self.feature.size)) * self.feature.size
            for block in _regrouped(self.values.blocks(), self.feature.size, at_once):
                yield _typed(block.reshape(-1, *self.feature.shape), self.feature.dtype)

    def pictures(self) -> Iterator[bytes]:
        assert isinstance(self.values, BytesValues)
        return (bytes(each) for each in self.values.entries())

    def distinct_texts(self, most: int) -> list[str]:
        """The first texts that differ from those before."""
        assert isinstance(self.values, BytesValues)
        found: dict[str, None] = {}
        for entry, _ in self.values.runs():
            text = _decoded(entry)
            if text:
                found[text] = None
            if len(found) == most:
                break
        return list(found)

    def _texts(self) -> Iterator[NDArray[Any]]:
        """Read twice: the longest text decides the width of all."""
        assert isinstance(self.values, BytesValues)
        width = characters = 0
        for entry, times in self.values.runs():
            length = len(_decoded(entry))
            width, characters = max(width, length), characters + length * times
        try:
            check_width(width, self.rows, characters)
            runs = self._text_runs()
            while block := list(islice(runs, _RUNS)):
                texts, counts = zip(*block, strict=True)
                yield np.repeat(text_array(texts, width), counts)
        except UnstorableText as reason:
            raise UnreadableColumn(str(reason)) from None

    def _text_runs(self) -> Iterator[tuple[str, int]]:
        """Texts, and how often each is repeated; a long run in several parts."""
        assert isinstance(self.values, BytesValues)
        for entry, times in self.values.runs():
            text = _decoded(entry)
            for first in range(0, times, _TEXT_ROWS // _RUNS):
                yield text, min(_TEXT_ROWS // _RUNS, times - first)

    def _tensors(self) -> Iterator[NDArray[Any]]:
        """Each row is the bytes of a tensor of its own."""
        assert isinstance(self.values, BytesValues)
        dtype = np.dtype(self.feature.dtype)
        size = self.feature.size * dtype.itemsize
        entries = (_plain(each, self.feature.encoding, size) for each in self.values.entries())
        while rows := list(islice(entries, max(1, _BLOCK // max(1, size)))):
            flat = np.frombuffer(b"".join(rows), dtype)
            array = flat.view(np.uint8) != 0 if dtype.kind == "b" else flat
            yield array.reshape(len(rows), *self.feature.shape)


def _of_lists(feature: Feature, example: Mapping[str, Values]) -> StepColumn:
    """A list in each step. Lists of one length are rows; others have no place in an array."""
    lengths = example.get(f"{feature.key}/ragged_row_lengths_0")
    flat = example.get(f"{feature.key}/ragged_flat_values")
    if not isinstance(lengths, IntValues) or flat is None:
        raise UnreadableColumn("its lists are not stored as TensorFlow Datasets does")
    found = {int(each) for block in lengths.blocks() for each in np.unique(block)}
    if len(found) != 1 or feature.kind != "numbers" or feature.encoding != "none":
        raise UnreadableColumn("its lists differ in length or are not numbers")
    [length] = found
    if not 0 < length < 2**31 or length * feature.size * lengths.count != flat.count:
        raise DamagedColumn(f"{flat.count} values in {lengths.count} lists of {length}")
    fixed = replace(feature, shape=(length, *feature.shape), ragged=False)
    _check_kind(fixed, flat)
    return StepColumn(fixed, flat, lengths.count)


def _is_listed(feature: Feature) -> bool:
    """Whether the values of all rows are one list of numbers."""
    return feature.kind == "numbers" and feature.encoding == "none"


def _check_kind(feature: Feature, values: Values) -> None:
    expected: type = BytesValues
    if _is_listed(feature):
        expected = FloatValues if "float" in feature.dtype else IntValues
    if not isinstance(values, expected) and values.count:
        found = type(values).__name__.removesuffix("Values").lower()
        raise DamagedColumn(f"it is declared {feature.type} and stored as a list of {found}")
    if feature.encoding != "none" and feature.dtype == "bfloat16":
        raise UnreadableColumn("tensors of bfloat16 are not read")


def _typed(rows: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype in ("float32", "float64", "bfloat16", "int64"):
        return rows
    declared = rows.view(np.uint64) if dtype == "uint64" else rows.astype(np.dtype(dtype))
    back = declared.astype(rows.dtype)
    if not np.array_equal(back, rows, equal_nan=rows.dtype.kind == "f"):
        raise DamagedColumn(f"it has values that are not {dtype}")
    return declared


def _regrouped(blocks: Iterator[NDArray[Any]], width: int, at_once: int) -> Iterator[NDArray[Any]]:
    """The same values in blocks of whole rows."""
    rest: NDArray[Any] | None = None
    for block in blocks:
        for first in range(0, len(block), at_once):
            piece = block[first : first + at_once]
            joined = piece if rest is None else np.concatenate([rest, piece])
            whole = len(joined) // width * width
            if whole:
                yield joined[:whole]
            rest = joined[whole:] if whole < len(joined) else None


def _plain(entry: memoryview, encoding: str, size: int) -> bytes:
    if encoding == "bytes":
        data = bytes(entry) if len(entry) <= size else b""
    else:
        unpacker = zlib.decompressobj()
        try:
            data = unpacker.decompress(entry, size + 1)
        except zlib.error as error:
            raise DamagedColumn(f"a tensor cannot be unpacked ({error})") from error
    if len(data) != size:
        raise DamagedColumn(f"a tensor has not the {size} bytes of its shape")
    return data


def _decoded(entry: memoryview) -> str:
    try:
        return str(entry, "utf-8")
    except UnicodeDecodeError:
        raise UnreadableColumn("its bytes are not text in UTF-8") from None
