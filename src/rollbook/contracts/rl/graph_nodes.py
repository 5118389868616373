"""The parts of a lineage graph: keys, nodes, and the walk from a batch back to its origins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from rollbook.contracts.policy import CheckpointReference, PolicyRevision
from rollbook.contracts.record import Record
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.provenance import EnvironmentPackageKey
from rollbook.digest import Plain


class RevisionKey(Record, frozen=True, kw_only=True, order=True):
    """The key of a revision. A revision id is unique within its policy family only."""

    policy_family: str
    revision_id: str

    @classmethod
    def of(cls, revision: PolicyRevision) -> RevisionKey:
        return cls(policy_family=revision.policy_family, revision_id=revision.revision_id)

    @classmethod
    def of_parent(cls, revision: PolicyRevision) -> RevisionKey | None:
        """The key of the parent, which is always of the same family."""
        if revision.parent_revision_id is None:
            return None
        return cls(policy_family=revision.policy_family, revision_id=revision.parent_revision_id)


class ArtifactNode(Record, frozen=True, kw_only=True):
    """What the graph keeps of an artifact: enough to name and prove it, but no samples."""

    artifact_id: str
    artifact_digest: str
    content_digest: str
    revision: RevisionKey
    environment: EnvironmentPackageKey
    task_id: str


class NamedArtifact(Record, frozen=True, kw_only=True):
    """An artifact that a batch names and the graph does not have."""

    artifact_id: str
    artifact_digest: str


class BatchNode(Record, frozen=True, kw_only=True):
    """What the graph keeps of a batch."""

    batch_id: str
    batch_digest: str
    content_digest: str
    target_revision: RevisionKey
    source_revisions: tuple[RevisionKey, ...]
    rollout_ids: tuple[str, ...]
    rollout_digests: tuple[str, ...]
    rollouts_root: str | None

    @classmethod
    def of(cls, batch: TrainerBatch) -> BatchNode:
        lineage = batch.policy_lineage
        return cls(
            batch_id=batch.batch_id,
            batch_digest=batch.batch_digest,
            content_digest=batch.content_digest,
            target_revision=RevisionKey.of(lineage.target_revision),
            source_revisions=tuple(map(RevisionKey.of, lineage.source_revisions)),
            rollout_ids=batch.rollout_ids,
            rollout_digests=batch.rollout_digests,
            rollouts_root=batch.rollouts_root,
        )


@dataclass(frozen=True, slots=True)
class Drift:
    """How far a target revision is ahead of a source, and how that was measured."""

    value: int
    measure: Literal["revision_number", "graph_distance"]


@dataclass(frozen=True, slots=True, order=True)
class BatchUse:
    """A batch and the role of a revision in it. A batch can have the same revision in both roles."""

    batch_id: str
    role: Literal["source", "target"]


@dataclass(frozen=True, slots=True)
class LineageWalk:
    """Everything that one batch was made of. Each revision is listed once; artifacts refer to it by its key."""

    batch_id: str
    batch_digest: str
    target_revision: RevisionKey
    source_revisions: tuple[RevisionKey, ...]
    artifacts: tuple[ArtifactNode, ...]
    """In batch order."""
    unknown_artifacts: tuple[NamedArtifact, ...]
    """Artifacts that the batch names and the graph does not have, in batch order."""
    revisions: tuple[PolicyRevision, ...]
    """The target and its ancestors, nearest first; then further revisions and ancestors of the sources."""
    missing_parents: tuple[RevisionKey, ...]
    """Parents that are named but not known."""

    @property
    def checkpoints(self) -> Mapping[RevisionKey, CheckpointReference]:
        """The checkpoints of the revisions that have one, in the order of `revisions`."""
        return {
            RevisionKey.of(revision): revision.checkpoint
            for revision in self.revisions
            if revision.checkpoint is not None
        }

    def plain(self) -> dict[str, Plain]:
        """Plain values for JSON. Absent fields of a record are left out."""
        tree: dict[str, Plain] = msgspec.to_builtins(self)
        return tree
