"""TrainerBatch: rollouts assembled for a later revision, with the lineage and digests that let it be rebuilt."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.policy import (
    PolicyRevision,
    PolicyRevisionLineage,
    merged,
    revision_conflict,
)
from rollbook.contracts.record import U64_MAX, Record, checked_int, checked_text, checked_type
from rollbook.contracts.rl.provenance import RolloutProofReference
from rollbook.contracts.rl.rollout import RolloutArtifact, RolloutTable
from rollbook.contracts.rl.rules import STRICT, ContractRules
from rollbook.contracts.rl.sums import total_of_sums
from rollbook.contracts.rl.table_digests import table_root
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
    """What assembly needs to know of each rollout, whether it came in a table or alone."""

    ids: list[str]
    digests: list[str]
    content: NDArray[np.uint8]
    revisions: list[PolicyRevision]
    proofs: list[tuple[RolloutProofReference, ...]]
    token_count: int
    reward_sums: NDArray[np.float32]
    advantage_sums: NDArray[np.float32]

    @classmethod
    def of(cls, rollouts: RolloutTable | Sequence[RolloutArtifact]) -> _Rollouts:
        if isinstance(rollouts, RolloutTable):
            return cls._of_table(rollouts)
        for rollout in rollouts:
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
        )

    @classmethod
    def _of_table(cls, table: RolloutTable) -> _Rollouts:
        has_proofs = np.diff(table.columns.proof_offsets).tolist()
        return cls(
            ids=list(table.columns.artifact_id),
            digests=[digest.tobytes().hex() for digest in table.artifact_digests],
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
        )


class TrainerBatch(Record, frozen=True, kw_only=True):
    """Names the rollouts it was made of, in order, and the revision it is for. Made by `assemble`."""

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
    """v2: covers every field above but the other digests' texts, and all of every revision."""

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
        """The one way to make a batch: refuses, orders, sums and digests."""
        known = _Rollouts.of(rollouts)
        for problem in _problems(batch_id, target_revision, known, assembled_at_ms, rules):
            raise problem
        lineage = PolicyRevisionLineage.of(target_revision, _sources(known.revisions, rules))
        return batch_from_parts(
            batch_id=batch_id,
            policy_lineage=lineage,
            rollout_ids=tuple(known.ids),
            rollout_digests=tuple(known.digests),
            proof_references=_unique_proofs(known.proofs),
            token_count=known.token_count,
            reward_sum=float(total_of_sums(known.reward_sums)),
            advantage_sum=float(total_of_sums(known.advantage_sums)),
            assembled_at_ms=assembled_at_ms,
            rollouts_root=table_root(known.content),
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
        """Everything `assemble` would refuse, instead of the first."""
        known = _Rollouts.of(rollouts)
        return list(_problems(batch_id, target_revision, known, assembled_at_ms, rules))

    def verify(self) -> None:
        """Recomputes the digests from the fields; raises DigestMismatch for the first that differs."""
        for problem in self.digest_problems():
            raise problem

    def digest_problems(self) -> list[DigestMismatch]:
        computed = batch_from_parts(
            batch_id=self.batch_id,
            policy_lineage=PolicyRevisionLineage.of(
                self.policy_lineage.target_revision,
                {each.revision_id: each for each in self.policy_lineage.source_revisions},
            ),
            rollout_ids=self.rollout_ids,
            rollout_digests=self.rollout_digests,
            proof_references=self.proof_references,
            token_count=self.token_count,
            reward_sum=self.reward_sum,
            advantage_sum=self.advantage_sum,
            assembled_at_ms=self.assembled_at_ms,
            rollouts_root=self.rollouts_root,
        )
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


def batch_from_parts(
    *,
    batch_id: str,
    policy_lineage: PolicyRevisionLineage,
    rollout_ids: tuple[str, ...],
    rollout_digests: tuple[str, ...],
    proof_references: tuple[RolloutProofReference, ...],
    token_count: int,
    reward_sum: float,
    advantage_sum: float,
    assembled_at_ms: int,
    rollouts_root: str | None,
) -> TrainerBatch:
    """A batch with its digests computed from its other fields."""
    content: dict[str, Plain] = {
        "batch_id": batch_id,
        "policy_lineage": policy_lineage.plain(),
        "rollout_ids": rollout_ids,
        "rollout_digests": rollout_digests,
        "proof_references": [proof.plain() for proof in proof_references],
        "token_count": token_count,
        "reward_sum": _F32.pack(reward_sum),
        "advantage_sum": _F32.pack(advantage_sum),
        "assembled_at_ms": assembled_at_ms,
        "rollouts_root": rollouts_root,
    }
    return TrainerBatch(
        batch_id=batch_id,
        policy_lineage=policy_lineage,
        rollout_ids=rollout_ids,
        rollout_digests=rollout_digests,
        proof_references=proof_references,
        rollout_count=len(rollout_ids),
        token_count=token_count,
        reward_sum=reward_sum,
        advantage_sum=advantage_sum,
        assembled_at_ms=assembled_at_ms,
        batch_digest=batch_digest(
            batch_id=batch_id,
            lineage_digest=policy_lineage.lineage_digest,
            rollout_ids=rollout_ids,
            rollout_digests=rollout_digests,
            proof_digests=[proof.digest for proof in proof_references],
            token_count=token_count,
            reward_sum=reward_sum,
            advantage_sum=advantage_sum,
            assembled_at_ms=assembled_at_ms,
        ),
        rollouts_root=rollouts_root,
        content_digest=digest_of(CONTENT_DOMAIN, content),
    )


def batch_digest(
    *,
    batch_id: str,
    lineage_digest: str,
    rollout_ids: Sequence[str],
    rollout_digests: Sequence[str],
    proof_digests: Sequence[str],
    token_count: int,
    reward_sum: float,
    advantage_sum: float,
    assembled_at_ms: int,
) -> str:
    """v1 recipe, byte-exact."""
    pieces = [
        f"psionic_trainer_batch|{batch_id}|lineage|{lineage_digest}|reward_sum|".encode(),
        _F32.pack(reward_sum),
        b"|advantage_sum|",
        _F32.pack(advantage_sum),
        b"|token_count|%d|assembled_at_ms|%d" % (token_count, assembled_at_ms),
        *(b"|rollout_id|" + each.encode() for each in rollout_ids),
        *(b"|rollout_digest|" + each.encode() for each in rollout_digests),
        *(b"|proof|" + each.encode() for each in proof_digests),
    ]
    return sha256(b"".join(pieces)).hexdigest()


def _sources(
    revisions: Sequence[PolicyRevision], rules: ContractRules
) -> dict[str, PolicyRevision]:
    """Strict rules join the descriptions of a revision, so the order of rollouts does not matter; the reference
    keeps the last."""
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
    """The first description of each digest, as the reference keeps it; strict rules allow only one."""
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
    """In the reference's order: an empty batch; then per rollout its family, then whether it came before."""
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
    """One report per distinct revision, at the first rollout that brings it."""
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
