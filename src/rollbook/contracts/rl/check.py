"""Checks a file of artifacts and batches: every digest and every rule, one finding per record or problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rollbook.contracts.findings import Finding
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.json_form import Entry, read_file
from rollbook.contracts.rl.rollout import RolloutArtifact
from rollbook.contracts.rl.rules import STRICT, ContractRules
from rollbook.contracts.rl.table_checks import table_problems
from rollbook.contracts.rl.table_file import is_table_file, open_table
from rollbook.errors import DigestMismatch, DuplicateArtifactId, RollbookError, StorageError


def check_file(path: Path, *, rules: ContractRules = STRICT) -> list[Finding]:
    """Check every digest and every rule for each record of a JSON file, a JSONL file or a saved table."""
    try:
        if is_table_file(path):
            return list(_table_findings(path, rules))
        entries = list(read_file(path, rules=rules))
    except StorageError as problem:
        return [Finding.violation(str(path), problem)]
    return list(_entry_findings(entries, rules)) or [
        Finding(str(path), False, "there is no artifact and no batch in it", "empty_document")
    ]


def _table_findings(path: Path, rules: ContractRules) -> Iterator[Finding]:
    try:
        table = open_table(path, verify="bytes")
    except RollbookError as problem:
        yield Finding.violation(str(path), problem)
        return
    problems = [*table.digest_problems(), *table_problems(table.columns, rules)]
    for found in problems:
        yield Finding.violation(str(path), found)
    if not problems:
        detail = f"{len(table)} rollouts, {table.sample_count} samples, root {table.root}"
        yield Finding(str(path), True, detail)


def _entry_findings(entries: Sequence[Entry], rules: ContractRules) -> Iterator[Finding]:
    artifacts: dict[str, RolloutArtifact] = {}
    for entry in entries:
        if entry.problem is not None:
            yield Finding.violation(entry.where, entry.problem)
        elif isinstance(entry.record, RolloutArtifact):
            yield _artifact_finding(entry.where, entry.record, artifacts)
    for entry in entries:
        if isinstance(entry.record, TrainerBatch):
            yield _batch_finding(entry.where, entry.record, artifacts, rules)


def _artifact_finding(
    where: str, artifact: RolloutArtifact, known: dict[str, RolloutArtifact]
) -> Finding:
    name = artifact.artifact_id
    if name in known:
        row = list(known).index(name)
        duplicate = DuplicateArtifactId(artifact_id=name, first_row=row, row=len(known))
        return Finding.violation(where, duplicate)
    known[name] = artifact
    detail = f"artifact {name!r}, {artifact.token_count} samples, {artifact.artifact_digest}"
    return Finding(where, True, detail)


def _batch_finding(
    where: str, batch: TrainerBatch, known: dict[str, RolloutArtifact], rules: ContractRules
) -> Finding:
    """Reading already verified the batch. Where the file has all its artifacts, it is also assembled again."""
    detail = f"batch {batch.batch_id!r}, {batch.rollout_count} rollouts, {batch.batch_digest}"
    try:
        for artifact_id, digest in zip(batch.rollout_ids, batch.rollout_digests, strict=True):
            artifact = known.get(artifact_id)
            if artifact is not None and artifact.artifact_digest != digest:
                raise DigestMismatch(
                    record_id=batch.batch_id,
                    field=f"rollout_digest of {artifact_id!r}",
                    recorded=digest,
                    computed=artifact.artifact_digest,
                )
        missing = [name for name in batch.rollout_ids if name not in known]
        if missing:
            return Finding(where, True, f"{detail}; {len(missing)} of its rollouts are not here")
        _reassemble(batch, known, rules)
    except RollbookError as problem:
        return Finding.violation(where, problem)
    return Finding(where, True, f"{detail}; assembled again from its rollouts")


def _reassemble(
    batch: TrainerBatch, known: dict[str, RolloutArtifact], rules: ContractRules
) -> None:
    again = TrainerBatch.assemble(
        batch_id=batch.batch_id,
        target_revision=batch.policy_lineage.target_revision,
        rollouts=[known[name] for name in batch.rollout_ids],
        assembled_at_ms=batch.assembled_at_ms,
        rules=rules,
    )
    for field in ("batch_digest", "token_count", "rollouts_root"):
        recorded, computed = getattr(batch, field), getattr(again, field)
        if recorded is not None and recorded != computed:
            raise DigestMismatch(
                record_id=batch.batch_id,
                field=field,
                recorded=str(recorded),
                computed=str(computed),
            )
