"""Chains as a table file: written once, continued after a kill, never half there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollbook.contracts.rl.table_file import open_table
from rollbook.errors import ConfigurationError, TargetExists
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.train import saved_chains
from rollbook.train.artifacts import chains_table
from rollbook.train.saved_chains import chosen_chains, save_chains
from tests.command import rollbook
from tests.evals.small_stores import small_store


@pytest.fixture
def reader() -> RolloutZarrStoreReader:
    return RolloutZarrStoreReader(small_store(9))


def test_the_file_has_the_chains_and_stays_when_it_is_made_again(
    reader: RolloutZarrStoreReader, tmp_path: Path
) -> None:
    out = tmp_path / "new folder" / "rollouts.table"
    first = save_chains(reader, out, chosen_chains(reader))
    assert first.written
    assert open_table(out, verify="all").root == chains_table(reader).root
    before = out.stat()
    again = save_chains(reader, out, chosen_chains(reader))
    assert not again.written
    assert (out.stat().st_mtime_ns, out.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    with pytest.raises(TargetExists):
        save_chains(reader, out, chosen_chains(reader, limit=2))
    assert save_chains(reader, out, chosen_chains(reader, limit=2), replace=True).written
    assert len(open_table(out)) == 2
    assert [each.name for each in out.parent.iterdir()] == ["rollouts.table"]


def test_a_file_that_is_no_table_is_not_replaced_by_chance(
    reader: RolloutZarrStoreReader, tmp_path: Path
) -> None:
    out = tmp_path / "notes.txt"
    out.write_text("precious")
    with pytest.raises(TargetExists, match="not a whole table"):
        save_chains(reader, out, chosen_chains(reader))
    assert out.read_text() == "precious"
    with pytest.raises(ConfigurationError, match="is a folder; name a file"):
        save_chains(reader, tmp_path, chosen_chains(reader))


KILLED = """
import os, signal, sys
from pathlib import Path
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.train import saved_chains
saved_chains.CHAINS_AT_ONCE = 2
reader = RolloutZarrStoreReader(sys.argv[1])
def die(done, total):
    if done == 6:
        os.kill(os.getpid(), signal.SIGKILL)
saved_chains.save_chains(reader, Path(sys.argv[2]), saved_chains.chosen_chains(reader), on_chains=die)
"""


def test_a_killed_run_is_continued(
    reader: RolloutZarrStoreReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_chains, "CHAINS_AT_ONCE", 2)
    out = tmp_path / "rollouts.table"
    died = subprocess.run(
        [sys.executable, "-c", KILLED, reader.store_dir, out], check=False, capture_output=True
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not out.exists()
    parts = sorted((tmp_path / ".rollouts.table.parts").iterdir())
    assert len(parts) == 3
    damaged = bytearray(parts[1].read_bytes())
    damaged[-1] ^= 1
    parts[1].write_bytes(damaged)
    done = save_chains(reader, out, chosen_chains(reader))
    assert done.reused == 4, "two of three parts are whole"
    assert open_table(out, verify="all").root == chains_table(reader).root
    assert [each.name for each in tmp_path.iterdir()] == ["rollouts.table"]


def test_parts_of_other_chains_are_not_used(
    reader: RolloutZarrStoreReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_chains, "CHAINS_AT_ONCE", 2)
    out = tmp_path / "rollouts.table"
    subprocess.run([sys.executable, "-c", KILLED, reader.store_dir, out], check=False)
    done = save_chains(reader, out, chosen_chains(reader, policy="random_valid"))
    assert done.reused == 0
    assert {each.source_policy_revision.revision_id[:12] for each in done.table} == {"random_valid"}
    assert [each.name for each in tmp_path.iterdir()] == ["rollouts.table"]


def test_chains_are_chosen_by_policy_and_number(reader: RolloutZarrStoreReader) -> None:
    assert chosen_chains(reader, limit=4).tolist() == [0, 1, 2, 3]
    words = reader.decoded("rollouts", "policy_id")
    greedy = chosen_chains(reader, policy="oracle_greedy", limit=2)
    assert greedy.tolist() == [row for row, word in enumerate(words) if word == "oracle_greedy"][:2]
    with pytest.raises(ConfigurationError, match="'nobody'; known: oracle_greedy, random_valid"):
        chosen_chains(reader, policy="nobody")
    with pytest.raises(ConfigurationError, match="limit=0"):
        chosen_chains(reader, limit=0)
    unlabelled = RolloutZarrStoreReader(small_store(4, unmatched_fraction=1.0))
    with pytest.raises(ConfigurationError, match="has a step to learn from"):
        chosen_chains(unlabelled)


def test_the_command_says_what_it_wrote_and_what_it_left_out(tmp_path: Path) -> None:
    store, out = small_store(12, unmatched_fraction=0.5), tmp_path / "r.table"
    first = rollbook("store", "to-artifacts", store, "--out", out)
    kept = len(open_table(out))
    assert f"{kept} rollouts" in first.stdout
    assert f"{12 - kept} chains without a label were left out" in first.stdout
    assert "it was there already" in rollbook("store", "to-artifacts", store, "--out", out).stdout
    other = rollbook("store", "to-artifacts", store, "--out", out, "--limit", 1)
    assert (other.returncode, "--replace replaces it" in other.stderr) == (1, True)
