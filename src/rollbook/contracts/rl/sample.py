"""RolloutSample: one token or step. The sample columns are declared here, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.read_only import read_only
from rollbook.contracts.record import U32_MAX, Record, checked_type
from rollbook.contracts.rl.given_array import given_array
from rollbook.errors import InvalidNumber, InvalidValue, UnknownColumn, WrongColumnType

Column = NDArray[Any]


class RolloutRole(IntEnum):
    """Who produced a sample."""

    POLICY = 0
    USER = 1
    TOOL = 2
    SYSTEM = 3
    ENVIRONMENT = 4


BASE_COLUMNS = ("token_id", "logprob", "reward", "advantage")
SAMPLE_DTYPES: Mapping[str, np.dtype[Any]] = {
    "token_id": np.dtype("<u4"),
    "logprob": np.dtype("<f4"),
    "reward": np.dtype("<f4"),
    "advantage": np.dtype("<f4"),
    # 1 where the sample takes part in the loss
    "loss_mask": np.dtype("u1"),
    # a RolloutRole
    "role": np.dtype("u1"),
    # counts the turns of a conversation, from 0
    "turn": np.dtype("<u2"),
    # revision number of the policy that sampled it, -1 for context that no policy sampled
    "policy_version": np.dtype("<i4"),
    "temperature": np.dtype("<f4"),
    "reference_logprob": np.dtype("<f4"),
    "value": np.dtype("<f4"),
}
"""Every sample column, in the order that digests and files use. The first four are required."""

LOGPROB_COLUMNS = ("logprob", "reference_logprob")
_LIMITS = {
    name: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for name, dtype in SAMPLE_DTYPES.items()
    if dtype.kind in "iu"
}
_HIGHEST_CODE = {"loss_mask": 1, "role": max(RolloutRole)}

Locate = Callable[[int], str]
"""From a flat row to the name of its artifact and sample, for messages."""


class RolloutSample(Record, frozen=True, kw_only=True):
    """One token or step. Floats are stored as binary32."""

    token_id: int
    logprob: float
    reward: float
    advantage: float

    def __post_init__(self) -> None:
        self._check_ints("sample", "token_id", highest=U32_MAX)
        for field in ("logprob", "reward", "advantage"):
            checked_type(getattr(self, field), (float, int), "sample", field)


def columns_of(samples: Any) -> Mapping[str, Any]:
    """Samples as columns, whether they were given as RolloutSample objects or as columns."""
    if isinstance(samples, Mapping):
        return samples
    if not isinstance(samples, Sequence) or isinstance(samples, str | bytes):
        raise WrongColumnType(
            column="samples",
            expected="columns by name, or RolloutSample objects",
            actual=type(samples).__name__,
        )
    for sample in samples:
        checked_type(sample, RolloutSample, "samples", "samples")
    return {name: [getattr(sample, name) for sample in samples] for name in BASE_COLUMNS}


def sample_count(columns: Mapping[str, Any]) -> int:
    """The length of the first column; 0 for a value without a length, which is refused when columns are checked."""
    for column in columns.values():
        with suppress(TypeError):
            return len(column)
    return 0


def check_column_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in SAMPLE_DTYPES:
            raise UnknownColumn(column=str(name), known=", ".join(SAMPLE_DTYPES))


def as_array(name: str, values: ArrayLike, kinds: str, expected: str) -> Column:
    """A flat array of one of the numpy `kinds`. An empty list of any type is accepted."""
    array = given_array(name, values, expected)
    if array.ndim != 1:
        raise WrongColumnType(column=name, expected=expected, actual=f"{array.ndim} dimensions")
    if array.dtype.kind not in kinds and array.size:
        raise WrongColumnType(column=name, expected=expected, actual=str(array.dtype))
    return array


def sample_column(name: str, values: ArrayLike, locate: Locate) -> Column:
    """One sample column in its declared type. Integers must fit; floats may be rounded but must not overflow."""
    dtype = SAMPLE_DTYPES[name]
    if dtype.kind == "f":
        array = as_array(name, values, "fiu", "numbers")
        try:
            return read_only(array, dtype)
        except FloatingPointError:
            with np.errstate(all="ignore"):
                overflow = np.isinf(array.astype(dtype)) & np.isfinite(array)
            expected = f"a number that fits {dtype.name}"
            _refuse_first(InvalidNumber, overflow, array, name, locate, expected)
    array = as_array(name, values, "iub" if name == "loss_mask" else "iu", "whole numbers")
    column = read_only(array, dtype)
    if array.dtype != dtype and array.size:
        changed = column != array
        if np.count_nonzero(changed):
            lowest, highest = _LIMITS[name]
            expected = f"a whole number from {lowest} to {highest}"
            _refuse_first(InvalidNumber, changed, array, name, locate, expected)
    if name == "policy_version" and column.size and column.min() < -1:
        expected = "-1 or a revision number"
        _refuse_first(InvalidValue, column < -1, column, name, locate, expected)
    code = _HIGHEST_CODE.get(name)
    if code is not None and column.size and column.max() > code:
        expected = f"a code from 0 to {code}"
        _refuse_first(InvalidValue, column > code, column, name, locate, expected)
    return column


def _refuse_first(
    kind: type[InvalidNumber | InvalidValue],
    bad: NDArray[np.bool_],
    array: Column,
    name: str,
    locate: Locate,
    expected: str,
) -> NoReturn:
    at = int(np.argmax(bad))
    raise kind(record=locate(at), field=name, value=str(array[at]), expected=expected)
