"""Drivers and workers as real processes: killed, hung, interrupted, and several at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollbook.store.shards.lease_record import read_leases
from rollbook.store.shards.sidecars import read_finished
from tests.cli.test_cli_campaign import plan as planned_with_cli
from tests.command import rollbook
from tests.engines.test_in_order import wait_until
from tests.generate.campaigns.scripted_shards import attempts, plan, run
from tests.store.shards.shard_plans import names

SHARDS = [f"shard-{number:06d}" for number in range(9)]


def driver(root: Path, shards: int, workers: int, script: dict[int, list[str]]) -> Any:
    program = [sys.executable, "-m", "tests.generate.campaigns.scripted_driver"]
    words = [str(root), str(shards), str(workers), json.dumps(script)]
    return subprocess.Popen([*program, *words], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_drivers_started_at_once_share_the_shards_and_both_end(tmp_path: Path) -> None:
    both = [driver(tmp_path, 6, 1, {0: ["wait"], 1: ["wait"]}) for _ in range(2)]
    wait_until(lambda: attempts(tmp_path, 0) and attempts(tmp_path, 1))
    (tmp_path / "go").touch()
    ended = [json.loads(each.communicate()[0]) for each in both]
    assert [each.returncode for each in both] == [0, 0]
    for each in ended:
        assert sorted(each["succeeded"] + each["skipped"]) == SHARDS[:6]
        assert each["succeeded"]
        assert each["failed"] == {}
        assert each["retries"] == 0
    assert sorted(ended[0]["succeeded"] + ended[1]["succeeded"]) == SHARDS[:6]
    assert [attempts(tmp_path, number) for number in range(6)] == [1] * 6
    assert names(tmp_path) == set(SHARDS[:6])
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_a_driver_that_is_killed_takes_its_workers_with_it_and_another_one_goes_on(
    tmp_path: Path,
) -> None:
    first = driver(tmp_path, 4, 2, {2: ["hang"], 3: ["hang"]})
    wait_until(lambda: attempts(tmp_path, 2) and attempts(tmp_path, 3))
    first.kill()
    first.communicate()
    left = read_leases(tmp_path / "shards")
    assert set(left) == {SHARDS[2], SHARDS[3]}
    wait_until(lambda: all(lease.process.is_gone() for lease in left.values()))
    ended = run(tmp_path, plan(4))
    assert (ended.skipped, sorted(ended.succeeded)) == (SHARDS[:2], SHARDS[2:4])
    assert names(tmp_path) == set(SHARDS[:4])
    assert [attempts(tmp_path, number) for number in range(4)] == [1, 1, 2, 2]


@pytest.mark.slow
def test_a_shard_whose_worker_was_killed_before_its_success_file_is_finished_and_not_built_again(
    tmp_path: Path,
) -> None:
    ended = run(tmp_path, plan(1), {0: ["die after the rename"]}, parallel="process")
    assert ended.complete
    assert ended.retries == 1
    assert attempts(tmp_path, 0) == 1
    assert names(tmp_path) == {SHARDS[0]}


@pytest.mark.slow
def test_a_shard_that_hangs_is_ended_after_its_time_and_tried_again(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        plan(2),
        {0: ["hang"], 1: ["hang"] * 99},
        parallel="process",
        workers=2,
        timeout_s=8.0,
        max_retries=1,
    )
    assert ended.succeeded == [SHARDS[0]]
    assert list(ended.failed) == [SHARDS[1]]
    owner = read_finished(tmp_path / "shards" / SHARDS[0], plan(1)[0])
    assert [each.error_type for each in owner.failures] == ["TimeoutError"]
    assert read_leases(tmp_path / "shards") == {}


def started(campaign: Path, *words: str) -> Any:
    program = [sys.executable, "-m", "rollbook", "campaign", "run", str(campaign), *words]
    return subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.slow
def test_ctrl_c_finishes_the_shard_in_work_and_the_same_command_goes_on(tmp_path: Path) -> None:
    campaign = tmp_path / "campaign"
    planned_with_cli(campaign)
    run_ = started(campaign, "--workers", "1")
    wait_until(lambda: read_leases(campaign / "shards"))
    os.killpg(run_.pid, signal.SIGINT)  # as a terminal does
    said, told = run_.communicate()
    assert run_.returncode == 130, told
    assert "no more shards are begun" in told
    assert "shards: 1 built, 1 not begun" in said
    assert names(campaign) == {SHARDS[0]}
    ended = rollbook("campaign", "run", campaign, "--json").json
    assert (ended["skipped"], ended["succeeded"]) == ([SHARDS[0]], [SHARDS[1]])


@pytest.mark.slow
@pytest.mark.parametrize(("signals", "code"), [(["INT", "INT"], 130), (["TERM"], 143)])
def test_a_second_ctrl_c_and_sigterm_stop_at_once_and_leave_no_process_and_no_lease(
    tmp_path: Path, signals: list[str], code: int
) -> None:
    campaign = tmp_path / "campaign"
    planned_with_cli(campaign)
    run_ = started(campaign, "--workers", "2")
    wait_until(lambda: len(read_leases(campaign / "shards")) == 2)
    workers = [lease.process for lease in read_leases(campaign / "shards").values()]
    for number, name in enumerate(signals):
        if number:
            wait_until(lambda: "no more shards" in run_.stderr.readline())
        run_.send_signal(getattr(signal, f"SIG{name}"))
    run_.communicate()
    assert run_.returncode == code
    for worker in workers:
        wait_until(worker.is_gone)
    assert not read_leases(campaign / "shards")
