"""StepRow: the columns that the first step of an episode fixes, and the bytes of one row of them.

A single array is the column `observation/value` or `action/value`. Of a dict, every array is a column of its own:
`observation.arm.position/value`. A name with a slash is a key as in `log_episode`: `/joint_states/position`. These are
the names that the Gymnasium adapter gives too, so that a replay finds the same keys in either recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.npz import storable_array
from rollbook.contracts.streams import CLOCK_FIELD, ONLY_FIELD, split_key
from rollbook.contracts.zip_members import NpzLimits, check_key
from rollbook.errors import ConfigurationError, InvalidValue

CLOCK = "t_ns"
REWARD_KEY = f"reward/{ONLY_FIELD}"
_NAMES = {"obs": "observation", "action": "action"}
STEP_KINDS: Mapping[str, ArtifactKind] = {
    "obs": "sensors",
    "action": "actions",
    "reward": "sensors",
}
"""The artifact that each argument of a step goes into."""
_TYPES = "biufMm"


@dataclass(frozen=True, slots=True)
class StepColumn:
    kind: ArtifactKind
    key: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def row_type(columns: list[StepColumn]) -> np.dtype[Any]:
    """The clock, then every column under its number."""
    fields = [(str(number), each.dtype, each.shape) for number, each in enumerate(columns)]
    return np.dtype([(CLOCK, np.int64), *fields])


class StepRow:
    def __init__(self, given: Mapping[str, Any]) -> None:
        """`given`: the arguments of the first step, `obs`, `action` and `reward`, as far as they are there."""
        if not given:
            raise ConfigurationError(message="a step needs obs=, action= or reward=")
        leaves = [leaf for name, value in given.items() for leaf in _leaves(name, value, ())]
        self.columns = [column for _, column in leaves]
        _check_keys(self.columns)
        record = row_type(self.columns)
        self.data = np.zeros(record.itemsize, np.uint8)
        """The bytes of the row that was filled last."""
        row = self.data.view(record)
        self._clock = row[CLOCK]
        parts = (
            _Leaf(field, column, row[str(number)]) for number, (field, column) in enumerate(leaves)
        )
        self._parts = {name: _part(name, value, parts) for name, value in given.items()}

    def fill(self, given: Mapping[str, Any], now_ns: int, row: int) -> None:
        """Raises InvalidValue with field and row if the step differs from the first one."""
        if given.keys() != self._parts.keys():
            _refuse_other_keys("", given, self._parts, row)
        for name, part in self._parts.items():
            part.fill(given[name], row)
        self._clock[0] = now_ns


class _Leaf:
    """One column, and its place in the row."""

    def __init__(self, field: str, column: StepColumn, place: NDArray[Any]) -> None:
        self._field = field
        self._column = column
        self._place = place

    def fill(self, value: Any, row: int) -> None:
        array = _array(self._field, value, row)
        column = self._column
        fits = array.dtype == column.dtype and array.shape == column.shape
        if not fits and not self._is_number_for_it(value, array):
            first = f"{column.dtype} of shape {column.shape}, as in the first step"
            _refuse(self._field, row, f"{array.dtype} of shape {array.shape}", first)
        self._place[0] = array if fits else array.item()

    def _is_number_for_it(self, value: Any, array: NDArray[Any]) -> bool:
        """A reward may be any number; a column of plain numbers with a fraction takes `1` as well as `1.0`."""
        if self._field == "reward":
            return array.size == 1 and array.dtype.kind in "biuf"
        return type(value) is int and self._column.dtype.kind == "f" and not self._column.shape


class _Branch:
    """A dict of columns."""

    def __init__(self, field: str, parts: dict[str, _Leaf | _Branch]) -> None:
        self._field = field
        self._parts = parts

    def fill(self, value: Any, row: int) -> None:
        if not isinstance(value, Mapping):
            _refuse(self._field, row, f"a {type(value).__name__}", "a dict, as in the first step")
        if value.keys() != self._parts.keys():
            _refuse_other_keys(self._field, value, self._parts, row)
        for key, part in self._parts.items():
            part.fill(value[key], row)


_Part: TypeAlias = "_Leaf | _Branch"


def _part(field: str, value: Any, leaves: Iterator[_Leaf]) -> _Part:
    """The shape of the value, with the leaves in the order of `_leaves`."""
    if not isinstance(value, Mapping):
        return next(leaves)
    return _Branch(
        field, {key: _part(f"{field}[{key!r}]", each, leaves) for key, each in value.items()}
    )


def _leaves(
    argument: str, value: Any, path: tuple[str, ...], field: str = ""
) -> Iterator[tuple[str, StepColumn]]:
    """Every array of an argument of the first step, with the expression that names it in error messages."""
    field = field or argument
    if isinstance(value, Mapping) and argument != "reward":
        if not value:
            _refuse(field, 0, "an empty dict", "at least one array")
        for key, each in value.items():
            if not isinstance(key, str) or not key:
                _refuse(field, 0, f"a dict with the key {key!r}", "names as keys")
            yield from _leaves(argument, each, (*path, key), f"{field}[{key!r}]")
        return
    array = _array(field, value, 0)
    if argument == "reward":
        if array.size != 1 or array.dtype.kind not in "biuf":
            _refuse(field, 0, f"{array.dtype} of shape {array.shape}", "one number")
        array = np.zeros((), np.float64)
        yield field, StepColumn(STEP_KINDS[argument], REWARD_KEY, array.dtype, array.shape)
        return
    if array.dtype.kind == "c":
        expected = "real numbers; give the real and the imaginary part as two arrays"
        _refuse(field, 0, str(array.dtype), expected)
    if array.dtype.kind not in _TYPES:
        _refuse(field, 0, f"of type {array.dtype}", "numbers, truth values or times")
    key = _key(argument, path)
    storable_array(key, array)
    yield field, StepColumn(STEP_KINDS[argument], key, array.dtype, array.shape)


def _key(argument: str, path: tuple[str, ...]) -> str:
    name = ".".join(path)
    if "/" in name:
        return "/".join(split_key(name))
    return f"{'.'.join([_NAMES[argument], *path])}/{ONLY_FIELD}"


def _check_keys(columns: list[StepColumn]) -> None:
    """Refuses at the first step what could not be written at the end."""
    limits = NpzLimits()
    seen: set[tuple[str, str]] = set()
    for column in columns:
        namespace, field = split_key(column.key)
        check_key(column.key, limits, column.kind)
        check_key(f"{namespace}/{CLOCK_FIELD}", limits, column.kind)
        if field == CLOCK_FIELD:
            _refuse(column.key, 0, "a clock", "no clock among the arrays: give the time as t=")
        if (column.kind, column.key) in seen:
            _refuse(column.key, 0, "there twice", "once")
        seen.add((column.kind, column.key))
    if 2 * len(columns) > limits.members:
        _refuse("step", 0, f"{len(columns)} arrays", f"at most {limits.members // 2}")


def _array(field: str, value: Any, row: int) -> NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray):
        _refuse(field, row, "a masked array", "an array: fill masked values, for example with NaN")
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists; tensors of other devices
        _refuse(field, row, f"not an array ({error})", "a number or an array")


def _refuse_other_keys(
    field: str, given: Mapping[str, Any], known: Mapping[str, _Part], row: int
) -> NoReturn:
    def named(key: str) -> str:
        return f"{field}[{key!r}]" if field else key

    for key in given:
        if key not in known:
            _refuse(named(key), row, "new", "the keys of the first step")
    missing = next(key for key in known if key not in given)
    _refuse(named(missing), row, "missing", "the keys of the first step")


def _refuse(field: str, row: int, value: str, expected: str) -> NoReturn:
    raise InvalidValue(record=f"step at row {row}", field=field, value=value, expected=expected)
