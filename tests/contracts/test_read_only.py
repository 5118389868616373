"""Read-only arrays: an array that is kept does not change, whoever owns its memory."""

from __future__ import annotations

import array
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.contracts.read_only import is_read_only, read_only

Array = np.ndarray[Any, Any]
DATA = bytes(range(64))


def locked(values: Array) -> Array:
    values.flags.writeable = False
    return values


class Foreign:
    """An owner of memory that numpy can read, and that cannot be asked whether it is writable."""

    def __init__(self) -> None:
        self.memory = np.frombuffer(bytearray(DATA), np.uint8)
        self.__array_interface__ = {**self.memory.__array_interface__}
        address, _ = self.__array_interface__["data"]
        self.__array_interface__["data"] = (address, True)


WRITABLE: dict[str, Callable[[], tuple[Array, Callable[[], Any]]]] = {}
"""Read-only arrays, each with a function that changes the memory below it."""


def writable(make: Callable[[], tuple[Array, Callable[[], Any]]]) -> None:
    WRITABLE[make.__name__] = make


def put(memory: Any) -> Callable[[], Any]:
    def change() -> None:
        memory[:] = bytes(len(DATA)) if not isinstance(memory, np.ndarray) else 0

    return change


@writable
def view_of_a_writable_array() -> tuple[Array, Callable[[], Any]]:
    base = np.frombuffer(bytearray(DATA), np.uint8).copy()
    return locked(base[:]), put(base)


@writable
def view_of_a_read_only_view() -> tuple[Array, Callable[[], Any]]:
    base = np.frombuffer(DATA, np.uint8).copy()
    return locked(locked(base[:]).view(np.uint8)[:]), put(base)


@writable
def a_bytearray() -> tuple[Array, Callable[[], Any]]:
    base = bytearray(DATA)
    return locked(np.frombuffer(base, np.uint8)), put(base)


@writable
def a_read_only_window_on_a_bytearray() -> tuple[Array, Callable[[], Any]]:
    base = bytearray(DATA)
    return np.frombuffer(memoryview(base).toreadonly(), np.uint8), put(base)


@writable
def a_read_only_window_on_an_array() -> tuple[Array, Callable[[], Any]]:
    base = np.frombuffer(DATA, np.uint8).copy()
    return np.asarray(locked(base[:]).data), put(base)


@writable
def an_array_of_the_standard_library() -> tuple[Array, Callable[[], Any]]:
    base = array.array("B", DATA)

    def change() -> None:
        base[0] ^= 255

    return np.frombuffer(memoryview(base).toreadonly(), np.uint8), change


@writable
def a_writable_mapping() -> tuple[Array, Callable[[], Any]]:
    base = mmap.mmap(-1, len(DATA))
    base[:] = DATA
    return locked(np.frombuffer(base, np.uint8)), put(base)


@writable
def an_owner_that_cannot_be_asked() -> tuple[Array, Callable[[], Any]]:
    base = Foreign()
    return np.asarray(base), put(base.memory)


@writable
def a_column_of_a_data_frame() -> tuple[Array, Callable[[], Any]]:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"values": np.frombuffer(DATA, np.uint8).copy()})
    column = frame["values"].to_numpy()
    column.flags.writeable = False

    def change() -> None:
        frame.iloc[0, 0] = 255

    return column, change


@pytest.mark.parametrize("make", WRITABLE.values(), ids=WRITABLE.keys())
def test_memory_that_somebody_can_change_is_copied(
    make: Callable[[], tuple[Array, Callable[[], Any]]],
) -> None:
    given_array, change = make()
    assert not given_array.flags.writeable
    before = given_array.tobytes()
    kept = read_only(given_array)
    change()
    assert not is_read_only(given_array)
    assert kept.tobytes() == before
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 1


@pytest.mark.parametrize(
    "values",
    [
        np.frombuffer(DATA, np.uint8),
        np.frombuffer(memoryview(DATA)[8:], np.uint8),
        np.frombuffer(mmap.mmap(-1, len(DATA), access=mmap.ACCESS_READ), np.uint8),
        np.frombuffer(DATA, "<f4")[4:8],
        locked(np.frombuffer(DATA, np.uint8).copy()),
        locked(np.frombuffer(DATA, np.uint8).copy())[3:].view(np.int8),
    ],
    ids=["bytes", "part of bytes", "mapping", "slice of bytes", "own array", "view of own array"],
)
def test_memory_that_nobody_can_change_is_kept_without_a_copy(values: Array) -> None:
    assert read_only(values) is values
    assert read_only(values, values.dtype) is values


def test_what_has_another_type_or_order_is_copied() -> None:
    values = np.frombuffer(DATA, np.uint8)
    assert read_only(values, np.dtype("<f4")).dtype == np.dtype("<f4")
    for kept in (read_only(values, np.dtype("<f4")), read_only(values[::2])):
        assert kept.flags.c_contiguous
        assert not kept.flags.writeable
        assert not np.shares_memory(kept, values)


@given(st.data())
def test_a_kept_array_never_changes(data: st.DataObject) -> None:
    """Any chain of views, with the flag of each set or not, over an owner that is writable or not."""
    owner: Any = np.arange(24, dtype=np.float32) if data.draw(st.booleans()) else DATA
    values = owner if isinstance(owner, np.ndarray) else np.frombuffer(owner, np.float32)
    chain = [values]
    for step in data.draw(
        st.lists(st.sampled_from(["slice", "lock", "reshape", "window"]), max_size=6)
    ):
        if step == "lock":
            chain[-1].flags.writeable = False
        elif step == "window":
            chain.append(np.asarray(np.ascontiguousarray(chain[-1]).data))
        else:
            chain.append(chain[-1][:] if step == "slice" else chain[-1].reshape(-1))
    before = chain[-1].tobytes()
    kept = read_only(chain[-1])
    for each in chain:
        if each.flags.writeable:
            each[...] = -1
    assert kept.tobytes() == before
    if kept is not chain[-1]:
        assert any(each.flags.writeable for each in chain)
