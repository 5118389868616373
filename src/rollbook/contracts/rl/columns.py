"""TableColumns: many rollouts as columns with offsets; selecting rows and joining tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.rl.provenance import EnvironmentPackageKey, LogprobSemantics
from rollbook.contracts.rl.sample import Column
from rollbook.contracts.rl.text_column import Offsets, TextColumn, offsets_of
from rollbook.contracts.row_numbers import Rows
from rollbook.errors import ColumnSetMismatch

Codes = NDArray[np.int32]
Word = TypeVar("Word", bound=Hashable)

_PER_ROLLOUT = ("artifact_id", "worker_id", "task_id", "termination", "created_at_ms", "attempt")
_CODED = {
    "environments": "environment_index",
    "revisions": "revision_index",
    "groups": "group_index",
    "semantics": "semantics_index",
}
"""Columns of distinct values, and the column that points into each."""
_PER_PROOF = ("proof_kind", "proof_digest", "proof_reference")


def coded(values: Iterable[Word | None]) -> tuple[tuple[Word, ...], Codes]:
    """The distinct values in order of appearance, and the index of each value; -1 stands for None."""
    known: dict[Word, int] = {}
    codes = [-1 if v is None else known.setdefault(v, len(known)) for v in values]
    return tuple(known), np.array(codes, np.int32)


def ragged_rows(offsets: Offsets, rows: Rows) -> tuple[Rows, Offsets]:
    """Flat indices of the elements of the chosen rows, and the offsets of the result."""
    starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    taken = offsets_of(lengths)
    return np.repeat(starts - taken[:-1], lengths) + np.arange(taken[-1]), taken


class StoredSamples(Mapping[str, Column]):
    """Sample columns that lie in a file. Each is compared with its checksum before it is first returned."""

    def __init__(
        self,
        columns: Mapping[str, Column],
        check: Callable[[str], None],
        reopen: Callable[[], tuple[Any, ...] | None],
    ) -> None:
        self._columns = columns
        self._check = check
        self.reopen = reopen
        """How a pickle of the whole table opens the file again (as `__reduce__`); None if the file is gone."""
        self._unchecked = set(columns)
        self.checked_rows: set[int] = set()
        """Rows that were compared with their own digest instead: reading one rollout need not read whole columns."""

    def __getitem__(self, name: str) -> Column:
        if name in self._unchecked:
            self._check(name)
            self._unchecked.discard(name)
        return self._columns[name]

    def __reduce__(self) -> tuple[Any, ...]:
        """As plain columns in memory."""
        return dict, (dict(self),)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def all_checked(self) -> bool:
        return not self._unchecked

    @property
    def raw(self) -> Mapping[str, Column]:
        """The columns without a check. The caller has to check what it reads."""
        return self._columns


class TableColumns(msgspec.Struct, frozen=True, eq=False):
    """Row i is one rollout. Its samples, proofs and prompt lie between entries i and i+1 of their offsets."""

    artifact_id: TextColumn
    worker_id: TextColumn
    task_id: TextColumn
    environments: tuple[EnvironmentPackageKey, ...]
    environment_index: NDArray[np.int32]
    revisions: tuple[PolicyRevision, ...]
    revision_index: NDArray[np.int32]
    termination: NDArray[np.uint8]
    """Index into TERMINATION_REASONS."""
    created_at_ms: NDArray[np.uint64]
    groups: tuple[str, ...]
    group_index: NDArray[np.int32]
    """-1 where a rollout belongs to no group."""
    attempt: NDArray[np.int64]
    """-1 where it was not recorded."""
    semantics: tuple[LogprobSemantics, ...]
    semantics_index: NDArray[np.int32]
    """-1 where nothing is declared about the log-probs."""
    proof_offsets: Offsets
    proof_kind: NDArray[np.uint8]
    """Index into PROOF_KINDS."""
    proof_digest: TextColumn
    proof_reference: TextColumn
    prompt_offsets: Offsets
    """An artifact without a prompt has a prompt of length 0."""
    prompt_token_id: NDArray[np.uint32]
    sample_offsets: Offsets
    samples: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.sample_offsets) - 1

    @property
    def sample_names(self) -> tuple[str, ...]:
        return tuple(self.samples)

    def take(self, rows: Rows) -> TableColumns:
        taken: dict[str, Any] = {name: getattr(self, name).take(rows) for name in _PER_ROLLOUT}
        for words, codes in _CODED.items():
            taken[words], taken[codes] = _recode(getattr(self, words), getattr(self, codes)[rows])
        proofs, taken["proof_offsets"] = ragged_rows(self.proof_offsets, rows)
        taken |= {name: getattr(self, name).take(proofs) for name in _PER_PROOF}
        prompts, taken["prompt_offsets"] = ragged_rows(self.prompt_offsets, rows)
        samples, sample_offsets = self._take_samples(rows)
        return TableColumns(
            **taken,
            prompt_token_id=self.prompt_token_id[prompts],
            sample_offsets=sample_offsets,
            samples=samples,
        ).sealed()

    def _take_samples(self, rows: Rows) -> tuple[dict[str, Column], Offsets]:
        """A run of neighbouring rows shares memory with this table; other rows are copied."""
        if len(rows) and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
            offsets = self.sample_offsets[rows[0] : rows[-1] + 2]
            part = slice(int(offsets[0]), int(offsets[-1]))
            return {
                name: column[part] for name, column in self.samples.items()
            }, offsets - part.start
        flat, offsets = ragged_rows(self.sample_offsets, rows)
        return {name: column[flat] for name, column in self.samples.items()}, offsets

    def without_payloads(self) -> TableColumns:
        """Everything but samples and prompts. The offsets still tell how many samples there were."""
        return msgspec.structs.replace(
            self,
            samples={},
            prompt_token_id=np.zeros(0, np.uint32),
            prompt_offsets=np.zeros_like(self.prompt_offsets),
        ).sealed()

    def sealed(self) -> TableColumns:
        """Make every array read-only."""
        for array in (*_arrays_of(self), *self.samples.values()):
            array.setflags(False)  # write=False; by keyword it takes twice as long
        return self


def _array_names() -> Iterator[str]:
    """The arrays of a TableColumns besides its samples: those of its fields, and the two of each text column."""
    for name, kind in TableColumns.__annotations__.items():
        if kind == "TextColumn":
            yield from (f"{name}.data", f"{name}.offsets")
        elif kind.startswith(("NDArray", "Offsets")):
            yield name


_arrays_of = attrgetter(*_array_names())


def concat_columns(tables: Sequence[TableColumns]) -> TableColumns:
    """Rows of all tables, in order. All must have the same sample columns."""
    _check_same_columns(tables)

    def parts(name: str) -> list[Any]:
        return [getattr(table, name) for table in tables]

    joined: dict[str, Any] = {name: _join(parts(name)) for name in (*_PER_ROLLOUT, *_PER_PROOF)}
    for words, codes in _CODED.items():
        joined[words], joined[codes] = _join_codes(parts(words), parts(codes))
    for name in ("proof_offsets", "prompt_offsets", "sample_offsets"):
        joined[name] = _join_offsets(parts(name))
    return TableColumns(
        **joined,
        prompt_token_id=_join(parts("prompt_token_id")),
        samples={
            name: _join([table.samples[name] for table in tables])
            for name in tables[0].sample_names
        },
    ).sealed()


def _check_same_columns(tables: Sequence[TableColumns]) -> None:
    expected = tables[0].sample_names
    for table in tables:
        if table.sample_names != expected:
            raise ColumnSetMismatch(
                artifact_id=table.artifact_id[0] if len(table) else "",
                expected=", ".join(expected),
                actual=", ".join(table.sample_names),
            )


def _join(parts: Sequence[Any]) -> Any:
    """Arrays, or text columns, end to end."""
    if not isinstance(parts[0], TextColumn):
        return np.concatenate(parts)
    return TextColumn(
        np.concatenate([part.data for part in parts]), _join_offsets([p.offsets for p in parts])
    )


def _join_offsets(parts: Sequence[Offsets]) -> Offsets:
    return offsets_of(np.concatenate([np.diff(part) for part in parts]))


def _join_codes(
    words: Sequence[tuple[Any, ...]], codes: Sequence[Codes]
) -> tuple[tuple[Any, ...], Codes]:
    known: dict[Any, int] = {}
    joined = []
    for own_words, own_codes in zip(words, codes, strict=True):
        # the extra last entry serves code -1, which stays -1
        renamed = [known.setdefault(word, len(known)) for word in own_words] + [-1]
        joined.append(np.array(renamed, np.int32)[own_codes])
    return tuple(known), np.concatenate(joined)


def _recode(words: tuple[Any, ...], codes: Codes) -> tuple[tuple[Any, ...], Codes]:
    """Only the words that are still used, in order of first use, and the codes that point to them."""
    used, first = np.unique(codes, return_index=True)
    order = used[np.argsort(first)]
    order = order[order >= 0]
    renamed = np.full(len(words) + 1, -1, np.int32)
    renamed[order] = np.arange(len(order))
    return tuple(words[code] for code in order.tolist()), renamed[codes]
