"""Row numbers: what names rows, and what is refused with the number that was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.contracts.row_numbers import row_number, row_numbers
from rollbook.errors import InvalidNumber, NoSuchRow, Refusal


@given(st.lists(st.booleans(), max_size=20))
def test_a_mask_selects_the_rows_where_it_is_true(mask: list[bool]) -> None:
    chosen = row_numbers(np.array(mask, np.bool_), len(mask), "table")
    assert chosen.tolist() == [row for row, wanted in enumerate(mask) if wanted]


@given(st.integers(1, 9), st.data())
def test_numbers_from_the_end_are_those_of_a_list(count: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(-count, count - 1)))
    everything = list(range(count))
    chosen = row_numbers(rows, count, "table", from_end=True)
    assert chosen.tolist() == [everything[row] for row in rows]
    for row in rows:
        assert row_number(row, count, "table", from_end=True) == everything[row]


@pytest.mark.parametrize(
    "rows",
    [
        [True, False],
        [True, False, True, False],
        np.array([True]),
        np.zeros((3, 1), np.bool_),
        [0.0, 1.0],
        [0.7],
        [0, 1.5],
        ["0"],
        [None],
        [1, None],
        [1j],
        [[0, 1]],
        [[0], [1, 2]],
        np.array(["2020-01-01"], "M8[D]"),
        1,
        None,
    ],
    ids=repr,
)
def test_other_things_than_row_numbers_are_refused(rows: Any) -> None:
    for from_end in (False, True):
        with pytest.raises(InvalidNumber, match="a list of row numbers, or a mask of 3 rows"):
            row_numbers(rows, 3, "table", from_end=from_end)


@pytest.mark.parametrize("row", [1.0, True, np.True_, np.float32(1), "1", None, [1]], ids=repr)
def test_one_row_is_a_whole_number(row: Any) -> None:
    with pytest.raises(InvalidNumber, match="a whole number"):
        row_number(row, 3, "table")


@pytest.mark.parametrize("row", [3, -4, 2**40, -(2**40), 2**63 - 1])
def test_the_number_that_was_given_is_named(row: int) -> None:
    for call in (
        lambda: row_numbers([0, row, 7], 3, "table", from_end=True),
        lambda: row_number(row, 3, "table", from_end=True),
    ):
        with pytest.raises(NoSuchRow, match=f"table: row is {row}, expected a number from -3 to 2"):
            call()


@pytest.mark.parametrize("row", [-1, -3])
def test_without_from_end_a_negative_number_is_refused(row: int) -> None:
    for call in (lambda: row_numbers([0, row], 3, "t"), lambda: row_number(row, 3, "t")):
        with pytest.raises(NoSuchRow, match=f"row is {row}, expected a number from 0 to 2"):
            call()


def test_a_missing_row_can_be_caught_as_a_refusal_and_as_an_index_error() -> None:
    assert issubclass(NoSuchRow, Refusal)
    assert issubclass(NoSuchRow, IndexError)
    with pytest.raises(IndexError, match="there are none"):
        row_numbers([0], 0, "table")


@pytest.mark.parametrize("rows", [[], (), np.zeros(0), np.zeros(0, np.int8)], ids=repr)
def test_no_rows_are_no_rows(rows: Any) -> None:
    chosen = row_numbers(rows, 3, "table")
    assert chosen.dtype == np.dtype(np.int64)
    assert chosen.tolist() == []


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_any_type_of_whole_number_will_do(dtype: Any) -> None:
    assert row_numbers(np.array([2, 0], dtype), 3, "table").tolist() == [2, 0]
    assert row_number(np.array([2], dtype)[0], 3, "table") == 2
