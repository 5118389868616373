"""Decisions: the walk through a real server, and evidence files that are checked without it."""

from __future__ import annotations

import copy
import io
import json
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rollbook import evals
from rollbook.contracts.evidence import (
    BATCHES,
    MANIFEST,
    RESULTS,
    RUN,
    SIGNATURE,
    file_of,
    packed,
)
from rollbook.errors import ConfigurationError, ConflictError, StorageError
from rollbook.lineage import Places, Shelf, resolve, walk
from rollbook.lineage.evidence import Evidence, open_evidence
from rollbook.lineage.report import worst
from rollbook.lineage.server_records import ServerRecords
from tests.command import rollbook
from tests.lineage.judged_chain import JudgedChain, judged_chain
from tests.lineage.test_walk import flip
from tests.server.fixtures import StartServer, running_server
from tests.server.shared_server import new_organisation, shared_server

__all__ = ["running_server"]


@pytest.fixture(scope="module")
def judged(running_server: StartServer) -> JudgedChain:
    """Read-only."""
    server = shared_server(running_server)
    return judged_chain(server, new_organisation(server))


@pytest.fixture
def own(running_server: StartServer) -> JudgedChain:
    """One that a test may damage."""
    server = shared_server(running_server)
    return judged_chain(server, new_organisation(server))


def broken(found: Evidence) -> list[str]:
    return [f"{each.what}: {each.detail}" for each in found.checks if each.state == "broken"]


def test_a_decision_leads_back_to_the_source_rows_through_the_server(judged: JudgedChain) -> None:
    report = judged.report(judged.run_id)
    assert report.state == "verified", [*report.broken, *report.missing]
    kinds = {node.kind for node in report.nodes.values()}
    assert kinds == {
        *("run", "revision", "training", "batch", "artifacts", "episodes"),
        *("rollouts", "store", "source_rows", "source"),
    }


def test_a_rollout_leads_to_the_decision_that_it_helped_to_make(judged: JudgedChain) -> None:
    report = judged.report(f"{judged.chain.store}:0")
    used = {report.nodes[link.made].kind for link in report.links if not link.to_origins}
    assert {"artifacts", "batch", "revision", "episodes", "run"} <= used
    assert report.state == "verified"


@pytest.mark.parametrize("kind", ["episode", "revision", "batch"])
def test_ids_of_the_server_are_found_without_local_records(
    kind: str, judged: JudgedChain, tmp_path: Path
) -> None:
    text = {"episode": judged.baselines[0], "revision": "small-r1", "batch": "batch-000001"}[kind]
    report = judged.report(text, tmp_path)
    assert report.nodes[report.start].state in ("verified", "missing")
    assert not report.broken
    # what is not on this machine is missing, and says what was looked for
    assert all(check.detail for _, check in report.missing)
    assert any(judged.chain.digest in check.detail for _, check in report.missing)


def test_evidence_is_the_same_twice_and_holds_without_the_server(judged: JudgedChain) -> None:
    data = judged.evidence()
    assert judged.evidence() == data
    found = open_evidence(data, "evidence.zip", key=judged.key())
    assert worst(each.state for each in found.checks) == "verified", broken(found)
    assert "decision computed again" in {each.what for each in found.checks}
    assert found.run.id == judged.run_id


def test_a_walk_from_an_evidence_file_needs_no_server(judged: JudgedChain, tmp_path: Path) -> None:
    path = tmp_path / "evidence.zip"
    path.write_bytes(judged.evidence())
    shelf = Shelf.of(Places(search=(judged.chain.folder,)))
    report = walk(resolve(str(path), shelf), shelf)
    assert report.nodes[report.start].title.startswith(f"eval run {judged.run_id}")
    assert not report.broken
    kinds = {node.kind for node in report.nodes.values()}
    assert {"run", "revision", "training", "batch", "rollouts", "source_rows"} <= kinds
    # only the recordings themselves are not in the file
    assert {check.what for _, check in report.missing} == {"artifacts"}


def test_an_evidence_file_describes_the_policy_of_the_recorded_episodes(
    judged: JudgedChain, tmp_path: Path
) -> None:
    """With nothing else on the machine: no store, no table and no server knows it there."""
    path = tmp_path / "evidence.zip"
    path.write_bytes(judged.evidence())
    shelf = Shelf.of(Places(evidence=(path,)))
    start = resolve(str(path), shelf)
    shelf.batches.clear()  # the candidate of this test was trained on rollouts of that same policy
    report = walk(start, shelf)
    recorded = [link.source for link in report.links if link.relation == "recorded with"]
    assert recorded
    assert {report.nodes[each].state for each in recorded} == {"verified"}


def test_an_evidence_file_that_was_unpacked_is_no_damaged_training(
    judged: JudgedChain, tmp_path: Path
) -> None:
    with zipfile.ZipFile(io.BytesIO(judged.evidence())) as archive:
        archive.extractall(tmp_path / "unpacked")
    shelf = Shelf.of(Places(search=(tmp_path,)))
    assert shelf.damaged == []


# ------------------------------------------------------------------------------------------ damage


def test_every_flipped_bit_of_an_evidence_file_is_found(judged: JudgedChain) -> None:
    data = judged.evidence()
    step = max(1, len(data) // 60)
    for at in range(0, len(data), step):
        changed = bytearray(data)
        changed[at] ^= 4
        try:
            found = open_evidence(bytes(changed), "evidence.zip", key=judged.key())
        except StorageError:
            continue
        assert broken(found), at


def test_evidence_that_was_changed_and_packed_again_has_no_valid_signature(
    judged: JudgedChain,
) -> None:
    files = _files(judged.evidence())
    run = json.loads(files[RUN])
    run["candidate_policy_version"] = "another"
    files[RUN] = json.dumps(run).encode()
    manifest = json.loads(files[MANIFEST])
    listed = file_of(files[RUN])
    manifest["files"][RUN] = {"bytes": listed.bytes, "sha256": listed.sha256}
    files[MANIFEST] = json.dumps(manifest).encode()
    told = broken(open_evidence(packed(files), "evidence.zip"))
    assert [each.partition(":")[0] for each in told] == ["signature"]


def test_evidence_of_another_server_is_not_that_of_the_trusted_one(judged: JudgedChain) -> None:
    told = broken(open_evidence(judged.evidence(), "evidence.zip", key="ab" * 32))
    assert [each.partition(":")[0] for each in told] == ["key of the server"]
    with pytest.raises(ConfigurationError, match="64 hexadecimal digits"):
        open_evidence(judged.evidence(), "evidence.zip", key="nonsense")


@pytest.mark.parametrize("data", [b"", b"nonsense", b"PK\x05\x06" + bytes(18)])
def test_a_file_that_is_no_evidence_is_refused(data: bytes) -> None:
    with pytest.raises(StorageError, match=r"evidence\.zip"):
        open_evidence(data, "evidence.zip")


def _resigned(files: dict[str, bytes]) -> bytes:
    """The files with a manifest of their own, signed by somebody."""
    key = Ed25519PrivateKey.generate()
    manifest = json.loads(files[MANIFEST])
    listed = {
        name: {"bytes": each.bytes, "sha256": each.sha256}
        for name, each in ((name, file_of(data)) for name, data in files.items())
        if name not in (MANIFEST, SIGNATURE)
    }
    signed = json.dumps({**manifest, "files": listed}).encode()
    signature = {
        "algorithm": "ed25519",
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": key.sign(signed).hex(),
    }
    return packed({**files, MANIFEST: signed, SIGNATURE: json.dumps(signature).encode()})


def test_evidence_that_somebody_else_signed_is_broken_beside_the_server_that_has_the_run(
    judged: JudgedChain, tmp_path: Path
) -> None:
    files = _files(judged.evidence())
    run = json.loads(files[RUN])
    files[RUN] = json.dumps({**run, "name": "as if"}).encode()
    path = tmp_path / "forged.zip"
    path.write_bytes(_resigned(files))
    # without a server nobody can tell, so `verify` prints the key that signed
    assert broken(open_evidence(path.read_bytes(), "forged.zip")) == []
    with judged.client() as client:
        shelf = Shelf.of(Places(evidence=(path,)), ServerRecords(client))
        report = walk(resolve(judged.run_id, shelf), shelf)
    [told] = [check for node, check in report.broken if node.kind == "run"]
    assert (told.what, told.expected) == ("key of the server", judged.key())
    path.write_bytes(judged.evidence())
    with judged.client() as client:
        shelf = Shelf.of(Places(evidence=(path,)), ServerRecords(client))
        assert not walk(resolve(judged.run_id, shelf), shelf).broken


@pytest.mark.parametrize("decision", [7, True, "ship", [], {"recommend": []}])
def test_a_decision_that_is_no_decision_is_named(judged: JudgedChain, decision: Any) -> None:
    files = _files(judged.evidence())
    run = json.loads(files[RUN])
    run["summary"]["decision"] = decision
    files[RUN] = json.dumps(run).encode()
    told = {each.partition(":")[0] for each in broken(open_evidence(_resigned(files), "e.zip"))}
    assert {"decision", "summary digest"} <= told


def test_a_file_that_says_one_thing_twice_in_two_ways_is_named(judged: JudgedChain) -> None:
    files = _files(judged.evidence())
    run = json.loads(files[RUN])
    other = "ship" if run["decision"] == "hold" else "hold"
    files[RUN] = json.dumps({**run, "id": "another", "decision": other}).encode()
    told = [each.partition(":")[0] for each in broken(open_evidence(_resigned(files), "e.zip"))]
    assert told == ["id of the run", "decision"]


def test_a_count_that_no_digest_can_hold_is_named(judged: JudgedChain) -> None:
    files = _files(judged.evidence())
    batch = json.loads(files[BATCHES].splitlines()[0])
    files[BATCHES] = json.dumps({**batch, "token_count": 10**40}).encode()
    told = [each.partition(":")[0] for each in broken(open_evidence(_resigned(files), "e.zip"))]
    assert told == [f"batch {batch['batch_id']}"]


@pytest.mark.parametrize("name", [SIGNATURE, RUN])
def test_a_missing_file_is_named(judged: JudgedChain, name: str) -> None:
    files = _files(judged.evidence())
    del files[name]
    words = f"there is no {name} in it"
    if name == RUN:
        with pytest.raises(StorageError, match=words):
            open_evidence(packed(files), "e.zip")
    else:
        assert any(words in each for each in broken(open_evidence(packed(files), "e.zip")))


def test_a_bomb_is_refused_before_it_is_unpacked(judged: JudgedChain) -> None:
    small, large = io.BytesIO(), 1 << 29
    with zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in _files(judged.evidence()).items():
            archive.writestr(name, data)
        with archive.open("bomb", "w") as member:
            for _ in range(large >> 20):
                member.write(bytes(1 << 20))
    assert len(small.getvalue()) < large >> 8
    with pytest.raises(StorageError, match="compressed"):
        open_evidence(small.getvalue(), "evidence.zip")


def test_files_that_lie_over_each_other_are_refused(judged: JudgedChain) -> None:
    """One file of many bytes, under many names: not compressed, and still larger than the archive."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("first", bytes(1 << 16))
        for number in range(100):
            again = copy.copy(archive.filelist[0])
            again.filename = f"again-{number}"
            archive.filelist.append(again)
    with pytest.raises(StorageError, match="compressed"):
        open_evidence(target.getvalue(), "evidence.zip")


def _files(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _with(name: str, value: Any) -> Any:
    return lambda stored: {**stored, name: value}


def test_a_result_that_was_changed_on_the_server_is_named(own: JudgedChain) -> None:
    where = f"eval_run_id = '{own.run_id}'"
    own.change("eval_results", "metrics", where, lambda stored: {**stored, "step_count": 77})
    report = own.report(own.run_id)
    told = [check.what for node, check in report.broken if node.kind == "run"]
    assert f"result of baseline {own.baselines[0]}" in told
    assert "digest of all results" in told


def test_a_reward_that_was_changed_on_the_server_changes_the_decision_that_is_computed_again(
    own: JudgedChain,
) -> None:
    where = f"eval_run_id = '{own.run_id}'"
    own.change("eval_results", "metrics", where, _with("reward_total_candidate", 0.123456))
    told = [check.what for node, check in own.report(own.run_id).broken if node.kind == "run"]
    assert any(each.startswith("decision computed again: ") for each in told)


def test_a_gate_that_was_changed_on_the_server_is_named(own: JudgedChain) -> None:
    own.change("eval_runs", "gate", f"id = '{own.run_id}'", _with("alpha", 0.2))
    told = [check.what for node, check in own.report(own.run_id).broken if node.kind == "run"]
    assert "gate digest" in told


def test_a_summary_that_was_changed_on_the_server_is_named(own: JudgedChain) -> None:
    def ship(summary: dict[str, Any]) -> dict[str, Any]:
        return {**summary, "decision": {**summary["decision"], "recommend": "ship"}}

    own.change("eval_runs", "summary", f"id = '{own.run_id}'", ship)
    told = [check.what for node, check in own.report(own.run_id).broken if node.kind == "run"]
    assert "summary digest" in told
    assert "decision computed again: decision.recommend" in told


def test_a_batch_that_was_changed_on_the_server_is_named(own: JudgedChain, tmp_path: Path) -> None:
    own.change("training_sources", "record", "kind = 'batch'", _with("token_count", 1))
    report = own.report("small-r1", tmp_path)
    assert ("batch", "batch digest") in [(node.kind, check.what) for node, check in report.broken]


def test_one_flipped_bit_of_an_artifact_on_the_server_is_named(own: JudgedChain) -> None:
    episode_id = own.baselines[1]
    with closing(sqlite3.connect(own.server.data_dir / "rollbook.db")) as database:
        query = "SELECT object_key, sha256 FROM artifacts WHERE episode_id = ? AND kind = 'sensors'"
        key, stated = database.execute(query, (episode_id,)).fetchone()
    blobs = (own.server.data_dir / "blobs").rglob(Path(key).name)
    [blob] = [each for each in blobs if str(each).endswith(key)]
    flip(blob)
    [(node, check)] = own.report(episode_id).broken
    assert node.kind == "episodes"
    assert f"sensors of episode {episode_id}" in check.what
    assert stated in check.detail
    # the server has noticed it too by now, and does not offer these bytes any more
    [(_, check)] = own.report(episode_id).broken
    assert check.what == f"sensors of episode {episode_id}"


# ---------------------------------------------------------------------------------------- commands


def test_export_and_verify_as_a_user_calls_them(
    judged: JudgedChain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "evidence.zip"
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROLLBOOK_API_KEY", judged.access.api_key)
    monkeypatch.setenv("ROLLBOOK_BASE_URL", judged.server.base_url)
    exported = rollbook("lineage", "export", judged.run_id, "--out", path)
    assert exported.returncode == 0, exported.stderr
    again = rollbook("lineage", "export", judged.run_id, "--out", path)
    assert again.returncode == 1
    assert "--replace" in again.stderr
    monkeypatch.delenv("ROLLBOOK_API_KEY")
    monkeypatch.delenv("ROLLBOOK_BASE_URL")
    sound = rollbook("lineage", "verify", path, "--key", judged.key(), "--json")
    assert sound.returncode == 0, sound.stdout
    assert sound.json["state"] == "verified"
    assert "--key" not in rollbook("lineage", "verify", path, "--key", judged.key()).stdout
    assert "anybody can sign" in rollbook("lineage", "verify", path).stdout
    flip(path, 0.4)
    assert rollbook("lineage", "verify", path).returncode == 1


def test_a_run_that_is_not_completed_has_no_evidence(judged: JudgedChain) -> None:
    with judged.client() as client:
        run = evals.create_run(
            candidate_policy_version="later", baseline_episode_ids=judged.baselines, client=client
        )
        with pytest.raises(ConflictError, match="only a completed run"):
            ServerRecords(client).evidence_bytes(run.id)


def test_the_results_in_the_evidence_are_those_of_the_run(judged: JudgedChain) -> None:
    lines = _files(judged.evidence())[RESULTS].splitlines()
    assert [json.loads(each)["baseline_episode_id"] for each in lines] == judged.baselines
