"""Where a policy revision came from: the trainer batches, rollout stores and episodes that it was trained on."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.wire.episodes import Name
from rollbook.contracts.wire.eval_runs import Id

MOST_ROWS = 100_000
MOST_SOURCES = 100

Sha256: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
RowNumber: TypeAlias = Annotated[int, Meta(ge=0)]


class StoreRows(Struct, frozen=True, kw_only=True):
    """Rollouts of one store."""

    store_digest: Sha256
    """The content digest of the store, from its manifest."""
    rows: Annotated[list[RowNumber], Meta(min_length=1, max_length=MOST_ROWS)]
    """Rows of its `rollouts` table."""
    name: Name | None = None
    """For people, such as the name of its folder."""
    batch_id: Id | None = None
    """The batch that has these rollouts, where one has."""


class RecordRevision(Struct, frozen=True, kw_only=True):
    """The same again changes nothing. Sources are added, and never taken away."""

    revision: PolicyRevision
    batches: Annotated[list[TrainerBatch], Meta(max_length=MOST_SOURCES)] = []
    """Each has to train this revision. Its digests are computed again, and a batch that differs is refused."""
    stores: Annotated[list[StoreRows], Meta(max_length=MOST_SOURCES)] = []
    episode_ids: Annotated[list[Id], Meta(max_length=MOST_ROWS)] = []
    """Recorded episodes that it learned from. All of them have to exist."""


class RevisionRecorded(Struct, frozen=True, kw_only=True):
    id: str
    """The server's id of the revision; `/portal/lineage/{id}` shows it."""
    policy_family: str
    revision_id: str
    added: int
    """Sources that were not known before."""


class TrainingSource(Struct, frozen=True):
    """Something that a revision was trained on."""

    kind: Literal["batch", "store", "episodes"]
    source_id: str
    """The id of the batch, or a digest of the rows or of the episodes."""
    detail: dict[str, Any]


class RevisionAnswer(Struct, frozen=True, kw_only=True):
    id: str
    revision: PolicyRevision
    sources: list[TrainingSource]
    """In the order in which they were recorded."""
    children: list[str]
    """Ids of revisions that have it as their parent, of the newest 500 of the family."""
    eval_run_ids: list[str]
    """The newest 100 runs in which it is the candidate."""


class RevisionList(Struct, frozen=True):
    revisions: list[RevisionAnswer]
    """A revision id is unique within its family only."""


class BatchAnswer(Struct, frozen=True):
    policy_revision_id: str
    """The server's id of the revision that it trained."""
    batch: TrainerBatch


class BatchList(Struct, frozen=True):
    batches: list[BatchAnswer]
    """An id of a batch is unique within its training only."""
