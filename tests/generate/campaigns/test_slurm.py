"""Campaigns on Slurm: the scripts, what is submitted, and how a task ends. Tasks are real processes of a stand-in."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.errors import ConfigurationError, MalformedJson
from rollbook.generate.campaign_config import CampaignConfig
from rollbook.generate.campaigns.slurm_jobs import SlurmSubmission, start_on_slurm
from rollbook.generate.campaigns.slurm_script import SlurmSettings, write_slurm_scripts
from tests.slurm_cluster import SlurmCluster, SlurmTask

SHARDS = [f"shard-{number:06d}" for number in range(5)]

ROLLBOOK = r"""#!/bin/bash
# stands in for `rollbook`: notes its arguments, and does what the files `fails` (exit codes) and `hangs` ask for
cd "$(dirname "$0")"
printf '%s\0' "$@" $'\n' >> "calls"  # one write: tasks run at the same time
finished() { touch "finished-$1"; }
case $2 in
run-shard)
    if [[ -s fails ]]; then codes=($(<fails)); printf %s "${codes[*]:1}" > fails; exit "${codes[0]}"; fi
    if [[ -e hangs ]]; then
        trap 'echo stopped; touch "stopped-$4"; rm hangs; exit 143' TERM
        touch "hanging-$4"
        while :; do sleep 0.01; done
    fi
    finished "$4" ;;
status)
    if [[ ! -e complete ]]; then echo 'not complete' >&2; exit 2; fi ;;
esac
"""


class Slurm:
    """A campaign on a stand-in for a cluster, with a stand-in for `rollbook` on the machines of the cluster."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.nodes, self.campaign = folder / "nodes", folder / name
        self.nodes.mkdir()
        self.campaign.mkdir()
        self.cluster = SlurmCluster(folder / "cluster")
        (self.nodes / "rollbook").write_text(ROLLBOOK)
        (self.nodes / "rollbook").chmod(0o755)
        monkeypatch.setenv("PATH", self.cluster.path)

    def start(
        self, shards: Sequence[str] = SHARDS, *, submit: bool = True, **changes: Any
    ) -> SlurmSubmission:
        setup = (f"rollbook=({shlex.quote(str(self.nodes / 'rollbook'))})",)
        return start_on_slurm(
            self.campaign,
            lambda: [shard for shard in shards if not (self.nodes / f"finished-{shard}").exists()],
            CampaignConfig(),
            SlurmSettings(**{"setup": setup, **changes}),
            submit=submit,
        )

    def calls(self) -> list[list[str]]:
        lines = (self.nodes / "calls").read_text().split("\0\n\0")[:-1]
        return [line.split("\0") for line in lines]

    def built(self) -> list[str]:
        return sorted(call[3] for call in self.calls() if call[1] == "run-shard")

    def scripts(self) -> dict[str, str]:
        return {file.name: file.read_text() for file in (self.campaign / "slurm").glob("*.sh")}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(tmp_path, monkeypatch, "campaign")


# ---------------------------------------------------------------------------------- whole campaigns


def test_every_shard_is_built_once_and_then_merged(slurm: Slurm) -> None:
    started = slurm.start(tasks_at_once=2, max_array=3)
    assert [job.script for job in started.jobs] == ["array-000.sh", "array-001.sh", "merge.sh"]
    (slurm.nodes / "complete").touch()
    ended = slurm.cluster.run()
    assert set(ended.values()) == {0}
    assert slurm.built() == SHARDS
    campaign = str(slurm.campaign)
    assert slurm.calls()[-2:] == [
        ["campaign", "status", campaign, "--require-complete"],
        ["campaign", "merge", campaign],
    ]
    log = (slurm.campaign / "slurm" / "logs" / "2_1.log").read_text()
    assert log.startswith("shard-000003 on ")


def test_an_incomplete_campaign_is_not_merged(slurm: Slurm) -> None:
    (slurm.nodes / "fails").write_text("1 1 1")
    slurm.start(SHARDS[:1])
    assert slurm.cluster.run() == {"1_0": 1, "2": 2}
    assert not any("merge" in call for call in slurm.calls())


@pytest.mark.parametrize(
    "name",
    ["two words, it's #50%A;&|*?", '"$(touch stolen)`touch stolen`" ünï=cödé --array'],
)
def test_a_path_may_have_any_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    odd = tmp_path / name
    odd.mkdir()
    monkeypatch.chdir(odd)
    slurm = Slurm(odd, monkeypatch, name)
    slurm.start(SHARDS[:1])
    (slurm.nodes / "complete").touch()
    assert set(slurm.cluster.run().values()) == {0}
    assert {call[2] for call in slurm.calls()} == {str(slurm.campaign)}
    assert not list(tmp_path.rglob("stolen"))
    assert len(list((slurm.campaign / "slurm" / "logs").iterdir())) == 2


# ------------------------------------------------------------------------------------ resuming


def test_a_second_start_submits_only_what_is_missing(slurm: Slurm) -> None:
    slurm.start(max_array=3)
    slurm.cluster.run()
    (slurm.nodes / "finished-shard-000001").unlink()
    (slurm.nodes / "finished-shard-000004").unlink()
    again = slurm.start(max_array=3)
    assert [job.shard_ids for job in again.jobs] == [("shard-000001", "shard-000004"), ()]
    assert slurm.scripts().keys() == {"array-000.sh", "merge.sh"}
    assert slurm.start().jobs == []


def test_shards_in_the_queue_are_not_submitted_again_and_the_merge_waits_for_them(
    slurm: Slurm,
) -> None:
    slurm.start(SHARDS[:3])
    again = slurm.start(SHARDS)
    assert again.in_queue == 3
    assert [job.shard_ids for job in again.jobs] == [("shard-000003", "shard-000004"), ()]
    assert slurm.cluster.jobs()[-1]["options"]["dependency"] == "afterany:1:3"
    slurm.cluster.run()
    assert slurm.built() == SHARDS


def test_what_was_submitted_before_sbatch_failed_is_not_submitted_again(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_MOST_JOBS", "1")
    with pytest.raises(ConfigurationError, match=r"array-001\.sh failed: .*job submit limit"):
        slurm.start(max_array=3)
    monkeypatch.delenv("STAND_IN_MOST_JOBS")
    slurm.start(max_array=3)
    slurm.cluster.run()
    assert slurm.built() == SHARDS


def test_without_sbatch_the_printed_lines_submit_the_same_jobs(slurm: Slurm) -> None:
    options: dict[str, Any] = {"max_array": 2, "tasks_at_once": 2}
    written = slurm.start(submit=False, **options)
    assert written.jobs == []
    assert slurm.cluster.jobs() == []
    subprocess.run(["bash", "-euc", "\n".join(written.commands)], check=True)
    typed = [job["options"] for job in slurm.cluster.jobs()]
    for file in slurm.cluster.state.iterdir():
        file.unlink()
    slurm.start(**options)
    assert [job["options"] for job in slurm.cluster.jobs()] == typed
    assert [each.get("dependency") for each in typed] == [
        None,
        None,
        "afterany:1",
        "afterany:1:2:3",
    ]


def test_two_starts_at_once_submit_every_shard_once(slurm: Slurm) -> None:
    with ThreadPoolExecutor(2) as threads:
        starts = [threads.submit(slurm.start) for _ in range(2)]
    assert sorted(each.result().in_queue for each in starts) == [0, 5]
    assert ["array" in job["options"] for job in slurm.cluster.jobs()] == [True, False]


def test_a_damaged_list_of_jobs_is_refused(slurm: Slurm) -> None:
    slurm.start()
    for damaged in (b'[{"job_id": 1', b'[{"job_id": "\xfc"}]'):
        (slurm.campaign / "slurm" / "jobs.json").write_bytes(damaged)
        with pytest.raises(MalformedJson, match=r"jobs\.json.*remove the file"):
            slurm.start()


# ------------------------------------------------------------------------------- how a task ends


def test_a_task_whose_time_is_nearly_over_stops_its_worker_and_goes_back_to_the_queue(
    slurm: Slurm,
) -> None:
    (slurm.nodes / "hangs").touch()
    slurm.start(SHARDS[:1])

    def watch(task: SlurmTask) -> None:
        if (slurm.nodes / "hanging-shard-000000").exists():
            (slurm.nodes / "hanging-shard-000000").unlink()
            task.warn()

    ended = slurm.cluster.run(watch)
    assert (slurm.nodes / "stopped-shard-000000").exists()
    assert ended["1_0"] == 0
    assert slurm.built() == ["shard-000000", "shard-000000"]
    log = (slurm.campaign / "slurm" / "logs" / "1_0.log").read_text()
    assert log.count("shard-000000 on ") == 2, "the second start appends to the log of the first"
    assert "goes back to the queue" in log


@pytest.mark.parametrize(
    ("codes", "calls", "ended"), [("1 1", 3, 0), ("1 1 1 1", 3, 1), ("139", 2, 0), ("2", 1, 2)]
)
def test_a_shard_that_failed_is_tried_again_unless_a_setting_is_wrong(
    slurm: Slurm, codes: str, calls: int, ended: int
) -> None:
    (slurm.nodes / "fails").write_text(codes)
    slurm.start(SHARDS[:1])
    assert slurm.cluster.run()["1_0"] == ended
    assert len(slurm.built()) == calls


@pytest.mark.parametrize("way", ["preempt", "lose_node"])
def test_a_task_that_lost_its_machine_is_started_again(slurm: Slurm, way: str) -> None:
    (slurm.nodes / "hangs").touch()
    slurm.start(SHARDS[:1])

    def watch(task: SlurmTask) -> None:
        if (slurm.nodes / "hanging-shard-000000").exists():
            (slurm.nodes / "hanging-shard-000000").unlink()
            getattr(task, way)()
            (slurm.nodes / "hangs").unlink(missing_ok=True)

    assert slurm.cluster.run(watch)["1_0"] == 0
    assert slurm.built() == ["shard-000000", "shard-000000"]


def test_a_cancelled_task_waits_for_its_worker_and_does_not_go_back(slurm: Slurm) -> None:
    (slurm.nodes / "hangs").touch()
    slurm.start(SHARDS[:1])

    def watch(task: SlurmTask) -> None:
        if (slurm.nodes / "hanging-shard-000000").exists():
            (slurm.nodes / "hanging-shard-000000").unlink()
            task.preempt()
            task.ended_by_slurm = False

    assert slurm.cluster.run(watch)["1_0"] == 143
    assert (slurm.nodes / "stopped-shard-000000").exists()


# -------------------------------------------------------------------------------------- scripts


@settings(max_examples=20, deadline=None)
@given(shards=st.integers(1, 40), size=st.integers(1, 12), at_once=st.none() | st.integers(1, 12))
def test_arrays_that_run_side_by_side_keep_the_limit(
    tmp_path_factory: pytest.TempPathFactory, shards: int, size: int, at_once: int | None
) -> None:
    names = [f"shard-{number:06d}" for number in range(shards)]
    chosen = SlurmSettings(max_array=size, tasks_at_once=at_once)
    folder = tmp_path_factory.mktemp("campaign")
    *arrays, _ = write_slurm_scripts(folder, names, CampaignConfig(), chosen)
    assert sorted(shard for array in arrays for shard in array.shard_ids) == names
    sizes = [len(array.shard_ids) for array in arrays]
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    limits = []
    for array in arrays:
        tasks, _, limited = directives(array.path)["array"].partition("%")
        assert tasks == f"0-{len(array.shard_ids) - 1}"
        limits.append(int(limited) if limited else None)
    first = [limit for array, limit in zip(arrays, limits, strict=True) if array.after is None]
    if at_once is None:
        assert set(limits) == {None}
        assert len(first) == len(arrays)
    else:
        # an array that waits takes the place of the one it waits for, so the first ones have the whole limit
        assert sum(filter(None, first)) == at_once
        for array, limit in zip(arrays, limits, strict=True):
            assert array.after is None or limits[array.after] == limit
        followed = [array.after for array in arrays if array.after is not None]
        assert len(set(followed)) == len(followed)


def directives(script: Path) -> dict[str, str]:
    lines = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH --")]
    pairs = [line.removeprefix("#SBATCH --").partition("=") for line in lines]
    return {name: value for name, _, value in pairs}


def test_a_task_asks_for_what_the_config_says_that_a_shard_needs(tmp_path: Path) -> None:
    needs = CampaignConfig(
        cpus_per_shard=2.5, gpus_per_shard=0.5, memory_mb=4000, timeout_s=3600, max_retries=1
    )
    array, _ = write_slurm_scripts(tmp_path, SHARDS, needs, SlurmSettings(tasks_at_once=4))
    asked = directives(array.path)
    wanted = {
        "cpus-per-task": "3",
        "gres": "gpu:1",
        "mem": "4000M",
        "time": "62",
        "array": "0-4%4",
    }
    assert {name: asked[name] for name in wanted} == wanted


def test_options_of_the_user_replace_those_of_the_script(tmp_path: Path) -> None:
    needs = CampaignConfig(gpus_per_shard=1)
    given = ("gres=gpu:a100:1", "--partition=big", 'comment=it\'s "me" #1', "exclusive")
    array, merge = write_slurm_scripts(tmp_path, SHARDS, needs, SlurmSettings(sbatch=given))
    for script in (array, merge):
        asked = directives(script.path)
        assert asked["gres"] == "gpu:a100:1"
        assert asked["partition"] == "big"
        assert asked["comment"] == '"it\'s \\"me\\" #1"'
        assert asked["exclusive"] == ""


@pytest.mark.parametrize(
    "wrong", ["-p gpu", "p gpu=1", "", "=x", "array=0-1", "--wrap=date", "comment=a\n#SBATCH -c 9"]
)
def test_options_that_would_break_the_script_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="--sbatch"):
        SlurmSettings(sbatch=(wrong,))


@pytest.mark.parametrize(
    ("name", "reason"), [("a\nb", "the folder of the campaign"), ("a\\b", "with a backslash")]
)
def test_a_folder_that_slurm_cannot_write_to_is_refused(
    tmp_path: Path, name: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        write_slurm_scripts(tmp_path / name, SHARDS, CampaignConfig(), SlurmSettings())


def test_lines_that_bash_cannot_read_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    broken = SlurmSettings(setup=("echo 'never closed",))
    with pytest.raises(ConfigurationError, match="--setup: bash does not accept"):
        write_slurm_scripts(tmp_path, SHARDS, CampaignConfig(), broken)
    assert list(tmp_path.iterdir()) == []


def test_lines_of_the_user_may_use_unset_variables(slurm: Slurm) -> None:
    line = f'rollbook=("{slurm.nodes}/rollbook" $UNSET_VARIABLE)'
    slurm.start(SHARDS[:1], setup=(line,))
    assert slurm.cluster.run()["1_0"] == 0


def test_the_jobs_are_kept(slurm: Slurm) -> None:
    started = slurm.start()
    kept = (slurm.campaign / "slurm" / "jobs.json").read_bytes()
    assert kept == msgspec.json.encode(started.jobs)
    assert [job.job_id for job in started.jobs] == ["1", "2"]
    assert os.listdir(slurm.campaign) == ["slurm"]
    assert not (slurm.campaign / "slurm" / ".lock").exists()
