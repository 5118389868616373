"""The walk over local records: both directions, damage that it names, and records that are not there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rollbook.contracts import TrainerBatch, batch_to_json
from rollbook.contracts.rl.rollout import RolloutArtifact, RolloutTable
from rollbook.contracts.rl.table_file import open_table, save_table
from rollbook.errors import ChecksumMismatch, ConfigurationError, RollbookError
from rollbook.learned import open_training_run
from rollbook.learned.training_run import TrainingRun
from rollbook.lineage import LineageReport, Places, Shelf, resolve, walk
from rollbook.lineage.drawing import to_dot, tree_lines
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.repack import repack_store
from rollbook.store.shards.collect_stores import collect_stores
from tests.command import rollbook
from tests.evals.small_stores import small_store
from tests.factories import revision, table
from tests.lineage.small_chain import SmallChain, copied_chain, small_chain


def report_of(text: str, *search: Path) -> LineageReport:
    shelf = Shelf.of(Places(search=search))
    return walk(resolve(text, shelf), shelf)


def flip(path: Path, at: float = 0.5) -> None:
    """Changes one bit of one byte."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    path.write_bytes(data)


def kinds(report: LineageReport, *, to_origins: bool) -> set[str]:
    ends = (
        link.source if to_origins else link.made
        for link in report.links
        if link.to_origins == to_origins
    )
    return {report.nodes[key].kind for key in ends}


def test_a_revision_leads_back_to_every_source_row_with_every_digest_verified() -> None:
    chain = small_chain()
    report = report_of("small-r1", chain.folder)
    assert report.state == "verified"
    assert kinds(report, to_origins=True) >= {
        *("training", "batch", "artifacts", "rollouts", "store", "source_rows", "source")
    }
    rows = [node.title for node in report.nodes.values() if node.kind == "source_rows"]
    assert any(each.startswith("2 source rows") for each in rows)


def test_a_training_was_validated_on_the_rollouts_of_its_validation_scenes_and_no_others() -> None:
    chain = small_chain()
    report = report_of(str(chain.run), chain.folder)
    [link] = [each for each in report.links if each.relation == "validated on"]
    scene = chain.reader.words("scene")[1]
    assert report.nodes[link.source].facts["scene"] == scene
    assert report.nodes[link.source].title.startswith("2 rollouts")


def test_a_source_row_leads_to_the_policy_that_learned_from_it_and_to_no_other_row() -> None:
    chain = small_chain()
    key = chain.reader.words("source_key")[0]
    report = report_of(key, chain.folder)
    assert report.state == "verified"
    assert kinds(report, to_origins=False) == {"rollouts", "artifacts", "batch", "revision"}
    rows = next(node for node in report.nodes.values() if node.kind == "rollouts")
    assert rows.title.startswith("2 rollouts")


@pytest.mark.parametrize("name", ["row", "store", "manifest", "artifact", "batch", "run", "table"])
def test_every_kind_of_id_finds_its_record(name: str) -> None:
    chain = small_chain()
    shelf = Shelf.of(Places(search=(chain.folder,)))
    table = next(iter(shelf.tables.values()))
    found = next(iter(shelf.batches.values())).batch
    run = next(iter(shelf.runs.values())).run
    texts = {
        "row": [f"{chain.digest[:12]}:1", f"{chain.store}:1", _rollout_id(chain, 1)],
        "store": [chain.digest, str(chain.store)],
        "manifest": [str(chain.reader.attrs["manifest_sha256"])],
        "artifact": [table[2].artifact_digest, table[2].content_digest[:9]],
        "batch": [found.batch_id, found.batch_digest, found.content_digest[:16]],
        "run": [run.digest, str(chain.run)],
        "table": [str(chain.table)],
    }[name]
    refs = {resolve(text, shelf) for text in texts}
    assert len(refs) == 1
    kind = {"row": "rollouts", "store": "rollouts", "manifest": "rollouts", "run": "training"}
    assert refs.pop().kind == kind.get(
        name, {"artifact": "artifacts", "table": "artifacts"}.get(name, name)
    )


def _rollout_id(chain: SmallChain, row: int) -> str:
    return str(chain.reader.decoded("rollouts", "rollout_id")[row])


def _array_file(chain: SmallChain) -> Path:
    files = sorted(chain.store.glob("candidates/target_rri/c/*"))
    return next(each for each in files if each.is_file())


DAMAGE: dict[str, tuple[Callable[[SmallChain], Path], str]] = {
    "column of the store": (_array_file, "candidates/target_rri"),
    "lineage column": (
        lambda chain: next(
            each for each in chain.store.glob("lineage/lineage_digest/c/**/*") if each.is_file()
        ),
        "lineage/lineage_digest",
    ),
    "words of the store": (lambda chain: chain.store / "dictionaries/zarr.json", "dictionaries"),
    "manifest of the store": (lambda chain: chain.store / "manifest.json", "manifest.json"),
    "root of the store": (lambda chain: chain.store / "zarr.json", "rollouts.zarr"),
    "table": (lambda chain: chain.table, "rollouts.table"),
    "batch": (lambda chain: chain.batch, "batch-000001"),
    "checkpoint": (lambda chain: chain.checkpoint, "checkpoint/head-01.txt"),
    "revision": (lambda chain: chain.run / "revision.json", "revision.json"),
    "manifest of the source": (lambda chain: chain.source / "manifest.json", "flats"),
    "index of the source": (lambda chain: chain.source / "index.jsonl", "index.jsonl"),
    "points of the source": (
        lambda chain: next(chain.source.glob("actor/**/xyz.npy")),
        "actor/",
    ),
    "mesh of the source": (
        lambda chain: next(chain.source.glob("oracle/**/vertices.npy")),
        "oracle",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_one_flipped_bit_anywhere_in_the_chain_is_named(damage: str, tmp_path: Path) -> None:
    chain = copied_chain(tmp_path / "chain")
    path, named = DAMAGE[damage]
    flip(path(chain), 0.6)
    report = report_of(str(chain.run), chain.folder)
    assert report.state == "broken"
    told = [f"{check.what} {check.detail} {check.where}" for _, check in report.broken]
    assert any(named in each for each in told), told


@pytest.mark.parametrize("file", ["zarr.json", "c/*"])
@pytest.mark.parametrize("table", ["rollouts", "lineage", "sources", "targets"])
def test_one_flipped_bit_in_any_column_that_the_walk_reads_is_named(
    table: str, file: str, tmp_path: Path
) -> None:
    chain = copied_chain(tmp_path / "chain")
    files = [each for each in chain.store.glob(f"{table}/*/{file}") if each.is_file()]
    assert files
    for path in files:
        written = path.read_bytes()
        flip(path, 0.05)  # of a zarr.json: in the name of a field that zarr needs
        broken = report_of(str(chain.run), chain.folder).broken
        told = [f"{check.what} {check.detail} {check.where}" for _, check in broken]
        assert any(str(path.relative_to(chain.store)) in each for each in told), told
        path.write_bytes(written)


def test_one_flipped_bit_in_the_record_of_a_training_is_named(tmp_path: Path) -> None:
    chain = copied_chain(tmp_path / "chain")
    flip(chain.run / "run.json", 0.6)
    for text in (str(chain.run), "small-r1"):
        with pytest.raises(RollbookError, match=r"chain/run|training run small-r1"):
            report_of(text, chain.folder)


def test_a_broken_file_says_which_checksum_was_expected_and_which_was_found(tmp_path: Path) -> None:
    chain = copied_chain(tmp_path / "chain")
    damaged = _array_file(chain)
    flip(damaged)
    report = report_of(f"{chain.store}:0", chain.folder)
    [check] = [check for node, check in report.broken if node.kind == "store"]
    assert check.expected != check.found
    assert check.where == str(damaged)
    listed = json.loads((chain.store / "manifest.json").read_bytes())["files"]
    assert check.expected == listed[str(damaged.relative_to(chain.store))][1]


def test_an_artifact_that_is_not_the_row_it_names_is_broken(tmp_path: Path) -> None:
    """A table of its own valid digests whose reward is not the one of the store."""
    chain = copied_chain(tmp_path / "chain")
    table = open_table(chain.table)
    artifact = table[0]
    samples = {name: column.copy() for name, column in artifact.columns.items()}
    samples["reward"] = samples["reward"] + 1
    forged = RolloutArtifact(
        artifact_id=artifact.artifact_id,
        worker_id=artifact.worker_id,
        environment=artifact.environment,
        task_id=artifact.task_id,
        source_policy_revision=artifact.source_policy_revision,
        samples=samples,
        termination_reason=artifact.termination_reason,
        proof_references=artifact.proof_references,
        created_at_ms=artifact.created_at_ms,
        group_id=artifact.group_id,
        logprob_semantics=artifact.logprob_semantics,
    )
    place = tmp_path / "forged.table"
    save_table(RolloutTable.from_artifacts([forged]), place)
    shelf = Shelf.of(Places(stores=(chain.store,), tables=(place,)))
    report = walk(resolve(str(place), shelf), shelf)
    [(node, check)] = report.broken
    assert node.kind == "artifacts"
    assert check.what == f"content digest of {artifact.artifact_id}"
    assert check.found == artifact.content_digest


def test_a_missing_source_says_what_was_looked_for_and_where(tmp_path: Path) -> None:
    report = report_of(f"{small_store()}:0", tmp_path)
    assert report.state == "missing"
    checks = [check for _, check in report.missing]
    manifest = RolloutZarrStoreReader(small_store()).decoded(
        "sources", "source_offline_store_manifest_hash_id"
    )[0]
    assert checks
    assert all(str(manifest) in check.detail for check in checks)
    assert all(str(tmp_path) in str(check.where) for check in checks)


def test_the_source_is_found_where_the_store_says_that_it_was(tmp_path: Path) -> None:
    chain = copied_chain(tmp_path / "chain")
    shutil.rmtree(chain.source)
    report = report_of(f"{chain.store}:0", chain.folder)
    assert report.state == "verified"
    [source] = [node for node in report.nodes.values() if node.kind == "source"]
    assert source.place == str(small_chain().source)


def _continued(chain: SmallChain, parent: str) -> None:
    """The run of the chain as one that improves on another run."""
    file = chain.run / "run.json"
    run = msgspec.json.decode(file.read_bytes(), type=TrainingRun)
    changed = msgspec.structs.replace(run, parent_run_digest=parent, digest="").with_digest()
    file.write_bytes(msgspec.json.encode(changed))


def test_a_training_whose_parent_is_not_there_says_what_was_looked_for_and_where(
    tmp_path: Path,
) -> None:
    chain = copied_chain(tmp_path / "chain")
    _continued(chain, "ab" * 32)
    report = report_of(str(chain.run), chain.folder)
    [(node, check)] = report.missing
    assert node.kind == "training"
    assert check.detail == f"looked for a training run with the digest {'ab' * 32}"
    assert str(chain.folder) in str(check.where)
    assert [each.source for each in report.links if each.relation == "continues"] == [node.key]


def test_one_flipped_bit_in_the_record_of_the_parent_of_a_training_is_named(tmp_path: Path) -> None:
    parent, chain = copied_chain(tmp_path / "chain/parent"), copied_chain(tmp_path / "chain/child")
    _continued(chain, open_training_run(parent.run).run.digest)
    assert report_of(str(chain.run), tmp_path).state == "verified"
    flip(parent.run / "run.json", 0.6)
    [(node, check)] = report_of(str(chain.run), tmp_path).broken
    assert node.kind == "training"
    assert str(parent.run) in check.detail


def test_a_row_that_the_store_does_not_have_is_broken() -> None:
    report = report_of(f"{small_chain().store}:99", small_chain().folder)
    assert report.state == "broken"
    assert "there is no row 99" in report.broken[0][1].detail


def test_an_unknown_id_names_the_places_that_were_searched(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        report_of("no-such-id", tmp_path)


def test_the_path_of_a_damaged_store_raises_what_is_wrong_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = copied_chain(tmp_path / "chain")
    flip(chain.store / "manifest.json")
    with pytest.raises(ChecksumMismatch, match=r"manifest\.json"):
        report_of(str(chain.store), chain.folder)
    monkeypatch.chdir(chain.folder)
    shown = rollbook("lineage", "show", "./rollouts.zarr", "--offline")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "manifest.json" in shown.stderr


def test_two_records_with_one_id_have_to_be_told_apart(tmp_path: Path) -> None:
    first, second = copied_chain(tmp_path / "a"), copied_chain(tmp_path / "b")
    batch = json.loads(second.batch.read_bytes())
    assert batch["batch_id"] == "batch-000001"
    shelf = Shelf.of(Places(search=(first.folder, second.folder)))
    assert resolve("batch-000001", shelf).kind == "batch"  # copies of one batch are one record
    with pytest.raises(ConfigurationError, match="--kind training"):
        resolve(next(iter(shelf.runs.values())).run.digest, shelf)


def test_copies_of_an_artifact_in_several_tables_are_one_record(tmp_path: Path) -> None:
    chain = copied_chain(tmp_path / "chain")
    shutil.copy(chain.table, chain.folder / "again.table")
    artifact = open_table(chain.table)[2]
    shelf = Shelf.of(Places(search=(chain.folder,)))
    assert len(shelf.tables) == 2
    for text in (artifact.artifact_digest, artifact.content_digest[:12]):
        assert resolve(text, shelf).rows == (2,)
    assert resolve(artifact.artifact_id, shelf, kind="artifacts").rows == (2,)


def test_of_several_copies_the_one_that_is_named_is_checked(tmp_path: Path) -> None:
    """The others are found first: they are in the folder that is searched."""
    chain = copied_chain(tmp_path / "chain")
    for name in ("flats", "rollouts.zarr"):
        shutil.copytree(chain.folder / name, tmp_path / "chain" / f"z-{name}")
    for text in ("z-rollouts.zarr", "z-rollouts.zarr:1"):
        report = report_of(f"{chain.folder}/{text}", chain.folder)
        assert report.state == "verified"
        [store] = [node for node in report.nodes.values() if node.kind == "store"]
        assert store.place == str(chain.folder / "z-rollouts.zarr")
    report = report_of(str(chain.folder / "z-flats"), chain.folder)
    assert report.nodes[report.start].place == str(chain.folder / "z-flats")
    flip(_array_file(chain))
    assert report_of(str(chain.folder / "z-rollouts.zarr"), chain.folder).state == "verified"
    assert report_of(str(chain.store), chain.folder).state == "broken"


def test_a_training_is_walked_with_the_collection_that_it_was_trained_on(tmp_path: Path) -> None:
    chain = copied_chain(tmp_path / "chain")
    moved = tmp_path / "loop" / "rounds" / "001" / "data" / "rollouts.zarr"
    moved.parent.mkdir(parents=True)
    chain.store.rename(moved)
    collection = tmp_path / "loop" / "collection.json"
    collect_stores({"one": moved}, collection, writer_config_hash="c", source_manifest_hash="s")
    for place in (collection, collection.parent):
        shelf = Shelf.of(Places(stores=(place,), sources=(chain.source,)))
        assert walk(resolve(str(chain.run), shelf), shelf).state == "verified"
        alone = Shelf()
        assert resolve(str(place), alone).home == next(iter(alone.stores))
    flip(collection, 0.6)
    shelf = Shelf.of(Places(stores=(collection,), sources=(chain.source,)))
    told = [check.detail for _, check in walk(resolve(str(chain.run), shelf), shelf).broken]
    assert any(str(collection) in each for each in told)


def test_a_store_that_was_compressed_is_named_with_the_way_back(tmp_path: Path) -> None:
    chain = copied_chain(tmp_path / "chain")
    archived = repack_store(chain.store, tmp_path / "archive" / "small.zarr", "archive")
    shutil.rmtree(chain.store)
    shelf = Shelf.of(Places(stores=(archived,), sources=(chain.source,)))
    missing = walk(resolve(str(chain.run), shelf), shelf).missing
    assert missing
    assert all(str(archived) in check.detail for _, check in missing)
    assert all("--profile local" in check.detail for _, check in missing)
    repack_store(archived, chain.store, "local")
    assert report_of(str(chain.run), chain.folder).state == "verified"


def test_a_digest_may_be_typed_in_capitals_and_not_too_short(tmp_path: Path) -> None:
    chain = small_chain()
    shelf = Shelf.of(Places(search=(chain.folder,)))
    assert resolve(chain.digest[:12].upper(), shelf) == resolve(chain.digest, shelf)
    assert resolve(f"{chain.digest[:12].upper()}:1", shelf).rows == (1,)
    with pytest.raises(ConfigurationError, match=r"asked no server.*8 digits or more"):
        resolve(chain.digest[:5], shelf)


def test_records_with_one_id_are_listed_by_what_can_be_typed(tmp_path: Path) -> None:
    table_of = [table([2, 3], seed) for seed in range(5)]
    for number, each in enumerate(table_of):
        batch = TrainerBatch.assemble(
            batch_id="step-7", target_revision=revision(9), rollouts=each, assembled_at_ms=1
        )
        (tmp_path / f"{number}.batch.json").write_bytes(batch_to_json(batch))
    with pytest.raises(ConfigurationError) as refused:
        report_of("step-7", tmp_path)
    assert "and 2 more" in str(refused.value)
    [first, *_] = re.findall(r"--kind batch: ([0-9a-f]{12}) step-7", str(refused.value))
    assert report_of(first, tmp_path).nodes


def test_a_server_that_does_not_answer_breaks_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = small_chain()
    monkeypatch.setenv("ROLLBOOK_API_KEY", "rt_nobody")
    monkeypatch.setenv("ROLLBOOK_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.chdir(chain.folder)
    shown = rollbook("lineage", "show", "run")
    assert shown.returncode != 0
    assert "BROKEN" not in shown.stdout
    assert "--offline" in shown.stderr
    assert rollbook("lineage", "show", "run", "--offline").returncode == 0


def test_a_policy_that_is_built_in_leads_to_the_rollouts_that_it_chose() -> None:
    chain = small_chain()
    columns = open_table(chain.table).columns
    own = (columns.revision_index == 0).sum()  # a row of the table is a row of the store
    report = report_of(columns.revisions[0].revision_id, chain.folder)
    assert report.state == "verified"
    [link] = [each for each in report.links if each.relation == "chose in"]
    assert report.nodes[link.made].title.startswith(f"{own} rollouts")
    assert kinds(report, to_origins=False) >= {"rollouts", "artifacts", "batch", "revision"}


def test_a_batch_that_is_not_there_is_named_with_its_digest(tmp_path: Path) -> None:
    chain = copied_chain(tmp_path / "chain")
    digest = json.loads(chain.batch.read_bytes())["batch_digest"]
    chain.batch.unlink()
    told = [f"{check.what} {check.detail}" for _, check in report_of(str(chain.run)).broken]
    assert any(digest in each and str(chain.batch) in each for each in told), told


@pytest.mark.parametrize("text", ["not JSON", "{}"])
def test_a_batch_that_cannot_be_read_is_named_with_its_file(text: str, tmp_path: Path) -> None:
    chain = copied_chain(tmp_path / "chain")
    chain.batch.write_text(text)
    told = [
        check.detail for node, check in report_of(str(chain.run)).broken if node.kind == "batch"
    ]
    assert len(told) == 1
    assert str(chain.batch) in told[0]
    assert "$" in told[0]


def test_a_drawing_has_every_record_and_every_link() -> None:
    report = report_of("small-r1", small_chain().folder)
    dot = to_dot(report)
    assert dot.count(" -> ") == len(report.links)
    assert dot.count("shape=") == len(report.nodes)
    drawn = "\n".join(text for _, text in tree_lines(report))
    assert all(node.title in drawn for node in report.nodes.values())


def test_the_command_prints_the_chain_and_exits_with_1_when_it_is_broken(tmp_path: Path) -> None:
    chain = copied_chain(tmp_path / "chain")
    sound = rollbook("lineage", "show", "small-r1", "--in", chain.folder, "--json")
    assert sound.returncode == 0, sound.stderr
    assert json.loads(sound.stdout)["state"] == "verified"
    flip(chain.checkpoint)
    broken = rollbook("lineage", "show", "small-r1", "--in", chain.folder)
    assert broken.returncode == 1
    assert "BROKEN" in broken.stdout
    assert "checkpoint/head-01.txt" in broken.stdout


def test_a_batch_that_a_trainer_recorded_is_found_by_its_id_in_a_folder(tmp_path: Path) -> None:
    some = table([2, 3])
    batch = TrainerBatch.assemble(
        batch_id="step-7", target_revision=revision(9), rollouts=some, assembled_at_ms=1
    )
    save_table(some, tmp_path / "step-000007.table")
    (tmp_path / "step-000007.batch.json").write_bytes(batch_to_json(batch))
    report = report_of("step-7", tmp_path)
    assert {"batch", "artifacts"} <= {node.kind for node in report.nodes.values()}
    [found] = [node for node in report.nodes.values() if node.kind == "batch"]
    assert found.state == "verified"
    text = (tmp_path / "step-000007.batch.json").read_text()
    (tmp_path / "step-000007.batch.json").write_text(text.replace('"step-7"', '"step-8"'))
    with pytest.raises(RollbookError, match="batch"):
        report_of("step-7", tmp_path)
