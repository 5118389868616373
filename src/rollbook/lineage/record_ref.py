"""RecordRef: the name of a record, or of several records of one home, by which a walk finds it again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from rollbook.lineage.report import Kind

_DIGITS = 12
_LONGEST_LIST = 3


@dataclass(frozen=True, slots=True)
class RecordRef:
    kind: Kind
    home: str
    """Digest of the store, the source or the batch; path of the table or the run folder (digest of a training run that
    is not here); family of the revision; else the id itself."""
    rows: tuple[int, ...] = ()
    """Of a store or a table."""
    ids: tuple[str, ...] = ()
    """Of episodes and source rows; the id of the revision or the batch."""

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.home}:{','.join((*map(str, self.rows), *self.ids))}"


def rollouts(store: str, rows: Iterable[int]) -> RecordRef:
    return RecordRef("rollouts", store, rows=tuple(sorted(set(rows))))


def source_rows(source: str, keys: Iterable[str]) -> RecordRef:
    return RecordRef("source_rows", source, ids=tuple(sorted(set(keys))))


def artifacts(table: str, rows: Iterable[int]) -> RecordRef:
    return RecordRef("artifacts", table, rows=tuple(sorted(set(rows))))


def batch(batch_digest: str, batch_id: str) -> RecordRef:
    return RecordRef("batch", batch_digest, ids=(batch_id,))


def episodes(ids: Iterable[str]) -> RecordRef:
    return RecordRef("episodes", "", ids=tuple(dict.fromkeys(ids)))


def revision(family: str, revision_id: str) -> RecordRef:
    return RecordRef("revision", family, ids=(revision_id,))


def recording(digest: str, name: str, files: Iterable[str]) -> RecordRef:
    """A file or folder that was imported; `files` are the paths in the folder that the digest covers."""
    return RecordRef("recording", digest, ids=(name, *files))


def short(digest: str) -> str:
    return digest[:_DIGITS]


def numbered(rows: Iterable[int]) -> str:
    """Row numbers for people: `0-7, 9`."""
    ordered = sorted(rows)
    if not ordered:
        return "none"
    starts = [ordered[0], *(b for a, b in pairwise(ordered) if b != a + 1)]
    ends = [*(a for a, b in pairwise(ordered) if b != a + 1), ordered[-1]]
    runs = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    return listed(runs)


def listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    every = list(names)
    more = len(every) - _LONGEST_LIST
    return ", ".join(every[:_LONGEST_LIST]) + (f" and {more} more" if more > 0 else "")


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
