"""ParquetExporter: the streams of episodes as Parquet tables, exactly as they were recorded.

`episodes.parquet` has one row for each episode and says where it comes from. Each namespace is a table of its own with
its own times, because streams differ in rate; `wide` makes one table of all streams that share their times. Digests are
columns: readers drop the key-value metadata of files. Videos are copied.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.exports.array_rows import ArrayRows
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import ExportSummary, Loss, OnEpisode
from rollbook.adapters.exports.file_errors import file_errors, text_errors
from rollbook.adapters.exports.parquet_columns import ParquetColumn, why_not
from rollbook.adapters.exports.provenance import provenance, provenance_types
from rollbook.adapters.exports.row_groups import RowGroups
from rollbook.adapters.exports.stream_rows import StreamRows, clocked_streams
from rollbook.adapters.extras import library
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.npz import ArrayFacts
from rollbook.contracts.source_file import SourceFile
from rollbook.contracts.streams import CLOCK_FIELD, first_fall
from rollbook.errors import ConfigurationError, InvalidValue, TargetExists, near_names
from rollbook.files import promote_folder, write_errors

FORMAT = "parquet"
_TIME = "t_ns"
_FIRST = ("episode_index", "episode_id", "episode", "source_digest", "artifact_sha256", _TIME)
"""Columns of every table, before its fields."""
_WIDE = "streams"
_MEMORY = 64 << 20
_LEAST_GROUP = 256 << 10
_BLOCK_BYTES = 4 << 20
_BLOCK_ROWS = 1 << 15
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class _Table:
    """One file, before it is written."""

    path: str
    columns: tuple[ParquetColumn, ...]

    def schema(self) -> Any:
        arrow = library("pyarrow")
        first = {name: arrow.string() for name in _FIRST}
        first |= {"episode_index": arrow.int64(), _TIME: arrow.int64()}
        return arrow.schema([*first.items(), *((c.name, c.type()) for c in self.columns)])

    def signature(self) -> dict[str, str]:
        return {column.name: str(column.type()) for column in self.columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetExporter:
    only: tuple[str, ...] | None = field(
        default=None,
        metadata={"help": "Namespaces of streams to export. Without it: all of them."},
    )
    wide: bool = field(
        default=False,
        metadata={"help": "Write one table with all streams. They need to have the same times."},
    )
    video: bool = field(default=True, metadata={"help": "Copy the videos too."})

    @property
    def format(self) -> str:
        return FORMAT

    def losses(self, episodes: Sequence[ExportedEpisode]) -> list[Loss]:
        return self._planned(episodes)[1]

    def write(
        self, episodes: Sequence[ExportedEpisode], target: Path, on_episode: OnEpisode
    ) -> ExportSummary:
        if os.path.lexists(target):
            raise TargetExists(path=str(target), detail="choose a folder that does not exist")
        tables, _ = self._planned(episodes)
        part = target.with_name(f".{target.name[:40]}.{os.urandom(8).hex()}.part")
        try:
            with write_errors(target), text_errors():
                part.mkdir()
                rows = self._write(episodes, tables, part, on_episode)
            promote_folder(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        files = [path for path in target.rglob("*") if path.is_file()]
        return ExportSummary(
            format=FORMAT,
            path=target,
            episodes=len(episodes),
            rows=rows,
            files=len(files),
            size=sum(path.stat().st_size for path in files),
        )

    # -------------------------------------------------------------------------------------- plan

    def _planned(
        self, episodes: Sequence[ExportedEpisode]
    ) -> tuple[list[dict[str, _Table]], list[Loss]]:
        with file_errors("a file of an episode"):
            return self._plan(episodes)

    def _plan(
        self, episodes: Sequence[ExportedEpisode]
    ) -> tuple[list[dict[str, _Table]], list[Loss]]:
        """For each episode its tables by path. Episodes whose columns differ are refused."""
        if not episodes:
            raise ConfigurationError(message="there is no episode to export")
        planned, losses = [], list[Loss]()
        known: dict[str, tuple[str, _Table]] = {}
        names: set[str] = set()
        for episode in episodes:
            streams, left_out = clocked_streams(episode)
            losses += left_out
            names |= {stream.namespace for stream in streams}
            chosen = [s for s in streams if self.only is None or s.namespace in self.only]
            losses += [
                Loss(episode.name, f"{s.kind}: {s.namespace}", "It was not chosen by only.")
                for s in streams
                if s not in chosen
            ]
            tables = {}
            for table in self._tables(episode, chosen, losses):
                first, other = known.setdefault(table.path, (episode.name, table))
                _check_same(first, other, episode.name, table)
                tables[table.path] = table
            planned.append(tables)
            if "video" in episode.files and not self.video:
                losses.append(Loss(episode.name, "video", "Videos were not asked for."))
        for wanted in self.only or ():
            if wanted not in names:
                near = near_names(wanted, sorted(names))
                raise ConfigurationError(message=f"only={wanted!r}: {near}")
        return planned, losses

    def _tables(
        self, episode: ExportedEpisode, streams: Sequence[StreamRows], losses: list[Loss]
    ) -> Iterator[_Table]:
        groups: dict[str, list[ParquetColumn]] = {}
        for stream in streams:
            path = _WIDE if self.wide else f"{stream.kind}/{_file_name(stream.namespace)}"
            columns = groups.setdefault(path, [])
            for name, facts in stream.fields.items():
                what = f"{stream.kind}: {stream.namespace}/{name}"
                reason = why_not(facts)
                if reason is not None:
                    losses.append(Loss(episode.name, what, reason))
                    continue
                column = self._column(stream, name, facts)
                columns.append(column)
                losses += [Loss(episode.name, what, each) for each in column.losses()]
        if self.wide:
            _check_one_clock(episode, streams)
        for path, columns in groups.items():
            if len({column.name for column in columns}) < len(columns):
                message = f"{episode.name}: sensors and actions have streams of the same name; export without wide"
                raise ConfigurationError(message=message)
            yield _Table(f"{path}.parquet", tuple(columns))

    def _column(self, stream: StreamRows, name: str, facts: ArrayFacts) -> ParquetColumn:
        full = self.wide or name in _FIRST
        shown = f"{stream.namespace}/{name}" if full else name
        return ParquetColumn(shown, stream.kind, stream.namespace, name, facts)

    # ------------------------------------------------------------------------------------- write

    def _write(
        self,
        episodes: Sequence[ExportedEpisode],
        planned: Sequence[Mapping[str, _Table]],
        root: Path,
        on_episode: OnEpisode,
    ) -> int:
        rows = 0
        tables = {path: table for each in planned for path, table in each.items()}
        share = max(_LEAST_GROUP, _MEMORY // max(1, len(tables)))
        with ExitStack() as stack:
            files = {
                path: stack.enter_context(
                    RowGroups(root / path, table.schema(), list(_FIRST[:-1]), share)
                )
                for path, table in tables.items()
            }
            listed = stack.enter_context(RowGroups(root / "episodes.parquet", _episode_schema()))
            for index, (episode, own) in enumerate(zip(episodes, planned, strict=True)):
                for path, table in own.items():
                    for batch in _batches(index, episode, table):
                        files[path].add(batch)
                        rows += batch.num_rows
                listed.add(self._episode_row(index, episode, root))
                on_episode(index + 1, len(episodes))
        return rows

    def _episode_row(self, index: int, episode: ExportedEpisode, root: Path) -> Any:
        video = None
        if self.video and "video" in episode.files:
            suffix = episode.files["video"].suffix or ".mp4"
            video = f"videos/episode_{index:06d}{suffix}"
            (root / "videos").mkdir(exist_ok=True)
            shutil.copyfile(episode.files["video"], root / video)
        tasks = episode.metadata.get("tasks")
        row = {
            "episode_index": index,
            "fps": episode.fps,
            "duration_s": episode.duration_s,
            "tasks": [str(t) for t in tasks] if isinstance(tasks, list | tuple) else None,
            "video": video,
            **provenance(episode),
        }
        return library("pyarrow").RecordBatch.from_pylist([row], schema=_episode_schema())


def _episode_schema() -> Any:
    arrow = library("pyarrow")
    first = {
        "episode_index": arrow.int64(),
        "fps": arrow.float64(),
        "duration_s": arrow.float64(),
        "tasks": arrow.list_(arrow.string()),
        "video": arrow.string(),
    }
    return arrow.schema([*first.items(), *provenance_types().items()])


def _file_name(namespace: str) -> str:
    """A name that cannot lead out of its folder. `unquote` gives the namespace back, unless it is very long."""
    name = quote(namespace, safe="")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 33]}-{hashlib.sha256(namespace.encode()).hexdigest()[:32]}"


# -------------------------------------------------------------------------------------------- rows


def _batches(index: int, episode: ExportedEpisode, table: _Table) -> Iterator[Any]:
    """The rows of one episode in blocks. A clock that does not rise is refused."""
    if not table.columns:
        return
    arrow = library("pyarrow")
    schema, lead = table.schema(), table.columns[0]
    rows = lead.facts.shape[0]
    width = sum(c.facts.dtype.itemsize * max(1, int(np.prod(c.shape))) for c in table.columns)
    at_once = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // width))
    texts = _texts(episode, table)
    with ExitStack() as stack:
        archives = {
            kind: stack.enter_context(episode.open(kind))
            for kind in dict.fromkeys(column.kind for column in table.columns)
        }
        clock_key = f"{lead.namespace}/{CLOCK_FIELD}"
        archive = archives[lead.kind]
        clock = ArrayRows(archive, clock_key, archive.facts(clock_key))
        columns = [ArrayRows(archives[c.kind], c.key, c.facts) for c in table.columns]
        last: NDArray[np.int64] = np.empty(0, np.int64)
        for first in range(0, rows, at_once):
            stop = min(first + at_once, rows)
            times = clock.span(first, stop).astype(np.int64, copy=False)
            _check_rises(episode, lead, np.concatenate([last, times]))
            last = times[-1:]
            arrays = [
                arrow.array(np.full(stop - first, index)),
                *(arrow.repeat(text, stop - first) for text in texts),
                arrow.array(times),
                *(
                    column.array(values.span(first, stop))
                    for column, values in zip(table.columns, columns, strict=True)
                ),
            ]
            yield arrow.RecordBatch.from_arrays(arrays, schema=schema)


def _texts(episode: ExportedEpisode, table: _Table) -> list[Any]:
    """The same in every row of the episode."""
    source = SourceFile.recorded_in(episode.metadata)
    kinds: set[ArtifactKind] = {column.kind for column in table.columns}
    digests = sorted(episode.digests[kind] for kind in kinds if kind in episode.digests)
    text = library("pyarrow").string()
    values = [
        episode.episode_id,
        episode.name,
        None if source is None else source.digest,
        " ".join(digests) or None,
    ]
    return [library("pyarrow").scalar(value, text) for value in values]


# ------------------------------------------------------------------------------------------ checks


def _check_rises(episode: ExportedEpisode, column: ParquetColumn, times: NDArray[np.int64]) -> None:
    fall = first_fall(times)
    if fall is not None:
        raise InvalidValue(
            record=f"{column.kind} of {episode.name}",
            field=f"the clock of {column.namespace}",
            value=f"{times[fall]} ns",
            expected=f"later than the row before, at {times[fall - 1]} ns",
        )


def _check_same(first: str, ours: _Table, name: str, theirs: _Table) -> None:
    one, other = ours.signature(), theirs.signature()
    for column in {**one, **other}:
        if one.get(column) != other.get(column):
            kinds = f"{one.get(column, 'missing')} and {other.get(column, 'missing')}"
            message = (
                f"{first} and {name} differ in {column} of {ours.path}: {kinds}; one table has the same columns for "
                "all episodes: choose streams with only, or export them apart"
            )
            raise ConfigurationError(message=message)


def _check_one_clock(episode: ExportedEpisode, streams: Sequence[StreamRows]) -> None:
    """One table needs one clock. The clocks are compared piece by piece."""
    with ExitStack() as stack:
        archives = {
            kind: stack.enter_context(episode.open(kind))
            for kind in dict.fromkeys(stream.kind for stream in streams)
        }
        for stream in streams[1:]:
            pieces = (
                archives[each.kind].rows(f"{each.namespace}/{CLOCK_FIELD}", 0, each.rows)
                for each in (streams[0], stream)
            )
            same = streams[0].rows == stream.rows
            if not same or not all(np.array_equal(*pair) for pair in zip(*pieces, strict=True)):
                message = (
                    f"{episode.name}: {streams[0].namespace} and {stream.namespace} have other times; a wide table has "
                    "one time for each row: export without wide, or choose streams with only"
                )
                raise ConfigurationError(message=message)
