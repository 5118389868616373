"""SpaceColumn: one array of a recording, which holds the values of one leaf of a Gymnasium space; and its rows."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.extras import library
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from gymnasium import Space

_IN_MEMORY = 8 << 20


class SpooledRows:
    """Rows of one shape. They move to disk when they are many, so that a long run does not fill the memory."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._dtype = dtype
        self._shape = shape
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - until close
        self._bytes = 0
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, row: NDArray[Any]) -> None:
        """The row is copied: the caller may reuse the array."""
        self._bytes += self._file.write(np.ascontiguousarray(row, self._dtype).tobytes())
        self._rows += 1

    def array(self) -> NDArray[Any]:
        """All rows. Rows on disk are memory-mapped and valid only until `close`."""
        shape = (self._rows, *self._shape)
        if self._bytes <= _IN_MEMORY:
            self._file.seek(0)
            return np.frombuffer(self._file.read(), self._dtype).reshape(shape)
        self._file.flush()
        return np.memmap(self._file, self._dtype, "r", shape=shape)

    def close(self) -> None:
        self._file.close()


class TextRows:
    """Rows of text, whose width is known only at the end."""

    def __init__(self) -> None:
        self._rows: list[str] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: str) -> None:
        self._rows.append(row)

    def array(self) -> NDArray[Any]:
        return np.array(self._rows, object)

    def close(self) -> None:
        self._rows = []


@dataclass(frozen=True, slots=True)
class SpaceColumn:
    """`name` is `observation`, or a path such as `observation.arm.0` for parts of Dict and Tuple spaces."""

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
            message = f"{self.name} is missing, although it is part of the space"
            raise ConfigurationError(message=message) from error
        if not isinstance(rows, TextRows):
            rows.add(self._numbers(value))
        elif isinstance(value, str):
            rows.add(value)
        else:
            message = f"{self.name} is {type(value).__name__}; its space says text"
            raise ConfigurationError(message=message)

    def _numbers(self, value: object) -> NDArray[Any]:
        """The value in the type and shape of its space. A float may lose digits; any other change is an error."""
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
    """Every leaf of the space. A leaf whose values have no fixed shape is refused: it cannot become an array."""
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
