"""LineageGraph: policy revisions and their parents, the artifacts they made, and the batches made of the artifacts.

Every addition is checked completely before it is kept, so a refused addition changes nothing. Records may be added in
any order. A parent or an artifact that is named but not added yet is listed as missing; nothing is invented for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

import msgspec
import numpy as np

from rollbook.contracts.policy import PolicyRevision, merged, revision_conflict
from rollbook.contracts.record import Record, check_digest, checked_type
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.graph_nodes import (
    ArtifactNode,
    BatchNode,
    BatchUse,
    Drift,
    LineageWalk,
    NamedArtifact,
    RevisionKey,
)
from rollbook.contracts.rl.rollout import RolloutArtifact, RolloutTable
from rollbook.contracts.rl.table_digests import Digests, table_root
from rollbook.errors import (
    LineageCycle,
    UnknownArtifact,
    UnknownBatch,
    UnknownRevision,
)

_LONGEST_CYCLE_SHOWN = 16
_ARTIFACT_DIGESTS = ("artifact_digest", "content_digest")
_BATCH_DIGESTS = ("batch_digest", "content_digest")
_DOT_ESCAPES = (("\\", r"\\"), ('"', r"\""), ("\n", r"\n"), ("&", "&amp;"))
"""Graphviz reads entities and backslash escapes in labels. The backslash comes first: the other escapes contain it."""


_Key = TypeVar("_Key", str, RevisionKey)
_Value = TypeVar("_Value")
_Described = Iterable[tuple[PolicyRevision, str | None]]
"""Descriptions of revisions, each with the id of the artifact it comes from, if any."""


class LineageGraph:
    """The origin of every batch. Records can be added in any order, and are never removed."""

    def __init__(self) -> None:
        self._revisions: dict[RevisionKey, PolicyRevision] = {}
        self._children: defaultdict[RevisionKey, list[RevisionKey]] = defaultdict(list)
        # for each revision with a parent, one of its ancestors: the shortcuts that `_top` takes
        self._above: dict[RevisionKey, RevisionKey] = {}
        self._artifacts: dict[str, ArtifactNode] = {}
        self._artifacts_of: defaultdict[RevisionKey, list[str]] = defaultdict(list)
        self._batches: dict[str, BatchNode] = {}
        self._batches_naming: defaultdict[str, list[str]] = defaultdict(list)
        self._uses: defaultdict[RevisionKey, list[BatchUse]] = defaultdict(list)

    def __repr__(self) -> str:
        return (
            f"LineageGraph({len(self._revisions)} revisions, {len(self._artifacts)} artifacts, "
            f"{len(self._batches)} batches)"
        )

    # ------------------------------------------------------------------------------------- adding

    def add_revision(self, revision: PolicyRevision) -> None:
        """Add a revision, or merge it with what is known of it. Contradictions and cycles are refused."""
        checked_type(revision, PolicyRevision, "lineage graph", "revision")
        self._keep_revisions(self._checked_revisions("lineage graph", [(revision, None)]))

    def add_artifact(self, artifact: RolloutArtifact) -> None:
        checked_type(artifact, RolloutArtifact, "lineage graph", "artifact")
        revision = artifact.source_policy_revision
        node = ArtifactNode(
            artifact_id=artifact.artifact_id,
            artifact_digest=artifact.artifact_digest,
            content_digest=artifact.content_digest,
            revision=RevisionKey.of(revision),
            environment=artifact.environment,
            task_id=artifact.task_id,
        )
        self._add_artifacts([node], [(revision, node.artifact_id)])

    def add_table(self, table: RolloutTable) -> None:
        """Add all artifacts of a table. If one is refused, none is added."""
        checked_type(table, RolloutTable, "lineage graph", "table")
        self._add_artifacts(_nodes_of(table), _revisions_of(table))

    def _add_artifacts(self, nodes: Iterable[ArtifactNode], described: _Described) -> None:
        fresh = self._fresh_artifacts(nodes)
        self._keep_revisions(self._checked_revisions("lineage graph", described))
        self._artifacts.update(fresh)
        for artifact_id, node in fresh.items():
            self._artifacts_of[node.revision].append(artifact_id)

    def _fresh_artifacts(self, nodes: Iterable[ArtifactNode]) -> dict[str, ArtifactNode]:
        fresh: dict[str, ArtifactNode] = {}
        for node in nodes:
            known = self._artifacts.get(node.artifact_id)
            if known is None:
                fresh[node.artifact_id] = node
            else:
                _check_same_content(node.artifact_id, _ARTIFACT_DIGESTS, known, node)
        return fresh

    def add_batch(self, batch: TrainerBatch) -> None:
        """Add a batch. Its digests are computed again first, because a walk relies on them."""
        checked_type(batch, TrainerBatch, "lineage graph", "batch")
        batch.verify()
        node, known = BatchNode.of(batch), self._batches.get(batch.batch_id)
        if known is not None:
            _check_same_content(batch.batch_id, _BATCH_DIGESTS, known, node)
            return
        lineage = batch.policy_lineage
        described = [(each, None) for each in (lineage.target_revision, *lineage.source_revisions)]
        self._keep_revisions(self._checked_revisions(f"batch {batch.batch_id!r}", described))
        self._keep_batch(node)

    def _keep_batch(self, node: BatchNode) -> None:
        self._batches[node.batch_id] = node
        self._uses[node.target_revision].append(BatchUse(node.batch_id, "target"))
        for source in node.source_revisions:
            self._uses[source].append(BatchUse(node.batch_id, "source"))
        for artifact_id in node.rollout_ids:
            self._batches_naming[artifact_id].append(node.batch_id)

    def _checked_revisions(
        self, record: str, described: _Described
    ) -> dict[RevisionKey, PolicyRevision]:
        """What the graph would know of these revisions after the addition. Raises a refusal; changes nothing."""
        joined: dict[RevisionKey, PolicyRevision] = {}
        for revision, artifact_id in described:
            key = RevisionKey.of(revision)
            known = joined.get(key) or self._revisions.get(key)
            if known is None:
                joined[key] = revision
            if known is None or known == revision:
                continue
            conflict = revision_conflict(record, artifact_id, known, revision)
            if conflict is not None:
                raise conflict
            joined[key] = merged(known, revision)
        self._refuse_cycles(joined)
        return joined

    def _keep_revisions(self, joined: dict[RevisionKey, PolicyRevision]) -> None:
        for key, parent in self._new_links(joined).items():
            self._children[parent].append(key)
            self._above[key] = parent
        self._revisions.update(joined)

    # ------------------------------------------------------------------------------------- cycles

    def _new_links(
        self, joined: dict[RevisionKey, PolicyRevision]
    ) -> dict[RevisionKey, RevisionKey]:
        """The parents that these descriptions add. A revision keeps the first parent it gets."""
        links = {}
        for key, revision in joined.items():
            parent = RevisionKey.of_parent(revision)
            if parent is not None and key not in self._above:
                links[key] = parent
        return links

    def _refuse_cycles(self, joined: dict[RevisionKey, PolicyRevision]) -> None:
        """A revision that gets a parent now is the top of its tree, so a cycle can only be a loop among tops. Each
        top is visited once."""
        links = self._new_links(joined)
        settled: set[RevisionKey] = set()
        for start in links:
            passed: set[RevisionKey] = set()
            at = start
            while at in links and at not in settled:
                if at in passed:
                    raise self._cycle(at, joined)
                passed.add(at)
                at = self._top(links[at])
            settled |= passed

    def _top(self, key: RevisionKey) -> RevisionKey:
        """The last revision on the way up the parents, whether the graph knows it or not. Every revision on the way is
        then linked to it directly, so that long chains are not walked again (the "find" of union-find)."""
        top = key
        while top in self._above:
            top = self._above[top]
        while key != top:
            self._above[key], key = top, self._above[key]
        return top

    def _cycle(self, start: RevisionKey, joined: dict[RevisionKey, PolicyRevision]) -> LineageCycle:
        path = [start.revision_id]
        parent = RevisionKey.of_parent(joined[start])
        while parent is not None and parent != start:
            path.append(parent.revision_id)
            parent = RevisionKey.of_parent(joined.get(parent) or self._revisions[parent])
        path.append(start.revision_id)
        if len(path) > _LONGEST_CYCLE_SHOWN:
            half = _LONGEST_CYCLE_SHOWN // 2
            path[half:-half] = [f"({len(path) - 2 * half} more)"]
        return LineageCycle(
            policy_family=start.policy_family,
            revision_id=start.revision_id,
            path=" → ".join(path),
        )

    # ---------------------------------------------------------------------------------- revisions

    def revision(self, policy_family: str, revision_id: str) -> PolicyRevision:
        """Everything that is known of a revision."""
        return self._known(RevisionKey(policy_family=policy_family, revision_id=revision_id))

    def _known(self, key: RevisionKey) -> PolicyRevision:
        revision = self._revisions.get(key)
        if revision is None:
            raise UnknownRevision(policy_family=key.policy_family, revision_id=key.revision_id)
        return revision

    def missing_parents(self) -> tuple[RevisionKey, ...]:
        """Revisions that are named as a parent and not added yet, in order."""
        return tuple(sorted(self._children.keys() - self._revisions.keys()))

    def parents(self, policy_family: str, revision_id: str) -> tuple[PolicyRevision, ...]:
        """The parent, if the graph knows it: a tuple of none or one."""
        return tuple(islice(self._climb(self.revision(policy_family, revision_id)), 1))

    def ancestors(self, policy_family: str, revision_id: str) -> tuple[PolicyRevision, ...]:
        """All known ancestors, nearest first."""
        return tuple(self._climb(self.revision(policy_family, revision_id)))

    def _climb(self, revision: PolicyRevision) -> Iterator[PolicyRevision]:
        at: PolicyRevision | None = revision
        while at is not None:
            parent = RevisionKey.of_parent(at)
            at = None if parent is None else self._revisions.get(parent)
            if at is not None:
                yield at

    def descendants(self, policy_family: str, revision_id: str) -> tuple[PolicyRevision, ...]:
        """All known descendants, nearest first; equally near ones in order of their ids."""
        found: list[RevisionKey] = []
        level = [RevisionKey.of(self.revision(policy_family, revision_id))]
        while level:
            level = sorted(child for key in level for child in self._children.get(key, ()))
            found += level
        return tuple(self._revisions[key] for key in found)

    def is_ancestor(self, ancestor: RevisionKey, descendant: RevisionKey) -> bool:
        """Whether `descendant` came from `ancestor`. No revision is its own ancestor."""
        return self._distance(self._known(descendant), self._known(ancestor)) is not None

    def drift(self, target: RevisionKey, source: RevisionKey) -> Drift | None:
        """How far `target` is ahead of `source`: by revision numbers if both have one, otherwise by steps along the
        parents. None if neither leads from `target` back to `source`."""
        ahead, behind = self._known(target), self._known(source)
        if None in (ahead.revision_number, behind.revision_number):
            steps = 0 if target == source else self._distance(ahead, behind)
            return None if steps is None else Drift(steps, "graph_distance")
        numbers = ahead.revision_drift_from(behind)
        return None if numbers is None else Drift(numbers, "revision_number")

    def _distance(self, below: PolicyRevision, above: PolicyRevision) -> int | None:
        for steps, revision in enumerate(self._climb(below), 1):
            if revision is above:
                return steps
        return None

    # ---------------------------------------------------------------------- artifacts and batches

    def artifact(self, artifact_id: str) -> ArtifactNode:
        node = self._artifacts.get(artifact_id)
        if node is None:
            raise UnknownArtifact(artifact_id=artifact_id, where="the lineage graph")
        return node

    def batch(self, batch_id: str) -> BatchNode:
        node = self._batches.get(batch_id)
        if node is None:
            raise UnknownBatch(batch_id=batch_id)
        return node

    def batches_of_artifact(self, artifact_id: str) -> tuple[str, ...]:
        """Ids of the batches that name an artifact, in order. The artifact itself need not be in the graph."""
        if artifact_id not in self._batches_naming:
            self.artifact(artifact_id)
        return tuple(sorted(set(self._batches_naming.get(artifact_id, ()))))

    def batches_of_revision(self, policy_family: str, revision_id: str) -> tuple[BatchUse, ...]:
        """Batches that train a revision or have rollouts of it, in order of their ids."""
        key = RevisionKey.of(self.revision(policy_family, revision_id))
        return tuple(sorted(self._uses.get(key, ())))

    def artifacts_of_revision(self, policy_family: str, revision_id: str) -> tuple[str, ...]:
        """Ids of the artifacts that a revision made, in order."""
        key = RevisionKey.of(self.revision(policy_family, revision_id))
        return tuple(sorted(self._artifacts_of.get(key, ())))

    def artifacts_of_batch(self, batch_id: str) -> tuple[str, ...]:
        """Ids in batch order, also of artifacts that are not in the graph."""
        return self.batch(batch_id).rollout_ids

    def walk(self, batch_id: str) -> LineageWalk:
        """From a batch to its artifacts, their revisions with all ancestors, and their checkpoints."""
        batch = self.batch(batch_id)
        artifacts, unknown = self._artifacts_named_by(batch)
        if not unknown:
            _check_root(batch, artifacts)
        starts = [batch.target_revision, *batch.source_revisions]
        revisions, missing = self._ancestry([*starts, *(each.revision for each in artifacts)])
        return LineageWalk(
            batch_id=batch.batch_id,
            batch_digest=batch.batch_digest,
            target_revision=batch.target_revision,
            source_revisions=batch.source_revisions,
            artifacts=tuple(artifacts),
            unknown_artifacts=tuple(unknown),
            revisions=tuple(revisions),
            missing_parents=tuple(missing),
        )

    def _artifacts_named_by(
        self, batch: BatchNode
    ) -> tuple[list[ArtifactNode], list[NamedArtifact]]:
        artifacts, unknown = [], []
        for artifact_id, digest in zip(batch.rollout_ids, batch.rollout_digests, strict=True):
            node = self._artifacts.get(artifact_id)
            named = NamedArtifact(artifact_id=artifact_id, artifact_digest=digest)
            if node is None:
                unknown.append(named)
            else:
                _check_same_content(artifact_id, ("artifact_digest",), named, node)
                artifacts.append(node)
        return artifacts, unknown

    def _ancestry(
        self, starts: Iterable[RevisionKey]
    ) -> tuple[Iterable[PolicyRevision], list[RevisionKey]]:
        """Walk up from each start until the line ends or meets one that was walked before."""
        found: dict[RevisionKey, PolicyRevision] = {}
        missing: set[RevisionKey] = set()
        for start in starts:
            at: RevisionKey | None = start
            while at is not None and at not in found:
                revision = self._revisions.get(at)
                if revision is None:
                    missing.add(at)
                    break
                found[at] = revision
                at = RevisionKey.of_parent(revision)
        return found.values(), sorted(missing)

    # ------------------------------------------------------------------------------------- export

    def to_json(self) -> bytes:
        """The graph as JSON. The bytes depend on its content only, not on the order of additions."""
        return msgspec.json.encode(
            {
                "revisions": _by_key(self._revisions),
                "missing_parents": self.missing_parents(),
                "artifacts": _by_key(self._artifacts),
                "batches": _by_key(self._batches),
            }
        )

    def to_dot(self) -> str:
        """The graph as Graphviz text: ellipses are revisions, notes are artifacts, boxes are batches.

        Dashed nodes are named but not added. A dashed link means that the batch names another content of the artifact.
        """
        return "\n".join(["digraph lineage {", "  rankdir=LR;", *self._dot_lines(), "}", ""])

    def _dot_lines(self) -> Iterator[str]:
        """Nodes are numbered, because a revision and an artifact may have the same id."""
        revisions = _numbered("r", self._revisions.keys() | self._children.keys())
        artifacts = _numbered("a", self._artifacts.keys() | self._batches_naming.keys())
        batches = _numbered("b", self._batches)
        for key, name in revisions.items():
            label = f"{key.policy_family}\n{key.revision_id}"
            yield _dot_node(name, "ellipse", label, known=key in self._revisions)
        for artifact_id, name in artifacts.items():
            yield _dot_node(name, "note", artifact_id, known=artifact_id in self._artifacts)
        for batch_id, name in batches.items():
            yield _dot_node(name, "box", batch_id, known=True)
        for key, name in revisions.items():
            for child in sorted(self._children.get(key, ())):
                yield f"  {name} -> {revisions[child]};"
            for artifact_id in sorted(self._artifacts_of.get(key, ())):
                yield f"  {name} -> {artifacts[artifact_id]};"
        for batch_id, name in batches.items():
            batch = self._batches[batch_id]
            for artifact_id, digest in zip(batch.rollout_ids, batch.rollout_digests, strict=True):
                node = self._artifacts.get(artifact_id)
                other = node is not None and node.artifact_digest != digest
                yield f"  {artifacts[artifact_id]} -> {name}{' [style=dashed]' if other else ''};"
            yield f"  {name} -> {revisions[batch.target_revision]};"


def _check_same_content(
    record_id: str, digests: Iterable[str], known: Record, offered: Record
) -> None:
    """Raise DigestMismatch for the first of `digests` that differs: one id has one content."""
    for field in digests:
        check_digest(record_id, field, getattr(known, field), getattr(offered, field))


def _check_root(batch: BatchNode, artifacts: list[ArtifactNode]) -> None:
    """The root also covers what v1 digests leave out (prompts, masks, …), but needs all rollouts of the batch."""
    if batch.rollouts_root is None:
        return
    content = bytes.fromhex("".join(node.content_digest for node in artifacts))
    computed = table_root(np.frombuffer(content, np.uint8).reshape(len(artifacts), 32))
    check_digest(batch.batch_id, "rollouts_root", batch.rollouts_root, computed)


def _nodes_of(table: RolloutTable) -> Iterator[ArtifactNode]:
    columns = table.columns
    keys = [RevisionKey.of(revision) for revision in columns.revisions]
    for artifact_id, task_id, artifact_digest, content_digest, revision, environment in zip(
        columns.artifact_id,
        columns.task_id,
        _hex_rows(table.artifact_digests),
        _hex_rows(table.content_digests),
        columns.revision_index.tolist(),
        columns.environment_index.tolist(),
        strict=True,
    ):
        yield ArtifactNode(
            artifact_id=artifact_id,
            artifact_digest=artifact_digest,
            content_digest=content_digest,
            revision=keys[revision],
            environment=columns.environments[environment],
            task_id=task_id,
        )


def _hex_rows(digests: Digests) -> list[str]:
    """Every row in hexadecimal, with one conversion for all bytes."""
    width = 2 * digests.shape[1]
    text = digests.tobytes().hex()
    return [text[at : at + width] for at in range(0, len(text), width)]


def _revisions_of(table: RolloutTable) -> _Described:
    """Each revision of a table once, with the first artifact that it made."""
    codes, rows = np.unique(table.columns.revision_index, return_index=True)
    return [
        (table.columns.revisions[code], table.columns.artifact_id[row])
        for code, row in zip(codes.tolist(), rows.tolist(), strict=True)
    ]


def _by_key(records: Mapping[_Key, _Value]) -> list[_Value]:
    return [records[key] for key in sorted(records)]


def _numbered(prefix: str, keys: Iterable[_Key]) -> dict[_Key, str]:
    return {key: f"{prefix}{number}" for number, key in enumerate(sorted(keys))}


def _dot_node(name: str, shape: str, label: str, *, known: bool) -> str:
    style = "" if known else "style=dashed, "
    return f'  {name} [shape={shape}, {style}label="{dot_text(label)}"];'


def dot_text(label: str) -> str:
    """A text that Graphviz shows as it is. Control characters are spelled out: Graphviz cannot draw them."""
    text = "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode()
        for each in label
    )
    for character, escape in _DOT_ESCAPES:
        text = text.replace(character, escape)
    return text
