"""A table of chains is proved by its stores: a changed number, row, time or byte is found and named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rollbook.contracts.rl.provenance import RolloutProofReference
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.table_file import save_table
from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    DigestMismatch,
    InvalidValue,
    RollbookError,
)
from rollbook.store.collection import RolloutCollection
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.train.artifacts import chains_table, store_proof
from rollbook.train.chain_proofs import check_proofs, open_chains
from tests.command import rollbook
from tests.evals.small_stores import small_store
from tests.store.test_collection import write_store


@pytest.fixture(scope="module")
def reader() -> RolloutZarrStoreReader:
    return RolloutZarrStoreReader(small_store(6))


@pytest.fixture(scope="module")
def table(reader: RolloutZarrStoreReader) -> RolloutTable:
    return chains_table(reader)


def forged(table: RolloutTable, **changes: Any) -> RolloutTable:
    """The same rollouts with other values, and with digests that fit them."""
    columns: dict[str, Any] = {
        name: [getattr(each, name) for each in table]
        for name in (
            *("artifact_id", "worker_id", "environment", "task_id", "source_policy_revision"),
            *("termination_reason", "created_at_ms", "proof_references", "group_id"),
            "logprob_semantics",
        )
    }
    return RolloutTable.from_columns(
        **{**columns, "offsets": table.offsets, "samples": table.samples, **changes}
    )


def test_a_table_is_proved_by_its_store(
    reader: RolloutZarrStoreReader, table: RolloutTable, tmp_path: Path
) -> None:
    done = check_proofs(table.take([4, 1]), [reader])
    assert (done.proved, done.problems, done.without_proof, done.not_given.total()) == (2, [], 0, 0)
    save_table(table, tmp_path / "t.table")
    assert open_chains(tmp_path / "t.table", [reader]).root == table.root


def test_stores_of_a_collection_prove_their_own_rows(tmp_path: Path) -> None:
    paths = [write_store(tmp_path, name, 3, seed=seed) for seed, name in enumerate(("a", "b"))]
    collection = RolloutCollection(paths)
    made = chains_table(collection, [5, 0, 3])
    assert check_proofs(made, [collection]).proved == 3
    assert check_proofs(made, [RolloutZarrStoreReader(path) for path in paths]).proved == 3
    (one,) = check_proofs(made, [RolloutZarrStoreReader(paths[1])]).not_given.values()
    assert one == 1


def test_a_number_that_is_not_the_stored_one_is_found(
    reader: RolloutZarrStoreReader, table: RolloutTable
) -> None:
    for name in table.samples:
        changed = table.samples[name].copy()
        changed[4] = (
            1 - changed[4] if name == "loss_mask" else changed[4] / 2 + (name == "token_id")
        )
        made = forged(table, samples={**table.samples, name: changed})
        done = check_proofs(made, [reader])
        (problem,) = done.problems
        assert isinstance(problem, DigestMismatch), name
        assert problem.record_id == table[1].artifact_id, name
        assert f"row 1 of {reader.store_dir}" in str(problem)
        assert done.proved == len(table) - 1


def test_a_rollout_under_the_name_of_another_row_is_found(
    reader: RolloutZarrStoreReader, table: RolloutTable
) -> None:
    ids = [each.artifact_id for each in table]
    swapped = forged(table, artifact_id=[ids[1], ids[0], *ids[2:]])
    assert len(check_proofs(swapped, [reader]).problems) == 2
    for name in (ids[0].replace(":0", ":06"), ids[0].replace(":0", ":99"), "x", ids[0] + ":٣"):
        (problem,) = check_proofs(forged(table, artifact_id=[name, *ids[1:]]), [reader]).problems
        assert isinstance(problem, InvalidValue)
        assert problem.field == "artifact_id"


def test_the_time_of_a_rollout_is_not_part_of_the_proof(
    reader: RolloutZarrStoreReader, table: RolloutTable
) -> None:
    """The same store written at another time has the same content."""
    later = forged(table, created_at_ms=[each.created_at_ms + 5 for each in table])
    assert check_proofs(later, [reader]).proved == len(table)


def test_one_flipped_byte_of_the_store_is_found_and_its_file_named(
    table: RolloutTable, tmp_path: Path
) -> None:
    place = tmp_path / "copy.zarr"
    for path in (
        *("q_h/td_reward/c/0", "q_h/q_train_mask/c/0/0", "returns/mc_return/c/0"),
        *("candidates/selection_log_probabilities/c/0", "rollouts/policy_id/c/0"),
        *("dictionaries/zarr.json", "metadata/zarr.json"),
    ):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(small_store(6), place)
        data = bytearray((place / path).read_bytes())
        data[len(data) // 2] ^= 1
        (place / path).write_bytes(data)
        changed = RolloutZarrStoreReader(place)
        (problem, *_) = check_proofs(table, [changed]).problems
        assert isinstance(problem, ChecksumMismatch)
        assert path in str(problem)
        with pytest.raises(RollbookError, match=path):
            chains_table(changed)


def test_a_manifest_that_claims_another_content_is_found(table: RolloutTable) -> None:
    reader = RolloutZarrStoreReader(small_store(6))
    claimed = "0" * 64
    reader.store_manifest.payload["content_sha256"] = claimed  # type: ignore[index]
    with pytest.raises(DigestMismatch, match=f"content_sha256 is recorded as {claimed}"):
        chains_table(reader)


def test_rollouts_without_their_store_are_refused_on_reading(
    reader: RolloutZarrStoreReader, table: RolloutTable, tmp_path: Path
) -> None:
    other = forged(table, proof_references=[(store_proof("f" * 64),)] * len(table))
    save_table(other, tmp_path / "other.table")
    with pytest.raises(ConfigurationError, match=r"from the store fff.*, which was not given"):
        open_chains(tmp_path / "other.table", [reader])
    kind = store_proof("f" * 64).kind
    elsewhere = RolloutProofReference(kind=kind, digest="d", reference="https://example.org")
    none = forged(table, proof_references=[(elsewhere,)] * len(table))
    save_table(none, tmp_path / "none.table")
    with pytest.raises(ConfigurationError, match=r"6 rollouts of .* name no store"):
        open_chains(tmp_path / "none.table", [reader])


def test_the_command_checks_a_table_against_its_store(tmp_path: Path) -> None:
    store, out = small_store(6), tmp_path / "r.table"
    made = rollbook("store", "to-artifacts", store, "--out", out)
    assert made.returncode == 0, made.stderr
    proved = rollbook("contracts", "check", out, "--store", store)
    assert (proved.returncode, "6 rollouts are those of their rows" in proved.stdout) == (0, True)
    other = rollbook("contracts", "check", out, "--store", small_store(5), "--complete")
    assert (other.returncode, "which was not given" in other.stdout) == (1, True)
    alone = rollbook("contracts", "check", "--store", store)
    assert (alone.returncode, "name the file too" in alone.stderr) == (2, True)
