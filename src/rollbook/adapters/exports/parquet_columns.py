"""ParquetColumn: a field of an episode as a column of a Parquet table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.extras import library
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.npz import ArrayFacts
from rollbook.errors import InvalidValue

_UNITS = ("ms", "us", "ns")
"""Units of time that Parquet has."""


@dataclass(frozen=True, slots=True)
class ParquetColumn:
    name: str
    kind: ArtifactKind
    namespace: str
    field: str
    facts: ArrayFacts

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.field}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one row."""
        return self.facts.shape[1:]

    def type(self) -> Any:
        """Vectors and matrices are lists of a fixed length, so that the shape is a part of the type."""
        arrow = library("pyarrow")
        kind = _value_type(self.facts.dtype)
        for length in reversed(self.shape):
            kind = arrow.list_(kind, length)
        return kind

    def array(self, values: NDArray[Any]) -> Any:
        """Nothing is done row by row."""
        arrow = library("pyarrow")
        flat = np.ascontiguousarray(values).reshape(-1)
        kind = _value_type(self.facts.dtype)
        if arrow.types.is_integer(kind) and flat.dtype.kind in "mM":
            flat = flat.view(np.int64)
        elif arrow.types.is_floating(kind) and flat.dtype.itemsize > 8:
            flat = flat.astype(np.float64)
        try:
            made = arrow.array(flat, kind)
        except (UnicodeDecodeError, arrow.ArrowException) as error:
            raise InvalidValue(
                record=str(self.kind),
                field=self.key,
                value=str(error),
                expected=f"values of {kind}",
            ) from error
        for length in reversed(self.shape):
            made = arrow.FixedSizeListArray.from_arrays(made, length)
        return made

    def losses(self) -> list[str]:
        dtype = self.facts.dtype
        if dtype.kind in "mM" and _unit(dtype) is None:
            return [f"Times of type {dtype} become whole numbers of the same unit."]
        if dtype.kind == "f" and dtype.itemsize > 8:
            return [f"Numbers of type {dtype} are rounded to float64."]
        return []


def why_not(facts: ArrayFacts) -> str | None:
    """The reason why a field cannot be a column; None for most."""
    if facts.dtype.kind == "c":
        return "Parquet has no complex numbers. It is left out."
    if math.prod(facts.shape[1:]) == 0:
        return "Its rows hold no values. It is left out."
    return None


def _value_type(dtype: np.dtype[Any]) -> Any:
    arrow = library("pyarrow")
    if dtype.kind == "U":
        return arrow.string()
    if dtype.kind == "S":
        return arrow.binary()
    if dtype.kind in "mM":
        unit = _unit(dtype)
        if unit is None:
            return arrow.int64()
        return arrow.timestamp(unit) if dtype.kind == "M" else arrow.duration(unit)
    if dtype.kind == "f" and dtype.itemsize > 8:
        return arrow.float64()
    return arrow.from_numpy_dtype(dtype.newbyteorder("="))


def _unit(dtype: np.dtype[Any]) -> str | None:
    """The unit of a time, if Parquet has it too."""
    unit, count = np.datetime_data(dtype)
    return unit if count == 1 and unit in _UNITS else None
