"""ArrowStorage: a folder for each episode, with a table in Arrow or Parquet files and a metadata.json.

A table has a row for each observation. There is one action fewer, so the last row of every other column is padding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rollbook.adapters.extras import library
from rollbook.adapters.lerobot_columns import Unreadable, as_array
from rollbook.adapters.minari.spaces import Key
from rollbook.adapters.minari.storage import (
    LARGEST_ROW,
    PICTURES_AT_ONCE,
    TARGET_BLOCK,
    TEXT_ROWS,
    Column,
    ColumnKind,
    OpenEpisode,
    Part,
    StoredEpisode,
    UnreadableColumn,
    guarded,
)
from rollbook.adapters.steps.json_file import count_in, read_object
from rollbook.errors import DamagedRecording, RollbookError

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_PART = re.compile(r"part-(\d{1,9})\.(?:arrow|parquet)", re.ASCII)
_ROWS_OF_PARQUET = 1 << 16
_DEEPEST = 16
_OWN_VALUES = ("id", "seed", "total_steps")


class ArrowStorage:
    def __init__(self, folder: Path, *, suffix: str) -> None:
        """`suffix` is `arrow` or `parquet`."""
        self._folder = folder
        self._suffix = suffix

    def episodes(self) -> list[StoredEpisode]:
        numbers = sorted(int(each.name) for each in self._folders())
        return [self._episode(self._folder / str(number), number) for number in numbers]

    def stray(self) -> list[str]:
        known = {each.name for each in self._folders()} | {"metadata.json"}
        return sorted(each.name for each in self._folder.iterdir() if each.name not in known)

    @contextmanager
    def open(self, episode: StoredEpisode) -> Iterator[OpenEpisode]:
        parts = [path for path in episode.files if _PART.fullmatch(path.name)]
        with arrow_errors(self._folder / episode.key):
            opened = _ArrowEpisode(self._folder / episode.key, parts)
        yield opened

    def _folders(self) -> list[Path]:
        inside = self._folder.iterdir()
        return [each for each in inside if _NUMBER.fullmatch(each.name) and each.is_dir()]

    def _episode(self, folder: Path, index: int) -> StoredEpisode:
        described = folder / "metadata.json"
        values = read_object(described)
        named = {
            int(match[1]): path
            for path in folder.iterdir()
            if (match := _PART.fullmatch(path.name)) and path.suffix == f".{self._suffix}"
        }
        parts = [path for _, path in sorted(named.items())]
        if not parts:
            detail = f"it has no part-0.{self._suffix}"
            raise DamagedRecording(path=str(folder), detail=detail)
        return StoredEpisode(
            index=index,
            key=folder.name,
            steps=count_in(values, "total_steps", str(described)),
            seed=_seed(values, described),
            files=(self._folder / "metadata.json", described, *parts),
            values={key: each for key, each in values.items() if key not in _OWN_VALUES},
        )


class _ArrowEpisode:
    padded = True

    def __init__(self, folder: Path, parts: Sequence[Path]) -> None:
        self._folder = folder
        self._tables = [_Table(path) for path in parts]
        self._schema = self._tables[0].schema
        self._rows = sum(table.rows for table in self._tables)

    def column(self, part: Part, path: Sequence[Key], *, encoded: bool) -> Column:
        with arrow_errors(self._folder):
            return self._leaf(part, path, encoded)

    def _leaf(self, part: Part, path: Sequence[Key], encoded: bool) -> Column:
        arrow, names = library("pyarrow"), (part, *map(str, path))
        found: Any = self._schema
        for name in names:
            inside = isinstance(found, arrow.Schema) or arrow.types.is_struct(found)
            index = found.get_field_index(name) if inside else -1
            if index < 0:
                detail = f"its table has no {'.'.join(names)}"
                raise DamagedRecording(path=str(self._folder), detail=detail)
            found = found.field(index).type
        return self._column(".".join(names), names, found, encoded)

    def infos(self) -> list[Column | tuple[str, str]]:
        with arrow_errors(self._folder):
            index = self._schema.get_field_index("infos")
            return list(self._infos(("infos",), self._schema.field(index), 0)) if index >= 0 else []

    def _infos(
        self, names: tuple[str, ...], field: Any, depth: int
    ) -> Iterator[Column | tuple[str, str]]:
        full = ".".join(("info", *names[1:]))
        if library("pyarrow").types.is_struct(field.type) and depth < _DEEPEST:
            for inside in field.type:
                yield from self._infos((*names, inside.name), inside, depth + 1)
            return
        try:
            yield self._column(full, names, field.type, False, _shape(field))
        except UnreadableColumn as reason:
            yield full, str(reason)

    def _column(
        self,
        name: str,
        names: tuple[str, ...],
        kind: Any,
        encoded: bool,
        shape: tuple[int, ...] | None = None,
    ) -> Column:
        types = library("pyarrow").types

        def column(kind: ColumnKind, blocks: Callable[[int], Iterator[Any]]) -> Column:
            """Of text or of encoded pictures."""
            return Column(name, kind, self._rows, None, (), self._guarded(blocks))

        if encoded:
            return column("encoded", lambda rows: self._bytes(names, rows))
        if types.is_string(kind) or types.is_large_string(kind):
            return column("text", lambda rows: self._texts(names, rows))
        length, leaf = [], kind
        while types.is_fixed_size_list(leaf):
            length.append(leaf.list_size)
            leaf = leaf.value_type
        if not (types.is_integer(leaf) or types.is_floating(leaf) or types.is_boolean(leaf)):
            raise UnreadableColumn(f"values of type {kind} are not read")
        dtype = np.dtype(leaf.to_pandas_dtype())
        width = int(np.prod(length, dtype=np.int64)) * dtype.itemsize
        if width > LARGEST_ROW:
            detail = f"{name} has rows of {width} bytes; at most {LARGEST_ROW} are read"
            raise DamagedRecording(path=str(self._folder), detail=detail)
        at_once = max(1, TARGET_BLOCK // max(1, width))
        given = shape if shape is not None and np.prod(shape) == np.prod(length) else tuple(length)

        def read(rows: int) -> Iterator[Any]:
            for block in self._blocks(names, rows, at_once):
                yield self._array(name, block).reshape(len(block), *given)

        return Column(name, "numbers", self._rows, dtype, given, self._guarded(read))

    def _guarded(self, blocks: Callable[[int], Iterator[Any]]) -> Callable[[int], Iterator[Any]]:
        return lambda rows: guarded(lambda: arrow_errors(self._folder), blocks(rows))

    def _array(self, name: str, block: Any) -> Any:
        types = library("pyarrow").types
        if types.is_fixed_size_list(block.type) and not block.null_count:
            flat = block.flatten()
            if types.is_floating(flat.type) or (
                types.is_integer(flat.type) and not flat.null_count
            ):
                return flat.to_numpy(zero_copy_only=False)
        try:
            return as_array(library("pyarrow").chunked_array([block]))
        except Unreadable as reason:
            detail = f"{name}: {reason}"
            raise DamagedRecording(path=str(self._folder), detail=detail) from None

    def _texts(self, names: tuple[str, ...], rows: int) -> Iterator[list[str]]:
        for block in self._blocks(names, rows, TEXT_ROWS):
            if block.null_count:
                detail = f"{'.'.join(names)} has rows without text"
                raise DamagedRecording(path=str(self._folder), detail=detail)
            yield block.to_pylist()

    def _bytes(self, names: tuple[str, ...], rows: int) -> Iterator[list[bytes]]:
        types = library("pyarrow").types
        for block in self._blocks(names, rows, PICTURES_AT_ONCE):
            if block.null_count or not (
                types.is_binary(block.type) or types.is_large_binary(block.type)
            ):
                detail = f"{'.'.join(names)} is not one JPEG file for each row"
                raise DamagedRecording(path=str(self._folder), detail=detail)
            yield block.to_pylist()

    def _blocks(self, names: tuple[str, ...], rows: int, at_once: int) -> Iterator[Any]:
        """The first rows of one leaf, in slices."""
        left = rows
        for table in self._tables:
            for array in table.column(names[0]):
                for name in names[1:]:
                    if array.null_count:
                        detail = f"{'.'.join(names)} has rows without values"
                        raise DamagedRecording(path=str(self._folder), detail=detail)
                    array = array.field(name)
                for first in range(0, min(left, len(array)), at_once):
                    yield array.slice(first, min(at_once, left - first))
                left -= min(left, len(array))


class _Table:
    """One file. Arrow files are mapped into memory; of a Parquet file one batch is read at a time."""

    def __init__(self, path: Path) -> None:
        arrow = library("pyarrow")
        self._parquet: Any = None
        if path.suffix == ".parquet":
            self._parquet = library("pyarrow.parquet").ParquetFile(path, memory_map=True)
            self.schema = self._parquet.schema_arrow
            self.rows: int = self._parquet.metadata.num_rows
            return
        self._file = library("pyarrow.ipc").open_file(arrow.memory_map(str(path)))
        self.schema = self._file.schema
        self.rows = 0
        for number in range(self._file.num_record_batches):
            batch = self._file.get_batch(number)
            batch.validate(full=True)  # the file is not trusted: its offsets may lead anywhere
            self.rows += batch.num_rows

    def column(self, name: str) -> Iterator[Any]:
        if self._parquet is not None:
            for batch in self._parquet.iter_batches(_ROWS_OF_PARQUET, columns=[name]):
                yield batch.column(name)
        else:
            for number in range(self._file.num_record_batches):
                yield self._file.get_batch(number).column(name)


@contextmanager
def arrow_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except RollbookError:
        raise
    except (
        library("pyarrow").ArrowException,
        OSError,
        KeyError,
        ValueError,
        TypeError,
        MemoryError,
    ) as error:
        raise DamagedRecording(path=str(path), detail=f"it cannot be read ({error})") from error


def _shape(field: Any) -> tuple[int, ...] | None:
    """The shape of an info, which Minari keeps beside its flat values."""
    text = (field.metadata or {}).get(b"shape", b"").decode("ascii", "replace")
    numbers = text.split(",") if text else []
    return tuple(map(int, numbers)) if numbers and all(map(str.isdigit, numbers)) else None


def _seed(values: dict[str, Any], path: Path) -> int | None:
    seed = values.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        detail = f"its seed is {str(seed)[:40]}, not a whole number"
        raise DamagedRecording(path=str(path), detail=detail)
    return seed
