"""ActionColumns: the actions of a policy over the steps of an episode, as columns.

A policy may leave a key out at some steps, change its shape, or return a list, a scalar or a tensor. Nothing of that is
repaired here. A column knows the steps that it has a value for, and keeps values of different sizes apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.outcomes import OUTCOME_KEY
from rollbook.errors import InvalidValue

Array: TypeAlias = "NDArray[Any]"
Arrays: TypeAlias = "Mapping[str, Array]"
Rows: TypeAlias = "NDArray[np.int64]"

_NUMBERS = "biufm"
_PLAIN_TYPES = frozenset({float, int, bool, list, tuple})


@dataclass(frozen=True, slots=True)
class SizedRows:
    """Values of one size: `values` is [n, size], and `rows` holds the step of each."""

    rows: Rows
    values: Array


@dataclass(frozen=True, slots=True)
class ActionColumn:
    """One key of the actions. `by_size` has one entry unless the policy changed the size of its values."""

    by_size: Mapping[int, SizedRows]
    step_shape: tuple[int, ...] | None
    """Shape of the value of one step; None where steps differ."""
    rows: Rows
    """Steps with a value."""
    named: Rows
    """Steps that have the key, also those with the value None."""

    @property
    def numeric(self) -> bool:
        return all(each.values.dtype.kind in _NUMBERS for each in self.by_size.values())

    def of_size(self, size: int) -> SizedRows | None:
        return self.by_size.get(size)


@dataclass(frozen=True, slots=True)
class ActionColumns:
    """The actions of one episode: one column per key, in the order of first appearance."""

    steps: int
    columns: Mapping[str, ActionColumn]

    def __len__(self) -> int:
        return self.steps

    def arrays(self) -> dict[str, Array]:
        """Arrays for a file. Columns with gaps become floats, with NaN in the gaps.

        Keys that changed their shape, and keys without numbers or text, are left out.
        """
        found = {key: _whole(column, self.steps) for key, column in self.columns.items()}
        return {key: array for key, array in found.items() if array is not None}


def stack_actions(steps: Sequence[Mapping[str, Any]]) -> ActionColumns:
    """One column per key. A column whose values have one shape is stacked in a single call."""
    invalid = {kind for kind in set(map(type, steps)) if not issubclass(kind, Mapping)}
    if invalid:
        index = next(index for index, step in enumerate(steps) if type(step) in invalid)
        raise InvalidValue(
            record=f"action of step {index}",
            field="type",
            value=type(steps[index]).__name__,
            expected="a mapping of names to arrays",
        )
    keys = dict.fromkeys(chain.from_iterable(steps))
    keys.pop(OUTCOME_KEY, None)
    return ActionColumns(len(steps), {key: _column(key, steps) for key in keys})


def key_parts(key: str) -> tuple[str, str]:
    """Namespace and field: the parts before and after the last slash. The namespace may be empty."""
    namespace, _, field = key.rpartition("/")
    return namespace, field


def policy_key(key: str) -> str:
    """The key as policies see it: without a namespace it is the field alone, as with the public client."""
    namespace, field = key_parts(key)
    return f"{namespace}/{field}" if namespace else field


# ------------------------------------------------------------------------------------- one column


def _column(key: str, steps: Sequence[Mapping[str, Any]]) -> ActionColumn:
    values = [step.get(key) for step in steps]
    kinds = set(map(type, values))
    rows = named = np.arange(len(steps))
    if type(None) in kinds:
        there = np.fromiter((value is not None for value in values), bool, len(values))
        named = np.flatnonzero(np.fromiter((key in step for step in steps), bool, len(steps)))
        rows = np.flatnonzero(there)
        values = [value for value in values if value is not None]
        kinds.discard(type(None))
    if not values:
        return ActionColumn({}, None, rows, named)
    stacked = _stacked(values, kinds)
    if stacked is None:
        return _ragged(key, values, rows, named)
    flat = stacked.reshape(len(values), -1 if stacked.size else 0)
    return ActionColumn({flat.shape[1]: SizedRows(rows, flat)}, stacked.shape[1:], rows, named)


def _stacked(values: list[Any], kinds: set[type]) -> Array | None:
    """All values as one array with a first axis of steps; None unless all have one shape."""
    try:
        if kinds <= _PLAIN_TYPES or all(issubclass(kind, np.generic) for kind in kinds):
            array = np.array(values)
            return array if array.dtype.kind != "O" else None
        arrays = values if kinds == {np.ndarray} else [np.asarray(value) for value in values]
        lengths = list(map(len, arrays))
        if lengths.count(lengths[0]) != len(lengths):
            return None
        joined = np.concatenate(arrays)
    except (TypeError, ValueError):  # scalars, different shapes, or types without a common type
        return None
    return joined.reshape(len(arrays), lengths[0], *joined.shape[1:])


def _ragged(key: str, values: list[Any], rows: Rows, named: Rows) -> ActionColumn:
    """A column whose values differ in shape: values of one size are stored together."""
    try:
        arrays = [np.asarray(value) for value in values]
    except (TypeError, ValueError) as error:
        raise InvalidValue(
            record="action", field=key, value=f"no array ({error})", expected="numbers of one shape"
        ) from error
    sizes = np.fromiter((array.size for array in arrays), np.int64, len(arrays))
    by_size = {}
    for size in np.unique(sizes).tolist():
        members = np.flatnonzero(sizes == size)
        parts = [arrays[index].ravel() for index in members.tolist()]
        by_size[size] = SizedRows(rows[members], _joined(parts).reshape(len(parts), size))
    shapes = {array.shape for array in arrays}
    return ActionColumn(by_size, shapes.pop() if len(shapes) == 1 else None, rows, named)


def _joined(parts: list[Array]) -> Array:
    try:
        return np.concatenate(parts)
    except TypeError:  # numbers at one step, records or dates at another one
        return np.concatenate([part.astype(object) for part in parts])


def _whole(column: ActionColumn, steps: int) -> Array | None:
    if column.step_shape is None or len(column.by_size) != 1:
        return None
    ((size, sized),) = column.by_size.items()
    if sized.values.dtype.kind not in _NUMBERS + "U":
        return None
    shape = (steps, *column.step_shape)
    if len(sized.rows) == steps:
        return sized.values.reshape(shape)
    if sized.values.dtype.kind not in "biuf":
        return None
    dtype = np.result_type(sized.values.dtype, np.float32)
    filled = np.full((steps, size), np.nan, dtype)
    filled[sized.rows] = sized.values
    return filled.reshape(shape)
