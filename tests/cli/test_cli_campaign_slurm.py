"""`rollbook campaign run --engine slurm`, as typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.store.shards.lease_record import LeaseRecord, Process, lease_path
from tests.cli.test_cli_campaign import plan
from tests.cli.test_cli_campaign_run import content
from tests.command import rollbook
from tests.slurm_cluster import SlurmCluster, SlurmTask


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    cluster = SlurmCluster(tmp_path / "cluster")
    monkeypatch.setenv("PATH", cluster.path)
    return cluster


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """A campaign of two shards."""
    plan(tmp_path / "my campaign")
    return tmp_path / "my campaign"


def test_jobs_are_submitted_once(cluster: SlurmCluster, campaign: Path) -> None:
    words = ("campaign", "run", campaign, "--engine", "slurm", "--workers", 1)
    more = ("--sbatch", "partition=cpu", "--sbatch", "time=10", "--max-retries", 7)
    ended = rollbook(*words, *more)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "submitted array-000.sh as job 1: 2 shards",
        "submitted merge.sh as job 2: merges them at the end",
    ]
    assert f"next: rollbook campaign status '{campaign}' --watch" in ended.stderr
    array, merge = [job["options"] for job in cluster.jobs()]
    assert (array["array"], array["time"], array["partition"]) == ("0-1%1", "10", "cpu")
    assert merge["dependency"] == "afterany:1"
    assert "attempt <= 7;" in (campaign / "slurm" / "array-000.sh").read_text()
    assert rollbook(*words).stdout == "in the queue already: 2 shards\n"
    assert rollbook(*words, "--json").json == {
        "jobs": [],
        "scripts": [],
        "commands": [],
        "shards": 0,
        "in_queue": 2,
    }


def test_scripts_are_written_where_nothing_is_submitted(campaign: Path) -> None:
    ended = rollbook("campaign", "run", campaign, "--engine", "slurm", "--shards", 1, "--no-submit")
    assert ended.returncode == 0, ended.stderr
    folder = campaign / "slurm"
    assert ended.stdout.splitlines() == [
        f"job0=$(sbatch --parsable '{folder}/array-000.sh')",
        f"job1=$(sbatch --parsable --dependency=afterany:${{job0%%;*}} '{folder}/merge.sh')",
    ]
    assert "shards=(shard-000001)" in (folder / "array-000.sh").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--engine slurm --fail-fast", "--fail-fast has no meaning for --engine slurm"),
        ("--engine slurm --address x", "--address has no meaning for --engine slurm"),
        ("--engine slurm --sbatch -pgpu", "expected the long name of an option"),
        ("--no-submit", "--no-submit is for --engine slurm, not local"),
        ("--max-array 5", "--max-array is for --engine slurm, not local"),
    ],
)
def test_options_that_do_not_fit_the_engine_are_refused(
    campaign: Path, words: str, says: str
) -> None:
    refused = rollbook("campaign", "run", campaign, *words.split())
    assert refused.returncode == 2
    assert says in refused.stderr
    assert not (campaign / "slurm" / "array-000.sh").exists()


@pytest.mark.slow
def test_slurm_builds_the_shards_of_a_local_run_also_if_tasks_are_lost(
    tmp_path: Path, cluster: SlurmCluster, campaign: Path
) -> None:
    plan(tmp_path / "local")
    assert rollbook("campaign", "run", tmp_path / "local", "--workers", 1).returncode == 0
    rollbook("campaign", "run", campaign, "--engine", "slurm")
    shards = campaign / "shards"
    elsewhere = Process(host="elsewhere", pid=1, started="1", machine="another")
    lease = LeaseRecord(shard_id="shard-000001", token=1, nonce="n", process=elsewhere, lease_s=2.0)
    shards.mkdir()
    lease_path(shards, lease.shard_id, lease.token).write_bytes(lease.encode())
    lost: list[str] = []

    def watch(task: SlurmTask) -> None:
        if not lost and task.index == 0 and lease_path(shards, "shard-000000", 1).exists():
            lost.append(task.name)
            task.lose_node()

    ended = cluster.run(watch)
    logs = {log.name: log.read_text() for log in (campaign / "slurm" / "logs").iterdir()}
    assert lost == ["1_0"]
    assert ended == {"1_0": 0, "1_1": 0, "2": 0}, logs
    assert "waiting for process 1 on elsewhere, which has the shard" in logs["1_1.log"]
    assert content(campaign) == content(tmp_path / "local")
    assert len(content(campaign)) == 2
    assert (campaign / "collection.json").exists()
    assert (
        "every shard is finished"
        in rollbook("campaign", "run", campaign, "--engine", "slurm").stdout
    )
