"""Networks fail, servers fail, runners are killed: the campaign is not lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rollbook.client import Client
from rollbook.errors import TransportError
from rollbook.evals import EvalRun, complete_run, open_run, run_against
from rollbook.evals.baselines import Baseline, Ticket
from tests.evals.campaigns import Campaign, journal_files
from tests.evals.faulty_proxy import Fault, FaultyProxy
from tests.evals.replay_policies import crash_on_negative, follow
from tests.server.running import RunningServer


def downloads(proxy: FaultyProxy) -> int:
    """Small artifacts come many in one answer, others each from its own address."""
    return proxy.count("GET /blobs") + proxy.count("/artifact")


def never(obs: object) -> dict[str, object]:
    raise AssertionError("this was done before")


# ---------------------------------------------------------------------------------------- downloads


@pytest.mark.parametrize("route", ["POST /api/episodes/artifacts", "POST /api/episodes/lookup"])
@pytest.mark.parametrize("status", [500, None])
def test_a_download_that_fails_once_is_tried_again(
    faulty: Campaign, proxy: FaultyProxy, route: str, status: int | None
) -> None:
    run = faulty.run(dry_run=True)
    proxy.faults.append(Fault(route, status, times=2))
    results = run_against(run, policy_callable=follow)
    assert {each.status for each in results} == {"complete"}


@pytest.mark.parametrize(("status", "named"), [(500, "ServerError"), (401, "AuthError")])
def test_a_download_that_keeps_failing_makes_failed_rows(
    faulty: Campaign, proxy: FaultyProxy, status: int, named: str
) -> None:
    run = faulty.run()
    proxy.faults += [Fault("GET /", status), Fault("/api/episodes/artifacts", status)]
    results = run_against(run, policy_callable=follow)
    assert {each.status for each in results} == {"failed"}
    assert all(str(each.error).startswith(f"infrastructure: {named}: ") for each in results)
    assert run.episodes_failed == 5
    proxy.faults.clear()
    again = run_against(run, policy_callable=follow, resume=True)
    assert {each.status for each in again} == {"complete"}


def test_a_policy_that_loses_its_own_connection_is_no_trouble_of_ours(campaign: Campaign) -> None:
    def remote(obs: object) -> dict[str, object]:
        raise ConnectionError("the model server is gone")

    results = campaign.against(remote, dry_run=True)
    assert {each.error for each in results} == {"ConnectionError: the model server is gone"}


def test_more_workers_than_baselines_wait_for_every_download(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = Ticket.fetch

    def slowly(ticket: Ticket, *arguments: Any) -> Baseline:
        time.sleep(0.1)
        return at_once(ticket, *arguments)

    monkeypatch.setattr(Ticket, "fetch", slowly)
    results = campaign.against(follow, workers=12, dry_run=True)
    assert [(each.status, each.error) for each in results] == [("complete", None)] * 5


def test_what_was_downloaded_before_is_not_downloaded_again(
    faulty: Campaign, proxy: FaultyProxy
) -> None:
    faulty.against(follow, dry_run=True)
    before = downloads(proxy)
    assert before > 0
    faulty.against(follow, dry_run=True)
    assert downloads(proxy) == before


def test_a_cached_baseline_that_was_damaged_is_fetched_again(
    faulty: Campaign, proxy: FaultyProxy, own_home: Path
) -> None:
    faulty.against(follow, dry_run=True)
    before = downloads(proxy)
    damaged = next((own_home / "cache").iterdir())
    damaged.write_bytes(b"something else")
    assert {each.status for each in faulty.against(follow, dry_run=True)} == {"complete"}
    assert downloads(proxy) > before


# ------------------------------------------------------------------------------------------ uploads


@pytest.mark.parametrize(
    "route", ["/api/ingest/episodes", "PUT /blobs", "POST /api/ingest/eval-run/"]
)
@pytest.mark.parametrize("status", [500, None])
def test_an_upload_that_fails_once_is_tried_again(
    faulty: Campaign, proxy: FaultyProxy, route: str, status: int | None
) -> None:
    run = faulty.run()
    proxy.faults.append(Fault(route, status, times=1))
    assert {each.status for each in run_against(run, policy_callable=follow)} == {"complete"}
    assert faulty.statuses(run) == ["complete"] * 5


@pytest.mark.parametrize(
    "route",
    [
        "PUT /blobs",
        "POST /api/ingest/eval-run/",
        pytest.param("/api/ingest/episodes", marks=pytest.mark.slow),
        pytest.param("/finalize", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_delivered_waits_in_the_journal_and_is_delivered_by_resume(
    faulty: Campaign, proxy: FaultyProxy, own_home: Path, route: str
) -> None:
    run = faulty.run()
    proxy.faults.append(Fault(route, 500))
    with pytest.raises(TransportError, match=r"5 results could not be delivered.*resume=True"):
        run_against(run, policy_callable=follow)
    assert journal_files(own_home, run) == [".batch", ".jsonl"]
    proxy.faults.clear()
    results = run_against(run, policy_callable=never, resume=True)
    assert [each.baseline_episode_id for each in results] == faulty.ids
    assert faulty.statuses(run) == ["complete"] * 5
    row = faulty.rows(run)[faulty.ids[0]]
    replay = faulty.client.episode(str(row.candidate_episode_id))
    assert replay.status == "ready"
    assert "/arm/command" in replay.actions()
    complete_run(run)
    assert journal_files(own_home, run) == []


@pytest.mark.parametrize("route", ["POST /api/ingest/eval-run/", "episodes/finalize"])
def test_a_server_that_is_back_by_the_end_gets_what_it_missed(
    faulty: Campaign, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    monkeypatch.setattr("rollbook.evals.delivery.ROWS_AT_ONCE", 2)
    run = faulty.run()
    proxy.faults.append(Fault(route, 500, times=3))  # as often as a call is tried
    results = run_against(run, policy_callable=follow)
    assert [each.baseline_episode_id for each in results] == faulty.ids
    assert faulty.statuses(run) == ["complete"] * 5
    made = [str(each.candidate_episode_id) for each in results]
    assert {faulty.client.episode(each).status for each in made} == {"ready"}


def test_what_was_left_behind_may_be_delivered_in_other_portions(
    faulty: Campaign, proxy: FaultyProxy, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = faulty.run()
    proxy.faults.append(Fault("PUT /blobs", 500))
    with pytest.raises(TransportError):
        run_against(run, policy_callable=follow)
    proxy.faults.clear()
    monkeypatch.setattr("rollbook.evals.delivery.ROWS_AT_ONCE", 2)
    assert len(run_against(run, policy_callable=never, resume=True)) == 5
    assert faulty.statuses(run) == ["complete"] * 5
    assert journal_files(own_home, run) == [".jsonl"]


def test_an_answer_that_is_lost_leaves_one_result_per_baseline(
    faulty: Campaign, proxy: FaultyProxy
) -> None:
    run = faulty.run()
    proxy.faults.append(Fault("POST /api/ingest/eval-run/", None, times=1, after=True))
    run_against(run, policy_callable=follow)
    assert faulty.statuses(run) == ["complete"] * 5
    assert run.episodes_completed == 5


def test_another_folder_can_hold_the_journal(campaign: Campaign, tmp_path: Path) -> None:
    run_against(campaign.run(), policy_callable=follow, journal=tmp_path / "elsewhere")
    assert [each.suffix for each in (tmp_path / "elsewhere").iterdir()] == [".jsonl"]


# ------------------------------------------------------------------------------------------- resume


def test_resume_leaves_failures_of_the_policy_and_repeats_them_when_asked(
    campaign: Campaign,
) -> None:
    run = campaign.run()
    before = run_against(run, policy_callable=crash_on_negative)
    again = run_against(open_run(run.id, campaign.client), policy_callable=never, resume=True)
    assert [(each.status, each.error) for each in again] == [
        (each.status, each.error) for each in before
    ]
    seen: list[float] = []

    def counting(obs: dict[str, object]) -> dict[str, object]:
        seen.append(float(obs["/arm/position"][0]))  # type: ignore[index]
        return follow(obs)

    results = run_against(
        open_run(run.id, campaign.client),
        policy_callable=counting,
        resume=True,
        retry_failed=True,
        isolation="thread",
    )
    assert {each.status for each in results} == {"complete"}
    assert [each.baseline_episode_id for each in results] == campaign.ids
    assert seen[0] == -1.0
    assert len(seen) == 10
    assert campaign.statuses(run) == ["complete"] * 5
    assert "retried" in complete_run(run)["summary"]["decision"]["reasons"]


def test_resume_of_a_run_that_is_done_asks_nothing_of_the_policy(campaign: Campaign) -> None:
    run = campaign.run()
    before = run_against(run, policy_callable=follow)
    after = run_against(run, policy_callable=never, resume=True)
    assert [(each.status, each.candidate_episode_id) for each in after] == [
        (each.status, each.candidate_episode_id) for each in before
    ]


_RUNNER = """
import sys, time
from rollbook.client import Client, Retries
from rollbook.evals import open_run, run_against
from tests.evals.replay_policies import follow

def policy(obs):
    if float(obs["/arm/position"][0]) < 0:
        sys.stderr.write("here\\n")
        time.sleep(60)
    return follow(obs)

client = Client(api_key=sys.argv[1], base_url=sys.argv[2], retries=Retries(attempts=1))
run_against(open_run(sys.argv[3], client), policy_callable=policy)
"""


@pytest.mark.parametrize("reachable", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_runner_that_is_killed_is_taken_up_where_it_was(
    faulty: Campaign,
    proxy: FaultyProxy,
    campaign_server: RunningServer,
    own_home: Path,
    reachable: bool,
) -> None:
    """`reachable` is whether it could deliver what it had done."""
    run = faulty.run()
    if not reachable:
        proxy.faults.append(Fault("POST /api/ingest/eval-run/", 500))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", _RUNNER, campaign_server.api_key, proxy.base_url, run.id]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as runner:
        assert runner.stderr is not None
        assert runner.stderr.readline() == b"here\n"  # two are done, and the third hangs
        _wait_for(lambda: _journaled(own_home / "runs" / run.id) >= 2)
        if reachable:
            _wait_for(lambda: faulty.statuses(run).count("complete") == 2)
        runner.send_signal(signal.SIGKILL)
        assert runner.stderr.read() == b"", "the policy ends with its runner, and lets go of stderr"
    proxy.faults.clear()
    starts: list[float] = []

    def policy(obs: dict[str, object]) -> dict[str, object]:
        starts.append(float(obs["/arm/position"][0]))  # type: ignore[index]
        return follow(obs)

    results = run_against(run, policy_callable=policy, resume=True, isolation="thread")
    assert {each.status for each in results} == {"complete"}
    assert len(results) == 5
    assert starts[0] == -1.0
    assert len(starts) == 30
    assert faulty.statuses(run) == ["complete"] * 5
    assert run_answer(faulty, run.id)["retried"] == 1, "a policy can end its runner where it loses"
    assert "retried" in complete_run(run)["summary"]["decision"]["reasons"]


def run_answer(campaign: Campaign, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = campaign.client.call("read a run", "GET", f"/api/eval-runs/{run_id}")
    return found


_ENDS_ITS_RUNNER = """
import os, signal, sys
from rollbook.client import Client, Retries
from rollbook.evals import open_run, run_against
from tests.evals.replay_policies import follow

def policy(obs):
    if float(obs["/arm/position"][0]) < 0:
        os.kill(runner, signal.SIGKILL)
    return follow(obs)

runner = os.getpid()
client = Client(api_key=sys.argv[1], base_url=sys.argv[2], retries=Retries(attempts=1))
run_against(open_run(sys.argv[3], client), policy_callable=policy, resume=True)
"""


def test_a_policy_that_ends_its_runner_where_it_loses_leaves_a_trace(
    campaign: Campaign, campaign_server: RunningServer
) -> None:
    run = campaign.run()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    arguments = [campaign_server.api_key, campaign_server.base_url, run.id]
    for _ in range(2):
        command = [sys.executable, "-c", _ENDS_ITS_RUNNER, *arguments]
        ended = subprocess.run(command, env=environment, check=False, capture_output=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    results = run_against(run, policy_callable=follow, resume=True)
    assert {each.status for each in results} == {"complete"}
    assert "retried" in complete_run(run)["summary"]["decision"]["reasons"]


def test_a_journal_that_is_gone_says_nothing_about_what_was_being_replayed(
    campaign: Campaign, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy that ends its runner can remove the journal too. A run without any result has not been begun."""
    run = campaign.run()
    some = EvalRun(
        client=campaign.client, **{**vars(run.record), "baseline_episode_ids": campaign.ids[:2]}
    )
    run_against(some, policy_callable=follow, resume=True)
    assert run_answer(campaign, run.id)["retried"] == 0
    shutil.rmtree(own_home / "runs")
    assert len(run_against(run, policy_callable=follow, resume=True)) == 5
    assert "3 pairs without a result count as retried" in capsys.readouterr().err
    assert run_answer(campaign, run.id)["retried"] == 3
    assert "retried" in complete_run(run)["summary"]["decision"]["reasons"]


def _journaled(folder: Path) -> int:
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sum("row" in json.loads(line) for line in lines)


def _wait_for(condition: object) -> None:
    deadline = time.monotonic() + 20
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_may_resume_at_the_same_time(campaign: Campaign, faulty: Campaign) -> None:
    run = campaign.run()
    other = open_run(run.id, faulty.client)
    first = run_against(run, policy_callable=follow, resume=True)
    second = run_against(other, policy_callable=never, resume=True)
    assert len(first) == len(second) == 5


def test_a_client_goes_to_another_process_as_what_it_was_made_with(client_at: object) -> None:
    import pickle

    client = client_at()  # type: ignore[operator]
    with pickle.loads(pickle.dumps(client)) as copy:
        assert isinstance(copy, Client)
        assert copy.base_url == client.base_url
        assert list(copy.episodes(limit=1))
