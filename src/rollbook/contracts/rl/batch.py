"""TrainerBatch: rollouts assembled for a later revision, with the lineage and digests that prove what it contains."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.policy import (
    PolicyRevision,
    PolicyRevisionLineage,
    merged,
    revision_conflict,
)
from rollbook.contracts.record import (
    U64_MAX,
    Record,
    checked_int,
    checked_list,
    checked_text,
    checked_type,
)
from rollbook.contracts.rl.provenance import RolloutProofReference
from rollbook.contracts.rl.rollout import RolloutArtifact, RolloutTable
from rollbook.contracts.rl.rules import STRICT, ContractRules, checked_rules
from rollbook.contracts.rl.sums import total_of_sums
from rollbook.contracts.rl.table_digests import digest_list, table_root
from rollbook.digest import Plain, digest_of, sha256
from rollbook.errors import (
    AmbiguousId,
    ConflictingProof,
    DigestMismatch,
    DuplicateRolloutArtifact,
    EmptyId,
    EmptyTrainerBatch,
    PolicyFamilyMismatch,
    Refusal,
    TargetOlderThanSource,
)

CONTENT_DOMAIN = "rollbook.trainer_batch.v2"
_F32 = struct.Struct("<f")


@dataclass(frozen=True, slots=True)
class _Rollouts:
    """What assembly needs of each rollout, whether the caller gave a table or single artifacts."""

    ids: list[str]
    digests: list[str]
    content: NDArray[np.uint8]
    revisions: list[PolicyRevision]
    proofs: list[tuple[RolloutProofReference, ...]]
    token_count: int
    reward_sums: NDArray[np.float32]
    advantage_sums: NDArray[np.float32]
    tables: list[RolloutTable]

    @classmethod
    def of(cls, rollouts: RolloutTable | Sequence[RolloutArtifact]) -> _Rollouts:
        if isinstance(rollouts, RolloutTable):
            return cls._of_table(rollouts)
        for rollout in checked_list(rollouts, "trainer batch", "rollouts"):
            checked_type(rollout, RolloutArtifact, "trainer batch", "rollouts")
        parts = [cls._of_table(rollout.table.take([rollout.row])) for rollout in rollouts]
        none = np.zeros(0, np.float32)
        return cls(
            ids=[part.ids[0] for part in parts],
            digests=[part.digests[0] for part in parts],
            content=np.concatenate([np.zeros((0, 32), np.uint8), *(p.content for p in parts)]),
            revisions=[part.revisions[0] for part in parts],
            proofs=[part.proofs[0] for part in parts],
            token_count=sum(part.token_count for part in parts),
            reward_sums=np.concatenate([none, *(part.reward_sums for part in parts)]),
            advantage_sums=np.concatenate([none, *(part.advantage_sums for part in parts)]),
            tables=[table for part in parts for table in part.tables],
        )

    @classmethod
    def _of_table(cls, table: RolloutTable) -> _Rollouts:
        has_proofs = np.diff(table.columns.proof_offsets).tolist()
        return cls(
            ids=list(table.columns.artifact_id),
            digests=[digest.hex() for digest in digest_list(table.artifact_digests)],
            content=table.content_digests,
            revisions=[
                table.columns.revisions[code] for code in table.columns.revision_index.tolist()
            ],
            proofs=[
                table[row].proof_references if count else () for row, count in enumerate(has_proofs)
            ],
            token_count=table.sample_count,
            reward_sums=table.reward_sums(),
            advantage_sums=table.advantage_sums(),
            tables=[table],
        )


class TrainerBatch(Record, frozen=True, kw_only=True):
    """The rollouts of one training step, in order, and the revision they train. `assemble` makes it."""

    batch_id: str
    policy_lineage: PolicyRevisionLineage
    rollout_ids: tuple[str, ...]
    rollout_digests: tuple[str, ...]
    proof_references: tuple[RolloutProofReference, ...] = ()
    """Unique by digest, in order of the digests."""
    rollout_count: int
    token_count: int
    reward_sum: float
    """binary32: each rollout's left-to-right sum, added up in rollout order."""
    advantage_sum: float
    assembled_at_ms: int
    batch_digest: str
    """v1 recipe, byte-exact."""
    rollouts_root: str | None = None
    """Merkle root over the rollouts' content digests; absent in batches the reference made."""
    content_digest: str
    """v2: covers every field above except the other digests, and every field of every revision."""

    @classmethod
    def assemble(
        cls,
        *,
        batch_id: str,
        target_revision: PolicyRevision,
        rollouts: RolloutTable | Sequence[RolloutArtifact],
        assembled_at_ms: int,
        rules: ContractRules = STRICT,
    ) -> TrainerBatch:
        """Check the rollouts and make a batch of them. Raises the first refusal."""
        known = _Rollouts.of(rollouts)
        for problem in _problems(batch_id, target_revision, known, assembled_at_ms, rules):
            raise problem
        return with_digests(
            TrainerBatch(
                batch_id=batch_id,
                policy_lineage=PolicyRevisionLineage.of(
                    target_revision, _sources(known.revisions, rules)
                ),
                rollout_ids=tuple(known.ids),
                rollout_digests=tuple(known.digests),
                proof_references=_unique_proofs(known.proofs),
                rollout_count=len(known.ids),
                token_count=known.token_count,
                reward_sum=float(total_of_sums(known.reward_sums)),
                advantage_sum=float(total_of_sums(known.advantage_sums)),
                assembled_at_ms=assembled_at_ms,
                batch_digest="",
                rollouts_root=table_root(known.content),
                content_digest="",
            )
        )

    @classmethod
    def report(
        cls,
        *,
        batch_id: str,
        target_revision: PolicyRevision,
        rollouts: RolloutTable | Sequence[RolloutArtifact],
        assembled_at_ms: int,
        rules: ContractRules = STRICT,
    ) -> list[Refusal]:
        """Every problem for which `assemble` would raise, not only the first."""
        known = _Rollouts.of(rollouts)
        return list(_problems(batch_id, target_revision, known, assembled_at_ms, rules))

    def verify(self) -> None:
        """Compute the digests again from the fields. Raises DigestMismatch for the first one that differs."""
        for problem in self.digest_problems():
            raise problem

    def digest_problems(self) -> list[DigestMismatch]:
        computed = with_digests(self)
        compared = (
            ("rollout_count", str(self.rollout_count), str(computed.rollout_count)),
            ("rollout_count", str(len(self.rollout_digests)), str(computed.rollout_count)),
            (
                "lineage_digest",
                self.policy_lineage.lineage_digest,
                computed.policy_lineage.lineage_digest,
            ),
            ("batch_digest", self.batch_digest, computed.batch_digest),
            ("content_digest", self.content_digest, computed.content_digest),
        )
        return [
            DigestMismatch(record_id=self.batch_id, field=field, recorded=given, computed=right)
            for field, given, right in compared
            if given != right
        ]


def with_digests(batch: TrainerBatch) -> TrainerBatch:
    """The same batch with its count and all its digests computed from its other fields."""
    lineage = batch.policy_lineage
    sources = {each.revision_id: each for each in lineage.source_revisions}
    counted = msgspec.structs.replace(
        batch,
        policy_lineage=PolicyRevisionLineage.of(lineage.target_revision, sources),
        rollout_count=len(batch.rollout_ids),
    )
    return msgspec.structs.replace(
        counted, batch_digest=_batch_digest(counted), content_digest=_content_digest(counted)
    )


def _content_digest(batch: TrainerBatch) -> str:
    content: dict[str, Plain] = {
        "batch_id": batch.batch_id,
        "policy_lineage": batch.policy_lineage.plain(),
        "rollout_ids": batch.rollout_ids,
        "rollout_digests": batch.rollout_digests,
        "proof_references": [proof.plain() for proof in batch.proof_references],
        "token_count": batch.token_count,
        "reward_sum": _F32.pack(batch.reward_sum),
        "advantage_sum": _F32.pack(batch.advantage_sum),
        "assembled_at_ms": batch.assembled_at_ms,
        "rollouts_root": batch.rollouts_root,
    }
    return digest_of(CONTENT_DOMAIN, content)


def _batch_digest(batch: TrainerBatch) -> str:
    """v1 recipe, byte-exact."""
    lineage = batch.policy_lineage.lineage_digest
    pieces = [
        f"psionic_trainer_batch|{batch.batch_id}|lineage|{lineage}|reward_sum|".encode(),
        _F32.pack(batch.reward_sum),
        b"|advantage_sum|",
        _F32.pack(batch.advantage_sum),
        b"|token_count|%d|assembled_at_ms|%d" % (batch.token_count, batch.assembled_at_ms),
        *(b"|rollout_id|" + each.encode() for each in batch.rollout_ids),
        *(b"|rollout_digest|" + each.encode() for each in batch.rollout_digests),
        *(b"|proof|" + proof.digest.encode() for proof in batch.proof_references),
    ]
    return sha256(b"".join(pieces)).hexdigest()


def _sources(
    revisions: Sequence[PolicyRevision], rules: ContractRules
) -> dict[str, PolicyRevision]:
    """Strict rules merge all descriptions of a revision, so the order of rollouts does not matter. The reference keeps
    the last description."""
    sources: dict[str, PolicyRevision] = {}
    for revision in revisions:
        known = sources.get(revision.revision_id)
        if known is None or not rules.strict:
            sources[revision.revision_id] = revision
        elif known is not revision:
            sources[revision.revision_id] = merged(known, revision)
    return sources


def _unique_proofs(
    proofs: Sequence[tuple[RolloutProofReference, ...]],
) -> tuple[RolloutProofReference, ...]:
    """The first description of each proof digest, as the reference does. Strict rules allow only one description."""
    first: dict[str, RolloutProofReference] = {}
    for each in proofs:
        for proof in each:
            first.setdefault(proof.digest, proof)
    return tuple(first[digest] for digest in sorted(first))


# --------------------------------------------------------------------------------------- refusals


def _problems(
    batch_id: str,
    target: PolicyRevision,
    rollouts: _Rollouts,
    assembled_at_ms: int,
    rules: ContractRules,
) -> Iterator[Refusal]:
    """In the order of the reference: an empty batch, then for each rollout its family and whether it is a duplicate.

    Then come rollouts that were made or stored under weaker rules than those of the batch.
    """
    checked_rules(rules)
    checked_text(batch_id, "trainer batch", "batch_id")
    checked_int(assembled_at_ms, f"batch {batch_id!r}", "assembled_at_ms", U64_MAX)
    checked_type(target, PolicyRevision, f"batch {batch_id!r}", "target_revision")
    if not rollouts.ids:
        yield EmptyTrainerBatch(batch_id=batch_id)
    seen: set[str] = set()
    for artifact_id, revision in zip(rollouts.ids, rollouts.revisions, strict=True):
        if revision.policy_family != target.policy_family:
            yield PolicyFamilyMismatch(
                batch_id=batch_id,
                artifact_id=artifact_id,
                expected_policy_family=target.policy_family,
                actual_policy_family=revision.policy_family,
            )
        if artifact_id in seen:
            yield DuplicateRolloutArtifact(batch_id=batch_id, artifact_id=artifact_id)
        seen.add(artifact_id)
    for table in rollouts.tables:
        yield from table.problems(rules)
    if rules.strict:
        yield from _unclear_ids(batch_id, target)
        yield from _revision_problems(batch_id, target, rollouts)
        yield from _proof_problems(batch_id, rollouts)


def _unclear_ids(batch_id: str, target: PolicyRevision) -> Iterator[Refusal]:
    record = f"batch {batch_id!r}"
    if not batch_id:
        yield EmptyId(record="trainer batch", field="batch_id")
    texts = [("batch_id", batch_id)] + [
        (f"target {field}", getattr(target, field))
        for field in ("policy_family", "revision_id", "policy_digest")
    ]
    for field, value in texts:
        if "|" in value:
            yield AmbiguousId(record=record, field=field, value=value, character="|")


def _revision_problems(
    batch_id: str, target: PolicyRevision, rollouts: _Rollouts
) -> Iterator[Refusal]:
    """Each distinct revision is reported once, with the first rollout that has it."""
    described = {target.revision_id: target}
    checked: set[PolicyRevision] = set()
    for artifact_id, source in zip(rollouts.ids, rollouts.revisions, strict=True):
        if source in checked or source.policy_family != target.policy_family:
            continue
        checked.add(source)
        first = described.setdefault(source.revision_id, source)
        conflict = revision_conflict(f"batch {batch_id!r}", artifact_id, first, source)
        if conflict is not None:
            yield conflict
        for measure in ("revision_number", "produced_at_ms"):
            target_value, source_value = getattr(target, measure), getattr(source, measure)
            if None not in (target_value, source_value) and target_value < source_value:
                yield TargetOlderThanSource(
                    batch_id=batch_id,
                    artifact_id=artifact_id,
                    target_revision_id=target.revision_id,
                    source_revision_id=source.revision_id,
                    measure=measure,
                    target_value=target_value,
                    source_value=source_value,
                )
                break


def _proof_problems(batch_id: str, rollouts: _Rollouts) -> Iterator[Refusal]:
    first: dict[str, RolloutProofReference] = {}
    for artifact_id, proofs in zip(rollouts.ids, rollouts.proofs, strict=True):
        for proof in proofs:
            known = first.setdefault(proof.digest, proof)
            if known != proof:
                yield ConflictingProof(
                    batch_id=batch_id,
                    artifact_id=artifact_id,
                    digest=proof.digest,
                    first=f"{known.kind} {known.reference}",
                    second=f"{proof.kind} {proof.reference}",
                )
