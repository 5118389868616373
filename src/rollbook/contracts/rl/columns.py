"""TableColumns: the facts of many rollouts as columns with offsets; taking rows, joining tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.rl.provenance import EnvironmentPackageKey, LogprobSemantics
from rollbook.contracts.rl.sample import Column
from rollbook.contracts.rl.text_column import TextColumn
from rollbook.errors import ColumnSetMismatch

Rows = NDArray[np.int64]
Offsets = NDArray[np.int64]
Word = TypeVar("Word", bound=Hashable)


def coded(values: Iterable[Word | None]) -> tuple[tuple[Word, ...], NDArray[np.int32]]:
    """Distinct values in order of appearance, and the index of each; -1 where there is none."""
    known: dict[Word, int] = {}
    codes = [-1 if v is None else known.setdefault(v, len(known)) for v in values]
    return tuple(known), np.array(codes, np.int32)


def ragged_rows(offsets: Offsets, rows: Rows) -> tuple[Rows, Offsets]:
    """Flat indices of the chosen rows' elements, and the offsets of the result."""
    starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    taken = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=taken[1:])
    return np.repeat(starts - taken[:-1], lengths) + np.arange(taken[-1]), taken


class StoredSamples(Mapping[str, Column]):
    """Sample columns that lie in a file: each is compared with its checksum before it is first handed out."""

    def __init__(self, columns: Mapping[str, Column], check: Callable[[str], None]) -> None:
        self._columns = columns
        self._check = check
        self._unchecked = set(columns)
        self.checked_rows: set[int] = set()
        """Rows that were compared with their own digest instead, so that one rollout costs one rollout."""

    def __getitem__(self, name: str) -> Column:
        if name in self._unchecked:
            self._check(name)
            self._unchecked.discard(name)
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def all_checked(self) -> bool:
        return not self._unchecked

    @property
    def raw(self) -> Mapping[str, Column]:
        """The columns as they lie there. Whoever reads from here does the checking."""
        return self._columns


@dataclass(frozen=True, slots=True, eq=False)
class TableColumns:
    """Row i is one rollout; its samples, proofs and prompt lie between entries i and i+1 of the offsets."""

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
    """-1 where the meaning of the log-probs was not declared."""
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
        samples, sample_offsets = self._take_samples(rows)
        proofs, proof_offsets = ragged_rows(self.proof_offsets, rows)
        prompts, prompt_offsets = ragged_rows(self.prompt_offsets, rows)
        environments, environment_index = _recode(self.environments, self.environment_index[rows])
        revisions, revision_index = _recode(self.revisions, self.revision_index[rows])
        groups, group_index = _recode(self.groups, self.group_index[rows])
        semantics, semantics_index = _recode(self.semantics, self.semantics_index[rows])
        return TableColumns(
            artifact_id=self.artifact_id.take(rows),
            worker_id=self.worker_id.take(rows),
            task_id=self.task_id.take(rows),
            environments=environments,
            environment_index=environment_index,
            revisions=revisions,
            revision_index=revision_index,
            termination=self.termination[rows],
            created_at_ms=self.created_at_ms[rows],
            groups=groups,
            group_index=group_index,
            attempt=self.attempt[rows],
            semantics=semantics,
            semantics_index=semantics_index,
            proof_offsets=proof_offsets,
            proof_kind=self.proof_kind[proofs],
            proof_digest=self.proof_digest.take(proofs),
            proof_reference=self.proof_reference.take(proofs),
            prompt_offsets=prompt_offsets,
            prompt_token_id=self.prompt_token_id[prompts],
            sample_offsets=sample_offsets,
            samples=samples,
        ).sealed()

    def _take_samples(self, rows: Rows) -> tuple[dict[str, Column], Offsets]:
        """Neighbouring rows share memory with this table; others are copied."""
        if len(rows) and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
            offsets = self.sample_offsets[rows[0] : rows[-1] + 2]
            part = slice(int(offsets[0]), int(offsets[-1]))
            return {
                name: column[part] for name, column in self.samples.items()
            }, offsets - part.start
        flat, offsets = ragged_rows(self.sample_offsets, rows)
        return {name: column[flat] for name, column in self.samples.items()}, offsets

    def sealed(self) -> TableColumns:
        """Makes every array read-only."""
        for field in fields(self):
            value = getattr(self, field.name)
            arrays = (value.data, value.offsets) if isinstance(value, TextColumn) else (value,)
            for array in arrays:
                if isinstance(array, np.ndarray):
                    array.flags.writeable = False
        for column in self.samples.values():
            column.flags.writeable = False
        return self


def concat_columns(tables: Sequence[TableColumns]) -> TableColumns:
    """Rows of all tables, in order. All must have the same sample columns."""
    _check_same_columns(tables)
    names = tables[0].sample_names
    environments, environment_index = _join_codes(
        [(t.environments, t.environment_index) for t in tables]
    )
    revisions, revision_index = _join_codes([(t.revisions, t.revision_index) for t in tables])
    groups, group_index = _join_codes([(t.groups, t.group_index) for t in tables])
    semantics, semantics_index = _join_codes([(t.semantics, t.semantics_index) for t in tables])
    return TableColumns(
        artifact_id=_join_text([t.artifact_id for t in tables]),
        worker_id=_join_text([t.worker_id for t in tables]),
        task_id=_join_text([t.task_id for t in tables]),
        environments=environments,
        environment_index=environment_index,
        revisions=revisions,
        revision_index=revision_index,
        termination=np.concatenate([t.termination for t in tables]),
        created_at_ms=np.concatenate([t.created_at_ms for t in tables]),
        groups=groups,
        group_index=group_index,
        attempt=np.concatenate([t.attempt for t in tables]),
        semantics=semantics,
        semantics_index=semantics_index,
        proof_offsets=_join_offsets([t.proof_offsets for t in tables]),
        proof_kind=np.concatenate([t.proof_kind for t in tables]),
        proof_digest=_join_text([t.proof_digest for t in tables]),
        proof_reference=_join_text([t.proof_reference for t in tables]),
        prompt_offsets=_join_offsets([t.prompt_offsets for t in tables]),
        prompt_token_id=np.concatenate([t.prompt_token_id for t in tables]),
        sample_offsets=_join_offsets([t.sample_offsets for t in tables]),
        samples={name: np.concatenate([t.samples[name] for t in tables]) for name in names},
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


def _join_offsets(parts: Sequence[Offsets]) -> Offsets:
    joined = np.zeros(1 + sum(len(part) - 1 for part in parts), np.int64)
    np.cumsum(np.concatenate([np.diff(part) for part in parts]), out=joined[1:])
    return joined


def _join_text(parts: Sequence[TextColumn]) -> TextColumn:
    data = np.concatenate([part.data for part in parts])
    return TextColumn(data, _join_offsets([part.offsets for part in parts]))


def _join_codes(
    parts: Sequence[tuple[tuple[Any, ...], NDArray[np.int32]]],
) -> tuple[tuple[Any, ...], NDArray[np.int32]]:
    known: dict[Any, int] = {}
    joined = []
    for words, codes in parts:
        # the extra last entry serves code -1, "none", which stays -1
        renamed = np.array([known.setdefault(word, len(known)) for word in words] + [-1], np.int32)
        joined.append(renamed[codes])
    return tuple(known), np.concatenate(joined)


def _recode(
    words: tuple[Any, ...], codes: NDArray[np.int32]
) -> tuple[tuple[Any, ...], NDArray[np.int32]]:
    """Keeps only the words that are still used, in order of first use."""
    used, first = np.unique(codes, return_index=True)
    order = used[np.argsort(first)]
    order = order[order >= 0]
    renamed = np.full(len(words) + 1, -1, np.int32)
    renamed[order] = np.arange(len(order))
    return tuple(words[code] for code in order.tolist()), renamed[codes]
