"""Storage: how the episodes of a Minari dataset lie in files. Each data format has a class that reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from rollbook.adapters.minari.spaces import Key

TARGET_BLOCK = 8 << 20
"""Bytes of rows that are read at once."""
LARGEST_ROW = 1 << 28
TEXT_ROWS = 4096
PICTURES_AT_ONCE = 16

ColumnKind: TypeAlias = Literal["numbers", "text", "encoded"]
"""`encoded`: one JPEG file for each row."""
Part: TypeAlias = Literal["observations", "actions", "rewards", "terminations", "truncations"]


class UnreadableColumn(Exception):
    """The reason why a column is left out."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: ColumnKind
    rows: int
    dtype: np.dtype[Any] | None
    """None unless it holds numbers."""
    shape: tuple[int, ...]
    read: Callable[[int], Iterator[Any]]
    """Called with the number of rows that are wanted. Yields arrays of numbers, lists of text, or lists of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEpisode:
    index: int
    key: str
    steps: int | None
    """That it declares."""
    seed: int | None
    files: tuple[Path, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else was kept with it, such as the options of the reset."""


def guarded(
    errors: Callable[[], AbstractContextManager[None]], blocks: Iterator[Any]
) -> Iterator[Any]:
    """The same blocks. `errors` is around the reading of each, and not around what is done with it."""
    while True:
        with errors():
            block = next(blocks, None)
        if block is None:
            return
        yield block


class OpenEpisode(Protocol):
    def column(self, part: Part, path: Sequence[Key], *, encoded: bool) -> Column:
        """One leaf. `encoded` says that it is stored as JPEG. A missing one raises DamagedRecording, one of a type
        that is not read UnreadableColumn."""
        ...

    def infos(self) -> list[Column | tuple[str, str]]:
        """What the environment reported beside its observations; or the name of a value, and why it is not read."""
        ...

    @property
    def padded(self) -> bool:
        """Whether all columns have a row for each observation, so that the last action means nothing."""
        ...


class Storage(Protocol):
    def episodes(self) -> list[StoredEpisode]: ...

    def stray(self) -> list[str]:
        """What else lies there."""
        ...

    def open(self, episode: StoredEpisode) -> AbstractContextManager[OpenEpisode]: ...
