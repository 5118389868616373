"""The three verbs against a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollbook
from rollbook.client import AsyncClient, Client
from rollbook.errors import (
    AuthError,
    ConfigurationError,
    ConflictError,
    NotFoundError,
    TransportError,
)
from rollbook.evals import (
    EvalResult,
    Gate,
    ReplayEpisode,
    cancel_run,
    complete_run,
    create_run,
    gate_from,
    open_run,
    run_against,
)
from tests.evals.campaigns import STEPS, Campaign, journal_files, log_baseline
from tests.evals.conftest import MakeClient
from tests.evals.replay_policies import Counting, crash_on_negative, follow, shifted
from tests.server.running import RunningServer


def test_create_run_against_and_complete(campaign: Campaign, own_home: Path) -> None:
    run = campaign.run(name="nightly", metadata={"weights": "sha256:1234"})
    landed: list[EvalResult] = []
    results = run_against(run, policy_callable=shifted, on_episode=landed.append)
    assert [each.baseline_episode_id for each in results] == campaign.ids
    assert {each.status for each in results} == {"complete"}
    assert sorted(each.baseline_episode_id for each in landed) == sorted(campaign.ids)
    assert (run.status, run.episodes_completed, run.episodes_failed) == ("running", 5, 0)
    answer = complete_run(run)
    assert answer["status"] == "completed"
    assert answer["summary"]["success_rate"]["candidate"] is None  # nobody measured it
    assert answer["summary"]["counts"]["complete"] == 5
    assert journal_files(own_home, run) == []


def test_the_replay_episode_carries_what_the_candidate_did(campaign: Campaign) -> None:
    run = campaign.run(name="nightly")
    result = run_against(run, policy_callable=shifted)[0]
    baseline = campaign.client.episode(campaign.ids[0])
    replay = campaign.client.episode(str(result.candidate_episode_id))
    assert replay.name == f"nightly · {campaign.ids[0][-8:]}"
    assert (replay.source, replay.policy_version, replay.status) == ("replay", "v4", "ready")
    assert replay.metadata["eval_run_id"] == run.id
    assert replay.metadata["baseline_episode_id"] == campaign.ids[0]
    assert replay.metadata["metrics"]["step_count"] == STEPS
    assert replay.duration_s == pytest.approx(0.9)
    actions = replay.actions()
    np.testing.assert_allclose(
        actions["/arm/command"], baseline.sensors()["/arm/position"] + 0.5, rtol=1e-6
    )
    np.testing.assert_array_equal(actions["/arm/_t_ns"], baseline.actions()["/arm/_t_ns"])
    assert len(replay.actions()["/replay/scaled_distance"]) == STEPS


def test_without_uploads_of_actions_there_is_the_episode_alone(campaign: Campaign) -> None:
    result = campaign.against(follow, upload_actions=False)[0]
    assert campaign.client.episode(str(result.candidate_episode_id)).artifacts == []


def test_the_name_of_a_replay_falls_back_to_the_candidate_and_fits(campaign: Campaign) -> None:
    names = []
    for name in (None, "n" * 200):
        run = campaign.run(ids=campaign.ids[:1], name=name)
        result = run_against(run, policy_callable=follow)[0]
        names.append(str(campaign.client.episode(str(result.candidate_episode_id)).name))
    assert names[0] == f"replay v4 · {campaign.ids[0][-8:]}"
    assert len(names[1]) == 200
    assert names[1].endswith(campaign.ids[0][-8:])


def test_replays_of_one_run_have_different_names(campaign: Campaign) -> None:
    results = run_against(campaign.run(name="nightly"), policy_callable=follow)
    names = {campaign.client.episode(str(each.candidate_episode_id)).name for each in results}
    assert len(names) == len(results) > 1


def test_the_reference_is_the_whole_set_of_baselines(campaign: Campaign) -> None:
    actions = campaign.against(follow)[0].metrics["actions"]
    assert (actions["reference"], actions["reference_episodes"]) == ("set", 5)


def test_a_gate_is_stored_with_the_run(campaign: Campaign) -> None:
    run = campaign.run(gate=Gate(n_min=3))
    assert gate_from(open_run(run.id, campaign.client).gate) == Gate(n_min=3)


# ------------------------------------------------------------------------------------------ failing


@pytest.mark.parametrize("verbose", [False, True])
def test_a_failing_policy_is_a_failed_row_and_the_loop_goes_on(
    campaign: Campaign, capsys: pytest.CaptureFixture[str], verbose: bool
) -> None:
    run = campaign.run()
    results = run_against(run, policy_callable=crash_on_negative, verbose=verbose)
    assert [each.status for each in results] == ["complete"] * 2 + ["failed"] + ["complete"] * 2
    failed = results[2]
    assert failed.error == "ValueError: a negative position"
    assert (failed.metrics, failed.candidate_episode_id) == ({}, None)
    line, *rest = capsys.readouterr().err.splitlines()
    assert line == f"{campaign.ids[2]}: ValueError: a negative position"
    assert ("in crash_on_negative" in "".join(rest)) == verbose
    assert "in crash_on_negative" in str(failed.traceback)
    row = campaign.rows(run)[campaign.ids[2]]
    assert (row.status, row.error) == ("failed", "ValueError: a negative position")
    assert complete_run(run)["summary"]["counts"]["failed"] == 1


@pytest.mark.parametrize("answer", [None, [1.0, 2.0], "left"])
def test_an_answer_that_is_no_mapping_fails_every_row(campaign: Campaign, answer: Any) -> None:
    results = campaign.against(lambda obs: answer)
    assert {each.status for each in results} == {"failed"}
    assert str(results[0].error).startswith("TypeError: the policy returned")


def test_what_a_callback_raises_is_printed_and_ignored(
    campaign: Campaign, capsys: pytest.CaptureFixture[str]
) -> None:
    def callback(result: EvalResult) -> None:
        raise RuntimeError("no terminal")

    results = campaign.against(follow, on_episode=callback)
    assert {each.status for each in results} == {"complete"}
    assert "RuntimeError: no terminal" in capsys.readouterr().err


def test_a_policy_that_cannot_be_made_is_raised_and_leaves_the_run_open(campaign: Campaign) -> None:
    class Broken(Counting):
        def __init__(self) -> None:
            raise FileNotFoundError("weights.pt")

    run = campaign.run()
    with pytest.raises(ConfigurationError, match=r"cannot be made: FileNotFoundError: weights\.pt"):
        run_against(run, policy_callable=Broken)
    assert campaign.statuses(run) == ["pending"] * 5


def test_an_environment_that_cannot_be_made_is_no_verdict_on_the_candidate(
    campaign: Campaign,
) -> None:
    def no_simulator() -> Any:
        raise OSError("no display")

    def none_for_this(episode: ReplayEpisode) -> Any:
        raise OSError("no such map")

    run = campaign.run()
    with pytest.raises(ConfigurationError, match="cannot be made: OSError: no display"):
        run_against(run, policy_callable=follow, environment=no_simulator)
    assert campaign.statuses(run) == ["pending"] * 5
    results = run_against(run, policy_callable=follow, environment=none_for_this)
    expected = (
        "infrastructure: ConfigurationError: the environment cannot be made: OSError: no such map"
    )
    assert {each.error for each in results} == {expected}


# ------------------------------------------------------------------------------------- before the wire


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"candidate_policy_version": "  "}, "candidate_policy_version"),
        ({"candidate_policy_version": None}, "candidate_policy_version"),
        ({"baseline_episode_ids": []}, "at least one episode"),
        ({"baseline_episode_ids": ["a", " "]}, "blank id at place 1"),
        ({"baseline_episode_ids": "ep-1,ep-2"}, "expected a list"),
        ({"baseline_episode_ids": [str(number) for number in range(10_001)]}, "at most 10000"),
        ({"gate": {"alpha": 3}}, r"gate\.alpha"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_wrong_arguments_are_refused_before_anything_is_sent(
    change: dict[str, Any], expected: str, dry_run: bool
) -> None:
    fine: dict[str, Any] = {"candidate_policy_version": "v4", "baseline_episode_ids": ["a"]}
    nowhere = Client(api_key="rt_0123456789_x", base_url="http://127.0.0.1:9")
    with nowhere, pytest.raises(ConfigurationError, match=expected):
        create_run(**{**fine, **change}, client=nowhere, dry_run=dry_run)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"workers": 0}, "workers"),
        ({"step_timeout_s": 0}, "step_timeout_s"),
        ({"batch": -1}, "batch"),
        ({"engine": "slurm"}, "engine"),
        ({"parallel": "gpu"}, "parallel"),
        ({"align": "best"}, "align"),
        ({"frames": {"camera": "x"}}, "frames"),
        ({"environment": "a:b", "store": "c"}, "environment= and store="),
        ({"policy_callable": "no_colon"}, "module:name"),
        ({"policy_callable": 3}, "policy_callable is a int"),
        ({"workers": 1.5}, "whole number"),
        ({"workers": "2"}, "workers is '2'"),
        ({"environment": 5}, "environment is a int"),
        ({"environment": "no_such_module:x"}, "no_such_module"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_reported(
    campaign: Campaign, options: dict[str, Any], expected: str
) -> None:
    run = campaign.run()
    with pytest.raises(ConfigurationError, match=expected):
        run_against(run, **{"policy_callable": follow, **options})
    assert campaign.statuses(run) == ["pending"] * 5


def test_a_client_that_has_to_be_awaited_is_refused(campaign_server: RunningServer) -> None:
    other: Any = AsyncClient(api_key=campaign_server.api_key, base_url=campaign_server.base_url)
    with pytest.raises(ConfigurationError, match="AsyncClient"):
        create_run(candidate_policy_version="v4", baseline_episode_ids=["a"], client=other)


def test_ids_count_once(campaign: Campaign) -> None:
    first = campaign.ids[0]
    run = campaign.run(ids=[first, f" {first} ", campaign.ids[1]])
    assert run.baseline_episode_ids == campaign.ids[:2]


def test_errors_have_their_types(
    campaign: Campaign, client_at: MakeClient, campaign_server: RunningServer
) -> None:
    with pytest.raises(NotFoundError):
        campaign.run(ids=[*campaign.ids, "00000000-0000-0000-0000-000000000000"])
    stranger = Campaign(client_at(api_key=campaign_server.second_org.api_key), campaign.ids)
    with pytest.raises(NotFoundError):
        stranger.run()
    with pytest.raises(AuthError):
        Campaign(client_at(api_key="rt_0123456789_" + "x" * 43), campaign.ids).run()
    with pytest.raises(TransportError):
        Campaign(client_at("http://127.0.0.1:9"), campaign.ids).run()
    with pytest.raises(NotFoundError):
        open_run("no-such-run", campaign.client)


# ---------------------------------------------------------------------------------------------- dry


def test_a_dry_run_computes_everything_and_leaves_nothing_behind(
    campaign: Campaign, own_home: Path
) -> None:
    def runs() -> int:
        return len(campaign.client.call("list runs", "GET", "/api/eval-runs")["eval_runs"])

    before = runs(), len(list(campaign.client.episodes(source="replay")))
    run = campaign.run(dry_run=True)
    landed: list[EvalResult] = []
    results = run_against(run, policy_callable=crash_on_negative, on_episode=landed.append)
    assert [each.status for each in results] == ["complete"] * 2 + ["failed"] + ["complete"] * 2
    assert [each.baseline_episode_id for each in landed] == campaign.ids
    assert results[0].metrics["action_l2_distance"] == 0.0
    assert (runs(), len(list(campaign.client.episodes(source="replay")))) == before
    assert not (own_home / "runs").exists()
    with pytest.raises(ConfigurationError, match="dry run"):
        complete_run(run)
    assert cancel_run(run) == {}


def test_a_real_run_can_be_tried_dry(campaign: Campaign) -> None:
    run = campaign.run()
    assert len(run_against(run, policy_callable=follow, dry_run=True)) == 5
    assert campaign.statuses(run) == ["pending"] * 5


# ----------------------------------------------------------------------------------- ends and beginnings


def test_a_result_after_the_end_stops_the_runner(campaign: Campaign) -> None:
    run = campaign.run()
    complete_run(run)
    with pytest.raises(ConfigurationError, match="takes no more results"):
        run_against(run, policy_callable=follow)


def test_a_cancelled_run_takes_no_more(campaign: Campaign) -> None:
    run = campaign.run()
    cancel_run(run)
    assert open_run(run.id, campaign.client).status == "cancelled"
    with pytest.raises(ConfigurationError, match="takes no more results"):
        run_against(run, policy_callable=follow)
    with pytest.raises(ConflictError):
        complete_run(run)


def test_two_runners_on_one_run_both_end_well(campaign: Campaign) -> None:
    run = campaign.run()
    again = open_run(run.id, campaign.client)
    assert again.baseline_episode_ids == run.baseline_episode_ids
    assert {each.status for each in run_against(run, policy_callable=crash_on_negative)} == {
        "complete",
        "failed",
    }
    assert {each.status for each in run_against(again, policy_callable=follow)} == {"complete"}
    assert campaign.statuses(run) == ["complete"] * 5


def test_a_baseline_cannot_be_deleted_while_its_run_is_open(campaign: Campaign) -> None:
    doomed = log_baseline(campaign.client, 9)
    run = campaign.run(ids=[doomed])
    with pytest.raises(ConflictError, match=run.id):
        campaign.client.delete_episode(doomed)
    assert [each.status for each in run_against(run, policy_callable=follow)] == ["complete"]
    complete_run(run)
    campaign.client.delete_episode(doomed)
    assert open_run(run.id, campaign.client).baseline_episode_ids == []


def test_a_baseline_that_is_gone_is_a_failed_row_and_the_others_go_on(campaign: Campaign) -> None:
    gone = log_baseline(campaign.client, 9)
    run = create_run(
        candidate_policy_version="v2",
        baseline_episode_ids=[gone, *campaign.ids[:2]],
        client=campaign.client,
        dry_run=True,
    )
    campaign.client.delete_episode(gone)
    results = run_against(run, policy_callable=follow)
    assert [each.status for each in results] == ["failed", "complete", "complete"]
    assert "NotFoundError" in str(results[0].error)


def test_the_front_door_has_the_harness() -> None:
    assert rollbook.evals.run_against is run_against
    assert callable(rollbook.verify.run_check)
