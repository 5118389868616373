"""SpaceColumn: one array of a recording, and the leaf of a Gymnasium space whose values it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.extras import library
from rollbook.adapters.spooled_rows import SpooledRows, TextRows
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from gymnasium import Space


@dataclass(frozen=True, slots=True)
class SpaceColumn:
    """`name` is `observation`, or `observation.arm.0` for what lies inside Dict and Tuple spaces."""

    name: str
    path: tuple[Any, ...]
    dtype: np.dtype[Any] | None
    """None for text."""
    shape: tuple[int, ...]

    def rows(self) -> SpooledRows | TextRows:
        return TextRows() if self.dtype is None else SpooledRows(self.dtype, self.shape)

    def add_to(self, rows: SpooledRows | TextRows, value: Any) -> None:
        try:
            for key in self.path:
                value = value[key]
        except (LookupError, TypeError) as error:
            message = f"{self.name} is missing, although its space has it"
            raise ConfigurationError(message=message) from error
        if isinstance(rows, TextRows):
            rows.add(self._text(value))
        else:
            rows.add(self._numbers(value))

    def _text(self, value: object) -> str:
        if not isinstance(value, str):
            raise ConfigurationError(
                message=f"{self.name} is {type(value).__name__}; its space says text"
            )
        return value

    def _numbers(self, value: object) -> NDArray[Any]:
        """As its space says it is. A float may lose digits for that; anything else is a mistake of the environment."""
        try:
            given = np.asarray(value)
        except ValueError as error:
            raise self._misfit(value) from error
        is_scalar = given.size == math.prod(self.shape) == 1
        if given.dtype.kind not in "biuf" or not (given.shape == self.shape or is_scalar):
            raise self._misfit(value)
        with np.errstate(all="ignore"):
            fitted = given.astype(self.dtype).reshape(self.shape)
        if fitted.dtype.kind == "f":
            unchanged = np.array_equal(np.isfinite(fitted.ravel()), np.isfinite(given.ravel()))
        else:
            unchanged = np.array_equal(fitted.ravel(), given.ravel())
        if not unchanged:
            raise self._misfit(value)
        return fitted

    def _misfit(self, value: object) -> ConfigurationError:
        shown = repr(value)
        found = shown if len(shown) <= 80 else f"{shown[:80]}…"
        return ConfigurationError(
            message=f"{self.name} is {found}; its space says {self.dtype} of shape {self.shape}"
        )


def space_columns(name: str, space: Space[Any]) -> tuple[SpaceColumn, ...]:
    """Every leaf of the space. One whose values have no fixed shape cannot be recorded as arrays, and is refused."""
    columns = tuple(_leaves(name, space, ()))
    names = [column.name for column in columns]
    for each in names:
        if names.count(each) > 1:
            raise ConfigurationError(message=f"two parts of the space are both called {each!r}")
    return columns


def _leaves(name: str, space: Space[Any], path: tuple[Any, ...]) -> list[SpaceColumn]:
    spaces = library("gymnasium.spaces")
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inside = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [
            column
            for key, part in inside
            for column in _leaves(f"{name}.{key}", part, (*path, key))
        ]
    if isinstance(space, spaces.Text):
        return [SpaceColumn(name, path, None, ())]
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        assert space.dtype is not None
        assert space.shape is not None
        return [SpaceColumn(name, path, np.dtype(space.dtype), tuple(space.shape))]
    raise ConfigurationError(
        message=f"{name} is a {type(space).__name__} space, whose values have no fixed shape; wrap the environment "
        "so that it has Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict or Tuple spaces"
    )
