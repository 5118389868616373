"""Trends: one metric over the completed eval runs of an organisation, as points from the oldest to the newest."""

from __future__ import annotations

import pytest

from tests.server.campaigns import Campaigner, campaigner
from tests.server.fixtures import StartServer
from tests.server.running import RunningServer
from tests.server.shared_server import shared_server


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


@pytest.fixture
def team(server: RunningServer) -> Campaigner:
    return campaigner(server)


def finished(team: Campaigner, candidate: str, successes: int, baseline: str = "v1") -> str:
    ids = team.episodes(*({"success": True, "reward_total": 1.0} for _ in range(4)))
    run_id = team.run(ids, candidate, baseline_policy_version=baseline, name=f"run of {candidate}")
    for number, each in enumerate(ids):
        said = {"success_candidate": number < successes, "evidence": {"success": "asserted"}}
        team.result(run_id, each, metrics=said)
    team.finalize(run_id)
    return run_id


def test_a_trend_goes_from_the_oldest_run_to_the_newest(team: Campaigner) -> None:
    runs = [finished(team, f"pap-{number}", number) for number in (1, 3, 2)]
    team.run(team.baselines(1))  # one that is not finished has no point
    trend = team.get("/api/trends")
    assert trend["metric"] == "success_rate"
    points = trend["points"]
    assert [each["eval_run_id"] for each in points] == runs
    assert [each["candidate"] for each in points] == [0.25, 0.75, 0.5]
    assert {each["baseline"] for each in points} == {1.0}
    assert [each["delta"] for each in points] == [-0.75, -0.25, -0.5]
    assert {each["n_pairs"] for each in points} == {4}
    assert {each["evidence"] for each in points} == {"asserted"}
    assert all(each["paired_delta"] == each["delta"] for each in points), "nothing crashed"
    assert {each["decision"] for each in points} == {"hold"}
    assert all(low <= each["delta"] <= high for each in points for low, high in [each["interval"]])
    assert points[0]["name"] == "run of pap-1"


def test_a_trend_can_be_of_another_metric_of_some_versions_and_of_the_last_runs(
    team: Campaigner,
) -> None:
    runs = [
        finished(team, candidate, 2, baseline)
        for candidate, baseline in (("pap-1", "a"), ("PAP-2", "a"), ("pap%3", "b"), ("pap-4", "b"))
    ]

    def found(**params: object) -> list[str]:
        return [each["eval_run_id"] for each in team.get("/api/trends", **params)["points"]]

    assert found(candidate_prefix="pap-") == [runs[0], runs[3]]
    assert found(candidate_prefix="pap%") == [runs[2]]
    assert found(baseline_policy_version="b") == runs[2:]
    assert found(limit=2) == runs[2:]
    assert found(candidate_prefix="nul\x00") == []
    [point, *_] = team.get("/api/trends", metric="reward_mean")["points"]
    assert (point["baseline"], point["candidate"], point["delta"]) == (1.0, None, None)


def test_a_question_that_makes_no_sense_is_a_400(team: Campaigner) -> None:
    for query in ("metric=speed", "limit=0", "limit=x", "prefix=a", "cursor=x"):
        assert team.refused(f"/api/trends?{query}", method="GET")[0] == 400
