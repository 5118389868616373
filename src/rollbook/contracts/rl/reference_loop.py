"""The reference loop: the smallest complete use of the contracts, and the checks that must pass after it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rollbook.contracts.findings import Finding
from rollbook.contracts.policy import CheckpointReference, PolicyRevision
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.json_form import (
    artifact_from_json,
    artifact_to_json,
    batch_from_json,
    batch_to_json,
)
from rollbook.contracts.rl.provenance import (
    EnvironmentPackageKey,
    RolloutProofKind,
    RolloutProofReference,
    RolloutTerminationReason,
)
from rollbook.contracts.rl.rollout import RolloutArtifact, RolloutTable, verify_proof
from rollbook.contracts.rl.table_file import open_table, save_table
from rollbook.errors import EmptyRolloutSamples, PolicyFamilyMismatch, RollbookError

_LOOP_LINEAGE = "9c75310cc0ea0c28ae20c7d416c62192d1c9496267736991d79eaa97bf73f8eb"
_LOOP_BATCH = "86059511507c8d14bfe6bbf66d9ae55c9a395c854e8c6c2994d94d7fa64637a8"
"""The digests that every implementation of the v1 recipes computes for the loop below."""


def _checkpoint(step: int) -> CheckpointReference:
    return CheckpointReference(
        checkpoint_family="train.decoder",
        stream_id=f"checkpoint-stream-{step}",
        manifest_digest=f"manifest-{step}",
        object_digest=f"object-{step}",
        writer_node_id="trainer-a",
        membership_epoch=7,
        cluster_state_digest="cluster-state",
        topology_digest="topology",
        started_at_ms=1000,
        step=step,
    )


def _revision(number: int, produced_at_ms: int) -> PolicyRevision:
    return PolicyRevision(
        policy_family="train.decoder",
        revision_id=f"policy-r{number}",
        policy_digest=f"digest-r{number}",
        produced_at_ms=produced_at_ms,
        parent_revision_id=f"policy-r{number - 1}" if number > 1 else None,
        checkpoint=_checkpoint(number),
    )


def _proof(kind: RolloutProofKind, digest: str, reference: str) -> RolloutProofReference:
    return RolloutProofReference(kind=kind, digest=digest, reference=reference)


class ReferenceLoop:
    """Revisions with checkpoints, two rollouts with proofs, and one batch for a later revision."""

    def __init__(self) -> None:
        self.environment = EnvironmentPackageKey(environment_ref="env.weather", version="1")
        self.target = _revision(3, 1200)
        shared = _proof(RolloutProofKind.EXECUTION_PROOF, "proof-b", "exec://proof-b")
        bundle = _proof(RolloutProofKind.VALIDATOR_BUNDLE, "validator-1", "validator://bundle-1")
        self.first = RolloutArtifact(
            artifact_id="rollout-a",
            worker_id="worker-a",
            environment=self.environment,
            task_id="task-paris",
            source_policy_revision=_revision(1, 1050),
            samples={
                "token_id": [101, 202],
                "logprob": [-0.2, -0.3],
                "reward": [0.4, 0.1],
                "advantage": [0.3, 0.2],
            },
            termination_reason=RolloutTerminationReason.COMPLETED,
            proof_references=[
                _proof(RolloutProofKind.EXECUTION_PROOF, "proof-a", "exec://proof-a")
            ],
            created_at_ms=1100,
        )
        self.second = RolloutArtifact(
            artifact_id="rollout-b",
            worker_id="worker-b",
            environment=self.environment,
            task_id="task-berlin",
            source_policy_revision=_revision(2, 1050),
            samples={
                "token_id": [303, 404],
                "logprob": [-0.1, -0.4],
                "reward": [0.2, -0.1],
                "advantage": [0.05, -0.02],
            },
            termination_reason=RolloutTerminationReason.MAX_TOKENS,
            proof_references=[shared, bundle],
            created_at_ms=1110,
        )
        self.batch = self.assemble([self.first, self.second])

    def assemble(self, rollouts: Sequence[RolloutArtifact]) -> TrainerBatch:
        return TrainerBatch.assemble(
            batch_id="trainer-batch-1",
            target_revision=self.target,
            rollouts=rollouts,
            assembled_at_ms=1300,
        )

    def table(self) -> RolloutTable:
        return RolloutTable.from_artifacts([self.first, self.second])


def check_reference_loop() -> list[Finding]:
    """Run every check of the contract layer: first its pass criteria, then the signals that it should show."""
    loop = ReferenceLoop()
    return [_finding(subject, check, loop) for subject, check in _LOOP_CHECKS.items()]


def _finding(subject: str, check: Callable[[ReferenceLoop], str], loop: ReferenceLoop) -> Finding:
    try:
        return Finding(subject, True, check(loop))
    except _Failed as failure:
        return Finding(subject, False, str(failure), "failed")
    except RollbookError as problem:
        return Finding.violation(subject, problem)


class _Failed(Exception):
    pass


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Failed(otherwise)


def _serializable(loop: ReferenceLoop) -> str:
    for artifact in (loop.first, loop.second):
        again = artifact_from_json(artifact_to_json(artifact))
        _expect(again == artifact, f"{artifact.artifact_id} changed on its way through JSON")
    _expect(batch_from_json(batch_to_json(loop.batch)) == loop.batch, "the batch changed in JSON")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loop.table"
        save_table(loop.table(), path)
        root = open_table(path, verify="all").root
    _expect(root == loop.table().root, "the table changed on disk")
    return "JSON and file round trips keep every bit"


def _carried(loop: ReferenceLoop) -> str:
    for artifact in (loop.first, loop.second):
        _expect(bool(artifact.proof_references), f"{artifact.artifact_id} has no proof")
        _expect(
            artifact.source_policy_revision.policy_family == "train.decoder",
            f"{artifact.artifact_id} lost its revision",
        )
    key = loop.first.environment.storage_key
    _expect(key == "env.weather@1", f"the environment key is {key}")
    return f"environment {key}, revisions policy-r1 and policy-r2, proofs on both"


def _deterministic_lineage(loop: ReferenceLoop) -> str:
    swapped = loop.assemble([loop.second, loop.first])
    mine, other = loop.batch.policy_lineage, swapped.policy_lineage
    _expect(mine == other, "the lineage depends on the order of rollouts")
    _expect(swapped.batch_digest != loop.batch.batch_digest, "the batch digest ignores the order")
    return f"lineage {mine.lineage_digest[:16]}… whatever the order of rollouts"


def _cross_family_refused(loop: ReferenceLoop) -> str:
    foreign = RolloutArtifact(
        artifact_id="rollout-x",
        worker_id="worker-x",
        environment=loop.environment,
        task_id="task-x",
        source_policy_revision=PolicyRevision(
            policy_family="other.family",
            revision_id="other-r1",
            policy_digest="digest-x",
            produced_at_ms=1,
        ),
        samples=loop.first.columns,
        termination_reason=RolloutTerminationReason.COMPLETED,
        created_at_ms=1,
    )
    try:
        loop.assemble([loop.first, foreign])
    except PolicyFamilyMismatch as refusal:
        return f"{refusal.code}: {refusal}"
    raise _Failed("a batch of two policy families was assembled")


def _empty_refused(loop: ReferenceLoop) -> str:
    try:
        RolloutArtifact(
            artifact_id="rollout-empty",
            worker_id="worker-a",
            environment=loop.environment,
            task_id="task-empty",
            source_policy_revision=loop.target,
            samples=[],
            termination_reason=RolloutTerminationReason.CANCELLED,
            created_at_ms=1,
        )
    except EmptyRolloutSamples as refusal:
        return f"{refusal.code}: {refusal}"
    raise _Failed("an artifact without samples was made")


def _anchored(loop: ReferenceLoop) -> str:
    steps = []
    for source in loop.batch.policy_lineage.source_revisions:
        if source.checkpoint is None:
            raise _Failed(f"{source.revision_id} lost its checkpoint")
        steps.append(str(source.checkpoint.step))
    return f"source revisions rest on checkpoints at steps {', '.join(steps)}"


def _unique_sources(loop: ReferenceLoop) -> str:
    ids = [source.revision_id for source in loop.batch.policy_lineage.source_revisions]
    _expect(ids == ["policy-r1", "policy-r2"], f"sources are {ids}")
    return f"{', '.join(ids)} for target {loop.batch.policy_lineage.target_revision.revision_id}"


def _aggregates(loop: ReferenceLoop) -> str:
    bits = [
        f"{np.float32(value).view(np.uint32):08x}"
        for value in (loop.batch.reward_sum, loop.batch.advantage_sum)
    ]
    _expect(bits == ["3f19999a", "3f07ae14"], f"the sums have bits {bits}")
    _expect(loop.batch.token_count == 4, f"{loop.batch.token_count} tokens")
    return f"reward {loop.batch.reward_sum:.6g}, advantage {loop.batch.advantage_sum:.6g}, 4 tokens"


def _proofs_survive(loop: ReferenceLoop) -> str:
    digests = [proof.digest for proof in loop.batch.proof_references]
    _expect(digests == ["proof-a", "proof-b", "validator-1"], f"proofs are {digests}")
    third = RolloutArtifact(
        artifact_id="rollout-c",
        worker_id="worker-b",
        environment=loop.environment,
        task_id="task-berlin",
        source_policy_revision=loop.second.source_policy_revision,
        samples=loop.second.columns,
        termination_reason=RolloutTerminationReason.COMPLETED,
        proof_references=loop.second.proof_references,
        created_at_ms=1111,
    )
    again = loop.assemble([loop.first, loop.second, third]).proof_references
    _expect(again == loop.batch.proof_references, "a shared proof was kept twice")
    table = loop.table()
    verify_proof(table.prove(1), loop.second, table.root)
    return f"{', '.join(digests)}, each once; one rollout provable from the table root"


def _deterministic_digests(loop: ReferenceLoop) -> str:
    lineage = loop.batch.policy_lineage.lineage_digest
    _expect(lineage == _LOOP_LINEAGE, f"lineage digest {lineage}, expected {_LOOP_LINEAGE}")
    digest = loop.batch.batch_digest
    _expect(digest == _LOOP_BATCH, f"batch digest {digest}, expected {_LOOP_BATCH}")
    _expect(ReferenceLoop().batch == loop.batch, "a second run gave another batch")
    return f"batch {digest[:16]}…, lineage {lineage[:16]}…"


_LOOP_CHECKS: dict[str, Callable[[ReferenceLoop], str]] = {
    "rollout artifacts are typed and serializable": _serializable,
    "artifacts carry their source revision and proofs": _carried,
    "batch assembly surfaces deterministic policy lineage": _deterministic_lineage,
    "cross-family policy mixes are refused": _cross_family_refused,
    "empty rollout artifacts are refused": _empty_refused,
    "checkpoint-backed revisions anchor rollout artifacts": _anchored,
    "batches retain the unique source revisions": _unique_sources,
    "reward and advantage aggregates are preserved": _aggregates,
    "proof references survive and deduplicate": _proofs_survive,
    "batch and lineage digests are deterministic": _deterministic_digests,
}
