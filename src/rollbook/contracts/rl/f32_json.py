"""binary32 numbers in JSON: written with the shortest digits, read back to the same bits.

Finite values are written with the fewest digits that read back to the same binary32, as the reference does.
Digits of a binary64 (`0.6000000238418579`) read back to the same bits too. Non-finite values are strings:
"NaN", "Infinity", "-Infinity", and "NaN:<8 hex digits>" for a NaN whose bits are not the usual 7fc00000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import InvalidNumber

_USUAL_NAN = 0x7FC00000
_NAMED = {"NaN": _USUAL_NAN, "Infinity": 0x7F800000, "-Infinity": 0xFF800000}
_NAMES = {bits: name for name, bits in _NAMED.items()}
_EXPECTED = 'a number, or "NaN", "Infinity", "-Infinity" or "NaN:<8 hex digits>"'

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def shortest(values: F32) -> F64:
    """binary64 numbers that print with the shortest digits of the given finite binary32 numbers."""
    wide = values.astype(np.float64)
    best = np.full(len(values), np.nan)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exponent = np.floor(np.log10(np.abs(wide)))
        # powers of ten up to 10^22 are exact in binary64, so scaling rounds once, as reading digits does
        plain = (exponent >= -13) & (exponent <= 14)
        for digits in (6, 7, 8, 9):
            scale = 10.0 ** np.abs(digits - 1 - exponent)
            small = exponent <= digits - 1
            whole = np.rint(np.where(small, wide * scale, wide / scale))
            candidate = np.where(small, whole / scale, whole * scale)
            fits = np.isnan(best) & plain & (candidate.astype(np.float32) == values)
            if digits > 6:
                # just below a power of two the neighbours are nearer, so the closest digits may not be the shortest
                fits &= (values.view(np.uint32) & 0x7FFFFF) != 0
            best[fits] = candidate[fits]
    for index in np.flatnonzero(np.isnan(best)).tolist():
        best[index] = _shortest_of_one(values[index])
    return best


def _shortest_of_one(value: np.float32) -> float:
    digits = float(str(value))
    # a few numbers (7.038531e-26) read back as their neighbour when their shortest digits pass through binary64
    return digits if np.float32(digits) == value else float(value)


def to_json(values: F32) -> list[float | str]:
    """The JSON values of a column."""
    finite = np.isfinite(values)
    if finite.all():
        return list(shortest(values).tolist())
    out: list[float | str] = shortest(np.where(finite, values, np.float32(0))).tolist()
    bits = values.view(np.uint32)
    for index in np.flatnonzero(~finite).tolist():
        pattern = int(bits[index])
        out[index] = _NAMES.get(pattern, f"NaN:{pattern:08x}")
    return out


def json_f32(value: float | np.float32) -> float | str:
    return to_json(np.array([value], np.float32))[0]


def from_json(values: list[Any], record: str, field: str) -> F32:
    """The column that `to_json` wrote. Anything else is refused with the record, the field and the index."""
    return _from_json(values, record, lambda index: f"{field}[{index}]")


def f32_from_json(value: float | str, record: str, field: str) -> float:
    return float(_from_json([value], record, lambda _: field)[0])


def _from_json(values: list[Any], record: str, name: Callable[[int], str]) -> F32:
    spelled = [index for index, value in enumerate(values) if isinstance(value, str)]
    numbers = np.array([0.0 if isinstance(value, str) else value for value in values], np.float64)
    with np.errstate(over="ignore"):
        column = numbers.astype(np.float32)
    too_large = np.isinf(column)
    if too_large.any():
        index = int(np.argmax(too_large))
        raise _not_a_number(record, name(index), values[index])
    _undo_double_rounding(numbers, column)
    bits = column.view(np.uint32)
    for index in spelled:
        bits[index] = _spelled_bits(values[index], record, name(index))
    return column


def _undo_double_rounding(numbers: F64, column: F32) -> None:
    """Digits may lie half-way between two binary32 numbers after they were rounded to binary64. They then belong to the
    number whose shortest digits they are."""
    halfway = np.flatnonzero((numbers.view(np.uint64) & 0x1FFFFFFF) == 0x10000000)
    for index in halfway.tolist():
        number, rounded = numbers[index], column[index]
        toward = np.float32(np.inf if number > rounded else -np.inf)
        other = np.nextafter(rounded, toward)
        if float(str(rounded)) != number and float(str(other)) == number:
            column[index] = other


def _spelled_bits(value: str, record: str, field: str) -> int:
    if value in _NAMED:
        return _NAMED[value]
    name, _, pattern = value.partition(":")
    if name == "NaN" and len(pattern) == 8:
        try:
            bits = int(pattern, 16)
        except ValueError:
            bits = 0
        if np.isnan(np.array([bits], np.uint32).view(np.float32)[0]):
            return bits
    raise _not_a_number(record, field, value)


def _not_a_number(record: str, field: str, value: object) -> InvalidNumber:
    return InvalidNumber(
        record=record,
        field=field,
        value=repr(value),
        expected=f"{_EXPECTED}, in the range of binary32",
    )
