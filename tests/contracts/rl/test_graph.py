"""LineageGraph: what it accepts, what it answers, and that a refusal leaves no trace."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts.policy import CheckpointReference, PolicyRevision
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.graph import LineageGraph
from rollbook.contracts.rl.graph_nodes import (
    ArtifactNode,
    BatchUse,
    Drift,
    NamedArtifact,
    RevisionKey,
)
from rollbook.contracts.rl.json_form import batch_from_json, batch_to_json
from rollbook.contracts.rl.provenance import EnvironmentPackageKey, RolloutTerminationReason
from rollbook.contracts.rl.rollout import RolloutArtifact, RolloutTable
from rollbook.contracts.rl.rules import COMPATIBLE, STRICT, ContractRules
from rollbook.contracts.rl.sample import RolloutSample
from rollbook.errors import (
    ConflictingRevision,
    DigestMismatch,
    InvalidValue,
    LineageCycle,
    Refusal,
    UnknownArtifact,
    UnknownBatch,
    UnknownRevision,
)

ROOM = EnvironmentPackageKey(environment_ref="room", version="1")
CHECKPOINT = CheckpointReference(
    checkpoint_family="ppo",
    stream_id="stream",
    manifest_digest="m",
    object_digest="o",
    writer_node_id="node",
    membership_epoch=1,
    cluster_state_digest="c",
    topology_digest="t",
    started_at_ms=1,
)


def revision(
    revision_id: str,
    parent: str | None = None,
    *,
    number: int | None = None,
    checkpoint: CheckpointReference | None = None,
    family: str = "nbv",
    digest: str = "weights",
) -> PolicyRevision:
    return PolicyRevision(
        policy_family=family,
        revision_id=revision_id,
        policy_digest=digest,
        produced_at_ms=1,
        revision_number=number,
        parent_revision_id=parent,
        checkpoint=checkpoint,
    )


def key(revision_id: str, family: str = "nbv") -> RevisionKey:
    return RevisionKey(policy_family=family, revision_id=revision_id)


def artifact(
    artifact_id: str,
    source: PolicyRevision,
    *,
    reward: float = 0.0,
    prompt: list[int] | None = None,
    rules: ContractRules = STRICT,
) -> RolloutArtifact:
    return RolloutArtifact(
        artifact_id=artifact_id,
        worker_id="worker",
        environment=ROOM,
        task_id=f"task of {artifact_id}",
        source_policy_revision=source,
        samples=[RolloutSample(token_id=1, logprob=-1.0, reward=reward, advantage=0.0)],
        termination_reason=RolloutTerminationReason.COMPLETED,
        created_at_ms=2,
        prompt=prompt,
        rules=rules,
    )


def table(ids: Sequence[str], sources: Sequence[PolicyRevision]) -> RolloutTable:
    rows = len(ids)
    floats = np.zeros(rows, np.float32)
    return RolloutTable.from_columns(
        artifact_id=ids,
        worker_id=["worker"] * rows,
        environment=[ROOM] * rows,
        task_id=["task"] * rows,
        source_policy_revision=sources,
        offsets=np.arange(rows + 1),
        samples={
            "token_id": np.zeros(rows, np.uint32),
            "logprob": floats,
            "reward": floats,
            "advantage": floats,
        },
        termination_reason=["completed"] * rows,
        created_at_ms=np.zeros(rows, np.uint64),
    )


def batch(
    batch_id: str,
    target: PolicyRevision,
    rollouts: RolloutTable | Sequence[RolloutArtifact],
    rules: ContractRules = STRICT,
) -> TrainerBatch:
    return TrainerBatch.assemble(
        batch_id=batch_id, target_revision=target, rollouts=rollouts, assembled_at_ms=9, rules=rules
    )


def graph_of(*revisions: PolicyRevision) -> LineageGraph:
    graph = LineageGraph()
    for each in revisions:
        graph.add_revision(each)
    return graph


def chain(length: int) -> list[PolicyRevision]:
    return [revision(str(n), str(n - 1) if n else None) for n in range(length)]


def ids(revisions: Sequence[PolicyRevision]) -> list[str]:
    return [each.revision_id for each in revisions]


R0, R1, R2, R3 = revision("r0"), revision("r1", "r0"), revision("r2", "r1"), revision("r3", "r2")


def small_world() -> tuple[LineageGraph, TrainerBatch]:
    """Two artifacts of r0 and r1, and a batch for r2 that also names one nobody added."""
    graph = LineageGraph()
    rollouts = [artifact("a", R0), artifact("b", R1), artifact("c", R1)]
    for each in rollouts[:2]:
        graph.add_artifact(each)
    made = batch("batch", R2, rollouts)
    graph.add_batch(made)
    return graph, made


class TestRevisions:
    def test_a_revision_is_known_by_family_and_id(self) -> None:
        other = revision("r0", family="other", digest="else")
        graph = graph_of(R0, other)
        assert graph.revision("nbv", "r0") == R0
        assert graph.revision("other", "r0") == other

    def test_compatible_descriptions_are_joined(self) -> None:
        graph = graph_of(revision("r1", number=1), revision("r1", "r0", checkpoint=CHECKPOINT))
        joined = revision("r1", "r0", number=1, checkpoint=CHECKPOINT)
        assert graph.revision("nbv", "r1") == joined

    def test_a_contradicting_description_is_refused_and_not_kept(self) -> None:
        graph = graph_of(revision("r1", number=1))
        before = graph.to_json()
        with pytest.raises(ConflictingRevision) as refused:
            graph.add_revision(revision("r1", "r0", digest="other weights"))
        assert refused.value.fields == {
            "record": "lineage graph",
            "artifact_id": None,
            "revision_id": "r1",
            "field": "policy_digest",
            "first": "weights",
            "second": "other weights",
        }
        assert graph.to_json() == before

    def test_another_parent_is_a_contradiction(self) -> None:
        graph = graph_of(R1)
        with pytest.raises(ConflictingRevision, match="parent_revision_id"):
            graph.add_revision(revision("r1", "r9"))

    def test_a_missing_parent_is_listed_until_it_comes(self) -> None:
        graph = graph_of(R2, R1, revision("x", "w", family="a"))
        assert graph.missing_parents() == (key("w", "a"), key("r0"))
        assert graph.ancestors("nbv", "r2") == (R1,)
        assert graph.parents("nbv", "r1") == ()
        with pytest.raises(UnknownRevision):
            graph.revision("nbv", "r0")
        graph.add_revision(R0)
        assert graph.missing_parents() == (key("w", "a"),)
        assert graph.ancestors("nbv", "r2") == (R1, R0)

    def test_a_parent_is_of_the_same_family(self) -> None:
        graph = graph_of(revision("r0", family="other"), R1)
        assert graph.parents("nbv", "r1") == ()
        assert graph.missing_parents() == (key("r0"),)

    def test_ancestors_and_descendants_come_nearest_first(self) -> None:
        graph = graph_of(R3, revision("b", "r1"), R0, revision("a", "r2"), R2, R1)
        assert ids(graph.parents("nbv", "r3")) == ["r2"]
        assert ids(graph.ancestors("nbv", "r3")) == ["r2", "r1", "r0"]
        assert ids(graph.descendants("nbv", "r0")) == ["r1", "b", "r2", "a", "r3"]
        assert graph.descendants("nbv", "r3") == ()

    def test_an_ancestor_is_never_the_revision_itself_or_a_sibling(self) -> None:
        graph = graph_of(R0, R1, R2, revision("sibling", "r0"))
        assert graph.is_ancestor(key("r0"), key("r2"))
        assert not graph.is_ancestor(key("r2"), key("r0"))
        assert not graph.is_ancestor(key("r1"), key("r1"))
        assert not graph.is_ancestor(key("sibling"), key("r2"))

    def test_something_that_is_no_revision_is_refused(self) -> None:
        with pytest.raises(InvalidValue, match="PolicyRevision"):
            LineageGraph().add_revision("r0")  # type: ignore[arg-type]


class TestCycles:
    def test_a_revision_cannot_be_its_own_parent(self) -> None:
        graph = LineageGraph()
        with pytest.raises(LineageCycle) as refused:
            graph.add_revision(revision("r0", "r0"))
        assert refused.value.path == "r0 → r0"
        assert graph.missing_parents() == ()

    def test_a_cycle_closed_by_a_missing_parent_is_refused(self) -> None:
        graph = graph_of(R1, R2, R3)
        before = graph.to_json()
        with pytest.raises(LineageCycle) as refused:
            graph.add_revision(revision("r0", "r3"))
        assert refused.value.fields == {
            "policy_family": "nbv",
            "revision_id": "r0",
            "path": "r0 → r3 → r2 → r1 → r0",
        }
        assert graph.to_json() == before
        graph.add_revision(R0)
        assert graph.missing_parents() == ()

    def test_a_cycle_closed_by_a_parent_told_later_is_refused(self) -> None:
        graph = graph_of(R0, R1)
        with pytest.raises(LineageCycle):
            graph.add_revision(revision("r0", "r1", number=7))
        assert graph.revision("nbv", "r0") == R0

    def test_equal_ids_of_two_families_make_no_cycle(self) -> None:
        graph = graph_of(revision("a", "b"), revision("b", "a", family="other"))
        assert graph.missing_parents() == (key("b"), key("a", "other"))

    def test_a_cycle_within_one_table_refuses_the_whole_table(self) -> None:
        graph = graph_of(R0)
        before = graph.to_json()
        looped = [R1, revision("x", "z"), revision("y", "x"), revision("z", "y")]
        with pytest.raises(LineageCycle):
            graph.add_table(table(["a", "b", "c", "d"], looped))
        assert graph.to_json() == before
        with pytest.raises(UnknownArtifact):
            graph.artifact("a")

    def test_a_cycle_brought_by_a_batch_refuses_the_batch(self) -> None:
        graph = graph_of(R2)
        before = graph.to_json()
        with pytest.raises(LineageCycle):
            graph.add_batch(
                batch("batch", revision("r1", "r0"), [artifact("a", revision("r0", "r2"))])
            )
        assert graph.to_json() == before
        with pytest.raises(UnknownBatch):
            graph.batch("batch")
        graph.add_revision(R1)
        assert ids(graph.ancestors("nbv", "r2")) == ["r1"]

    def test_the_path_of_a_long_cycle_is_shortened(self) -> None:
        graph = graph_of(*chain(1000)[1:])
        with pytest.raises(LineageCycle) as refused:
            graph.add_revision(revision("0", "999"))
        assert refused.value.path.startswith("0 → 999 → 998 → ")
        assert "(985 more)" in refused.value.path
        assert refused.value.path.endswith(" → 2 → 1 → 0")


class TestDrift:
    def test_numbers_are_used_where_both_are_numbered(self) -> None:
        graph = graph_of(revision("r0", number=3), revision("r1", "r0", number=10))
        assert graph.drift(key("r1"), key("r0")) == Drift(7, "revision_number")

    def test_parents_are_counted_where_a_number_is_missing(self) -> None:
        graph = graph_of(revision("r0", number=3), R1, revision("r2", "r1", number=9))
        assert graph.drift(key("r1"), key("r0")) == Drift(1, "graph_distance")
        assert graph.drift(key("r2"), key("r1")) == Drift(1, "graph_distance")
        assert graph.drift(key("r1"), key("r1")) == Drift(0, "graph_distance")

    def test_it_is_undefined_where_the_source_is_ahead_or_unrelated(self) -> None:
        graph = graph_of(R0, R1, revision("r0", family="other"), revision("sibling", "r0"))
        assert graph.drift(key("r0"), key("r1")) is None
        assert graph.drift(key("r1"), key("sibling")) is None
        assert graph.drift(key("r1"), key("r0", "other")) is None

    def test_numbers_of_two_families_are_not_compared(self) -> None:
        graph = graph_of(revision("a", number=1), revision("a", number=5, family="other"))
        assert graph.drift(key("a", "other"), key("a")) is None

    def test_parents_do_not_overrule_numbers(self) -> None:
        graph = graph_of(revision("r0", number=5), revision("r1", "r0", number=4))
        assert graph.drift(key("r1"), key("r0")) is None


class TestArtifacts:
    def test_only_what_names_and_proves_an_artifact_is_kept(self) -> None:
        graph, made = LineageGraph(), artifact("a", R1)
        graph.add_artifact(made)
        assert graph.artifact("a") == ArtifactNode(
            artifact_id="a",
            artifact_digest=made.artifact_digest,
            content_digest=made.content_digest,
            revision=key("r1"),
            environment=ROOM,
            task_id="task of a",
        )
        assert graph.revision("nbv", "r1") == R1

    def test_a_table_gives_the_same_graph_as_its_artifacts(self) -> None:
        rollouts = table(["a", "b", "c"], [R0, R1, R0])
        whole, single = LineageGraph(), LineageGraph()
        whole.add_table(rollouts)
        for each in rollouts:
            single.add_artifact(each)
        assert whole.to_json() == single.to_json()
        assert whole.artifacts_of_revision("nbv", "r0") == ("a", "c")

    def test_adding_the_same_again_changes_nothing(self) -> None:
        graph, made = small_world()
        before, drawn = graph.to_json(), graph.to_dot()
        graph.add_artifact(artifact("a", R0))
        graph.add_table(RolloutTable.from_artifacts([artifact("b", R1)]))
        graph.add_batch(made)
        graph.add_table(RolloutTable.empty())
        assert graph.to_json() == before
        assert graph.to_dot() == drawn
        assert graph.artifacts_of_revision("nbv", "r0") == ("a",)
        assert graph.batches_of_artifact("a") == ("batch",)

    def test_a_row_that_stands_twice_is_one_artifact(self) -> None:
        graph = LineageGraph()
        graph.add_table(table(["a", "b"], [R0, R0]).take([0, 1, 0]))
        assert graph.artifacts_of_revision("nbv", "r0") == ("a", "b")

    def test_the_same_id_with_another_digest_is_refused(self) -> None:
        graph, first, second = LineageGraph(), artifact("a", R0), artifact("a", R0, reward=1.0)
        graph.add_artifact(first)
        with pytest.raises(DigestMismatch) as refused:
            graph.add_artifact(second)
        assert refused.value.fields == {
            "record_id": "a",
            "field": "artifact_digest",
            "recorded": first.artifact_digest,
            "computed": second.artifact_digest,
        }

    def test_what_the_v1_digest_does_not_cover_is_told_apart_by_the_other(self) -> None:
        graph = LineageGraph()
        graph.add_artifact(artifact("a", revision("r0", number=1)))
        with pytest.raises(DigestMismatch, match="content_digest"):
            graph.add_artifact(artifact("a", revision("r0")))

    def test_one_refused_row_refuses_the_whole_table(self) -> None:
        graph = LineageGraph()
        graph.add_artifact(artifact("c", R0, reward=1.0))
        before = graph.to_json()
        with pytest.raises(DigestMismatch):
            graph.add_table(table(["a", "b", "c"], [R1, R2, R0]))
        assert graph.to_json() == before

    def test_a_table_with_a_contradicting_revision_names_its_first_artifact(self) -> None:
        graph = graph_of(R1)
        before = graph.to_json()
        with pytest.raises(ConflictingRevision) as refused:
            graph.add_table(table(["a", "b", "c"], [R0, R1, revision("r1", digest="other")]))
        assert refused.value.artifact_id == "c"
        assert graph.to_json() == before

    def test_two_descriptions_in_one_table_are_joined(self) -> None:
        graph = LineageGraph()
        graph.add_table(table(["a", "b"], [revision("r1", number=1), R1]))
        assert graph.revision("nbv", "r1") == revision("r1", "r0", number=1)
        assert graph.artifacts_of_revision("nbv", "r1") == ("a", "b")

    def test_something_else_is_refused(self) -> None:
        graph = LineageGraph()
        with pytest.raises(InvalidValue, match="RolloutArtifact"):
            graph.add_artifact(R0)  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="RolloutTable"):
            graph.add_table([artifact("a", R0)])  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="TrainerBatch"):
            graph.add_batch(R0)  # type: ignore[arg-type]


class TestBatches:
    def test_a_batch_brings_its_revisions(self) -> None:
        graph = LineageGraph()
        graph.add_batch(batch("batch", R2, [artifact("a", R1)]))
        assert graph.revision("nbv", "r2") == R2
        assert graph.revision("nbv", "r1") == R1
        assert graph.missing_parents() == (key("r0"),)

    def test_a_revision_knows_its_batches_and_what_it_is_to_them(self) -> None:
        graph = LineageGraph()
        graph.add_batch(batch("second", R1, [artifact("b", R1)]))
        graph.add_batch(batch("first", R1, [artifact("a", R0)]))
        assert graph.batches_of_revision("nbv", "r1") == (
            BatchUse("first", "target"),
            BatchUse("second", "source"),
            BatchUse("second", "target"),
        )
        assert graph.batches_of_revision("nbv", "r0") == (BatchUse("first", "source"),)

    def test_an_artifact_knows_its_batches_even_before_it_is_added(self) -> None:
        graph, _ = small_world()
        graph.add_batch(batch("again", R3, [artifact("c", R1), artifact("a", R0)]))
        graph.add_artifact(artifact("unused", R0))
        assert graph.batches_of_artifact("a") == ("again", "batch")
        assert graph.batches_of_artifact("c") == ("again", "batch")
        assert graph.batches_of_artifact("unused") == ()

    def test_artifacts_of_a_batch_keep_its_order(self) -> None:
        graph = LineageGraph()
        graph.add_batch(batch("batch", R1, [artifact("b", R0), artifact("a", R0)]))
        assert graph.artifacts_of_batch("batch") == ("b", "a")

    def test_the_same_id_with_another_digest_is_refused(self) -> None:
        graph, first = small_world()
        before, second = graph.to_json(), batch("batch", R3, [artifact("a", R0)])
        with pytest.raises(DigestMismatch) as refused:
            graph.add_batch(second)
        assert refused.value.fields == {
            "record_id": "batch",
            "field": "batch_digest",
            "recorded": first.batch_digest,
            "computed": second.batch_digest,
        }
        assert graph.to_json() == before

    def test_a_batch_that_contradicts_a_known_revision_is_refused(self) -> None:
        graph = graph_of(R0)
        before = graph.to_json()
        made = batch("batch", R1, [artifact("a", revision("r0", digest="other"))])
        with pytest.raises(ConflictingRevision, match="batch 'batch'"):
            graph.add_batch(made)
        assert graph.to_json() == before

    def test_a_batch_that_does_not_match_its_own_digests_is_refused(self) -> None:
        made = batch("batch", R1, [artifact("a", R0), artifact("b", R0)])
        swapped = msgspec.structs.replace(made, rollout_ids=("b", "a"))
        shortened = msgspec.structs.replace(made, rollout_digests=made.rollout_digests[:1])
        graph = LineageGraph()
        for forged in (swapped, shortened):
            with pytest.raises(DigestMismatch):
                graph.add_batch(forged)
        assert graph.to_json() == LineageGraph().to_json()


class TestWalk:
    def test_one_call_leads_from_a_batch_to_everything_behind_it(self) -> None:
        graph, made = small_world()
        graph.add_revision(revision("r1", checkpoint=CHECKPOINT))
        walk = graph.walk("batch")
        assert (walk.batch_id, walk.batch_digest) == ("batch", made.batch_digest)
        assert walk.target_revision == key("r2")
        assert walk.source_revisions == (key("r0"), key("r1"))
        assert walk.artifacts == (graph.artifact("a"), graph.artifact("b"))
        assert ids(walk.revisions) == ["r2", "r1", "r0"]
        assert walk.checkpoints == {key("r1"): CHECKPOINT}
        assert walk.missing_parents == ()

    def test_artifacts_the_graph_does_not_hold_are_only_named(self) -> None:
        graph, made = small_world()
        named = NamedArtifact(artifact_id="c", artifact_digest=made.rollout_digests[2])
        assert graph.walk("batch").unknown_artifacts == (named,)
        graph.add_artifact(artifact("c", R1))
        assert graph.walk("batch").unknown_artifacts == ()

    def test_an_artifact_other_than_the_one_the_batch_names_is_refused(self) -> None:
        graph, made = small_world()
        other = artifact("c", R1, reward=1.0)
        graph.add_artifact(other)
        with pytest.raises(DigestMismatch) as refused:
            graph.walk("batch")
        assert refused.value.fields == {
            "record_id": "c",
            "field": "artifact_digest",
            "recorded": made.rollout_digests[2],
            "computed": other.artifact_digest,
        }

    def test_content_the_v1_digest_does_not_cover_is_held_to_the_root_of_the_batch(self) -> None:
        graph, named, prompted = LineageGraph(), artifact("a", R0), artifact("a", R0, prompt=[1])
        assert named.artifact_digest == prompted.artifact_digest
        made = batch("batch", R1, [named])
        graph.add_artifact(prompted)
        graph.add_batch(made)
        with pytest.raises(DigestMismatch) as refused:
            graph.walk("batch")
        assert refused.value.record_id == "batch"
        assert refused.value.field == "rollouts_root"
        assert refused.value.recorded == made.rollouts_root

    def test_a_batch_without_a_root_is_walked_by_its_v1_digests(self) -> None:
        graph, rollouts = LineageGraph(), table(["a"], [R0])
        graph.add_table(rollouts)
        graph.add_batch(
            batch_from_json(batch_to_json(batch("batch", R1, rollouts), reference_only=True))
        )
        assert graph.walk("batch").artifacts == (graph.artifact("a"),)

    def test_the_revision_of_every_artifact_is_there_whatever_the_batch_says(self) -> None:
        told = revision("x", digest="y|policy_digest|z")
        held = revision("x|policy_digest|y", digest="z")
        graph = LineageGraph()
        graph.add_artifact(artifact("a", held, rules=COMPATIBLE))
        rollouts = [artifact("a", told, rules=COMPATIBLE), artifact("b", told, rules=COMPATIBLE)]
        graph.add_batch(batch("batch", R0, rollouts, rules=COMPATIBLE))
        assert graph.walk("batch").revisions == (R0, told, held)

    def test_branches_are_climbed_and_missing_parents_told(self) -> None:
        graph = graph_of(revision("trunk", "lost"), revision("left", "trunk"))
        sources = [revision("right", "trunk"), revision("stray", "gone")]
        rollouts = [artifact(each.revision_id, each) for each in sources]
        graph.add_batch(batch("batch", revision("tip", "left"), rollouts))
        walk = graph.walk("batch")
        assert ids(walk.revisions) == ["tip", "left", "trunk", "right", "stray"]
        assert walk.missing_parents == (key("gone"), key("lost"))

    def test_plain_is_a_tree_that_json_can_carry(self) -> None:
        graph, made = small_world()
        graph.add_revision(revision("r1", checkpoint=CHECKPOINT))
        tree = json.loads(json.dumps(graph.walk("batch").plain()))
        assert list(tree) == [
            "batch_id",
            "batch_digest",
            "target_revision",
            "source_revisions",
            "artifacts",
            "unknown_artifacts",
            "revisions",
            "missing_parents",
        ]
        assert tree["artifacts"][1] == {
            "artifact_id": "b",
            "artifact_digest": made.rollout_digests[1],
            "content_digest": graph.artifact("b").content_digest,
            "revision": {"policy_family": "nbv", "revision_id": "r1"},
            "environment": {"environment_ref": "room", "version": "1"},
            "task_id": "task of b",
        }
        assert tree["revisions"][1]["checkpoint"]["stream_id"] == "stream"
        assert "checkpoint" not in tree["revisions"][0]


class TestUnknownIds:
    def test_each_question_names_what_it_does_not_know(self) -> None:
        graph = graph_of(R1)
        for ask in (
            graph.revision,
            graph.parents,
            graph.ancestors,
            graph.descendants,
            graph.batches_of_revision,
            graph.artifacts_of_revision,
        ):
            with pytest.raises(UnknownRevision) as refused:
                ask("nbv", "r0")
            assert refused.value.fields == {"policy_family": "nbv", "revision_id": "r0"}
        for question in (graph.drift, graph.is_ancestor):
            for pair in ((key("r1"), key("r0")), (key("r0"), key("r1"))):
                with pytest.raises(UnknownRevision, match="r0"):
                    question(*pair)
        for question_of_artifact in (graph.artifact, graph.batches_of_artifact):
            with pytest.raises(UnknownArtifact, match="lineage graph"):
                question_of_artifact("a")
        for question_of_batch in (graph.batch, graph.artifacts_of_batch, graph.walk):
            with pytest.raises(UnknownBatch, match="batch"):
                question_of_batch("batch")

    def test_asking_changes_nothing(self) -> None:
        graph, _ = small_world()
        before, drawn = graph.to_json(), graph.to_dot()
        for ask in (graph.descendants, graph.batches_of_revision, graph.artifacts_of_revision):
            ask("nbv", "r2")
        graph.batches_of_artifact("a")
        graph.walk("batch")
        assert (graph.to_json(), graph.to_dot()) == (before, drawn)


class TestExport:
    def test_json_tells_everything_once_and_in_order(self) -> None:
        graph, made = small_world()
        told = json.loads(graph.to_json())
        assert list(told) == ["revisions", "missing_parents", "artifacts", "batches"]
        assert [each["revision_id"] for each in told["revisions"]] == ["r0", "r1", "r2"]
        assert [each["artifact_id"] for each in told["artifacts"]] == ["a", "b"]
        assert told["batches"][0]["rollout_digests"] == list(made.rollout_digests)
        assert told["batches"][0]["target_revision"] == {
            "policy_family": "nbv",
            "revision_id": "r2",
        }

    def test_dot_draws_kinds_links_and_what_is_missing(self) -> None:
        graph, _ = small_world()
        graph.add_revision(revision("r0", "lost"))
        assert graph.to_dot() == (
            "digraph lineage {\n"
            "  rankdir=LR;\n"
            '  r0 [shape=ellipse, style=dashed, label="nbv\\nlost"];\n'
            '  r1 [shape=ellipse, label="nbv\\nr0"];\n'
            '  r2 [shape=ellipse, label="nbv\\nr1"];\n'
            '  r3 [shape=ellipse, label="nbv\\nr2"];\n'
            '  a0 [shape=note, label="a"];\n'
            '  a1 [shape=note, label="b"];\n'
            '  a2 [shape=note, style=dashed, label="c"];\n'
            '  b0 [shape=box, label="batch"];\n'
            "  r0 -> r1;\n"
            "  r1 -> r2;\n"
            "  r1 -> a0;\n"
            "  r2 -> r3;\n"
            "  r2 -> a1;\n"
            "  a0 -> b0;\n"
            "  a1 -> b0;\n"
            "  a2 -> b0;\n"
            "  b0 -> r3;\n"
            "}\n"
        )

    def test_dot_does_not_pass_off_an_artifact_as_the_one_a_batch_names(self) -> None:
        graph, _ = small_world()
        graph.add_artifact(artifact("c", R1, reward=1.0))
        assert "  a2 -> b0 [style=dashed];\n" in graph.to_dot()

    def test_an_empty_graph_can_be_written(self) -> None:
        graph = LineageGraph()
        assert graph.to_dot() == "digraph lineage {\n  rankdir=LR;\n}\n"
        assert json.loads(graph.to_json())["revisions"] == []
        assert repr(graph) == "LineageGraph(0 revisions, 0 artifacts, 0 batches)"

    @pytest.mark.parametrize(
        ("nasty", "escaped"),
        [
            ('say "hi"', r"say \"hi\""),
            ("C:\\new", r"C:\\new"),
            ("ends in \\", r"ends in \\"),
            ("two\nlines", r"two\nlines"),
            ("\\N \\G", r"\\N \\G"),
            ("a &lt; b", "a &amp;lt; b"),
            ("nul\0 cr\r esc\x1b", r"nul\\x00 cr\\r esc\\x1b"),
            ("turned\u202e", r"turned\\u202e"),
            ("}; x -> y [a=b]", "}; x -> y [a=b]"),
            ("日本 é", "日本 é"),
        ],
    )
    def test_dot_escapes_ids(self, nasty: str, escaped: str) -> None:
        assert f'label="nbv\\n{escaped}"];\n' in graph_of(revision(nasty)).to_dot()

    @settings(deadline=None)
    @given(st.lists(st.text(), min_size=1, max_size=4, unique=True))
    def test_dot_labels_read_back_as_the_ids(self, nasty: list[str]) -> None:
        graph = graph_of(*(revision(each) for each in nasty))
        opening, rank, *nodes, closing, end = graph.to_dot().split("\n")
        assert (opening, rank, closing, end) == ("digraph lineage {", "  rankdir=LR;", "}", "")
        for line, text in zip(nodes, sorted(nasty), strict=True):
            assert line.isprintable()
            found = re.fullmatch(
                r'  r\d+ \[shape=ellipse, label="nbv\\n((?:[^"\\]|\\.)*)"\];', line
            )
            assert found is not None
            if all(each.isprintable() or each == "\n" for each in text):
                assert read_label(found[1]) == text


def read_label(label: str) -> str:
    """A label as Graphviz reads it: escapes, then entities."""
    text = re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], label)
    return text.replace("&amp;", "&")


class TestSize:
    def test_a_chain_of_ten_thousand_revisions_is_climbed(self) -> None:
        length = 10_000
        revisions = chain(length)
        last = revisions[-1].revision_id
        for order in (revisions, revisions[::-1], revisions[::2] + revisions[1::2]):
            graph = graph_of(*order)
            assert len(graph.ancestors("nbv", last)) == length - 1
            assert len(graph.descendants("nbv", "0")) == length - 1
            assert graph.drift(key(last), key("0")) == Drift(length - 1, "graph_distance")
        graph.add_batch(batch("batch", revisions[-1], [artifact("a", revisions[0])]))
        walk = graph.walk("batch")
        assert len(walk.revisions) == length
        assert len(json.dumps(walk.plain())) > length
        with pytest.raises(LineageCycle):
            graph.add_revision(revision("0", last))

    def test_many_branches_late_on_a_long_chain_do_not_climb_it_each_time(self) -> None:
        trunk = chain(20_000)
        graph = graph_of(*trunk)
        for number in range(20_000):
            graph.add_revision(revision(f"leaf {number}", f"branch {number}"))
            graph.add_revision(revision(f"branch {number}", trunk[-1].revision_id))
        assert graph.missing_parents() == ()

    def test_a_table_of_a_hundred_thousand_artifacts_is_added_at_once(self) -> None:
        rows, revisions = 100_000, chain(20_000)
        many = table(
            [f"artifact {row}" for row in range(rows)],
            [revisions[row % len(revisions)] for row in range(rows)],
        )
        graph = LineageGraph()
        graph.add_table(many)
        graph.add_table(many)
        assert len(graph.artifacts_of_revision("nbv", "0")) == rows // len(revisions)


# ------------------------------------------------------------------------------------- properties

NAMES = st.sampled_from("abcdef")
DESCRIPTIONS = st.tuples(NAMES, st.none() | NAMES)
"""A revision and the parent it names, if any. Few names, so that conflicts and cycles are common."""

Parents = dict[str, str | None]


def recursive_ancestors(parents: Parents, name: str) -> list[str]:
    parent = parents[name]
    if parent is None or parent not in parents:
        return []
    return [parent, *recursive_ancestors(parents, parent)]


def has_cycle(parents: Parents) -> bool:
    for start in parents:
        at: str | None = start
        for _ in parents:
            at = parents.get(at) if at is not None else None
            if at == start:
                return True
    return False


def expected_after(
    parents: Parents, described: Sequence[tuple[str, str | None]]
) -> Parents | type[Refusal]:
    """What a plain dict says the graph should know, or refuse."""
    after = dict(parents)
    for name, parent in described:
        known = after.get(name)
        if known is not None and parent is not None and known != parent:
            return ConflictingRevision
        after[name] = known or parent
    return LineageCycle if has_cycle(after) else after


def add_described(graph: LineageGraph, described: list[tuple[str, str | None]], mark: str) -> None:
    """One description alone, several as the artifacts of one table."""
    revisions = [revision(name, parent) for name, parent in described]
    if len(revisions) == 1:
        graph.add_revision(revisions[0])
    else:
        graph.add_table(table([f"{mark}.{row}" for row in range(len(revisions))], revisions))


@settings(deadline=None)
@given(st.lists(st.lists(DESCRIPTIONS, min_size=1, max_size=4), max_size=12))
def test_no_sequence_of_adds_makes_a_cycle_and_a_refused_add_changes_nothing(
    adds: list[list[tuple[str, str | None]]],
) -> None:
    graph, parents = LineageGraph(), Parents()
    for number, described in enumerate(adds):
        expected = expected_after(parents, described)
        before = graph.to_json(), graph.to_dot()
        if isinstance(expected, dict):
            add_described(graph, described, str(number))
            parents = expected
            continue
        with pytest.raises(expected):
            add_described(graph, described, str(number))
        assert (graph.to_json(), graph.to_dot()) == before
    assert_answers_as(graph, parents)


def assert_answers_as(graph: LineageGraph, parents: Parents) -> None:
    above = {name: recursive_ancestors(parents, name) for name in parents}
    for name, ancestors in above.items():
        assert ids(graph.ancestors("nbv", name)) == ancestors
        assert ids(graph.parents("nbv", name)) == ancestors[:1]
        below = {other for other in parents if name in above[other]}
        assert set(ids(graph.descendants("nbv", name))) == below
        for other in parents:
            assert graph.is_ancestor(key(other), key(name)) == (other in ancestors)
    missing = {each for each in parents.values() if each is not None} - parents.keys()
    assert graph.missing_parents() == tuple(key(name) for name in sorted(missing))


@st.composite
def forests(draw: st.DrawFn) -> list[PolicyRevision]:
    """Revisions, each with an earlier parent, or none, or one that never comes; some described in two parts."""
    described = []
    for number in range(draw(st.integers(1, 12))):
        parent = draw(st.none() | st.just("lost") | st.integers(0, max(0, number - 1)).map(str))
        name = str(number)
        parent = None if parent == name else parent
        if draw(st.booleans()):
            described += [revision(name, number=number), revision(name, parent)]
        else:
            described.append(revision(name, parent, number=number))
    return described


@settings(deadline=None)
@given(forests(), st.data())
def test_the_order_of_adds_does_not_matter(
    described: list[PolicyRevision], data: st.DataObject
) -> None:
    first = graph_of(*described)
    second = graph_of(*data.draw(st.permutations(described)))
    assert first.to_json() == second.to_json()
    assert first.to_dot() == second.to_dot()


@settings(deadline=None)
@given(st.permutations(range(5)))
def test_the_order_of_kinds_does_not_matter(order: list[int]) -> None:
    rollouts = [artifact("a", R0), artifact("b", R1), artifact("c", R1)]
    graph, plain = LineageGraph(), small_world()[0]
    adds = [
        lambda: graph.add_artifact(rollouts[0]),
        lambda: graph.add_table(RolloutTable.from_artifacts(rollouts[1:2])),
        lambda: graph.add_batch(batch("batch", R2, rollouts)),
        lambda: graph.add_revision(R2),
        lambda: graph.add_revision(R0),
    ]
    for number in order:
        adds[number]()
    assert graph.to_json() == plain.to_json()
    assert graph.walk("batch") == plain.walk("batch")
