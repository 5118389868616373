"""Typed metadata: six kinds of values that robots often report, in a form that pages can draw and metrics can read.

On the wire each is an object with a `__type` and every field; an unknown field value is null. Units are metres,
radians and seconds; quaternions are x, y, z, w. An unknown `__type` is accepted: a later release may have written it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np

from rollbook.errors import InvalidValue

TYPE_KEY = "__type"
DEEPEST_METADATA = 32
"""How deep objects and lists may be nested."""

Numbers: TypeAlias = "Sequence[float] | np.ndarray[Any, Any]"


class TypedValue:
    """Base class of the six kinds. They hold tuples, so that a value cannot change after it was checked."""

    wire_name: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}
        wire = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        return {TYPE_KEY: self.wire_name, **wire}

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _check_numbers(self, field: str, length: int | None = None) -> None:
        given = getattr(self, field)
        if given is not None:
            self._set(field, _numbers(type(self).__name__, field, given, length))

    def _check_number(self, field: str, least: float = -math.inf, most: float = math.inf) -> None:
        given = getattr(self, field)
        if given is None:
            return
        number = _number(type(self).__name__, field, given)
        if not least <= number <= most:
            bounds = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise _invalid(type(self).__name__, field, given, bounds)
        self._set(field, number)

    def _check_bool(self, field: str) -> None:
        given = getattr(self, field)
        if given is None:
            return
        if not isinstance(given, bool | np.bool_):
            raise _invalid(type(self).__name__, field, given, "true or false")
        self._set(field, bool(given))

    def _check_count(self, field: str) -> None:
        given = getattr(self, field)
        if given is None:
            return
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 0:
            raise _invalid(type(self).__name__, field, given, "a whole number, at least 0")
        self._set(field, int(given))


@dataclass(frozen=True)
class JointState(TypedValue):
    wire_name: ClassVar[str] = "robotrace.JointState"
    positions: Numbers
    velocities: Numbers | None = None
    efforts: Numbers | None = None
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.positions is None:
            raise _invalid("JointState", "positions", None, "a list of numbers")
        self._check_numbers("positions")
        joints = len(self.positions)
        if not joints:
            raise _invalid("JointState", "positions", [], "at least one number")
        self._check_numbers("velocities", joints)
        self._check_numbers("efforts", joints)
        if self.names is not None:
            self._set("names", _texts("JointState", "names", self.names, joints))


@dataclass(frozen=True)
class Pose3D(TypedValue):
    wire_name: ClassVar[str] = "robotrace.Pose3D"
    translation: Numbers
    rotation: Numbers
    """x, y, z, w."""

    def __post_init__(self) -> None:
        _check_given(self, "translation", "rotation")
        self._check_numbers("translation", 3)
        self._check_numbers("rotation", 4)


@dataclass(frozen=True)
class Twist(TypedValue):
    wire_name: ClassVar[str] = "robotrace.Twist"
    linear: Numbers
    angular: Numbers

    def __post_init__(self) -> None:
        _check_given(self, "linear", "angular")
        self._check_numbers("linear", 3)
        self._check_numbers("angular", 3)


@dataclass(frozen=True)
class Imu(TypedValue):
    wire_name: ClassVar[str] = "robotrace.Imu"
    linear_acceleration: Numbers
    angular_velocity: Numbers
    orientation: Numbers | None = None
    """x, y, z, w."""

    def __post_init__(self) -> None:
        _check_given(self, "linear_acceleration", "angular_velocity")
        self._check_numbers("linear_acceleration", 3)
        self._check_numbers("angular_velocity", 3)
        self._check_numbers("orientation", 4)


@dataclass(frozen=True)
class Battery(TypedValue):
    wire_name: ClassVar[str] = "robotrace.Battery"
    percent: float | None = None
    """0 to 100."""
    voltage_v: float | None = None
    current_a: float | None = None
    """Positive while the battery discharges."""
    charging: bool | None = None

    def __post_init__(self) -> None:
        self._check_number("percent", 0, 100)
        self._check_number("voltage_v")
        self._check_number("current_a")
        self._check_bool("charging")


@dataclass(frozen=True)
class EpisodeOutcome(TypedValue):
    wire_name: ClassVar[str] = "robotrace.EpisodeOutcome"
    success: bool | None = None
    reward_total: float | None = None
    collision_count: int | None = None
    time_to_goal_s: float | None = None

    def __post_init__(self) -> None:
        self._check_bool("success")
        self._check_number("reward_total")
        self._check_number("time_to_goal_s", 0)
        self._check_count("collision_count")


_CLASSES: Mapping[str, type[TypedValue]] = {
    each.wire_name: each for each in (JointState, Pose3D, Twist, Imu, Battery, EpisodeOutcome)
}
TYPED_METADATA = tuple(_CLASSES)
"""The values of `__type` whose fields are checked."""


def check_typed_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise InvalidValue, with its path, for the first typed object whose fields do not match its `__type`."""
    for path, value in _objects("", metadata, 0):
        cls = _CLASSES.get(value[TYPE_KEY]) if isinstance(value.get(TYPE_KEY), str) else None
        if cls is not None:
            _check_shape(cls, path, value)


def typed_values(metadata: Mapping[str, Any]) -> Iterator[tuple[str, TypedValue]]:
    """The typed objects with their paths, in their order. One whose fields do not match its `__type` is left out."""
    for path, value in _objects("", metadata, 0):
        cls = _CLASSES.get(value[TYPE_KEY]) if isinstance(value.get(TYPE_KEY), str) else None
        if cls is not None:
            with suppress(InvalidValue):
                yield path, cls(**_fields_of(cls, value))


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata for the wire: typed values as objects, NumPy values as plain numbers and lists, names as text.

    A value that JSON cannot express is refused with its path, before anything is sent.
    """
    if not isinstance(metadata, Mapping):
        raise _invalid("metadata", "it", metadata, "a mapping of names to values")
    return {str(key): _plain(str(key), value, 1) for key, value in metadata.items()}


def _plain(path: str, value: Any, depth: int) -> Any:
    if depth > DEEPEST_METADATA:
        raise _invalid("metadata", path, "…", f"at most {DEEPEST_METADATA} levels")
    if isinstance(value, TypedValue):
        value = value.to_dict()
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): _plain(f"{path}.{k}", v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(f"{path}[{i}]", v, depth + 1) for i, v in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise _invalid("metadata", path, value, "a finite number, or None")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise _invalid("metadata", path, type(value), "a JSON value (text, number, list, mapping)")


_SCALARS = {str, int, float, bool, type(None)}


def _objects(path: str, value: Any, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if depth > DEEPEST_METADATA:
        raise _invalid("metadata", path, "…", f"at most {DEEPEST_METADATA} levels")
    if isinstance(value, Mapping):
        if TYPE_KEY in value:
            yield path, value
        for key, below in value.items():
            yield from _objects(f"{path}.{key}" if path else str(key), below, depth + 1)
    elif isinstance(value, list | tuple):
        if depth < DEEPEST_METADATA and set(map(type, value)) <= _SCALARS:
            return  # a long series: there is nothing below its values
        for i, below in enumerate(value):
            yield from _objects(f"{path}[{i}]", below, depth + 1)


def _fields_of(cls: type[TypedValue], value: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: value.get(field.name) for field in fields(cast(Any, cls))}


def _check_shape(cls: type[TypedValue], path: str, value: Mapping[str, Any]) -> None:
    try:
        cls(**_fields_of(cls, value))
    except InvalidValue as error:
        where = f"{path}.{error.field}" if path else error.field
        raise InvalidValue(
            record="metadata", field=where, value=error.value, expected=error.expected
        ) from error


# ------------------------------------------------------------------------------------------ checks


def _invalid(record: str, field: str, value: object, expected: str) -> InvalidValue:
    shown = value.__name__ if isinstance(value, type) else repr(value)
    return InvalidValue(record=record, field=field, value=shown, expected=expected)


def _check_given(value: TypedValue, *names: str) -> None:
    for name in names:
        if getattr(value, name) is None:
            raise _invalid(type(value).__name__, name, None, "a list of numbers")


def _number(record: str, field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise _invalid(record, field, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _invalid(record, field, value, "a finite number")
    return number


def _numbers(record: str, field: str, values: object, length: int | None) -> tuple[float, ...]:
    expected = "a list of numbers" if length is None else f"a list of {length} numbers"
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise _invalid(record, field, values, expected)
    numbers = tuple(_number(record, f"{field}[{i}]", value) for i, value in enumerate(values))
    if length is not None and len(numbers) != length:
        raise _invalid(record, field, f"a list of {len(numbers)}", expected)
    return numbers


def _texts(record: str, field: str, values: object, length: int) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise _invalid(record, field, values, f"a list of {length} texts")
    texts = tuple(values)
    if len(texts) != length or not all(isinstance(text, str) for text in texts):
        raise _invalid(record, field, texts, f"a list of {length} texts")
    return texts
