"""Hdf5Storage: all episodes in one file, main_data.hdf5, one group for each.

A file may come from anybody: links to other files and data that lies outside of the file are refused, and so are
rows that were declared and never written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rollbook.adapters.extras import library
from rollbook.adapters.minari.spaces import Key
from rollbook.adapters.minari.storage import (
    Column,
    ColumnKind,
    OpenEpisode,
    Part,
    StoredEpisode,
    UnreadableColumn,
)
from rollbook.adapters.recording import Skipped
from rollbook.adapters.steps.h5_dataset import DatasetReader, described_dataset
from rollbook.adapters.steps.h5_file import (
    h5_errors,
    link_problem,
    object_at,
    object_names,
    opened,
)
from rollbook.errors import DamagedRecording

FILE = "main_data.hdf5"
_EPISODE = re.compile(r"episode_(\d{1,9})", re.ASCII)
_DEEPEST = 16
_MOST_COLUMNS = 4096
_MOST_VALUES = 256
_LONGEST_VALUE = 1024
_OWN_VALUES = ("id", "seed", "total_steps")


class Hdf5Storage:
    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._files = (folder / "metadata.json", self._path)

    def episodes(self) -> list[StoredEpisode]:
        with opened(self._path) as file:
            names = self._names(file)
            found = [(int(match[1]), name) for name in names if (match := _EPISODE.fullmatch(name))]
            return [self._episode(file, index, name) for index, name in sorted(found)]

    def stray(self) -> list[str]:
        with opened(self._path) as file:
            return sorted(name for name in self._names(file) if not _EPISODE.fullmatch(name))

    @contextmanager
    def open(self, episode: StoredEpisode) -> Iterator[OpenEpisode]:
        with opened(self._path) as file:
            yield _Hdf5Episode(self._path, self._group(file, episode.key))

    def _names(self, file: Any) -> list[str]:
        with h5_errors(self._path, "the names of its episodes cannot be read"):
            return [raw.decode("utf-8", "backslashreplace") for raw in file.id]

    def _group(self, file: Any, name: str) -> Any:
        found = _inside(file, name, self._path)
        if not _is_group(found):
            raise DamagedRecording(path=str(self._path), detail=f"{name} is not a group")
        return library("h5py").Group(found)

    def _episode(self, file: Any, index: int, name: str) -> StoredEpisode:
        group = self._group(file, name)
        with h5_errors(self._path, f"the values of {name} cannot be read"):
            values = _values(group)
        return StoredEpisode(
            index=index,
            key=name,
            steps=_whole(self._path, name, values, "total_steps"),
            seed=_whole(self._path, name, values, "seed"),
            files=self._files,
            values={key: each for key, each in values.items() if key not in _OWN_VALUES},
        )


class _Hdf5Episode:
    padded = False

    def __init__(self, path: Path, group: Any) -> None:
        self._path = path
        self._group = group

    def column(self, part: Part, path: Sequence[Key], *, encoded: bool) -> Column:
        above, found, name = self._group, None, ""
        for key in (part, *path):
            if found is not None:
                above = library("h5py").Group(found) if _is_group(found) else None
            step = f"_index_{key}" if isinstance(key, int) else key
            name = f"{name}/{step}" if name else step
            found = None if above is None else _inside(above, step, self._path)
            if found is None:
                detail = f"{self._group.name} has no {name}"
                raise DamagedRecording(path=str(self._path), detail=detail)
        return self._column(name, found, encoded)

    def infos(self) -> list[Column | tuple[str, str]]:
        top = _inside(self._group, "infos", self._path)
        if top is None:
            return []
        if not _is_group(top):
            return [("info", "it is not a group")]
        return list(self._infos(library("h5py").Group(top), "info", 0, [_MOST_COLUMNS]))

    def _infos(
        self, group: Any, name: str, depth: int, budget: list[int]
    ) -> Iterator[Column | tuple[str, str]]:
        for key, _ in object_names(group, self._path):
            budget[0] -= 1
            if budget[0] < 0 or depth > _DEEPEST:
                detail = f"{name} has too many parts, or parts of itself"
                raise DamagedRecording(path=str(self._path), detail=detail)
            inside, full = _inside(group, key, self._path), f"{name}.{key}"
            if _is_group(inside):
                yield from self._infos(library("h5py").Group(inside), full, depth + 1, budget)
                continue
            try:
                yield self._column(full, inside, False)
            except UnreadableColumn as reason:
                yield full, str(reason)

    def _column(self, name: str, found: Any, encoded: bool) -> Column:
        if not isinstance(found, library("h5py").h5d.DatasetID):
            raise UnreadableColumn("it is not an array")
        described = described_dataset(found, name, self._path)
        if isinstance(described, Skipped):
            raise UnreadableColumn(described.reason)
        if not described.shape:
            raise UnreadableColumn("it has no rows")
        reader = DatasetReader(found, described, self._path)
        kind, read = _way_to_read(reader, encoded, self._path)
        is_number = kind == "numbers"
        return Column(
            name,
            kind,
            described.rows,
            described.dtype if is_number else None,
            described.row_shape if is_number else (),
            lambda _: read(),
        )


# ----------------------------------------------------------------------------------------- reading


def _inside(group: Any, name: str, path: Path) -> Any:
    """The id of the group or dataset with this name; None where there is none."""
    raw = name.encode("utf-8", "surrogatepass")
    with h5_errors(path, f"{name} cannot be opened"):
        if not group.id.links.exists(raw):
            return None
    problem = link_problem(group, raw, path)
    if problem is not None:
        raise DamagedRecording(path=str(path), detail=f"{group.name}/{name}: {problem}")
    return object_at(group, raw, path)


def _is_group(found: Any) -> bool:
    return isinstance(found, library("h5py").h5g.GroupID)


def _way_to_read(
    reader: DatasetReader, encoded: bool, path: Path
) -> tuple[ColumnKind, Callable[[], Iterator[Any]]]:
    described = reader.described
    if encoded:
        return "encoded", lambda: _pictures(reader)
    if described.kind == "numbers":
        return "numbers", reader.blocks
    if described.kind == "text" and len(described.shape) == 1:
        return "text", lambda: _texts(reader, path)
    raise UnreadableColumn("it holds lists of bytes or tables of texts")


def _texts(reader: DatasetReader, path: Path) -> Iterator[list[str]]:
    try:
        yield from reader.texts()
    except UnicodeDecodeError as error:
        detail = f"{reader.described.name}: its bytes are not text in UTF-8"
        raise DamagedRecording(path=str(path), detail=detail) from error


def _pictures(reader: DatasetReader) -> Iterator[list[bytes]]:
    """JPEG files: of one length as rows of bytes, of several as lists of bytes."""
    if reader.described.kind == "bytes":
        return ([each.tobytes()] for each in reader.byte_rows())
    return ([each.tobytes() for each in block] for block in reader.blocks())


def _values(group: Any) -> dict[str, Any]:
    """The attributes of an episode, as far as they are short."""
    found: dict[str, Any] = {}
    for name in list(group.attrs)[:_MOST_VALUES]:
        if not isinstance(name, str):  # bytes, if it is not UTF-8
            continue
        if group.attrs.get_id(name).get_storage_size() > 64 * _LONGEST_VALUE:
            continue
        value = group.attrs[name]
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            value = value.tolist()
        if isinstance(value, bool | int | float | str | list) and len(str(value)) <= _LONGEST_VALUE:
            found[name] = value
    return found


def _whole(path: Path, episode: str, values: dict[str, Any], key: str) -> int | None:
    value = values.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    detail = f"{key} of {episode} is {str(value)[:40]}, not a whole number"
    raise DamagedRecording(path=str(path), detail=detail)
