"""Chains as rollout artifacts: a sample for each step, advantages from stored returns, and the way back to the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.provenance import RolloutProofKind, RolloutTerminationReason
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.errors import AllSamplesMasked, DuplicateArtifactId, NoSuchRow
from rollbook.store.collection import RolloutCollection
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.writer import write_rollout_zarr_store
from rollbook.train import artifacts
from rollbook.train.artifacts import ChainTables, chains_table, trainable_chains
from tests.evals.small_stores import small_store
from tests.store.synthetic import make_records
from tests.store.test_collection import write_store

OPTIONS: dict[str, Any] = {"early_fraction": 0.3, "unlabelled_fraction": 0.2}


@pytest.fixture(scope="module")
def reader() -> RolloutZarrStoreReader:
    return RolloutZarrStoreReader(small_store(12, **OPTIONS))


@pytest.fixture(scope="module")
def table(reader: RolloutZarrStoreReader) -> RolloutTable:
    return chains_table(reader)


def test_every_step_of_a_chain_is_a_sample(
    reader: RolloutZarrStoreReader, table: RolloutTable
) -> None:
    """The plain definition, one candidate at a time."""
    assert len(table) == reader.num_rollouts
    for row, artifact in enumerate(table):
        chain = reader.rollout(row)
        steps, candidates = chain["steps"], chain["candidates"]
        assert artifact.token_count == len(steps["step_row_id"])
        rewards = []
        for at, step in enumerate(steps["step_row_id"]):
            shell = {
                name: values[candidates["step_row_id"] == step]
                for name, values in candidates.items()
            }
            (taken,) = np.flatnonzero(shell["selected_mask"])
            labels = [
                float(label)
                for label, usable in zip(
                    shell["target_root_gain"], shell["q_train_mask"], strict=True
                )
                if usable and np.isfinite(label)
            ]
            sample = {name: values[at] for name, values in artifact.columns.items()}
            assert sample["token_id"] == taken
            assert sample["logprob"] == shell["selection_log_probabilities"][taken]
            assert sample["reward"] == shell["target_root_gain"][taken]
            assert sample["value"] == pytest.approx(np.mean(labels), rel=1e-6)
            assert sample["loss_mask"] == 1
            rewards.append(float(sample["reward"]))
        returns = np.cumsum(rewards[::-1])[::-1]
        expected = returns - artifact.columns["value"]
        np.testing.assert_allclose(artifact.columns["advantage"], expected, atol=1e-6)


def test_an_artifact_names_its_store_its_row_its_task_and_its_policy(
    reader: RolloutZarrStoreReader, table: RolloutTable
) -> None:
    digest = reader.store_manifest.payload["content_sha256"]
    for row, artifact in enumerate(table):
        assert artifact.artifact_id == f"{digest[:12]}:{row}"
        (proof,) = artifact.proof_references
        assert (proof.kind, proof.digest) == (RolloutProofKind.COMMITMENT, digest)
        assert proof.reference == f"rollout-store:{digest}"
        lineage = reader.lineage(row)
        assert artifact.task_id == f"{lineage.source_sample_key}#{lineage.target_id}"
        revision = artifact.source_policy_revision
        assert revision.policy_digest == lineage.rollout_config_hash
        assert revision.revision_id == f"{lineage.rollout_policy}@{revision.policy_digest[:12]}"
        whole = len(reader.rollout(row)["steps"]["step_row_id"]) == 3
        reason = RolloutTerminationReason
        assert artifact.termination_reason is (reason.COMPLETED if whole else reason.CANCELLED)
    assert {each.termination_reason for each in table} == {"completed", "cancelled"}


def test_chains_of_one_source_row_and_target_are_one_group(
    reader: RolloutZarrStoreReader, table: RolloutTable
) -> None:
    def situation(row: int) -> tuple[int, int]:
        columns = ("rollouts/source_row_id", "rollouts/target_row_id")
        first, second = (int(reader.array(column)[row]) for column in columns)
        return first, second

    pairs = {(artifact.group_id, situation(row)) for row, artifact in enumerate(table)}
    assert len(pairs) == len({group for group, _ in pairs}) == len({each for _, each in pairs})


def test_a_learned_policy_keeps_its_described_revision(tmp_path: Path) -> None:
    path = tmp_path / "learned.zarr"
    revision = PolicyRevision(
        policy_family="next-best-view",
        revision_id="r-1",
        policy_digest="c" * 64,
        produced_at_ms=5,
        revision_number=1,
    )
    described = [
        RolloutZarrRecord(
            result=each.result,
            lineage=each.lineage.replace(policy_revision=revision),
            rollout_id_prefix=each.rollout_id_prefix,
        )
        for each in make_records(2, policies=("learned",))
    ]
    write_rollout_zarr_store(path, described, selected_depth_enabled=False)
    table = chains_table(RolloutZarrStoreReader(path), family="another")
    assert table.columns.revisions == (revision,)


def test_two_recipes_of_one_policy_are_two_revisions(table: RolloutTable) -> None:
    """Otherwise a batch of both would be refused."""
    batch = TrainerBatch.assemble(
        batch_id="b",
        target_revision=PolicyRevision(
            policy_family="next-best-view",
            revision_id="learned",
            policy_digest="d" * 64,
            produced_at_ms=1,
        ),
        rollouts=table,
        assembled_at_ms=2,
    )
    assert len(batch.proof_references) == 1
    assert {each.revision_id for each in batch.policy_lineage.source_revisions} == {
        each.source_policy_revision.revision_id for each in table
    }


def test_chains_without_labels_are_left_out_and_refused_by_name() -> None:
    reader = RolloutZarrStoreReader(small_store(12, unmatched_fraction=0.5))
    labelled = reader.array("targets/gt_label_valid_mask")
    known = np.flatnonzero(labelled[reader.array("rollouts/target_row_id")])
    assert 0 < len(known) < reader.num_rollouts
    np.testing.assert_array_equal(trainable_chains(reader), known)
    assert [int(each.artifact_id.split(":")[1]) for each in chains_table(reader)] == known.tolist()
    (missing, *_) = sorted({*range(reader.num_rollouts)} - {*known.tolist()})
    with pytest.raises(AllSamplesMasked, match=f":{missing}'"):
        chains_table(reader, [missing])


def test_rows_that_are_not_there_or_named_twice_are_refused(reader: RolloutZarrStoreReader) -> None:
    with pytest.raises(NoSuchRow, match="12"):
        chains_table(reader, [12])
    with pytest.raises(DuplicateArtifactId):
        chains_table(reader, [1, 1])
    assert len(chains_table(reader, [])) == 0


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> RolloutCollection:
    place = tmp_path_factory.mktemp("artifacts")
    return RolloutCollection(
        [
            write_store(place, "narrow", 6, seed=1, candidates=(3, 5)),
            write_store(place, "wide", 5, seed=2, candidates=(6, 11)),
        ]
    )


@settings(max_examples=20, deadline=None)
@given(rows=st.lists(st.integers(0, 10), unique=True), size=st.integers(1, 7))
def test_a_collection_gives_the_artifacts_of_its_stores_in_the_order_of_rows(
    collection: RolloutCollection, rows: list[int], size: int
) -> None:
    alone = [each for store in collection.stores for each in chains_table(store)]
    blocks = list(ChainTables(collection).blocks(rows, size=size))
    assert all(0 < len(block) <= size for block in blocks)
    together = RolloutTable.concat(blocks)
    assert [each.content_digest for each in together] == [alone[row].content_digest for row in rows]
    assert chains_table(collection, rows).root == together.root


def test_labels_are_read_in_blocks(
    reader: RolloutZarrStoreReader, table: RolloutTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (1, 30):
        monkeypatch.setattr(artifacts, "_LABELS_AT_ONCE", size)
        assert chains_table(reader).root == table.root


def test_the_same_store_made_twice_gives_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    roots = []
    for name in ("one", "two"):
        write_rollout_zarr_store(tmp_path / name, make_records(3), selected_depth_enabled=False)
        made = chains_table(RolloutZarrStoreReader(tmp_path / name))
        assert set(made.columns.created_at_ms.tolist()) == {1_700_000_000_000}
        roots.append(made.root)
    assert roots[0] == roots[1]
