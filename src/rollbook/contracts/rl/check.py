"""Checks files of artifacts and batches: every digest and every rule, one finding per record or problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rollbook.contracts.findings import Finding
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.json_form import Entry, read_file
from rollbook.contracts.rl.rollout import RolloutArtifact, RolloutTable
from rollbook.contracts.rl.rules import STRICT, ContractRules
from rollbook.contracts.rl.table_checks import table_problems
from rollbook.contracts.rl.table_file import is_table_file, open_table
from rollbook.errors import DigestMismatch, DuplicateArtifactId, RollbookError, StorageError


def check_files(paths: Sequence[Path], *, rules: ContractRules = STRICT) -> list[Finding]:
    """Check every digest and every rule for each record of JSON files, JSONL files and saved tables.

    A batch is assembled again from its rollouts, which may be in another of the files.
    """
    findings: list[Finding] = []
    artifacts: dict[str, RolloutArtifact] = {}
    tables: list[RolloutTable] = []
    batches: list[tuple[str, TrainerBatch]] = []
    for path in paths:
        try:
            if is_table_file(path):
                findings += _table_findings(path, rules, tables)
                continue
            entries = [
                # with one file, the place inside of it says enough
                entry if len(paths) == 1 else replace(entry, where=f"{path} {entry.where}")
                for entry in read_file(path, rules=rules)
            ]
        except StorageError as problem:
            findings.append(Finding.violation(str(path), problem))
            continue
        if not entries:
            text = "there is no artifact and no batch in it"
            findings.append(Finding(str(path), False, text, "empty_document"))
        findings += _artifact_findings(entries, artifacts)
        batches += [
            (entry.where, entry.record)
            for entry in entries
            if isinstance(entry.record, TrainerBatch)
        ]
    if batches:
        for table in tables:
            artifacts = {each.artifact_id: each for each in table} | artifacts
    findings += [_batch_finding(where, batch, artifacts, rules) for where, batch in batches]
    return findings


def _table_findings(
    path: Path, rules: ContractRules, tables: list[RolloutTable]
) -> Iterator[Finding]:
    """Adds the table to `tables` if nothing is wrong with it."""
    try:
        table = open_table(path, verify="bytes")
    except RollbookError as problem:
        yield Finding.violation(str(path), problem)
        return
    problems = [*table.digest_problems(), *table_problems(table.columns, rules)]
    for found in problems:
        yield Finding.violation(str(path), found)
    if not problems:
        tables.append(table)
        detail = f"{len(table)} rollouts, {table.sample_count} samples, root {table.root}"
        yield Finding(str(path), True, detail)


def _artifact_findings(
    entries: Sequence[Entry], known: dict[str, RolloutArtifact]
) -> Iterator[Finding]:
    """Adds the artifacts to `known`."""
    for entry in entries:
        if entry.problem is not None:
            yield Finding.violation(entry.where, entry.problem)
        elif isinstance(entry.record, RolloutArtifact):
            yield _artifact_finding(entry.where, entry.record, known)


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
    """Reading already verified the batch. If all its artifacts are known, it is also assembled again."""
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
            text = f"{detail}; {len(missing)} of its rollouts were not given"
            return Finding(where, True, text, unchecked=len(missing))
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
