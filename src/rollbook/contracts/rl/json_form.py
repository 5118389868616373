"""Artifacts and batches as JSON in the shape of the reference. Our additions are optional keys.

Reading is strict. Unknown keys, wrong types and numbers that do not fit are refused with their path in the JSON, and
every digest in a record is computed again and compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from rollbook.contracts.policy import PolicyRevision, PolicyRevisionLineage
from rollbook.contracts.record import (
    U32_MAX,
    U64_MAX,
    check_digest,
    checked_int,
    decode_json,
    malformed_json,
)
from rollbook.contracts.rl import f32_json
from rollbook.contracts.rl.batch import TrainerBatch, with_digests
from rollbook.contracts.rl.journal import read_journal
from rollbook.contracts.rl.provenance import (
    EnvironmentPackageKey,
    LogprobSemantics,
    RolloutProofReference,
    RolloutTerminationReason,
)
from rollbook.contracts.rl.recorder_file import is_journal_file
from rollbook.contracts.rl.rollout import RolloutArtifact, RolloutTable
from rollbook.contracts.rl.rules import STRICT, ContractRules
from rollbook.contracts.rl.sample import BASE_COLUMNS, SAMPLE_DTYPES, check_column_names
from rollbook.errors import (
    ConfigurationError,
    MalformedJson,
    Refusal,
    RollbookError,
    StorageError,
    TruncatedFile,
)
from rollbook.files import atomic_write

LINE_SUFFIXES = (".jsonl", ".ndjson")
Number = float | str
"""A binary32 number in JSON: digits, or the name of a non-finite value."""


class _SampleShape(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    token_id: int
    logprob: Number
    reward: Number
    advantage: Number


class _ArtifactShape(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    artifact_id: str
    worker_id: str
    environment: EnvironmentPackageKey
    task_id: str
    source_policy_revision: PolicyRevision
    samples: list[_SampleShape]
    termination_reason: RolloutTerminationReason
    proof_references: list[RolloutProofReference] = []
    created_at_ms: int
    artifact_digest: str
    # keys that the reference does not have
    columns: dict[str, list[int | float | str]] | None = None
    prompt: list[int] | None = None
    group_id: str | None = None
    attempt: int | None = None
    logprob_semantics: LogprobSemantics | None = None
    content_digest: str | None = None


class _BatchShape(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    batch_id: str
    policy_lineage: PolicyRevisionLineage
    rollout_ids: tuple[str, ...]
    rollout_digests: tuple[str, ...]
    proof_references: tuple[RolloutProofReference, ...] = ()
    rollout_count: int
    token_count: int
    reward_sum: Number
    advantage_sum: Number
    assembled_at_ms: int
    batch_digest: str
    # keys that the reference does not have
    rollouts_root: str | None = None
    content_digest: str | None = None


# ---------------------------------------------------------------------------------------- writing


def artifact_to_json(artifact: RolloutArtifact, *, reference_only: bool = False) -> bytes:
    """One JSON object. `reference_only` writes only keys of the reference and refuses an artifact that needs more."""
    columns = artifact.columns
    extra = [name for name in columns if name not in BASE_COLUMNS]
    if reference_only:
        _refuse_extras(artifact, extra)
    rows = zip(
        columns["token_id"].tolist(),
        *(f32_json.to_json(columns[name]) for name in BASE_COLUMNS[1:]),
        strict=True,
    )
    prompt = artifact.prompt
    shape = _ArtifactShape(
        artifact_id=artifact.artifact_id,
        worker_id=artifact.worker_id,
        environment=artifact.environment,
        task_id=artifact.task_id,
        source_policy_revision=artifact.source_policy_revision,
        samples=[_SampleShape(*row) for row in rows],
        termination_reason=artifact.termination_reason,
        proof_references=list(artifact.proof_references),
        created_at_ms=artifact.created_at_ms,
        artifact_digest=artifact.artifact_digest,
        columns={
            name: f32_json.to_json(columns[name])
            if SAMPLE_DTYPES[name].kind == "f"
            else columns[name].tolist()
            for name in extra
        }
        or None,
        prompt=None if prompt is None else prompt.tolist(),
        group_id=artifact.group_id,
        attempt=artifact.attempt,
        logprob_semantics=artifact.logprob_semantics,
        content_digest=None if reference_only else artifact.content_digest,
    )
    return msgspec.json.encode(shape)


def _refuse_extras(artifact: RolloutArtifact, extra: list[str]) -> None:
    needed = extra + [
        name
        for name in ("prompt", "group_id", "attempt", "logprob_semantics")
        if getattr(artifact, name) is not None
    ]
    if needed:
        raise ConfigurationError(
            message=f"artifact {artifact.artifact_id!r} has {', '.join(needed)}, which the "
            "reference's shape cannot carry; write it with reference_only=False"
        )


def batch_to_json(batch: TrainerBatch, *, reference_only: bool = False) -> bytes:
    shape = _BatchShape(
        batch_id=batch.batch_id,
        policy_lineage=batch.policy_lineage,
        rollout_ids=batch.rollout_ids,
        rollout_digests=batch.rollout_digests,
        proof_references=batch.proof_references,
        rollout_count=batch.rollout_count,
        token_count=batch.token_count,
        reward_sum=f32_json.json_f32(batch.reward_sum),
        advantage_sum=f32_json.json_f32(batch.advantage_sum),
        assembled_at_ms=batch.assembled_at_ms,
        batch_digest=batch.batch_digest,
        rollouts_root=None if reference_only else batch.rollouts_root,
        content_digest=None if reference_only else batch.content_digest,
    )
    return msgspec.json.encode(shape)


# ---------------------------------------------------------------------------------------- reading


def artifact_from_json(
    data: bytes | str, *, rules: ContractRules = STRICT, source: str = "JSON"
) -> RolloutArtifact:
    """Read an artifact and compute its digests. Raises DigestMismatch if one differs from the digest in the JSON."""
    shape = decode_json(data, _ArtifactShape, source)
    name = f"artifact {shape.artifact_id!r}"
    samples: dict[str, Any] = {
        "token_id": [
            checked_int(row.token_id, name, f"samples[{index}].token_id", U32_MAX)
            for index, row in enumerate(shape.samples)
        ]
    }
    for field in BASE_COLUMNS[1:]:
        values = [getattr(row, field) for row in shape.samples]
        samples[field] = f32_json.from_json(values, name, field)
    if shape.columns is not None:
        check_column_names(list(shape.columns))
        for field, values in shape.columns.items():
            is_float = SAMPLE_DTYPES[field].kind == "f"
            samples[field] = f32_json.from_json(values, name, field) if is_float else values
    artifact = RolloutArtifact(
        artifact_id=shape.artifact_id,
        worker_id=shape.worker_id,
        environment=shape.environment,
        task_id=shape.task_id,
        source_policy_revision=shape.source_policy_revision,
        samples=samples,
        termination_reason=shape.termination_reason,
        created_at_ms=shape.created_at_ms,
        proof_references=shape.proof_references,
        prompt=shape.prompt,
        group_id=shape.group_id,
        attempt=shape.attempt,
        logprob_semantics=shape.logprob_semantics,
        rules=rules,
    )
    check_digest(
        shape.artifact_id, "artifact_digest", shape.artifact_digest, artifact.artifact_digest
    )
    if shape.content_digest is not None:
        check_digest(
            shape.artifact_id, "content_digest", shape.content_digest, artifact.content_digest
        )
    return artifact


def batch_from_json(data: bytes | str, *, source: str = "JSON") -> TrainerBatch:
    """Read a batch, and compare its lineage, batch and content digests with its content."""
    shape = decode_json(data, _BatchShape, source)
    name = f"batch {shape.batch_id!r}"
    for field in ("token_count", "assembled_at_ms"):
        checked_int(getattr(shape, field), name, field, U64_MAX)
    recorded = TrainerBatch(
        batch_id=shape.batch_id,
        policy_lineage=shape.policy_lineage,
        rollout_ids=shape.rollout_ids,
        rollout_digests=shape.rollout_digests,
        proof_references=shape.proof_references,
        rollout_count=shape.rollout_count,
        token_count=shape.token_count,
        reward_sum=f32_json.f32_from_json(shape.reward_sum, name, "reward_sum"),
        advantage_sum=f32_json.f32_from_json(shape.advantage_sum, name, "advantage_sum"),
        assembled_at_ms=shape.assembled_at_ms,
        batch_digest=shape.batch_digest,
        rollouts_root=shape.rollouts_root,
        content_digest=shape.content_digest or "",
    )
    computed = with_digests(recorded)
    if shape.content_digest is None:
        recorded = msgspec.structs.replace(recorded, content_digest=computed.content_digest)
    recorded.verify()
    return computed


# --------------------------------------------------------------------------------------- documents


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a document: the record, or the problem that prevented reading it."""

    where: str
    """`$`, `$[3]`, `$.artifacts[0]` or `line 7`, and combinations of these."""
    record: RolloutArtifact | TrainerBatch | None
    problem: RollbookError | None


def read_document(
    data: bytes, *, rules: ContractRules = STRICT, source: str = "JSON", lines: bool = False
) -> Iterator[Entry]:
    """Every artifact and batch in a JSON document, or in a JSONL file of such documents.

    A document is one artifact, one batch, a list of them, or an object with `artifacts` and `batches`. A record that is
    refused does not stop the others.
    """
    if not lines:
        yield from _entries(data, "$", rules, source)
        return
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            yield from _entries(line, f"line {number}: $", rules, source)


def read_file(path: str | os.PathLike[str], *, rules: ContractRules = STRICT) -> Iterator[Entry]:
    """Every record in a JSON file, a JSONL file (`.jsonl`, `.ndjson`) or the journal of a Recorder."""
    file = Path(path)
    if is_journal_file(file):
        return _journal_entries(file, rules)
    try:
        data = file.read_bytes()
    except OSError as error:
        detail = f"cannot be opened ({error.strerror or error})"
        raise StorageError(path=str(path), detail=detail) from error
    return read_document(data, rules=rules, source=file.name, lines=file.suffix in LINE_SUFFIXES)


def _journal_entries(path: Path, rules: ContractRules) -> Iterator[Entry]:
    """The rows of closed rollouts. An incomplete record at the end is a problem: a reader must not miss it."""
    with read_journal(path) as journal:
        for rollout in journal.rollouts():
            where = f"rollout {rollout.artifact_id!r}"
            try:
                yield from (Entry(where, row, None) for row in rollout.table(rules))
            except Refusal as problem:
                yield Entry(where, None, problem)
        if journal.torn is not None:
            place = f"byte {journal.torn.position}"
            detail = f"{journal.torn.size} bytes of an incomplete record at its end, from {place}; "
            detail += "a Recorder that opens the file cuts them off"
            yield Entry(place, None, TruncatedFile(path=str(path), detail=detail))


def write_file(
    table: RolloutTable,
    batches: Sequence[TrainerBatch],
    path: str | os.PathLike[str],
    *,
    reference_only: bool = False,
    replace: bool = False,
) -> None:
    """Write an object with `artifacts` and `batches`, or one record per line for `.jsonl`. The write is atomic."""
    artifacts = (artifact_to_json(each, reference_only=reference_only) for each in table)
    made = (batch_to_json(each, reference_only=reference_only) for each in batches)
    with atomic_write(path, replace=replace) as file:
        if Path(path).suffix in LINE_SUFFIXES:
            file.writelines(record + b"\n" for record in chain(artifacts, made))
            return
        file.write(b'{"artifacts":[')
        file.writelines(_separated(artifacts))
        file.write(b'],"batches":[')
        file.writelines(_separated(made))
        file.write(b"]}\n")


def _separated(records: Iterable[bytes]) -> Iterator[bytes]:
    for index, record in enumerate(records):
        yield (b",\n" if index else b"\n") + record


def _entries(data: bytes, where: str, rules: ContractRules, source: str) -> Iterator[Entry]:
    try:
        top = msgspec.json.decode(data, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        yield Entry(where, None, malformed_json(data, error, f"{source} {where}"))
        return
    if isinstance(top, list):
        for index, item in enumerate(top):
            yield from _entries(bytes(item), f"{where}[{index}]", rules, source)
        return
    groups = [name for name in ("artifacts", "batches") if name in top]
    if groups:
        yield from _unknown_groups(top, groups, where, source)
        for name in groups:
            yield from _entries(bytes(top[name]), f"{where}.{name}", rules, source)
        return
    yield _entry(data, top, where, rules, source)


def _unknown_groups(
    top: Iterable[str], known: list[str], where: str, source: str
) -> Iterator[Entry]:
    for name in top:
        if name not in known:
            problem = MalformedJson(
                source=source,
                record_id=None,
                where=f"{where}.{name}",
                detail="unknown field beside `artifacts` and `batches`",
            )
            yield Entry(f"{where}.{name}", None, problem)


def _entry(
    data: bytes, top: dict[str, msgspec.Raw], where: str, rules: ContractRules, source: str
) -> Entry:
    place = f"{source} {where}"
    record: RolloutArtifact | TrainerBatch
    try:
        if "artifact_id" in top:
            record = artifact_from_json(data, rules=rules, source=place)
        elif "batch_id" in top:
            record = batch_from_json(data, source=place)
        else:
            detail = "neither an artifact (`artifact_id`) nor a batch (`batch_id`)"
            raise MalformedJson(source=place, record_id=None, where="$", detail=detail)
    except (Refusal, MalformedJson) as problem:
        return Entry(where, None, problem)
    return Entry(where, record, None)
