"""Lineage of one policy: everything that the server knows about where it came from and what was decided about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.wire.scenarios import GateAnswer
from rollbook.portal.decisions import RunLine, run_line
from rollbook.server.evals.verify import gate_answer
from rollbook.server.queries import (
    RecordedEpisodes,
    RevisionRow,
    Scope,
    StoreRow,
    TrainingSourceRow,
)

MOST_RUNS = 20


@dataclass(frozen=True, slots=True)
class Lineage:
    version: str
    """What runs and gates call it."""
    row: RevisionRow | None
    """None: nobody recorded a revision of this version."""
    family: Mapping[str, RevisionRow]
    """By revision id: the revision itself, its parent, and the newest others."""
    sources: Sequence[TrainingSourceRow]
    stores: Mapping[str, StoreRow]
    """Registered stores that have rollouts of its sources, by content digest."""
    episodes: RecordedEpisodes
    """What it recorded itself."""
    runs: Sequence[RunLine]
    """The newest first."""
    gate: GateAnswer | None
    """None where no scenario is critical."""

    @property
    def revision(self) -> PolicyRevision | None:
        return None if self.row is None else self.row.revision

    @property
    def parent(self) -> RevisionRow | None:
        named = None if self.revision is None else self.revision.parent_revision_id
        return None if named is None else self.family.get(named)

    @property
    def children(self) -> list[RevisionRow]:
        return [] if self.row is None else self._with_parent(self.row.revision_id)

    @property
    def siblings(self) -> list[RevisionRow]:
        named = None if self.revision is None else self.revision.parent_revision_id
        found = [] if named is None else self._with_parent(named)
        return [each for each in found if self.row is None or each.id != self.row.id]

    def _with_parent(self, revision_id: str) -> list[RevisionRow]:
        return [
            each
            for each in self.family.values()
            if each.revision.parent_revision_id == revision_id and each.revision_id != revision_id
        ]

    @property
    def batches(self) -> list[TrainingSourceRow]:
        return [each for each in self.sources if each.kind == "batch"]

    @property
    def rollouts(self) -> int:
        return sum(each.detail["rollout_count"] for each in self.batches)

    @property
    def shipped(self) -> int:
        return sum(each.decision.kind == "ship" for each in self.runs)

    @property
    def decided(self) -> int:
        return sum(each.run.status == "completed" for each in self.runs)


def lineage_of_revision(scope: Scope, row: RevisionRow) -> Lineage:
    runs = [
        run_line(each) for each in scope.runs_of_policy(policy_revision_id=row.id, limit=MOST_RUNS)
    ]
    # runs name their candidate by a version; a revision without runs is known by its own id only
    version = runs[0].run.candidate_policy_version if runs else row.revision_id
    sources = scope.training_sources(row.id)
    digests = {each.detail["store_digest"] for each in sources if each.kind == "store"}
    return Lineage(
        version=version,
        row=row,
        family={**scope.family_of(row.revision), row.revision_id: row},
        sources=sources,
        stores=scope.stores_with_content(digests) if digests else {},
        episodes=scope.episodes_of_policy(policy_revision_id=row.id),
        runs=runs,
        gate=_gate(scope, version),
    )


def lineage_of_version(scope: Scope, version: str) -> Lineage:
    runs = scope.runs_of_policy(policy_version=version, limit=MOST_RUNS)
    return Lineage(
        version=version,
        row=None,
        family={},
        sources=[],
        stores={},
        episodes=scope.episodes_of_policy(policy_version=version),
        runs=[run_line(each) for each in runs],
        gate=_gate(scope, version),
    )


def _gate(scope: Scope, version: str) -> GateAnswer | None:
    answer = gate_answer(version, scope.standings(version))
    return answer if answer.critical_total else None
