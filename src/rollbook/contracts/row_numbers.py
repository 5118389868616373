"""Row numbers: how a caller names rows of a table, checked in one place."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import InvalidNumber, NoSuchRow

Rows = NDArray[np.int64]


def row_numbers(rows: ArrayLike, count: int, record: str, *, from_end: bool = False) -> Rows:
    """Numbers from 0 to `count - 1`, from row numbers or from a mask with one entry per row.

    With `from_end`, negative numbers count from the end. Errors name the number that was given; `record` says of what.
    """
    expected = f"a list of row numbers, or a mask of {count} rows"
    try:
        given: NDArray[Any] = np.asarray(rows)
    except (
        ValueError,
        TypeError,
        RuntimeError,
    ) as error:  # lists of different lengths, tensors elsewhere
        raise InvalidNumber(
            record=record, field="rows", value=str(error), expected=expected
        ) from error
    if given.dtype == np.bool_ and given.shape == (count,):
        return np.flatnonzero(given)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        value = f"{given.dtype.name}{list(given.shape)}"
        raise InvalidNumber(record=record, field="rows", value=value, expected=expected)
    if not given.size:
        return np.zeros(0, np.int64)
    lowest = -count if from_end else 0
    if given.min() < lowest or given.max() >= count:
        outside = (given < lowest) | (given >= count)
        raise _no_such_row(record, int(given[np.argmax(outside)]), count, from_end)
    chosen: Rows = given.astype(np.int64, copy=False)
    return np.where(chosen < 0, chosen + count, chosen) if from_end else chosen


def row_number(row: object, count: int, record: str, *, from_end: bool = False) -> int:
    """One row number, checked as `row_numbers` checks many."""
    try:
        number = operator.index(row)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(row, bool | np.bool_):
        raise InvalidNumber(
            record=record, field="row", value=repr(row), expected="a whole number"
        ) from None
    if not (-count if from_end else 0) <= number < count:
        raise _no_such_row(record, number, count, from_end)
    return number % count


def _no_such_row(record: str, row: int, count: int, from_end: bool) -> NoSuchRow:
    lowest = -count if from_end else 0
    expected = f"a number from {lowest} to {count - 1}" if count else "no row: there are none"
    return NoSuchRow(record=record, field="row", value=str(row), expected=expected)
