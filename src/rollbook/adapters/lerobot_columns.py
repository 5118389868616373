"""EpisodeColumns: the columns of one LeRobot episode as arrays, without pictures; and the columns left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.extras import library
from rollbook.adapters.lerobot_episodes import EpisodeEntry, parquet_errors
from rollbook.adapters.lerobot_info import LeRobotInfo
from rollbook.adapters.steps.text_column import UnstorableText, text_array
from rollbook.adapters.storable_text import stream_name_problem
from rollbook.contracts.streams import CLOCK_FIELD, ONLY_FIELD
from rollbook.contracts.typed_metadata import EpisodeOutcome
from rollbook.errors import StorageError, TruncatedFile

Array: TypeAlias = "NDArray[Any]"
ColumnSlot: TypeAlias = Literal["sensors", "actions", "video", "internal"]

_INTERNAL = frozenset({"timestamp", "frame_index", "episode_index", "index", "task_index"})
_OUTCOME_PREFIX = "next."
_LARGEST_KEPT = 64 << 20
"""Bytes of a table, unpacked, up to which it is kept while its episodes are read."""


def column_slot(info: LeRobotInfo, name: str) -> ColumnSlot:
    if name in _INTERNAL:
        return "internal"
    feature = info.features.get(name)
    if feature is not None and feature.is_camera:
        return "video"
    return "actions" if name == "action" or name.startswith("action.") else "sensors"


class Unreadable(Exception):
    """The reason why a column is left out."""


@dataclass
class EpisodeColumns:
    t_ns: NDArray[np.int64]
    timestamps_from_fps: bool
    """True where the dataset has no times, so that rows are assumed to be one frame apart."""
    slots: dict[str, dict[str, Array]] = field(
        default_factory=lambda: {"sensors": {}, "actions": {}}
    )
    skipped: dict[str, str] = field(default_factory=dict)
    task_indices: tuple[int, ...] = ()

    def streams(self, slot: str) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        for name, values in self.slots[slot].items():
            arrays[f"{name}/{ONLY_FIELD}"] = values
            arrays[f"{name}/{CLOCK_FIELD}"] = self.t_ns
        return arrays

    def outcome(self) -> EpisodeOutcome:
        """From `next.success` and `next.reward`. An outcome without a column stays unknown."""
        success = self._flag("next.success")
        reward = self.slots["sensors"].get("next.reward")
        reached = None
        if success is not None and success[-1]:
            reached = max(0.0, float(self.t_ns[success.argmax()] - self.t_ns[0]) / 1e9)
        return EpisodeOutcome(
            success=None if success is None else bool(success[-1]),
            reward_total=None if reward is None else _finite_sum(reward),
            time_to_goal_s=reached,
        )

    def last_values(self) -> dict[str, Any]:
        """The last row of every `next.*` column and the sum of the rewards, under the keys that older readers use."""
        values = {
            name: _plain(array[-1])
            for name, array in self.slots["sensors"].items()
            if name.startswith(_OUTCOME_PREFIX) and array.ndim == 1
        }
        total = self.outcome().reward_total
        return values if total is None else {**values, "next.reward_sum": total}

    def _flag(self, name: str) -> NDArray[np.bool_] | None:
        values = self.slots["sensors"].get(name)
        if values is None or values.dtype.kind not in "biu" or values.size != len(self.t_ns):
            return None
        return values.reshape(-1).astype(bool)


def _finite_sum(values: Array) -> float | None:
    if values.dtype.kind not in "biuf":
        return None
    total = float(np.sum(values, dtype=np.float64))
    return total if math.isfinite(total) else None


def _plain(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


# ---------------------------------------------------------------------------------------- reading


def read_table(info: LeRobotInfo, entry: EpisodeEntry, columns: list[str] | None = None) -> Any:
    """The rows of one episode: the named columns, or all columns except pictures."""
    parquet = library("pyarrow.parquet")
    with parquet_errors(entry.data):
        footer = parquet.read_metadata(entry.data)
        present = footer.schema.to_arrow_schema().names
        wanted = columns or [name for name in present if column_slot(info, name) != "video"]
        if missing := sorted(set(wanted) - set(present)):
            raise StorageError(path=str(entry.data), detail=f"there is no column {missing[0]}")
        rows = _row_filter(entry, present)
        if rows is not None and columns is None and _unpacked_bytes(footer) <= _LARGEST_KEPT:
            facts = entry.data.stat()
            whole = _whole_table(entry.data, tuple(wanted), facts.st_size, facts.st_mtime_ns)
            table = whole.filter(parquet.filters_to_expression(rows))
        else:
            table = parquet.read_table(
                entry.data, columns=wanted, filters=rows, partitioning=None, memory_map=True
            )
    _check_rows(entry, table)
    return table


def _unpacked_bytes(footer: Any) -> int:
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    return sum(group.total_byte_size for group in groups)


@lru_cache(maxsize=1)
def _whole_table(path: Path, columns: tuple[str, ...], size: int, mtime_ns: int) -> Any:
    """A table that many episodes share is unpacked once, not once for each of them."""
    parquet = library("pyarrow.parquet")
    return parquet.read_table(path, columns=list(columns), partitioning=None, memory_map=True)


def _row_filter(entry: EpisodeEntry, present: list[str]) -> Any:
    if entry.first_row is None:
        return None
    if "index" in present:
        end = entry.first_row + entry.length
        return [("index", ">=", entry.first_row), ("index", "<", end)]
    if "episode_index" in present:
        return [("episode_index", "=", entry.index)]
    detail = "rows have neither an index nor an episode_index, so their episode is unknown"
    raise StorageError(path=str(entry.data), detail=detail)


def _check_rows(entry: EpisodeEntry, table: Any) -> None:
    if not entry.length:
        raise StorageError(path=str(entry.data), detail=f"episode {entry.index} has no rows")
    if table.num_rows != entry.length:
        detail = f"it has {table.num_rows} rows of episode {entry.index}, which has {entry.length}"
        raise TruncatedFile(path=str(entry.data), detail=detail)
    if "episode_index" in table.column_names:
        others = set(table.column("episode_index").to_pylist()) - {entry.index}
        if others:
            detail = f"rows of episode {entry.index} have the episode_index {sorted(map(str, others))[0]}"
            raise StorageError(path=str(entry.data), detail=detail)


def read_columns(info: LeRobotInfo, entry: EpisodeEntry) -> EpisodeColumns:
    table = read_table(info, entry)
    t_ns = _clock(info, entry, table)
    columns = EpisodeColumns(t_ns, "timestamp" not in table.column_names)
    for name in table.column_names:
        slot = column_slot(info, name)
        if slot in columns.slots:
            try:
                _check_name(name)
                columns.slots[slot][name] = as_array(table.column(name))
            except Unreadable as reason:
                columns.skipped[name] = str(reason)
    for name in info.features:
        if name not in table.column_names and column_slot(info, name) in columns.slots:
            columns.skipped[name] = "info.json names it, but the table has no such column"
    if "task_index" in table.column_names:
        tasks = dict.fromkeys(table.column("task_index").to_pylist())
        columns.task_indices = tuple(task for task in tasks if isinstance(task, int))
    return columns


def _check_name(name: str) -> None:
    problem = stream_name_problem(name)
    if problem is not None:
        raise Unreadable(problem)


def _clock(info: LeRobotInfo, entry: EpisodeEntry, table: Any) -> NDArray[np.int64]:
    if "timestamp" not in table.column_names:
        return _nanoseconds(np.arange(entry.length) / info.fps)
    try:
        seconds = as_array(table.column("timestamp")).reshape(entry.length).astype(np.float64)
    except (Unreadable, ValueError) as error:
        detail = f"timestamp is not one number for each row ({error})"
        raise StorageError(path=str(entry.data), detail=detail) from error
    invalid = ~(np.abs(seconds) < 9e9)
    invalid[1:] |= ~(np.diff(seconds) > 0)
    if invalid.any():
        row = int(invalid.argmax())
        detail = f"timestamp of row {row} is {seconds[row]}, not later than the one before"
        raise StorageError(path=str(entry.data), detail=detail)
    return _nanoseconds(seconds)


def _nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    rounded: NDArray[np.int64] = np.rint(seconds * 1e9).astype(np.int64)
    return rounded


# ------------------------------------------------------------------------------------------ values


def as_array(column: Any) -> Array:
    """A column as one array of the same type. Lists become dimensions. Raises Unreadable with the reason."""
    arrow = library("pyarrow")
    values = column.combine_chunks()
    if isinstance(values, arrow.ChunkedArray):
        values = arrow.concat_arrays(values.chunks)
    shape = [len(values)]
    while True:
        if isinstance(values, arrow.ExtensionArray):
            values = values.storage
        if arrow.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if not _is_list(arrow.types, values.type):
            return _leaf(arrow.types, values).reshape(shape)
        shape.append(_list_length(values))
        values = values.flatten()


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _list_length(values: Any) -> int:
    if values.null_count:
        raise Unreadable(f"{values.null_count} rows are null")
    compute = library("pyarrow.compute")
    lengths = compute.unique(compute.list_value_length(values)).to_pylist()
    if len(lengths) > 1:
        raise Unreadable(f"lists of {min(lengths)} to {max(lengths)} values: rows differ in length")
    return int(lengths[0]) if lengths else 0


def _leaf(types: Any, values: Any) -> Array:
    kind = values.type
    if types.is_floating(kind):
        return np.asarray(values.to_numpy(zero_copy_only=False))  # null is NaN
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if not (types.is_integer(kind) or types.is_boolean(kind) or is_text):
        raise Unreadable(f"values of type {kind} are neither numbers, truth values nor text")
    if values.null_count:
        raise Unreadable(
            f"{values.null_count} values are null, which an array of {kind} cannot hold"
        )
    if not is_text:
        return np.asarray(values.to_numpy(zero_copy_only=False))
    try:
        return text_array(values.to_pylist())
    except UnstorableText as reason:
        raise Unreadable(str(reason)) from None
