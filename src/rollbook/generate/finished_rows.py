"""FinishedRows: the rows that a run has rolled out, kept on disk until its store is complete.

A hidden folder beside the store has one file per source row and `run.json`, which says what the rows were made with.
Every row is written by the worker that made it and read from here for the store. A run that is killed therefore loses
only the rows it was working on, and a resumed run gives the same bytes as one that was never stopped.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from rollbook.digest import checksum
from rollbook.errors import ChecksumMismatch, StorageError, UnfinishedRun
from rollbook.files import make_folders, write_bytes, write_errors
from rollbook.generate.row_rollouts import RowOutcome

Unfinished: TypeAlias = Literal["refuse", "resume", "discard"]
"""What to do with the finished rows of a run that did not end."""

_RUN = "run.json"
_ROW = re.compile(r"(\d{8,})\.row")
_START_OVER = "--start-over discards them (in Python: unfinished='discard')"


class FinishedRows:
    """Opened as a context. The folder is removed when the block succeeds, and when no row was finished."""

    def __init__(self, store_dir: str | os.PathLike[str]) -> None:
        final = Path(store_dir).absolute()
        self.folder = final.with_name(f".{final.name}.rows")

    def numbers(self) -> frozenset[int]:
        """The source rows that are finished."""
        with suppress(FileNotFoundError):
            found = map(_ROW.fullmatch, os.listdir(self.folder))
            return frozenset(int(each[1]) for each in found if each is not None)
        return frozenset()

    def prepare(self, made_with: Mapping[str, Any], unfinished: Unfinished) -> None:
        """Makes the folder ready for a run. Rows of another run are refused, unless they are to be discarded."""
        now = msgspec.json.encode(made_with)
        count = len(self.numbers())
        rows = f"{count:,} finished row{'s' if count > 1 else ''}"
        if count and unfinished == "refuse":
            raise self._refusal(
                f"{rows} of a run that did not end: --resume goes on with them "
                f"(in Python: unfinished='resume'), {_START_OVER}"
            )
        if count and unfinished == "resume":
            change = self._change(now)
            if change is not None:
                detail = f"{rows} that --resume cannot use, because {change}"
                raise self._refusal(f"{detail}; {_START_OVER}")
            return
        self.remove()
        with write_errors(self.folder):
            make_folders(self.folder)
        write_bytes(self.folder / _RUN, now)

    def _refusal(self, detail: str) -> UnfinishedRun:
        return UnfinishedRun(path=str(self.folder), detail=detail)

    def _change(self, now: bytes) -> str | None:
        """The first difference between what the kept rows were made with and what this run would use."""
        try:
            before = dict(_leaves(msgspec.json.decode((self.folder / _RUN).read_bytes())))
        except (OSError, msgspec.DecodeError) as error:
            return f"{_RUN} cannot be read ({error})"
        after = dict(_leaves(msgspec.json.decode(now)))
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                return f"{name} was {before.get(name)!r} and is {after.get(name)!r}"
        return None

    def save(self, row: int, outcome: RowOutcome) -> None:
        """Durable when this returns."""
        data = _encode(outcome)
        write_bytes(self._file(row), checksum(data).encode() + data)

    def load(self, row: int) -> RowOutcome:
        file = self._file(row)
        try:
            stored = file.read_bytes()
        except OSError as error:
            detail = f"cannot be read ({error.strerror or error})"
            raise StorageError(path=str(file), detail=detail) from error
        found, data = stored[:_SUM], memoryview(stored)[_SUM:]
        if checksum(data).encode() != found:
            detail = "the row was damaged; remove this file and resume: the row is made again"
            raise ChecksumMismatch(path=str(file), detail=detail)
        return _decode(data)

    def _file(self, row: int) -> Path:
        return self.folder / f"{row:08d}.row"

    def remove(self) -> None:
        with write_errors(self.folder), suppress(FileNotFoundError):
            shutil.rmtree(self.folder)

    def __enter__(self) -> FinishedRows:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None or not self.numbers():
            shutil.rmtree(self.folder, ignore_errors=True)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value of nested tables, by its dotted name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value


# ----------------------------------------------------------------------------------- bytes of a row


class _StoredRow(msgspec.Struct, array_like=True):
    outcome: msgspec.Raw
    """The outcome with a number in the place of every array. Steps share arrays, and each is stored once."""
    arrays: list[tuple[str, tuple[int, ...], bytes]]
    """Type, shape and bytes."""


_SUM = len(checksum(b""))


def _encode(outcome: RowOutcome) -> bytes:
    numbers: dict[int, int] = {}
    arrays: list[np.ndarray[Any, Any]] = []

    def hook(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray):
            raise NotImplementedError(f"{type(value).__name__} in a rollout record")
        number = numbers.setdefault(id(value), len(arrays))
        if number == len(arrays):
            arrays.append(value)
        return number

    tree = msgspec.msgpack.encode(outcome, enc_hook=hook)
    stored = [(array.dtype.str, array.shape, array.tobytes()) for array in arrays]
    return msgspec.msgpack.encode(_StoredRow(msgspec.Raw(tree), stored))


def _decode(data: memoryview) -> RowOutcome:
    stored = msgspec.msgpack.decode(data, type=_StoredRow)
    arrays = [np.ndarray(shape, dtype, buffer=content) for dtype, shape, content in stored.arrays]
    return msgspec.msgpack.decode(
        stored.outcome, type=RowOutcome, dec_hook=lambda kind, number: arrays[number]
    )
