"""Builds TableColumns from lists, arrays and records. Checks types and lengths; errors name the artifact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import U32_MAX, U64_MAX, checked_int, checked_text, checked_type
from rollbook.contracts.rl.columns import TableColumns, coded
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
from rollbook.contracts.rl.text_column import Offsets, TextColumn, offsets_of
from rollbook.errors import (
    ColumnLengthMismatch,
    InvalidOffsets,
    InvalidValue,
    MissingColumn,
    WrongColumnType,
)

Item = TypeVar("Item")


class _Rows:
    """The ids of the rollouts being built: how many there are, and how a message names one."""

    def __init__(self, artifact_ids: Sequence[str]) -> None:
        self.ids = [
            checked_text(value, f"artifact at row {row}", "artifact_id")
            for row, value in enumerate(_sequence("artifact_id", artifact_ids))
        ]

    def name(self, row: int) -> str:
        return f"artifact {self.ids[row].decode()!r}"

    def checked_length(
        self, column: str, values: Sequence[Item] | None, missing: Item
    ) -> Sequence[Item]:
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
        given = self.checked_length(column, values, "")
        return TextColumn.encode(
            [checked_text(value, self.name(row), column) for row, value in enumerate(given)]
        )

    def checked_types(
        self, column: str, values: Sequence[Item], kind: type, *, optional: bool = False
    ) -> Sequence[Item]:
        for row, value in enumerate(values):
            if not (optional and value is None):
                checked_type(value, kind, self.name(row), column)
        return values

    def ints(self, column: str, values: Sequence[int | None], highest: int) -> list[int]:
        """Whole numbers; -1 stands for None, which means "not recorded"."""
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
    """Every argument has one entry per rollout; `offsets` has one more and says where the samples of each begin."""
    rows = _Rows(artifact_id)
    keys = rows.checked_length("environment", environment, None)
    environments, environment_index = coded(
        rows.checked_types("environment", keys, EnvironmentPackageKey)
    )
    made_by = rows.checked_length("source_policy_revision", source_policy_revision, None)
    revisions, revision_index = coded(
        rows.checked_types("source_policy_revision", made_by, PolicyRevision)
    )
    meanings = rows.checked_length("logprob_semantics", logprob_semantics, None)
    semantics, semantics_index = coded(
        rows.checked_types("logprob_semantics", meanings, LogprobSemantics, optional=True)
    )
    groups, group_index = coded(_groups(rows, group_id))
    proofs = _proofs(rows, proof_references)
    prompts = _prompts(rows, prompt)
    sample_offsets = _checked_offsets(offsets, len(rows.ids))
    times = created_at_ms.tolist() if isinstance(created_at_ms, np.ndarray) else created_at_ms
    created = rows.ints("created_at_ms", rows.checked_length("created_at_ms", times, 0), U64_MAX)
    attempts = rows.ints("attempt", rows.checked_length("attempt", attempt, None), U32_MAX)
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
        created_at_ms=np.array(created, np.uint64),
        groups=groups,
        group_index=group_index,
        attempt=np.array(attempts, np.int64),
        semantics=semantics,
        semantics_index=semantics_index,
        proof_offsets=offsets_of([*map(len, proofs)]),
        proof_kind=np.array([PROOF_KINDS.index(proof.kind) for proof in every_proof], np.uint8),
        proof_digest=TextColumn.encode([proof.digest.encode() for proof in every_proof]),
        proof_reference=TextColumn.encode([proof.reference.encode() for proof in every_proof]),
        prompt_offsets=offsets_of([*map(len, prompts)]),
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


def _checked_offsets(values: ArrayLike, rows: int) -> Offsets:
    array = as_array("offsets", values, "iu", "whole numbers")
    detail = None
    if len(array) != rows + 1:
        detail = f"{len(array)} entries for {rows} rollouts, expected {rows + 1}"
    elif array[0] != 0 or array[-1] > np.iinfo(np.int64).max:
        detail = f"must start at 0, starts at {array[0]}"
    elif (array[1:] < array[:-1]).any():
        row = int(np.argmax(array[1:] < array[:-1]))
        detail = f"goes back from {array[row]} to {array[row + 1]} at row {row}"
    if detail is not None:
        raise InvalidOffsets(column="offsets", detail=detail)
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


def _terminations(rows: _Rows, values: Sequence[RolloutTerminationReason]) -> NDArray[np.uint8]:
    """Accepts labels as well as members: a StrEnum member equals its label."""
    codes = []
    for row, value in enumerate(rows.checked_length("termination_reason", values, None)):
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
    given = rows.checked_length("group_id", values, None)
    for row, value in enumerate(given):
        if value is not None:
            checked_text(value, rows.name(row), "group_id")
    return given


def _proofs(
    rows: _Rows, values: Sequence[Sequence[RolloutProofReference]] | None
) -> list[Sequence[RolloutProofReference]]:
    given = rows.checked_length("proof_references", values, ())
    for row, proofs in enumerate(given):
        for proof in proofs:
            checked_type(proof, RolloutProofReference, rows.name(row), "proof_references")
    return list(given)


def _prompts(rows: _Rows, values: Sequence[ArrayLike | None] | None) -> list[NDArray[np.uint32]]:
    prompts = []
    for row, value in enumerate(rows.checked_length("prompt", values, None)):
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
