"""What a lineage graph holds and answers with: keys, nodes, and the walk behind a batch."""

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
    """What a revision is known by: its id is unique only within its policy family."""

    policy_family: str
    revision_id: str

    @classmethod
    def of(cls, revision: PolicyRevision) -> RevisionKey:
        return cls(policy_family=revision.policy_family, revision_id=revision.revision_id)

    @classmethod
    def of_parent(cls, revision: PolicyRevision) -> RevisionKey | None:
        """A parent is always of the same family: that is all a revision says about it."""
        if revision.parent_revision_id is None:
            return None
        return cls(policy_family=revision.policy_family, revision_id=revision.parent_revision_id)


class ArtifactNode(Record, frozen=True, kw_only=True):
    """What the graph keeps of an artifact: enough to name and prove it, none of its samples."""

    artifact_id: str
    artifact_digest: str
    content_digest: str
    revision: RevisionKey
    environment: EnvironmentPackageKey
    task_id: str


class NamedArtifact(Record, frozen=True, kw_only=True):
    """An artifact the graph does not hold, as a batch names it."""

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
    """How far a target revision is ahead of a source, and in what this was counted."""

    value: int
    measure: Literal["revision_number", "graph_distance"]


@dataclass(frozen=True, slots=True, order=True)
class BatchUse:
    """A batch and what a revision is to it. A batch that trains the revision it came from has both uses."""

    batch_id: str
    role: Literal["source", "target"]


@dataclass(frozen=True, slots=True)
class LineageWalk:
    """Everything behind one batch. Each revision stands once, however many artifacts lead to it; artifacts name
    theirs by key, so that a walk grows with what it holds and not with the number of paths."""

    batch_id: str
    batch_digest: str
    target_revision: RevisionKey
    source_revisions: tuple[RevisionKey, ...]
    artifacts: tuple[ArtifactNode, ...]
    """In batch order."""
    unknown_artifacts: tuple[NamedArtifact, ...]
    """Named by the batch, not held by the graph; in batch order."""
    revisions: tuple[PolicyRevision, ...]
    """The target and its ancestors, nearest first, then what the sources add, likewise."""
    missing_parents: tuple[RevisionKey, ...]
    """Where the known ancestry ends although it goes on."""

    @property
    def checkpoints(self) -> Mapping[RevisionKey, CheckpointReference]:
        """Of the revisions that have one, in their order."""
        return {
            RevisionKey.of(revision): revision.checkpoint
            for revision in self.revisions
            if revision.checkpoint is not None
        }

    def plain(self) -> dict[str, Plain]:
        """Ready for JSON; what is absent in a record is left out."""
        tree: dict[str, Plain] = msgspec.to_builtins(self)
        return tree
