"""Streams: the names of the arrays in sensors.npz and actions.npz, and the clock of each namespace.

A key is `<namespace>/<field>`; the namespace is everything before the last slash. `<namespace>/_t_ns` holds one time in
nanoseconds for each row of the namespace. Namespaces may differ in rate and length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.npz import storable_array
from rollbook.errors import InvalidValue

CLOCK_FIELD = "_t_ns"
ONLY_FIELD = "value"
"""The field name in a namespace whose only field was given without a name."""

Clocks: TypeAlias = "ArrayLike | Mapping[str, ArrayLike]"
"""One clock for all namespaces, or one for each."""


def split_key(key: str) -> tuple[str, str]:
    """The namespace and the field of a key. A key without a slash is a namespace with one field."""
    namespace, slash, field = key.rpartition("/")
    return (namespace, field) if slash else (key, ONLY_FIELD)


def clocked_streams(
    record: str, arrays: Mapping[str, ArrayLike], t_ns: Clocks | None
) -> dict[str, NDArray[Any]]:
    """The arrays under their full keys, each namespace with its clock. `record` names them in error messages."""
    if not arrays:
        raise InvalidValue(record=record, field="it", value="empty", expected="at least one array")
    clocks = _clocks_given(record, arrays, t_ns)
    streams: dict[str, NDArray[Any]] = {}
    for key, value in arrays.items():
        namespace, field = split_key(str(key))
        if field == CLOCK_FIELD:
            continue
        clock = clocks.get(namespace)
        if clock is None:
            expected = "t_ns=: one whole number of nanoseconds for each row"
            raise InvalidValue(record=record, field=key, value="without a clock", expected=expected)
        full = f"{namespace}/{field}"
        if full in streams:
            raise InvalidValue(record=record, field=full, value="there twice", expected="once")
        streams[full] = _rows(record, full, value, len(clock))
        streams[f"{namespace}/{CLOCK_FIELD}"] = clock
    return streams


def _clocks_given(
    record: str, arrays: Mapping[str, ArrayLike], t_ns: Clocks | None
) -> dict[str, NDArray[np.int64]]:
    """A clock among the arrays comes first, then the clock for the namespace, then the clock for all."""
    keys = [split_key(str(key)) for key in arrays]
    namespaces = dict.fromkeys(namespace for namespace, field in keys if field != CLOCK_FIELD)
    among = {
        namespace: arrays[key]
        for key, (namespace, field) in zip(arrays, keys, strict=True)
        if field == CLOCK_FIELD
    }
    if isinstance(t_ns, Mapping):
        given: dict[str, ArrayLike] = {**t_ns, **among}
    elif t_ns is not None:
        given = {**dict.fromkeys(namespaces, t_ns), **among}
    else:
        given = among
    return {name: _clock(record, name, given[name]) for name in namespaces if name in given}


def _clock(record: str, namespace: str, value: ArrayLike) -> NDArray[np.int64]:
    field = f"the clock of {namespace}"
    clock = np.asarray(value)
    if not clock.size:
        expected = "one time for each step; leave the arrays out if there were no steps"
        raise InvalidValue(record=record, field=field, value="0 rows long", expected=expected)
    if clock.dtype.kind == "M":
        if np.isnat(clock).any():
            raise InvalidValue(record=record, field=field, value="NaT", expected="a time")
        clock = clock.astype("M8[ns]").astype(np.int64)
    if clock.dtype.kind not in "iu" or clock.ndim != 1:
        raise InvalidValue(
            record=record,
            field=field,
            value=f"{clock.dtype} of shape {clock.shape}",
            expected="whole nanoseconds, one for each row: (seconds * 1e9).astype(np.int64)",
        )
    if clock.dtype == np.uint64 and clock.size and int(clock.max()) > np.iinfo(np.int64).max:
        raise InvalidValue(
            record=record, field=field, value=str(clock.max()), expected="at most 64 bits, signed"
        )
    times = clock.astype(np.int64, copy=False)
    row = first_fall(times)
    if row is not None:
        raise InvalidValue(
            record=record,
            field=field,
            value=f"{times[row]} ns at row {row}",
            expected=f"later than row {row - 1}, at {times[row - 1]} ns",
        )
    return times


def first_fall(times: NDArray[np.int64]) -> int | None:
    """The first row whose time is not later than that of the row before it; None for a clock that rises."""
    falls = np.flatnonzero(times[1:] <= times[:-1])
    return int(falls[0]) + 1 if falls.size else None


def _rows(record: str, key: str, value: ArrayLike, rows: int) -> NDArray[Any]:
    array = storable_array(key, value)
    if array.dtype.kind == "c":
        expected = "real numbers; give the real and the imaginary part as two arrays"
        raise InvalidValue(record=record, field=key, value=str(array.dtype), expected=expected)
    if array.ndim == 0 or len(array) != rows:
        raise InvalidValue(
            record=record,
            field=key,
            value=f"of shape {array.shape}",
            expected=f"{rows} rows, as many as its clock has times",
        )
    return array
