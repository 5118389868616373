"""From what a caller has (lists, arrays, records) to TableColumns in their declared types, fitting each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import U32_MAX, U64_MAX, checked_int, checked_text, checked_type
from rollbook.contracts.rl.columns import Offsets, TableColumns, coded
from rollbook.contracts.rl.provenance import (
    PROOF_KINDS,
    TERMINATION_REASONS,
    EnvironmentPackageKey,
    LogprobSemantics,
    RolloutProofReference,
    RolloutTerminationReason,
)
from rollbook.contracts.rl.sample import (
    BASE_COLUMNS,
    SAMPLE_DTYPES,
    Column,
    as_array,
    check_column_names,
    sample_column,
)
from rollbook.contracts.rl.text_column import TextColumn
from rollbook.errors import (
    ColumnLengthMismatch,
    InvalidOffsets,
    InvalidValue,
    MissingColumn,
    WrongColumnType,
)

Item = TypeVar("Item")


class _Rows:
    """The rollouts being built: knows how many there are and how to name one in a message."""

    def __init__(self, artifact_ids: Sequence[str]) -> None:
        self.ids = [
            checked_text(value, f"artifact at row {row}", "artifact_id")
            for row, value in enumerate(_sequence("artifact_id", artifact_ids))
        ]

    def name(self, row: int) -> str:
        return f"artifact {self.ids[row].decode()!r}"

    def fitted(self, column: str, values: Sequence[Item] | None, missing: Item) -> Sequence[Item]:
        if values is None:
            return [missing] * len(self.ids)
        if len(_sequence(column, values)) != len(self.ids):
            short = len(values) < len(self.ids)
            raise ColumnLengthMismatch(
                artifact_id=self.ids[len(values)].decode() if short else None,
                column=column,
                expected=len(self.ids),
                actual=len(values),
            )
        return values

    def texts(self, column: str, values: Sequence[str]) -> TextColumn:
        given = self.fitted(column, values, "")
        return TextColumn.encode(
            [checked_text(value, self.name(row), column) for row, value in enumerate(given)]
        )

    def typed(
        self, column: str, values: Sequence[Item], kind: type, *, optional: bool = False
    ) -> Sequence[Item]:
        for row, value in enumerate(values):
            if not (optional and value is None):
                checked_type(value, kind, self.name(row), column)
        return values

    def ints(self, column: str, values: Sequence[int | None], highest: int) -> list[int]:
        """-1 stands for "not recorded"."""
        return [
            -1 if value is None else checked_int(value, self.name(row), column, highest)
            for row, value in enumerate(values)
        ]


def build_columns(
    *,
    artifact_id: Sequence[str],
    worker_id: Sequence[str],
    environment: Sequence[EnvironmentPackageKey],
    task_id: Sequence[str],
    source_policy_revision: Sequence[PolicyRevision],
    offsets: ArrayLike,
    samples: dict[str, ArrayLike],
    termination_reason: Sequence[RolloutTerminationReason],
    created_at_ms: Sequence[int] | NDArray[np.integer[Any]],
    proof_references: Sequence[Sequence[RolloutProofReference]] | None = None,
    prompt: Sequence[ArrayLike | None] | None = None,
    group_id: Sequence[str | None] | None = None,
    attempt: Sequence[int | None] | None = None,
    logprob_semantics: Sequence[LogprobSemantics | None] | None = None,
) -> TableColumns:
    """One entry per rollout everywhere; `offsets` has one more and says where each rollout's samples begin."""
    rows = _Rows(artifact_id)
    keys = rows.fitted("environment", environment, None)
    environments, environment_index = coded(rows.typed("environment", keys, EnvironmentPackageKey))
    made_by = rows.fitted("source_policy_revision", source_policy_revision, None)
    revisions, revision_index = coded(rows.typed("source_policy_revision", made_by, PolicyRevision))
    meanings = rows.fitted("logprob_semantics", logprob_semantics, None)
    semantics, semantics_index = coded(
        rows.typed("logprob_semantics", meanings, LogprobSemantics, optional=True)
    )
    groups, group_index = coded(_groups(rows, group_id))
    proofs = _proofs(rows, proof_references)
    prompts = _prompts(rows, prompt)
    sample_offsets = _offsets("offsets", offsets, len(rows.ids))
    attempts = rows.ints("attempt", rows.fitted("attempt", attempt, None), U32_MAX)
    every_proof = [proof for each in proofs for proof in each]
    return TableColumns(
        artifact_id=TextColumn.encode(rows.ids),
        worker_id=rows.texts("worker_id", worker_id),
        task_id=rows.texts("task_id", task_id),
        environments=environments,
        environment_index=environment_index,
        revisions=revisions,
        revision_index=revision_index,
        termination=_terminations(rows, termination_reason),
        created_at_ms=_timestamps(rows, created_at_ms),
        groups=groups,
        group_index=group_index,
        attempt=np.array(attempts, np.int64),
        semantics=semantics,
        semantics_index=semantics_index,
        proof_offsets=_lengths_to_offsets(proofs),
        proof_kind=np.array([PROOF_KINDS.index(proof.kind) for proof in every_proof], np.uint8),
        proof_digest=TextColumn.encode([proof.digest.encode() for proof in every_proof]),
        proof_reference=TextColumn.encode([proof.reference.encode() for proof in every_proof]),
        prompt_offsets=_lengths_to_offsets(prompts),
        prompt_token_id=np.concatenate([np.zeros(0, np.uint32), *prompts]),
        sample_offsets=sample_offsets,
        samples=_sample_columns(rows, samples, sample_offsets),
    ).sealed()


def _sequence(column: str, values: Any) -> Any:
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise WrongColumnType(
            column=column, expected="one entry per rollout", actual=type(values).__name__
        )
    return values


def _lengths_to_offsets(parts: Sequence[Any]) -> Offsets:
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return offsets


def _offsets(column: str, values: ArrayLike, rows: int) -> Offsets:
    array = as_array(column, values, "iu", "whole numbers")
    if len(array) != rows + 1:
        raise InvalidOffsets(
            column=column, detail=f"{len(array)} entries for {rows} rollouts, expected {rows + 1}"
        )
    if array[0] != 0 or array[-1] > np.iinfo(np.int64).max:
        raise InvalidOffsets(column=column, detail=f"must start at 0, starts at {array[0]}")
    if (array[1:] < array[:-1]).any():
        row = int(np.argmax(array[1:] < array[:-1]))
        raise InvalidOffsets(
            column=column, detail=f"goes back from {array[row]} to {array[row + 1]} at row {row}"
        )
    return array.astype(np.int64)


def _sample_columns(
    rows: _Rows, samples: dict[str, ArrayLike], offsets: Offsets
) -> dict[str, Column]:
    check_column_names(list(samples))
    for name in BASE_COLUMNS:
        if name not in samples:
            raise MissingColumn(column=name, purpose="a rollout")

    def locate(flat: int) -> str:
        row = int(np.searchsorted(offsets, flat, side="right")) - 1
        if row >= len(rows.ids):
            return f"sample {flat}, which belongs to no artifact"
        return f"{rows.name(row)}, sample {flat - int(offsets[row])}"

    columns = {}
    for name in SAMPLE_DTYPES:
        if name not in samples:
            continue
        column = sample_column(name, samples[name], locate)
        if len(column) != offsets[-1]:
            short = np.flatnonzero(offsets[1:] > len(column))
            raise ColumnLengthMismatch(
                artifact_id=rows.ids[short[0]].decode() if len(short) else None,
                column=name,
                expected=int(offsets[-1]),
                actual=len(column),
            )
        columns[name] = column
    return columns


def _timestamps(
    rows: _Rows, values: Sequence[int] | NDArray[np.integer[Any]]
) -> NDArray[np.uint64]:
    given = values.tolist() if isinstance(values, np.ndarray) else values
    return np.array(
        rows.ints("created_at_ms", rows.fitted("created_at_ms", given, 0), U64_MAX), np.uint64
    )


def _terminations(rows: _Rows, values: Sequence[RolloutTerminationReason]) -> NDArray[np.uint8]:
    """Labels are as good as members: a StrEnum member is its label."""
    codes = []
    for row, value in enumerate(rows.fitted("termination_reason", values, None)):
        if value not in TERMINATION_REASONS:
            raise InvalidValue(
                record=rows.name(row),
                field="termination_reason",
                value=repr(value),
                expected=", ".join(TERMINATION_REASONS),
            )
        codes.append(TERMINATION_REASONS.index(value))
    return np.array(codes, np.uint8)


def _groups(rows: _Rows, values: Sequence[str | None] | None) -> Sequence[str | None]:
    given = rows.fitted("group_id", values, None)
    for row, value in enumerate(given):
        if value is not None:
            checked_text(value, rows.name(row), "group_id")
    return given


def _proofs(
    rows: _Rows, values: Sequence[Sequence[RolloutProofReference]] | None
) -> list[Sequence[RolloutProofReference]]:
    given = rows.fitted("proof_references", values, ())
    for row, proofs in enumerate(given):
        for proof in proofs:
            checked_type(proof, RolloutProofReference, rows.name(row), "proof_references")
    return list(given)


def _prompts(rows: _Rows, values: Sequence[ArrayLike | None] | None) -> list[NDArray[np.uint32]]:
    prompts = []
    for row, value in enumerate(rows.fitted("prompt", values, None)):
        if value is None:
            prompts.append(np.zeros(0, np.uint32))
            continue
        name = rows.name(row)
        ids = as_array(f"prompt of {name}", value, "iu", "token ids")
        if not len(ids) or ids.min() < 0 or ids.max() > U32_MAX:
            raise InvalidValue(
                record=name,
                field="prompt",
                value=f"{len(ids)} ids" if not len(ids) else f"from {ids.min()} to {ids.max()}",
                expected=f"at least one token id, each from 0 to {U32_MAX}; None for no prompt",
            )
        prompts.append(ids.astype(np.uint32))
    return prompts
