"""Journal: what the file of a Recorder holds, read while it is written or afterwards."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from typing import IO

import msgspec

from rollbook.contracts.record import checked_type
from rollbook.contracts.rl.recorded_rollout import RecordedRollout, table_of
from rollbook.contracts.rl.recorded_turn import (
    JournalBegun,
    JournalEntry,
    RecordedTurn,
    RolloutBegun,
    RolloutDiscarded,
    RolloutEnded,
    decode_entry,
)
from rollbook.contracts.rl.recorder_file import Frame, JournalReader, TornTail, open_for_reading
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.rules import STRICT, ContractRules
from rollbook.contracts.row_numbers import row_number
from rollbook.errors import DamagedRecording


class Journal:
    """The rollouts of a file, as far as they were written when it was opened. Only positions are kept in memory."""

    def __init__(self, reader: JournalReader, file: IO[bytes]) -> None:
        """`read_journal` makes it. A Recorder makes one of its own file and keeps it current."""
        self._reader = reader
        self._file = file
        self.name: str | None = None
        """The beginning of automatic ids. None in a journal without a record."""
        self.discarded = 0
        """How many rollouts were discarded."""
        self.begun = 0
        """How many rollouts were begun."""
        self.end = 0
        self.records = 0
        self.unfinished: dict[str, int] = {}
        """Rollouts that were neither closed nor discarded, with the position of their last record."""
        self.given_ids: set[str] = set()
        """Ids that were not made by the recorder."""
        self._closed = array("Q")

    @property
    def torn(self) -> TornTail | None:
        """The incomplete record at the end, if there is one. Its turn was never acknowledged."""
        return self._reader.torn

    @property
    def closed(self) -> int:
        """How many rollouts were closed."""
        return len(self._closed)

    def __repr__(self) -> str:
        torn = "" if self.torn is None else f", {self.torn.size} torn bytes"
        return f"Journal({self.closed} closed, {len(self.unfinished)} unfinished{torn})"

    # ---------------------------------------------------------------------------------- reading

    def table(self, first: int = 0, *, rules: ContractRules = STRICT) -> RolloutTable:
        """The closed rollouts in the order of closing, from number `first` on."""
        return table_of(self.rollouts(first), rules=rules)

    def rollouts(self, first: int = 0) -> Iterator[RecordedRollout]:
        """The closed rollouts with their turns, one after the other, from number `first` on."""
        count = len(self._closed)
        if first != count:
            row_number(first, count, "journal")
        for position in self._closed[first:count]:
            yield self.rollout_at(position)

    def rollout_at(self, position: int) -> RecordedRollout:
        """The rollout whose last record lies at a position. Each record says where the one before it lies."""
        entries: list[JournalEntry] = []
        while position:
            frame = self._reader.frame_at(position)
            if frame.previous >= position:
                raise self._damaged(frame, "it does not follow the record that it continues")
            entries.append(self.decoded(frame))
            position = frame.previous
        last = entries[0]
        ended = last if isinstance(last, RolloutEnded) else None
        *rest, begun = entries if ended is None else entries[1:]
        turns = [each for each in reversed(rest) if isinstance(each, RecordedTurn)]
        if not isinstance(begun, RolloutBegun) or len(turns) != len(rest):
            raise self._damaged(frame, "the records of its rollout do not fit together")
        names = {begun.artifact_id} | {turn.artifact_id for turn in turns}
        if len(names) > 1 or (ended is not None and ended.artifact_id not in names):
            raise self._damaged(frame, f"it belongs to several rollouts: {sorted(names)}")
        return RecordedRollout(begun, turns, ended)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --------------------------------------------------------------------------------- scanning

    def scan(self) -> None:
        """Read and check every record."""
        for frame in self._reader.frames():
            self.note(self.decoded(frame), frame.position, frame)
            self.end, self.records = frame.end, frame.number + 1

    def decoded(self, frame: Frame) -> JournalEntry:
        try:
            entry: JournalEntry = decode_entry(frame.payload)
        except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError) as error:
            raise self._damaged(frame, str(error)) from error
        if isinstance(entry, RecordedTurn) and not entry.is_consistent:
            raise self._damaged(frame, "its columns have different lengths")
        return entry

    def note(self, entry: JournalEntry, position: int, frame: Frame | None = None) -> None:
        """Keep in mind what a record changes. `frame` is given for a record that was read."""
        if isinstance(entry, JournalBegun):
            if frame is not None and frame.number:
                raise self._damaged(frame, "it begins a second journal")
            self.name = entry.name
            return
        name = entry.artifact_id
        if frame is not None and frame.previous != self.unfinished.get(name, 0):
            raise self._damaged(frame, f"it does not continue rollout {name!r}")
        if isinstance(entry, RolloutBegun):
            self.begun += 1
            if not self.is_automatic(name):
                if name in self.given_ids and frame is not None:
                    raise self._damaged(frame, f"it begins rollout {name!r} a second time")
                self.given_ids.add(name)
        elif frame is not None and not frame.previous:
            raise self._damaged(frame, f"rollout {name!r} has not begun")
        if isinstance(entry, RolloutEnded):
            self._closed.append(position)
        elif isinstance(entry, RolloutDiscarded):
            self.discarded += 1
        else:
            self.unfinished[name] = position
            return
        del self.unfinished[name]

    def is_automatic(self, artifact_id: str) -> bool:
        """Whether an id looks like those that a recorder makes for this journal."""
        start, dash, number = artifact_id.rpartition("-")
        return bool(dash) and start == self.name and number.isdecimal()

    def _damaged(self, frame: Frame, detail: str) -> DamagedRecording:
        return DamagedRecording(
            path=self._reader.path,
            detail=f"record {frame.number} at byte {frame.position}: {detail}",
        )


def read_journal(path: str | os.PathLike[str]) -> Journal:
    """Open the file of a Recorder and check every record. A recorder may be writing it: later records are not seen."""
    checked_type(path, (str, os.PathLike), "journal", "path")
    file = open_for_reading(path)
    try:
        reader = JournalReader(str(path), file)
        reader.check_preamble()
        journal = Journal(reader, file)
        journal.scan()
    except BaseException:
        file.close()
        raise
    return journal
