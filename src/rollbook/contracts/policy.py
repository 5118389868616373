"""PolicyRevision: an identified state of a policy; its checkpoint; and the revisions that a batch was made from."""

from __future__ import annotations

from operator import attrgetter
from typing import TypeVar

import msgspec

from rollbook.contracts.record import Record, checked_type
from rollbook.digest import Plain, sha256
from rollbook.errors import ConflictingRevision

Described = TypeVar("Described", bound=Record)


class CheckpointReference(Record, frozen=True, kw_only=True):
    """Where the weights of a revision are stored, and the state of the cluster that wrote them."""

    checkpoint_family: str
    stream_id: str
    manifest_digest: str
    object_digest: str
    writer_node_id: str
    membership_epoch: int
    cluster_state_digest: str
    topology_digest: str
    started_at_ms: int
    checkpoint_ref: str | None = None
    step: int | None = None
    durable_at_ms: int | None = None

    def __post_init__(self) -> None:
        self._check_texts(
            "checkpoint",
            "checkpoint_family",
            "stream_id",
            "manifest_digest",
            "object_digest",
            "writer_node_id",
            "cluster_state_digest",
            "topology_digest",
            optional=("checkpoint_ref",),
        )
        self._check_ints(
            "checkpoint", "membership_epoch", "started_at_ms", optional=("step", "durable_at_ms")
        )


class PolicyRevision(Record, frozen=True, kw_only=True):
    """An identified state of a policy's weights."""

    policy_family: str
    revision_id: str
    policy_digest: str
    produced_at_ms: int
    revision_number: int | None = None
    parent_revision_id: str | None = None
    checkpoint: CheckpointReference | None = None

    def __post_init__(self) -> None:
        record = f"policy revision {self.revision_id!r}"
        self._check_texts(
            record,
            "policy_family",
            "revision_id",
            "policy_digest",
            optional=("parent_revision_id",),
        )
        self._check_ints(record, "produced_at_ms", optional=("revision_number",))
        if self.checkpoint is not None:
            checked_type(self.checkpoint, CheckpointReference, record, "checkpoint")

    def revision_drift_from(self, source: PolicyRevision) -> int | None:
        """How many revisions `source` is behind. None if it is of another family, has no number or is ahead."""
        if self.policy_family != source.policy_family:
            return None
        if self.revision_number is None or source.revision_number is None:
            return None
        drift = self.revision_number - source.revision_number
        return drift if drift >= 0 else None


def revision_identity(revision: PolicyRevision) -> tuple[str, str]:
    """What a revision is known by. Descriptions with the same identity must not contradict each other."""
    return revision.policy_family, revision.revision_id


def conflicting_field(first: Record, second: Record) -> str | None:
    """The first field in which two descriptions of one thing differ. An absent field does not count."""
    for field in first.__struct_fields__:
        mine, other = getattr(first, field), getattr(second, field)
        if isinstance(mine, Record) and isinstance(other, Record):
            inner = conflicting_field(mine, other)
            if inner is not None:
                return f"{field}.{inner}"
        elif None not in (mine, other) and mine != other:
            return field
    return None


def revision_conflict(
    record: str, artifact_id: str | None, first: PolicyRevision, second: PolicyRevision
) -> ConflictingRevision | None:
    field = conflicting_field(first, second)
    if field is None:
        return None
    return ConflictingRevision(
        record=record,
        artifact_id=artifact_id,
        revision_id=second.revision_id,
        field=field,
        first=str(attrgetter(field)(first)),
        second=str(attrgetter(field)(second)),
    )


def merged(first: Described, second: Described) -> Described:
    """Two descriptions of one thing as one. They must not contradict each other."""
    added = {}
    for field in first.__struct_fields__:
        mine, other = getattr(first, field), getattr(second, field)
        if isinstance(mine, Record) and isinstance(other, Record):
            added[field] = merged(mine, other)
        elif mine is None:
            added[field] = other
    return msgspec.structs.replace(first, **added)


def lineage_digest(target: PolicyRevision, sources: tuple[PolicyRevision, ...]) -> str:
    """v1 recipe, byte-exact. It covers ids and policy digests only; the content digest of the batch covers the rest."""
    pieces = [
        f"psionic_policy_lineage|{target.policy_family}|target|{target.revision_id}|{target.policy_digest}"
    ]
    pieces += [f"|source|{source.revision_id}|{source.policy_digest}" for source in sources]
    return sha256("".join(pieces).encode()).hexdigest()


class PolicyRevisionLineage(Record, frozen=True, kw_only=True):
    """The revision that a batch trains, and the unique revisions that made its rollouts, in order of their ids."""

    target_revision: PolicyRevision
    source_revisions: tuple[PolicyRevision, ...]
    lineage_digest: str

    @classmethod
    def of(
        cls, target: PolicyRevision, sources: dict[str, PolicyRevision]
    ) -> PolicyRevisionLineage:
        ordered = tuple(sources[revision_id] for revision_id in sorted(sources))
        return cls(
            target_revision=target,
            source_revisions=ordered,
            lineage_digest=lineage_digest(target, ordered),
        )

    def plain(self) -> dict[str, Plain]:
        return {
            "target_revision": self.target_revision.plain(),
            "source_revisions": [source.plain() for source in self.source_revisions],
        }
