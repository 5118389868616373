"""Spaces: what Minari writes about observations and actions, and the arrays that follow from it.

Names are those of rollbook.adapters.gymnasium: `observation`, or `observation.arm.0` for parts of Dict and Tuple.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rollbook.adapters.storable_text import stream_name_problem
from rollbook.errors import DamagedRecording

Key: TypeAlias = "str | int"
"""A key of a Dict space, or the index of a Tuple space."""

_DEEPEST = 32
_MOST_DIMENSIONS = 16
_LARGEST_ROW = 1 << 28
_LEAST_SIDE = 32
"""Pixels. Minari does not take smaller arrays for pictures."""
_COLOURS = (1, 3, 4)
"""Values of one pixel."""


@dataclass(frozen=True, slots=True)
class SpaceLeaf:
    name: str
    path: tuple[Key, ...]
    dtype: np.dtype[Any] | None
    """None for text."""
    shape: tuple[int, ...]
    is_picture: bool = False
    """Whether Minari stores it as JPEG, unless it was told not to."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def type(self) -> str:
        return "text" if self.dtype is None else f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class UnreadableLeaf:
    name: str
    reason: str


def space_leaves(name: str, stated: Any, place: str) -> list[SpaceLeaf | UnreadableLeaf]:
    """Every leaf of a space that was read from JSON. `place` names the file in errors."""
    found = list(_leaves(name, stated, (), place))
    names = [each.name for each in found]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise DamagedRecording(path=place, detail=f"two parts of a space are both called {twice!r}")
    return found


def _leaves(
    name: str, stated: Any, path: tuple[Key, ...], place: str
) -> Iterator[SpaceLeaf | UnreadableLeaf]:
    if not isinstance(stated, dict) or len(path) > _DEEPEST:
        raise DamagedRecording(path=place, detail=f"{name} is not the description of a space")
    kind = stated.get("type")
    inside = stated.get("subspaces")
    problem = stream_name_problem(name)
    if problem is not None:
        yield UnreadableLeaf(name, problem)
    elif kind == "Dict" and isinstance(inside, dict):
        for key, part in inside.items():
            yield from _leaves(f"{name}.{key}", part, (*path, key), place)
    elif kind == "Tuple" and isinstance(inside, list):
        for number, part in enumerate(inside):
            yield from _leaves(f"{name}.{number}", part, (*path, number), place)
    elif kind == "Text":
        yield SpaceLeaf(name, path, None, ())
    elif kind in ("Box", "Discrete", "MultiDiscrete", "MultiBinary"):
        yield _numbers(name, str(kind), stated, path, place)
    else:
        yield UnreadableLeaf(name, f"values of a {str(kind)[:40]} space are not read")


def _numbers(
    name: str, kind: str, stated: dict[str, Any], path: tuple[Key, ...], place: str
) -> SpaceLeaf | UnreadableLeaf:
    shape = _shape(kind, stated)
    if shape is None:
        raise DamagedRecording(path=place, detail=f"the {kind} space of {name} has no shape")
    try:
        dtype = np.dtype("int8" if kind == "MultiBinary" else str(stated.get("dtype", "int64")))
    except TypeError:
        return UnreadableLeaf(name, f"values of type {str(stated.get('dtype'))[:40]} are not read")
    if dtype.kind not in "biuf":
        return UnreadableLeaf(name, f"values of type {dtype} are not read")
    if math.prod(shape) * dtype.itemsize > _LARGEST_ROW:
        detail = f"{name} has {math.prod(shape)} values in one step"
        raise DamagedRecording(path=place, detail=detail)
    is_picture = kind == "Box" and _is_picture(stated, dtype, shape)
    return SpaceLeaf(name, path, dtype, shape, is_picture)


def _shape(kind: str, stated: dict[str, Any]) -> tuple[int, ...] | None:
    if kind == "Discrete":
        return ()
    if kind == "MultiDiscrete":
        return _shape_of_list(stated.get("nvec"))
    given = stated.get("n") if kind == "MultiBinary" else stated.get("shape")
    lengths: list[Any] = given if isinstance(given, list) else [given]
    right = len(lengths) <= _MOST_DIMENSIONS
    right = right and all(type(each) is int and 0 <= each < 2**48 for each in lengths)
    return tuple(lengths) if right else None


def _shape_of_list(value: Any) -> tuple[int, ...] | None:
    shape: list[int] = []
    while isinstance(value, list) and len(shape) < _MOST_DIMENSIONS:
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape) if shape else None


def _is_picture(stated: dict[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    if dtype != np.uint8 or len(shape) not in (2, 3) or min(shape[:2]) < _LEAST_SIDE:
        return False
    if len(shape) == 3 and shape[2] not in _COLOURS:
        return False
    return _is_all(stated.get("low"), 0) and _is_all(stated.get("high"), 255)


# ------------------------------------------------------------------------------------------- bounds


def compact_space(stated: Any) -> Any:
    """The same space with bounds that are all equal written once: those of a picture have a number for each pixel."""
    if isinstance(stated, dict):
        inside = stated.get("subspaces")
        if isinstance(inside, dict):
            return {**stated, "subspaces": {k: compact_space(v) for k, v in inside.items()}}
        if isinstance(inside, list):
            return {**stated, "subspaces": [compact_space(each) for each in inside]}
        bounds = {key: _compact_bound(stated[key]) for key in ("low", "high") if key in stated}
        return {**stated, **bounds}
    return stated


def full_space(compact: Any) -> Any:
    """The space as Minari writes it, from `compact_space`."""
    if isinstance(compact, dict):
        inside = compact.get("subspaces")
        if isinstance(inside, dict):
            return {**compact, "subspaces": {k: full_space(v) for k, v in inside.items()}}
        if isinstance(inside, list):
            return {**compact, "subspaces": [full_space(each) for each in inside]}
        bounds = {
            key: _full_bound(compact[key], compact.get("shape", []))
            for key in ("low", "high")
            if key in compact
        }
        return {**compact, **bounds}
    return compact


def _compact_bound(bound: Any) -> Any:
    first = bound
    while isinstance(first, list) and first:
        first = first[0]
    same = isinstance(first, int | float) and _is_all(bound, first)
    return _as_text(first) if same else _texts(bound)


def _texts(bound: Any) -> Any:
    return [_texts(each) for each in bound] if isinstance(bound, list) else _as_text(bound)


def _as_text(number: Any) -> Any:
    """JSON in metadata has no infinity and no NaN."""
    infinite = isinstance(number, float) and not math.isfinite(number)
    return str(number) if infinite else number


def _full_bound(bound: Any, shape: list[int]) -> Any:
    if isinstance(bound, list):
        return [_full_bound(each, []) for each in bound]
    number = float(bound) if isinstance(bound, str) else bound
    return np.full(shape, number, object).tolist()


def _is_all(bound: Any, value: float) -> bool:
    """Whether every number in nested lists is this one."""
    if isinstance(bound, list):
        return all(_is_all(each, value) for each in bound)
    return isinstance(bound, int | float) and bound == value
