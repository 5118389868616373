"""Rollouts from the padded arrays of a trainer, flattened without a loop over rows for `RolloutTable.from_padded`.

The samples of a row are its tokens from the first one of the response on; the tokens before it are the prompt. Padding
is left out wherever it lies.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.record import U32_MAX
from rollbook.contracts.rl.build import PromptTokens
from rollbook.contracts.rl.given_array import AnyArray, given_array
from rollbook.contracts.rl.provenance import RolloutTerminationReason
from rollbook.contracts.rl.sample import BASE_COLUMNS, check_column_names
from rollbook.contracts.rl.text_column import Offsets, offsets_of
from rollbook.digest import digest_of
from rollbook.errors import InvalidNumber, InvalidValue, WrongColumnType

Value = TypeVar("Value")
OneOrEach: TypeAlias = "Value | Sequence[Value]"
"""One value for all rows, or one for each row."""

Mask = NDArray[np.bool_]

ID_DOMAIN = "rollbook.padded_rollouts.v1"


def flattened(
    input_ids: ArrayLike,
    response_mask: ArrayLike,
    logprobs: ArrayLike,
    *,
    rewards: ArrayLike | None,
    sequence_rewards: ArrayLike | None,
    advantages: ArrayLike | None,
    attention_mask: ArrayLike | None,
    columns: Mapping[str, ArrayLike],
    **per_row: Any,
) -> dict[str, Any]:
    """The arguments of `RolloutTable.from_columns` for these arrays."""
    grid = _Grid(input_ids, response_mask, attention_mask)
    samples = {
        "token_id": grid.token_ids(grid.samples),
        "logprob": grid.per_token("logprobs", logprobs),
        "reward": grid.rewards(rewards, sequence_rewards),
        "advantage": grid.values("advantages", 0 if advantages is None else advantages),
        **grid.optional_columns(columns),
    }
    for column in samples.values():
        column.setflags(write=False)  # new arrays that nobody else has: a table need not copy them
    offsets = offsets_of(np.count_nonzero(grid.samples, axis=1))
    prompt = PromptTokens(
        grid.token_ids(grid.prompts), offsets_of(np.count_nonzero(grid.prompts, axis=1))
    )
    if per_row["created_at_ms"] is None:
        per_row["created_at_ms"] = time.time_ns() // 1_000_000
    if per_row["termination_reason"] is None:
        per_row["termination_reason"] = RolloutTerminationReason.COMPLETED
    per_row["group_id"] = _group_texts(per_row["group_id"])
    each = {name: _each(value, grid.rows) for name, value in per_row.items()}
    if each["artifact_id"] is None:
        each["artifact_id"] = _ids(samples, offsets, prompt, each["created_at_ms"])
    return {**each, "samples": samples, "offsets": offsets, "prompt": prompt}


def _each(value: Any, rows: int) -> Any:
    """One entry per row: a text, a number or a record is one value for all rows. None stays None."""
    if value is None or (hasattr(value, "__len__") and not isinstance(value, str)):
        return value
    return [value] * rows


def _group_texts(group_id: Any) -> Any:
    """Group ids as text. Trainers often number their groups."""
    given = group_id
    if hasattr(group_id, "__array__"):
        given = given_array("group_id", group_id, "texts or whole numbers").tolist()
    if not isinstance(given, list | tuple):
        return group_id
    return [str(each) if type(each) is int else each for each in given]


def _ids(
    samples: Mapping[str, AnyArray], offsets: Offsets, prompt: PromptTokens, created_at_ms: Any
) -> list[str]:
    """Ids from the content: the same arrays and times give the same ids, so that they can be submitted again."""
    times = created_at_ms.tolist() if hasattr(created_at_ms, "tolist") else created_at_ms
    parts = {
        **samples,
        "offsets": offsets,
        **{f"prompt {k}": v for k, v in prompt._asdict().items()},
    }
    content = {name: np.ascontiguousarray(part).tobytes() for name, part in parts.items()}
    batch = digest_of(ID_DOMAIN, {**content, "created_at_ms": str(times)})[:24]
    return [f"{batch}-{row}" for row in range(len(offsets) - 1)]


class _Grid:
    """The token of every row and column, and which of them are prompt, response and padding."""

    def __init__(
        self, input_ids: ArrayLike, response_mask: ArrayLike, attention_mask: ArrayLike | None
    ) -> None:
        self._ids = _array("input_ids", input_ids, 2, "iu", "whole numbers")
        self.rows, self.width = self._ids.shape
        self.response = self._mask("response_mask", response_mask)
        begun = np.logical_or.accumulate(self.response, axis=1)
        if attention_mask is None:
            ended = np.logical_or.accumulate(self.response[:, ::-1], axis=1)[:, ::-1]
            self.samples, self.prompts = begun & ended, np.zeros_like(begun)
            return
        tokens = self._mask("attention_mask", attention_mask)
        self._refuse_where(
            self.response & ~tokens, "attention_mask", "0", "1 where response_mask is 1"
        )
        self.samples, self.prompts = tokens & begun, tokens & ~begun

    def token_ids(self, mask: Mask) -> NDArray[np.uint32]:
        ids = self._ids[mask]
        if ids.size and (ids.min() < 0 or ids.max() > U32_MAX):
            bad = mask & ((self._ids < 0) | (self._ids > U32_MAX))
            self._refuse_where(bad, "input_ids", self._ids, f"a token id from 0 to {U32_MAX}")
        return ids.astype(np.uint32)

    def per_token(self, name: str, given: ArrayLike) -> AnyArray:
        return self._placed(name, _array(name, given, 2, "fiu", "numbers"))[self.samples]

    def values(self, name: str, given: ArrayLike, elsewhere: int = 0) -> AnyArray:
        """One value per sample, from one value per token, per row, or for all.

        A value per row or for all is that of the response. Other tokens among the samples have `elsewhere`.
        """
        array = _array(name, given, None, "fiu", "numbers")
        if array.ndim == 2:
            return self.per_token(name, array)
        spread = self._spread(name, array)
        return np.where(self.response, spread, spread.dtype.type(elsewhere))[self.samples]

    def rewards(self, rewards: ArrayLike | None, per_row: ArrayLike | None) -> AnyArray:
        """A reward per row belongs to the last token of the response."""
        if (rewards is None) == (per_row is None):
            raise InvalidValue(
                record="padded rollouts",
                field="rewards",
                value="missing" if rewards is None else "given twice",
                expected="either rewards (one per token) or sequence_rewards (one per row)",
            )
        if rewards is not None:
            return self.per_token("rewards", rewards)
        array = _array("sequence_rewards", per_row, 1, "fiu", "numbers")
        later = np.logical_or.accumulate(self.response[:, :0:-1], axis=1)[:, ::-1]
        last = self.response.copy()
        last[:, :-1] &= ~later
        spread = self._spread("sequence_rewards", array)
        return np.where(last, spread, spread.dtype.type(0))[self.samples]

    def optional_columns(self, given: Mapping[str, ArrayLike]) -> dict[str, AnyArray]:
        if not isinstance(given, Mapping):
            raise WrongColumnType(
                column="columns", expected="columns by name", actual=type(given).__name__
            )
        check_column_names(given)
        for name in given:
            if name in BASE_COLUMNS:
                raise InvalidValue(
                    record="padded rollouts",
                    field="columns",
                    value=name,
                    expected=f"optional columns; {name} has its own argument",
                )
        columns = {name: self._optional(name, values) for name, values in given.items()}
        if "loss_mask" not in columns and (self.samples & ~self.response).any():
            columns["loss_mask"] = self.response[self.samples]
        return columns

    def _optional(self, name: str, given: ArrayLike) -> AnyArray:
        if name == "loss_mask":
            return self._mask(name, given)[self.samples]
        if name == "policy_version":
            return self.values(name, given, elsewhere=-1)  # no policy sampled the other tokens
        array = _array(name, given, None, "fiu", "numbers")
        whole = self._placed(name, array) if array.ndim == 2 else self._spread(name, array)
        return whole[self.samples]

    def _mask(self, name: str, given: ArrayLike) -> Mask:
        array = _array(name, given, 2, "biuf", "0 and 1, or booleans")
        placed = self._placed(name, array, missing=0)
        mask: Mask = placed == 1
        self._refuse_where(~mask & (placed != 0), name, placed, "0 or 1")
        return mask

    def _placed(self, name: str, array: AnyArray, missing: float | None = None) -> AnyArray:
        """The values at the columns of `input_ids`: a narrower array is that of its last columns."""
        rows, width = array.shape
        if rows != self.rows or width > self.width:
            raise WrongColumnType(
                column=name,
                expected=f"{self.rows} rows of at most {self.width} columns, as input_ids",
                actual=f"{rows} rows of {width} columns",
            )
        if width == self.width:
            return array
        outside = self.width - width
        if missing is None:
            uncovered = self.samples.copy()
            uncovered[:, outside:] = False
            self._refuse_where(uncovered, name, "missing", f"a value; it has {width} columns")
        placed = np.zeros((rows, self.width), array.dtype)
        placed[:, outside:] = array
        return placed

    def _spread(self, name: str, array: AnyArray) -> AnyArray:
        """One value per row, or one for all, at every column."""
        if array.ndim == 1 and len(array) != self.rows:
            raise WrongColumnType(
                column=name,
                expected=f"{self.rows} values, one for each row of input_ids",
                actual=f"{len(array)} values",
            )
        column = array[:, None] if array.ndim else array
        return np.broadcast_to(column, (self.rows, self.width))

    def _refuse_where(self, bad: Mask, field: str, value: AnyArray | str, expected: str) -> None:
        if not bad.any():
            return
        row, column = np.unravel_index(int(np.argmax(bad)), bad.shape)
        shown = value if isinstance(value, str) else str(value[row, column])
        raise InvalidNumber(
            record=f"row {row}, column {column}", field=field, value=shown, expected=expected
        )


def _array(name: str, given: Any, dimensions: int | None, kinds: str, expected: str) -> AnyArray:
    array = given_array(name, given, expected)
    if array.ndim != dimensions and (dimensions is not None or array.ndim > 2):
        shape = {1: "one per row", 2: "rows and columns", None: "at most 2 dimensions"}[dimensions]
        raise WrongColumnType(
            column=name, expected=f"{expected}, {shape}", actual=f"{array.ndim} dimensions"
        )
    if array.dtype.kind not in kinds and array.size:
        raise WrongColumnType(column=name, expected=expected, actual=str(array.dtype))
    return array
