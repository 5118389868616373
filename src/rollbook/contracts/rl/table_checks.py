"""The checks of a table. Each yields problems: a constructor raises the first one, a report lists all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.rl.columns import TableColumns
from rollbook.contracts.rl.rules import ContractRules, checked_rules
from rollbook.contracts.rl.sample import LOGPROB_COLUMNS, SAMPLE_DTYPES
from rollbook.contracts.rl.text_column import Offsets, TextColumn
from rollbook.errors import (
    AllSamplesMasked,
    AmbiguousId,
    DuplicateArtifactId,
    DuplicateProofDigest,
    EmptyId,
    EmptyRolloutSamples,
    NonFiniteValue,
    PositiveLogProb,
    Refusal,
)

RowProblems = Iterator[tuple[int, Refusal]]


def table_problems(columns: TableColumns, rules: ContractRules) -> list[Refusal]:
    """All problems by row. Within a row the refusals of the reference come first, in its order, then ours."""
    checked_rules(rules)
    checks: list[Callable[[TableColumns], RowProblems]] = [_empty, _duplicate_proofs]
    if rules.strict:
        checks += [_empty_ids, _ambiguous]
    if rules.non_finite == "refuse":
        checks += [_non_finite]
    if rules.strict:
        checks += [_positive_logprobs, _all_masked]
    checks += [_duplicate_ids]
    found = [
        (row, order, problem)
        for order, check in enumerate(checks)
        for row, problem in check(columns)
    ]
    return [problem for _, _, problem in sorted(found, key=lambda each: each[:2])]


def _empty(columns: TableColumns) -> RowProblems:
    for row in _empty_rows(columns.sample_offsets):
        yield row, EmptyRolloutSamples(artifact_id=columns.artifact_id[row])


def _empty_rows(offsets: Offsets) -> list[int]:
    empty = offsets[1:] == offsets[:-1]
    return np.flatnonzero(empty).tolist() if np.count_nonzero(empty) else []


def _duplicate_proofs(columns: TableColumns) -> RowProblems:
    if not len(columns.proof_kind):
        return
    digests = columns.proof_digest.all_utf8()
    bounds = columns.proof_offsets.tolist()
    for row in np.flatnonzero(np.diff(columns.proof_offsets) > 1).tolist():
        seen = set()
        for digest in digests[bounds[row] : bounds[row + 1]]:
            if digest in seen:
                name = columns.artifact_id[row]
                yield row, DuplicateProofDigest(artifact_id=name, digest=digest.decode())
                break
            seen.add(digest)


def _record(columns: TableColumns, row: int) -> str:
    return f"artifact {columns.artifact_id[row]!r}"


def _empty_ids(columns: TableColumns) -> RowProblems:
    for row in _empty_rows(columns.artifact_id.offsets):
        yield row, EmptyId(record=f"artifact at row {row}", field="artifact_id")
    for code, revision in enumerate(columns.revisions):
        for field in ("policy_family", "revision_id"):
            if not getattr(revision, field):
                row = int(np.argmax(columns.revision_index == code))
                yield row, EmptyId(record=_record(columns, row), field=field)


def _ambiguous(columns: TableColumns) -> RowProblems:
    """Texts that contain a separator of the v1 recipe. `@` separates an environment at its first occurrence only."""
    per_row = [("artifact_id", columns.artifact_id), ("worker_id", columns.worker_id)]
    for field, texts in [*per_row, ("task_id", columns.task_id)]:
        for row in texts.rows_containing("|").tolist():
            yield row, _ambiguity(columns, row, field, texts[row], "|")
    for code, key in enumerate(columns.environments):
        for field, character in (
            ("environment_ref", "@"),
            ("environment_ref", "|"),
            ("version", "|"),
        ):
            if character in getattr(key, field):
                row = int(np.argmax(columns.environment_index == code))
                yield row, _ambiguity(columns, row, field, getattr(key, field), character)
    for code, revision in enumerate(columns.revisions):
        for field in ("policy_family", "revision_id", "policy_digest"):
            if "|" in getattr(revision, field):
                row = int(np.argmax(columns.revision_index == code))
                yield row, _ambiguity(columns, row, field, getattr(revision, field), "|")
    if len(columns.proof_kind):
        yield from _ambiguous_proofs(columns, "proof digest", columns.proof_digest)
        yield from _ambiguous_proofs(columns, "proof reference", columns.proof_reference)


def _ambiguous_proofs(columns: TableColumns, field: str, texts: TextColumn) -> RowProblems:
    for proof in texts.rows_containing("|").tolist():
        row = int(np.searchsorted(columns.proof_offsets, proof, side="right")) - 1
        yield row, _ambiguity(columns, row, field, texts[proof], "|")


def _ambiguity(
    columns: TableColumns, row: int, field: str, value: str, character: str
) -> AmbiguousId:
    return AmbiguousId(record=_record(columns, row), field=field, value=value, character=character)


def _first_per_row(columns: TableColumns, bad: NDArray[np.bool_]) -> Iterator[tuple[int, int, int]]:
    """(row, index within the row, flat index) of the first bad sample of every row that has a bad sample."""
    if not np.count_nonzero(bad):
        return
    flat = np.flatnonzero(bad)
    rows = np.searchsorted(columns.sample_offsets, flat, side="right") - 1
    _, first = np.unique(rows, return_index=True)
    for at in first.tolist():
        row, index = int(rows[at]), int(flat[at])
        yield row, index - int(columns.sample_offsets[row]), index


def _non_finite(columns: TableColumns) -> RowProblems:
    for name, column in columns.samples.items():
        if SAMPLE_DTYPES[name].kind != "f":
            continue
        finite = np.isfinite(column)
        if np.count_nonzero(finite) == len(column):
            continue
        for row, local, flat in _first_per_row(columns, ~finite):
            problem = NonFiniteValue(
                artifact_id=columns.artifact_id[row],
                column=name,
                sample_index=local,
                value=str(column[flat]),
            )
            yield row, problem


def _positive_logprobs(columns: TableColumns) -> RowProblems:
    for name in LOGPROB_COLUMNS:
        if name not in columns.samples:
            continue
        for row, local, flat in _first_per_row(columns, columns.samples[name] > 0):
            problem = PositiveLogProb(
                artifact_id=columns.artifact_id[row],
                column=name,
                sample_index=local,
                value=float(columns.samples[name][flat]),
            )
            yield row, problem


def _all_masked(columns: TableColumns) -> RowProblems:
    mask = columns.samples.get("loss_mask")
    if mask is None:
        return
    kept = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
    per_row = np.diff(kept[columns.sample_offsets])
    empty = np.diff(columns.sample_offsets) == 0
    for row in np.flatnonzero((per_row == 0) & ~empty).tolist():
        yield row, AllSamplesMasked(artifact_id=columns.artifact_id[row])


def _duplicate_ids(columns: TableColumns) -> RowProblems:
    ids = columns.artifact_id.all_utf8()
    if len(set(ids)) == len(ids):
        return
    first: dict[bytes, int] = {}
    for row, artifact_id in enumerate(ids):
        earlier = first.setdefault(artifact_id, row)
        if earlier != row:
            name = artifact_id.decode()
            yield row, DuplicateArtifactId(artifact_id=name, first_row=earlier, row=row)
