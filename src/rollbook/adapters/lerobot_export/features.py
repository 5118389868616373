"""StoredColumn: a field of an episode as a column of a LeRobot table: its name, type and shape there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.extras import library
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.npz import ArrayFacts
from rollbook.contracts.streams import ONLY_FIELD
from rollbook.errors import ConfigurationError, InvalidValue

INTERNAL = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every LeRobot table has, and that the export makes itself."""
_MOST_LENGTHS = 5
_ACTION = "action"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredColumn:
    feature: str
    kind: ArtifactKind
    namespace: str
    field: str
    dtype: str
    """As LeRobot names it: `float32`, `bool`, `string`."""
    shape: tuple[int, ...]
    """As info.json gives it: a single number has the shape (1,)."""
    facts: ArrayFacts
    """Type and shape in the episode."""
    changes: tuple[str, ...] = ()
    """What is not the same after an import of the export."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.field}"

    @property
    def stream(self) -> str:
        return f"{self.kind}: {self.key}"

    @property
    def source(self) -> np.dtype[Any]:
        return self.facts.dtype

    @property
    def row_bytes(self) -> int:
        return self.source.itemsize * math.prod(self.shape)

    def described(self, channels: Sequence[str] | None) -> dict[str, Any]:
        """The entry in `features`."""
        names = list(channels) if channels else None
        return {"dtype": self.dtype, "shape": list(self.shape), "names": names}

    def arrow_type(self) -> Any:
        arrow = library("pyarrow")
        kind = arrow.string() if self.dtype == "string" else arrow.from_numpy_dtype(self.dtype)
        if self.shape == (1,):
            return kind
        if len(self.shape) == 1:
            return arrow.list_(kind, self.shape[0])
        for _ in self.shape:
            kind = arrow.list_(kind)
        return kind

    def converted(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values in the type and shape of the column."""
        if self.source.kind in "mM":
            values = values.view(np.int64)
        elif self.dtype not in ("string", "bool") and values.dtype != self.dtype:
            values = values.astype(self.dtype)
        return values.reshape(len(values) if self.shape == (1,) else (len(values), *self.shape))

    def arrow_array(self, values: NDArray[Any]) -> Any:
        """One entry for each row of converted values. Nothing is done row by row."""
        arrow = library("pyarrow")
        try:
            flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
        except UnicodeDecodeError as error:
            expected = "text of Unicode characters"
            raise InvalidValue(
                record=str(self.kind), field=self.key, value=str(error), expected=expected
            ) from error
        if self.shape == (1,):
            return flat
        if len(self.shape) == 1:
            return arrow.FixedSizeListArray.from_arrays(flat, self.shape[0])
        for length in reversed(self.shape):
            offsets = np.arange(0, len(flat) + 1, length, dtype=np.int32)
            flat = arrow.ListArray.from_arrays(arrow.array(offsets), flat)
        return flat


def stored_column(
    kind: ArtifactKind, namespace: str, field: str, facts: ArrayFacts, feature: str
) -> StoredColumn | str:
    """The column, or the reason why LeRobot cannot hold the field."""
    dtype, shape = facts.dtype, facts.shape[1:]
    changes: list[str] = []
    if dtype.kind == "c" or dtype.kind == "S":
        what = "Complex numbers" if dtype.kind == "c" else "Bytes"
        return f"{what} have no type in LeRobot. It is left out."
    if math.prod(shape) == 0:
        return "Its rows hold no values. It is left out."
    if dtype.kind == "U":
        name = "string"
        if math.prod(shape) != 1:
            return "LeRobot reads one text for each frame, not several. It is left out."
    elif dtype.kind in "mM":
        name = "int64"
        changes.append(f"Times of type {dtype} become whole numbers of the same unit.")
    elif dtype.kind == "f" and dtype.itemsize > 8:
        name = "float64"
        changes.append(f"Numbers of type {dtype} are rounded to float64.")
    else:
        name = dtype.name
    if shape == ():
        shape = (1,)
    elif len(shape) > _MOST_LENGTHS:
        changes.append(f"Its shape {shape} becomes one row of {math.prod(shape)} values.")
        shape = (math.prod(shape),)
    elif math.prod(shape) == 1:
        changes.append(f"Its shape {shape} becomes a single value, as LeRobot stores it.")
        shape = (1,)
    if feature != namespace or field != ONLY_FIELD:
        changes.append(f"Its name becomes {feature}.")
    return StoredColumn(
        feature=feature,
        kind=kind,
        namespace=namespace,
        field=field,
        dtype=name,
        shape=shape,
        facts=facts,
        changes=tuple(changes),
    )


# -------------------------------------------------------------------------------------------- names


def plain_name(namespace: str, field: str) -> str:
    """LeRobot names must not contain a slash. A field without a name of its own takes that of its namespace."""
    name = namespace if field == ONLY_FIELD else f"{namespace}/{field}"
    return name.replace("/", ".")


def is_action_name(name: str) -> bool:
    return name == _ACTION or name.startswith(f"{_ACTION}.")


def action_name(name: str, alone: bool) -> str:
    """LeRobot finds actions by their name: `action`, or several that begin with `action.`"""
    if is_action_name(name):
        return name
    return _ACTION if alone else f"{_ACTION}.{name}"


def read_renames(renames: Sequence[str]) -> Mapping[str, str]:
    """Pairs `STREAM=FEATURE`."""
    found: dict[str, str] = {}
    for each in renames:
        stream, equals, feature = each.partition("=")
        if not (stream and equals and feature):
            message = f"rename {each!r}: write STREAM=FEATURE, as in arm/position=observation.state"
            raise ConfigurationError(message=message)
        if "/" in feature or feature in INTERNAL:
            why = "a slash" if "/" in feature else "the name of a column that LeRobot fills"
            raise ConfigurationError(
                message=f"rename {each!r}: {feature!r} is {why}; choose another name"
            )
        found[stream] = feature
    return found
