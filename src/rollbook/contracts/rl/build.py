"""Builds TableColumns from lists, arrays and records. Checks types and lengths; errors name the artifact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import U32_MAX, U64_MAX, checked_int, checked_text, checked_type
from rollbook.contracts.rl.columns import TableColumns, coded
from rollbook.contracts.rl.given_array import given_array
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
    InvalidNumber,
    InvalidOffsets,
    InvalidText,
    InvalidValue,
    MissingColumn,
    WrongColumnType,
)

Checked = TypeVar("Checked")
PerRollout = Sequence[Any] | NDArray[Any]

_TERMINATION_CODES = {reason: code for code, reason in enumerate(TERMINATION_REASONS)}
_PER_ROLLOUT = "one entry per rollout"
_INT64_MAX = int(np.iinfo(np.int64).max)


class _Rows:
    """The ids of the rollouts being built: how many there are, and how a message names one."""

    def __init__(self, artifact_ids: Sequence[str]) -> None:
        self.ids = [
            checked_text(value, f"artifact at row {row}", "artifact_id")
            for row, value in enumerate(_entries("artifact_id", artifact_ids))
        ]

    def name(self, row: int) -> str:
        return f"artifact {self.ids[row].decode()!r}"

    def entries(self, column: str, values: PerRollout) -> Sequence[Any]:
        """One entry per rollout."""
        given = _entries(column, values)
        if len(given) != len(self.ids):
            short = len(given) < len(self.ids)
            raise ColumnLengthMismatch(
                artifact_id=self.ids[len(given)].decode() if short else None,
                column=column,
                expected=len(self.ids),
                actual=len(given),
            )
        return given

    def checked(
        self, check: Callable[[Any, str], Checked], column: str, values: PerRollout
    ) -> list[Checked]:
        """The result of `check` for every entry.

        The artifact is named only after a refusal, because its name takes longer to make than an entry to check.
        """
        given = self.entries(column, values)
        done: list[Checked] = []
        try:
            for value in given:
                done.append(check(value, column))
        except (InvalidText, InvalidNumber, InvalidValue) as refused:
            raise replace(refused, record=self.name(len(done))) from refused.__cause__
        except WrongColumnType as refused:
            named = f"{column} of {self.name(len(done))}"
            raise replace(refused, column=named) from refused.__cause__
        return done

    def texts(self, column: str, values: Sequence[str]) -> TextColumn:
        return TextColumn.encode(self.checked(_text, column, values))

    def optional(
        self,
        check: Callable[[Any, str], Checked],
        column: str,
        values: Sequence[Any] | None,
        missing: Checked,
    ) -> list[Checked]:
        """As `checked`. Where there is no value, `missing` stands for it."""
        if values is None:
            return [missing] * len(self.ids)

        def check_present(value: Any, column: str) -> Checked:
            return missing if value is None else check(value, column)

        return self.checked(check_present, column, values)


def _entries(column: str, values: Any) -> Sequence[Any]:
    if isinstance(values, list | tuple):
        return values
    if hasattr(values, "__array__"):
        array = given_array(column, values, _PER_ROLLOUT)
        if array.ndim == 1:
            return cast(list[Any], array.tolist())
        raise WrongColumnType(
            column=column, expected=_PER_ROLLOUT, actual=f"{array.ndim} dimensions"
        )
    unordered = isinstance(values, str | bytes | Mapping | Set)
    if unordered or not isinstance(values, Sized) or not isinstance(values, Iterable):
        raise WrongColumnType(column=column, expected=_PER_ROLLOUT, actual=type(values).__name__)
    return list(values)


def _text(value: object, column: str) -> bytes:
    return checked_text(value, "", column)


def _time(value: object, column: str) -> int:
    return checked_int(_plain_int(value), "", column, U64_MAX)


def _attempt(value: object, column: str) -> int:
    return checked_int(_plain_int(value), "", column, U32_MAX)


def _plain_int(value: object) -> object:
    return int(value) if isinstance(value, np.integer) else value


def _instance(kind: type[Checked]) -> Callable[[Any, str], Checked]:
    def check(value: Any, column: str) -> Checked:
        checked_type(value, kind, "", column)
        return cast(Checked, value)

    return check


_environment = _instance(EnvironmentPackageKey)
_revision = _instance(PolicyRevision)
_meaning = _instance(LogprobSemantics)
_proof = _instance(RolloutProofReference)


def _group(value: object, column: str) -> str | None:
    checked_text(value, "", column)
    return str(value)


def _termination(value: object, column: str) -> int:
    """Accepts labels as well as members: a StrEnum member equals its label."""
    code = _TERMINATION_CODES.get(value) if isinstance(value, str) else None  # type: ignore[call-overload]
    if code is None:
        raise InvalidValue(
            record="", field=column, value=repr(value), expected=", ".join(TERMINATION_REASONS)
        )
    return cast(int, code)


def _proofs(value: object, column: str) -> Sequence[RolloutProofReference]:
    checked_type(value, (list, tuple), "", column)
    return [_proof(each, column) for each in cast(Sequence[object], value)]


class PromptTokens(NamedTuple):
    """The prompts of all rollouts, end to end. A rollout without a prompt has one of length 0."""

    token_id: NDArray[np.uint32]
    offsets: Offsets


_NO_PROMPT = np.zeros(0, np.uint32)


def _prompt(value: ArrayLike, column: str) -> NDArray[np.uint32]:
    ids = as_array(column, value, "iu", "token ids")
    if not len(ids) or ids.min() < 0 or ids.max() > U32_MAX:
        raise InvalidValue(
            record="",
            field=column,
            value=f"{len(ids)} ids" if not len(ids) else f"from {ids.min()} to {ids.max()}",
            expected=f"at least one token id, each from 0 to {U32_MAX}; None for no prompt",
        )
    return ids.astype(np.uint32)


def build_columns(
    *,
    artifact_id: Sequence[str],
    worker_id: Sequence[str],
    environment: Sequence[EnvironmentPackageKey],
    task_id: Sequence[str],
    source_policy_revision: Sequence[PolicyRevision],
    offsets: ArrayLike,
    samples: Mapping[str, ArrayLike],
    termination_reason: Sequence[RolloutTerminationReason],
    created_at_ms: Sequence[int] | NDArray[np.integer[Any]],
    proof_references: Sequence[Sequence[RolloutProofReference]] | None = None,
    prompt: Sequence[ArrayLike | None] | PromptTokens | None = None,
    group_id: Sequence[str | None] | None = None,
    attempt: Sequence[int | None] | None = None,
    logprob_semantics: Sequence[LogprobSemantics | None] | None = None,
) -> TableColumns:
    """Every argument has one entry per rollout; `offsets` has one more and says where the samples of each begin."""
    rows = _Rows(artifact_id)
    environments, environment_index = coded(rows.checked(_environment, "environment", environment))
    revisions, revision_index = coded(
        rows.checked(_revision, "source_policy_revision", source_policy_revision)
    )
    semantics, semantics_index = coded(
        rows.optional(_meaning, "logprob_semantics", logprob_semantics, None)
    )
    groups, group_index = coded(rows.optional(_group, "group_id", group_id, None))
    sample_offsets = _checked_offsets(offsets, len(rows.ids))
    prompts = _prompt_tokens(rows, prompt)
    return TableColumns(
        artifact_id=TextColumn.encode(rows.ids),
        worker_id=rows.texts("worker_id", worker_id),
        task_id=rows.texts("task_id", task_id),
        environments=environments,
        environment_index=environment_index,
        revisions=revisions,
        revision_index=revision_index,
        termination=np.array(
            rows.checked(_termination, "termination_reason", termination_reason), np.uint8
        ),
        created_at_ms=np.array(rows.checked(_time, "created_at_ms", created_at_ms), np.uint64),
        groups=groups,
        group_index=group_index,
        attempt=np.array(rows.optional(_attempt, "attempt", attempt, -1), np.int64),
        semantics=semantics,
        semantics_index=semantics_index,
        **_proof_columns(rows.optional(_proofs, "proof_references", proof_references, ())),
        prompt_offsets=prompts.offsets,
        prompt_token_id=prompts.token_id,
        sample_offsets=sample_offsets,
        samples=_sample_columns(rows, samples, sample_offsets),
    ).sealed()


def _proof_columns(proofs: Sequence[Sequence[RolloutProofReference]]) -> dict[str, Any]:
    every = [proof for each in proofs for proof in each]
    if not every:
        return {"proof_offsets": np.zeros(len(proofs) + 1, np.int64), **_NO_PROOFS}
    return {
        "proof_offsets": offsets_of([*map(len, proofs)]),
        "proof_kind": np.array([PROOF_KINDS.index(proof.kind) for proof in every], np.uint8),
        "proof_digest": TextColumn.encode([proof.digest.encode() for proof in every]),
        "proof_reference": TextColumn.encode([proof.reference.encode() for proof in every]),
    }


_NO_PROOFS = {
    "proof_kind": np.zeros(0, np.uint8),
    "proof_digest": TextColumn.encode([]),
    "proof_reference": TextColumn.encode([]),
}
"""Shared by all tables: their arrays are read-only."""


def _prompt_tokens(
    rows: _Rows, values: Sequence[ArrayLike | None] | PromptTokens | None
) -> PromptTokens:
    if isinstance(values, PromptTokens):
        return values
    prompts = rows.optional(_prompt, "prompt", values, _NO_PROMPT)
    if all(prompt is _NO_PROMPT for prompt in prompts):
        return PromptTokens(_NO_PROMPT, np.zeros(len(rows.ids) + 1, np.int64))
    return PromptTokens(np.concatenate(prompts), offsets_of([*map(len, prompts)]))


def _checked_offsets(values: ArrayLike, rows: int) -> Offsets:
    array = as_array("offsets", values, "iu", "whole numbers")
    detail = None
    if len(array) != rows + 1:
        detail = f"{len(array)} entries for {rows} rollouts, expected {rows + 1}"
    elif array[0] != 0:
        detail = f"must start at 0, starts at {array[0]}"
    elif array[-1] > _INT64_MAX:
        detail = f"ends at {array[-1]}, expected at most {_INT64_MAX}"
    elif np.count_nonzero(array[1:] < array[:-1]):
        row = int(np.argmax(array[1:] < array[:-1]))
        detail = f"goes back from {array[row]} to {array[row + 1]} at row {row}"
    if detail is not None:
        raise InvalidOffsets(column="offsets", detail=detail)
    return array.astype(np.int64)


def _sample_columns(
    rows: _Rows, samples: Mapping[str, ArrayLike], offsets: Offsets
) -> dict[str, Column]:
    if not isinstance(samples, Mapping):
        raise WrongColumnType(
            column="samples", expected="columns by name", actual=type(samples).__name__
        )
    check_column_names(samples)
    for name in BASE_COLUMNS:
        if name not in samples:
            raise MissingColumn(column=name, purpose="a rollout")

    def locate(flat: int) -> str:
        row = int(np.searchsorted(offsets, flat, side="right")) - 1
        if row >= len(rows.ids):
            return f"sample {flat}, which belongs to no artifact"
        return f"{rows.name(row)}, sample {flat - int(offsets[row])}"

    total = int(offsets[-1])
    columns = {}
    for name in SAMPLE_DTYPES:
        if name not in samples:
            continue
        column = sample_column(name, samples[name], locate)
        if len(column) != total:
            short = np.flatnonzero(offsets[1:] > len(column))
            raise ColumnLengthMismatch(
                artifact_id=rows.ids[short[0]].decode() if len(short) else None,
                column=name,
                expected=total,
                actual=len(column),
            )
        columns[name] = column
    return columns
