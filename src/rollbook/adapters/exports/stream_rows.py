"""StreamRows: the namespaces of an episode that have a clock, read in blocks of rows.

The memory that is needed depends on the number of streams and on the width of their rows, not on the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.exporter import Loss
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.npz import ArrayFacts, NpzArchive
from rollbook.contracts.streams import CLOCK_FIELD, first_fall
from rollbook.errors import InvalidValue

SLOTS: tuple[ArtifactKind, ...] = ("sensors", "actions")
_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class StreamRows:
    """One namespace: a clock, and fields with one row for each of its times."""

    kind: ArtifactKind
    namespace: str
    rows: int
    fields: Mapping[str, ArrayFacts]
    """Without the clock. The shapes include the rows."""

    def row_shape(self, field: str) -> tuple[int, ...]:
        return self.fields[field].shape[1:]

    def blocks(self, archive: NpzArchive) -> Iterator[Block]:
        """The rows in their order. A clock that does not rise, or that begins before 0, is refused."""
        clock = _Rows(archive, f"{self.namespace}/{CLOCK_FIELD}", self.rows)
        columns = {name: _Rows(archive, self.key(archive, name), self.rows) for name in self.fields}
        last = -1
        for first in range(0, self.rows, self._rows_at_once()):
            stop = min(first + self._rows_at_once(), self.rows)
            t_ns = clock.take(stop - first).astype(np.int64, copy=False)
            self.check_clock(np.concatenate([[last], t_ns]), first)
            last = int(t_ns[-1])
            fields = {name: each.take(stop - first) for name, each in columns.items()}
            yield Block(first, t_ns, fields)

    def key(self, archive: NpzArchive, field: str) -> str:
        """A namespace with one unnamed field may be stored under its own name."""
        full = f"{self.namespace}/{field}"
        return full if full in archive.keys else self.namespace

    def _rows_at_once(self) -> int:
        width = sum(
            facts.dtype.itemsize * math.prod(facts.shape[1:]) for facts in self.fields.values()
        )
        return max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, width)))

    def check_clock(self, times: NDArray[np.int64], first: int) -> None:
        """`times` begins with the time before row `first`; -1 before row 0."""
        row = first_fall(times)
        if row is None:
            return
        before = "0 or later" if first + row == 1 else f"later than {times[row - 1]} ns"
        raise InvalidValue(
            record=str(self.kind),
            field=f"the clock of {self.namespace}",
            value=f"{times[row]} ns at row {first + row - 1}",
            expected=before,
        )


@dataclass(frozen=True, slots=True)
class Block:
    first: int
    """Number of its first row."""
    t_ns: NDArray[np.int64]
    fields: Mapping[str, NDArray[Any]]


def clocked_streams(episode: ExportedEpisode) -> tuple[list[StreamRows], list[Loss]]:
    """The streams of the episode, and those that have no time and are left out."""
    found: list[StreamRows] = []
    left_out: list[Loss] = []
    for kind in SLOTS:
        for namespace, fields in episode.streams(kind).items():
            what = f"{kind}: {namespace}"
            clock = fields.get(CLOCK_FIELD)
            if clock is None:
                reason = "It has no clock, so its rows have no time. It is left out."
                left_out.append(Loss(episode.name, what, reason))
                continue
            if clock.dtype.kind not in "iu" or len(clock.shape) != 1:
                reason = "Its clock is not one whole number for each row. It is left out."
                left_out.append(Loss(episode.name, what, reason))
                continue
            rows, kept = clock.shape[0], {}
            for name, facts in fields.items():
                if name == CLOCK_FIELD:
                    continue
                if facts.shape[:1] == (rows,):
                    kept[name] = facts
                else:
                    reason = (
                        f"It has shape {facts.shape}; its clock has {rows} rows. It is left out."
                    )
                    left_out.append(Loss(episode.name, f"{what}/{name}", reason))
            found.append(StreamRows(kind, namespace, rows, kept))
    return found, left_out


def text_width_loss(archive: NpzArchive, key: str, facts: ArrayFacts) -> str | None:
    """Arrays of text have a width. An import makes it that of the longest text. None where that is the same."""
    pieces = archive.rows(key, 0, facts.shape[0])
    longest = max((int(np.strings.str_len(each).max(initial=0)) for each in pieces), default=0)
    width = facts.dtype.itemsize // 4
    if max(longest, 1) >= width:
        return None
    return f"Its texts are at most {longest} characters long, so the width of {width} is not kept."


def refuse_times_before_zero(episode: ExportedEpisode, streams: Iterable[StreamRows]) -> None:
    """For formats whose times are not negative. Said before anything is written; `blocks` looks at every row."""
    for stream in streams:
        if stream.rows:
            with episode.open(stream.kind) as archive:
                first = next(archive.rows(f"{stream.namespace}/{CLOCK_FIELD}", 0, 1))
            stream.check_clock(np.array([-1, int(first[0])]), 0)


def start_ns(episode: ExportedEpisode) -> int:
    """When the video begins: at the first time of the sensors; without sensors, of the actions; else at 0."""
    streams, _ = clocked_streams(episode)
    for kind in SLOTS:
        clocked = [each for each in streams if each.kind == kind and each.rows]
        if clocked:
            with episode.open(kind) as archive:
                keys = [f"{each.namespace}/{CLOCK_FIELD}" for each in clocked]
                return min(int(next(archive.rows(key, 0, 1))[0]) for key in keys)
    return 0


class _Rows:
    """Rows of one array, taken from the first to the last. An array that is packed is unpacked once."""

    def __init__(self, archive: NpzArchive, key: str, rows: int) -> None:
        self._archive = archive
        self._key = key
        self._at = 0
        self._unpacked = archive.rows(key, 0, rows) if archive.is_packed(key) else None
        self._rest: list[NDArray[Any]] = []

    def take(self, count: int) -> NDArray[Any]:
        if self._unpacked is None:
            pieces = list(self._archive.rows(self._key, self._at, self._at + count))
            self._at += count
            return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        held = sum(map(len, self._rest))
        while held < count:
            piece = next(self._unpacked)
            self._rest.append(piece)
            held += len(piece)
        rows = self._rest[0] if len(self._rest) == 1 else np.concatenate(self._rest)
        self._rest = [rows[count:]]
        return rows[:count]
