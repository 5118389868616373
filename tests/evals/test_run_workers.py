"""Workers: threads and processes do the same, and a policy that hangs or dies costs its own row only."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.errors import ConfigurationError
from rollbook.evals import run_against
from tests.evals.campaigns import Campaign, log_baseline
from tests.evals.replay_policies import (
    Counting,
    Hanging,
    crash_on_negative,
    follow,
    hang_on_negative,
)

POLICIES = "tests.evals.replay_policies"


@pytest.mark.parametrize(
    ("parallel", "policy"),
    [
        ("thread", Counting),
        ("process", f"{POLICIES}:Counting"),
        pytest.param("process", Counting, marks=pytest.mark.slow),
        pytest.param("process", crash_on_negative, marks=pytest.mark.slow),
    ],
)
def test_workers_do_what_one_does(campaign: Campaign, parallel: Any, policy: Any) -> None:
    alone = campaign.against(policy, dry_run=True)
    run = campaign.run()
    together = run_against(run, policy_callable=policy, workers=2, parallel=parallel)
    assert [(each.baseline_episode_id, each.status, each.metrics) for each in together] == [
        (each.baseline_episode_id, each.status, each.metrics) for each in alone
    ]
    assert campaign.statuses(run) == [each.status for each in alone]


def test_every_worker_has_a_policy_of_its_own_and_closes_it(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    monkeypatch.setenv("CLOSED_FOLDER", str(closed))
    campaign.against(Counting, workers=3, dry_run=True)
    assert 1 <= len(os.listdir(closed)) <= 3


def test_a_policy_with_a_memory_cannot_be_shared(campaign: Campaign) -> None:
    with pytest.raises(ConfigurationError, match="pass its class"):
        campaign.against(Counting(), workers=2, dry_run=True, isolation="thread")
    assert len(campaign.against(Counting(), dry_run=True, isolation="thread")) == 5


def test_what_cannot_be_sent_to_a_process_is_refused(campaign: Campaign) -> None:
    with pytest.raises(ConfigurationError, match="module:attr"):
        campaign.against(lambda obs: follow(obs), parallel="process", dry_run=True)


@pytest.mark.parametrize(
    ("parallel", "isolation", "policy"),
    [
        ("thread", "process", hang_on_negative),
        ("thread", "thread", Hanging),
        pytest.param("process", "process", f"{POLICIES}:Hanging", marks=pytest.mark.slow),
    ],
)
def test_a_policy_that_hangs_fails_its_row_and_the_loop_goes_on(
    campaign: Campaign, parallel: Any, isolation: Any, policy: Any
) -> None:
    results = campaign.against(
        policy, parallel=parallel, isolation=isolation, step_timeout_s=0.5, dry_run=True
    )
    assert [each.status for each in results] == ["complete"] * 2 + ["failed"] + ["complete"] * 2
    assert results[2].error == (
        "TimeoutError: a step of the policy took longer than step_timeout_s=0.5"
    )


def test_a_policy_with_a_memory_cannot_be_given_up_and_used_again(campaign: Campaign) -> None:
    with pytest.raises(ConfigurationError, match="made anew"):
        campaign.against(Hanging(), step_timeout_s=1, dry_run=True, isolation="thread")


@pytest.mark.slow
def test_a_policy_that_takes_its_process_down_fails_its_row(campaign: Campaign) -> None:
    results = campaign.against(f"{POLICIES}:die_on_negative", parallel="process", dry_run=True)
    assert [each.status for each in results] == ["complete"] * 2 + ["failed"] + ["complete"] * 2
    assert results[2].error == "PolicyEnded: the process of the policy ended with exit status 9"


@pytest.mark.slow
def test_actors_of_a_ray_cluster_do_what_one_worker_does(
    campaign: Campaign, ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_address)
    alone = campaign.against(Counting, dry_run=True)
    run = campaign.run()
    together = run_against(run, policy_callable=Counting, workers=2, engine="ray")
    assert [(each.baseline_episode_id, each.status, each.metrics) for each in together] == [
        (each.baseline_episode_id, each.status, each.metrics) for each in alone
    ]
    assert campaign.statuses(run) == [each.status for each in alone]

    policy = f"{POLICIES}:die_on_negative"
    results = campaign.against(policy, engine="ray", dry_run=True)
    assert [each.status for each in results] == ["complete"] * 2 + ["failed"] + ["complete"] * 2
    assert results[2].error == "PolicyEnded: the process of the policy ended with exit status 9"
    results = campaign.against(policy, engine="ray", dry_run=True, isolation="thread")
    assert "WorkerLost" in str(results[2].error)

    results = campaign.against(Hanging, engine="ray", step_timeout_s=0.5, dry_run=True)
    assert "a step of the policy took longer than step_timeout_s=0.5" in str(results[2].error)


def test_workers_share_the_time_that_a_policy_sleeps(campaign: Campaign) -> None:
    def slow(obs: Any) -> Any:
        time.sleep(0.02)
        return follow(obs)

    seconds = {}
    for workers in (1, 5):
        began = time.monotonic()
        campaign.against(slow, workers=workers, dry_run=True)
        seconds[workers] = time.monotonic() - began
    assert seconds[1] > 1.0
    assert seconds[5] < seconds[1]


# ----------------------------------------------------------------------------- baselines of all kinds


def test_baselines_of_all_kinds_have_a_defined_outcome(campaign: Campaign, tmp_path: Path) -> None:
    csv, pickled = tmp_path / "actions.bin", tmp_path / "sensors.npz"
    csv.write_text("t,x\n0,1\n")
    columns: Any = {"/arm/position": np.array([{"a": 1}], object)}
    np.savez(pickled, **columns)
    client = campaign.client
    ids = {
        "nothing": log_baseline(client, 0, sensors=None, actions=None, t_ns=None),
        "no sensors": log_baseline(client, 1, sensors=None),
        "no actions": log_baseline(client, 2, actions=None),
        "csv": log_baseline(client, 3, actions=csv),
        "pickled": log_baseline(client, 4, sensors=pickled, actions=None, t_ns=None),
    }
    run = campaign.run(ids=list(ids.values()))
    results = dict(zip(ids, run_against(run, policy_callable=follow), strict=True))
    assert {name: each.status for name, each in results.items()} == {
        "nothing": "complete",
        "no sensors": "complete",
        "no actions": "complete",
        "csv": "failed",
        "pickled": "failed",
    }
    assert results["nothing"].metrics["step_count"] == 0
    assert results["no sensors"].metrics["action_l2_distance"] is None
    assert results["no actions"].metrics["step_count"] == 10
    assert str(results["csv"].error).startswith("InvalidValue")
    assert "InvalidValue" in str(results["pickled"].error)
