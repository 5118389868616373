"""The gate: a candidate that is not known to pass every critical scenario is held back, and is told by which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.client import Client
from rollbook.contracts.npz import write_npz
from rollbook.server.db.columns import new_id
from tests.command import rollbook
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


@pytest.fixture(scope="module")
def any_team(server: RunningServer) -> Campaigner:
    """For tests that do not look at what others left."""
    return campaigner(server)


def promote(team: Campaigner, episode_id: str, severity: str = "critical", **more: Any) -> str:
    body = {"baseline_episode_id": episode_id, "severity": severity, **more}
    scenario_id: str = team.post("/api/verify/promote", body)["scenario_id"]
    return scenario_id


def record(team: Campaigner, scenario_id: str, candidate: str = "v2", **more: Any) -> Any:
    body = {"scenario_id": scenario_id, "candidate_policy_version": candidate, "metrics": {}}
    return team.post("/api/verify/result", {**body, **more})


MEASURED: dict[str, Any] = {
    "success_candidate": True,
    "evidence": {"success": "closed_loop"},
    "repro": {"verified": True, "deterministic": True, "env_match": True, "env_changed": []},
}
"""What a runner sends about a success in the recorded environment."""


def passes(team: Campaigner, *episodes: str, candidate: str = "v2", **changes: Any) -> str:
    """A completed run in which the candidate was measured. Returns the run."""
    run_id = team.run(episodes, candidate)
    for each in episodes:
        team.result(run_id, each, metrics={**MEASURED, **changes})
    team.finalize(run_id)
    return run_id


# ----------------------------------------------------------------------------------------- promote


def test_an_episode_becomes_a_scenario_once(team: Campaigner) -> None:
    [episode] = team.baselines(1)
    body = {"baseline_episode_id": episode, "severity": "critical", "name": "spill"}
    first = team.http.post("/api/verify/promote", json=body)
    again = team.http.post("/api/verify/promote", json={**body, "severity": "info"})
    assert (first.status_code, first.json()["promoted"]) == (201, True)
    assert (again.status_code, again.json()["promoted"]) == (200, False)
    assert again.json()["scenario_id"] == first.json()["scenario_id"]
    assert (again.json()["severity"], again.json()["name"]) == ("critical", "spill")


def test_without_a_severity_it_is_a_warning(team: Campaigner) -> None:
    [episode] = team.baselines(1)
    made = team.post("/api/verify/promote", {"baseline_episode_id": episode})
    assert made["severity"] == "warning"


def test_a_scenario_that_was_put_aside_is_active_again_when_it_is_promoted(
    team: Campaigner,
) -> None:
    [episode] = team.baselines(1)
    scenario_id = promote(team, episode)
    team.http.patch(f"/api/scenarios/{scenario_id}", json={"active": False}).raise_for_status()
    assert team.check()[0] == 200
    body = {"baseline_episode_id": episode, "severity": "warning"}
    answer = team.http.post("/api/verify/promote", json=body)
    assert (answer.status_code, answer.json()["promoted"]) == (200, True)
    assert (answer.json()["scenario_id"], answer.json()["severity"]) == (scenario_id, "warning")


def test_an_unknown_episode_or_severity_is_refused(team: Campaigner, server: RunningServer) -> None:
    [foreign] = campaigner(server).baselines(1)
    [mine] = team.baselines(1)
    for stranger in (foreign, new_id()):
        body = {"baseline_episode_id": stranger, "severity": "critical"}
        assert team.refused("/api/verify/promote", body) == (404, "not_found")
    body = {"baseline_episode_id": mine, "severity": "fatal"}
    assert team.refused("/api/verify/promote", body) == (400, "invalid_value")


# ------------------------------------------------------------------------------------------- check


def test_without_scenarios_everything_passes(team: Campaigner) -> None:
    status, body = team.check()
    assert (status, body["passed"], body["critical_total"], body["blockers"]) == (200, True, 0, [])
    assert "error" not in body


def test_only_a_pass_passes(team: Campaigner) -> None:
    ids = team.baselines(5)
    names = ("passes", "fails", "breaks", "waits")
    scenarios = {
        name: promote(team, each, name=name) for name, each in zip(names, ids, strict=False)
    }
    promote(team, ids[4], "warning", name="only a warning")
    passes(team, ids[0])
    record(team, scenarios["fails"], status="fail")
    record(team, scenarios["breaks"], status="error", error="Boom")
    status, body = team.check()
    counted = [body[f"critical_{name}"] for name in ("total", "passed", "failed", "pending")]
    assert (status, body["passed"], counted) == (422, False, [4, 1, 2, 1])
    assert [each.partition(":")[0] for each in body["blockers"]] == ["fails", "breaks", "waits"]
    latest = {each["name"]: each["latest_status"] for each in body["scenarios"]}
    assert latest == {
        "passes": "pass",
        "fails": "fail",
        "breaks": "error",
        "waits": None,
        "only a warning": None,
    }
    assert body["code"] == "gate_blocked"
    assert {each["baseline_episode_id"] for each in body["scenarios"]} == set(ids)
    passes(team, *ids[1:4])
    assert team.check()[0] == 200
    assert team.check("another candidate")[0] == 422


def test_a_scenario_that_is_put_aside_or_less_than_critical_holds_nobody_back(
    team: Campaigner,
) -> None:
    first, second, third = (promote(team, each) for each in team.baselines(3))
    assert team.check()[1]["critical_pending"] == 3
    team.http.patch(f"/api/scenarios/{first}", json={"active": False}).raise_for_status()
    team.http.patch(f"/api/scenarios/{second}", json={"severity": "info"}).raise_for_status()
    team.http.delete(f"/api/scenarios/{third}").raise_for_status()
    status, body = team.check()
    assert (status, [each["scenario_id"] for each in body["scenarios"]]) == (200, [second])
    noted = [each["event"] for each in team.audited() if each["event"].startswith("scenario.")]
    assert noted[:3] == ["scenario.deleted", "scenario.changed", "scenario.changed"]


def test_a_deleted_episode_takes_its_scenario_along_and_the_log_says_so(team: Campaigner) -> None:
    [episode] = team.baselines(1)
    scenario_id = promote(team, episode)
    record(team, scenario_id, status="fail")
    assert team.check()[0] == 422
    team.http.delete(f"/api/episodes/{episode}").raise_for_status()
    assert team.check()[0] == 200
    noted = [each for each in team.audited() if each["event"] == "scenario.deleted"]
    assert [each["subject"] for each in noted] == [scenario_id]
    assert noted[0]["detail"]["severity"] == "critical"


def test_a_dry_check_says_how_each_success_is_known(
    team: Campaigner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROLLBOOK_API_KEY", team.access.api_key)
    monkeypatch.setenv("ROLLBOOK_BASE_URL", team.server.base_url)
    for kind, name in (("sensors", "state"), ("actions", "value")):
        columns = {f"arm/{name}": np.zeros((3, 2)), "arm/_t_ns": np.arange(3)}
        write_npz(tmp_path / f"{kind}.npz", columns)
    with Client(verbose=False) as client:
        logged = client.log_episode(
            name="corner",
            source="sim",
            sensors=tmp_path / "sensors.npz",
            actions=tmp_path / "actions.npz",
        )
    episode = str(logged.id)
    promote(team, episode)
    asked = ("verify", "check", "--candidate", "v2", "--dry-run", "--policy")
    winning = rollbook(*asked, "tests.cli.replay_policies:winning").stdout
    assert (
        f"Dry run, not recorded: {episode} fail (success asserted)  the success was not" in winning
    )
    silent = rollbook(*asked, "tests.cli.replay_policies:follow", "--json").json
    [told] = silent["dry_run"]
    assert (told["status"], told["evidence"]) == ("fail", "not_measured")


# ---------------------------------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"metrics": {"success_candidate": True}}, "pass"),
        ({"metrics": {"success_candidate": False}}, "fail"),
        ({"metrics": {"success_candidate": None}}, "fail"),
        ({"metrics": {"success_candidate": 1}}, "fail"),
        ({"metrics": {"success_candidate": True, "evidence": {"success": "asserted"}}}, "pass"),
        ({"metrics": {"success_candidate": True, "evidence": {"success": "not_measured"}}}, "fail"),
        ({"metrics": {}}, "fail"),
        ({"metrics": {"success_candidate": True}, "error": "Boom"}, "error"),
        ({"metrics": {"success_candidate": True}, "status": "fail"}, "fail"),
        ({"metrics": {}, "error": "x", "status": "pass"}, "pass"),
    ],
)
def test_a_status_that_is_left_out_follows_from_the_rest(
    any_team: Campaigner, sent: dict[str, Any], expected: str
) -> None:
    scenario_id = promote(any_team, any_team.baselines(1)[0], "warning")
    answer = record(any_team, scenario_id, **sent)
    assert (answer["status"], answer["measured"]) == (expected, False)
    assert answer["scenario_id"] == scenario_id
    assert any_team.check()[1]["scenarios"][-1]["latest_status"] == expected


def test_the_newest_result_counts(team: Campaigner) -> None:
    scenario_id = promote(team, team.baselines(1)[0])
    for status in ("pass", "fail", "pass", "error"):
        record(team, scenario_id, status=status)
    assert team.check()[1]["scenarios"][0]["latest_status"] == "error"


def test_ids_that_are_not_ours_are_a_404(team: Campaigner, server: RunningServer) -> None:
    scenario_id = promote(team, team.baselines(1)[0])
    other = campaigner(server)
    foreign = other.baselines(1)
    foreign_run = other.run(foreign)
    body = {"scenario_id": scenario_id, "candidate_policy_version": "v2", "metrics": {}}
    for wrong in (
        {"scenario_id": new_id()},
        {"scenario_id": promote(other, foreign[0])},
        {"candidate_episode_id": foreign[0]},
        {"eval_run_id": foreign_run},
    ):
        assert team.refused("/api/verify/result", {**body, **wrong}) == (404, "not_found")
    mine = team.run(team.baselines(1), "v9")
    answer = team.refused("/api/verify/result", {**body, "eval_run_id": mine})
    assert answer == (400, "invalid_value")
    assert team.check()[1]["critical_pending"] == 1


# --------------------------------------------------------------------------- what is not measured

UNMEASURED: dict[str, dict[str, Any]] = {
    "asserted": {"evidence": {"success": "asserted"}},
    "no evidence at all": {"evidence": None},
    "evidence of something else": {"evidence": {"reward_total": "closed_loop"}},
    "evidence that is a text": {"evidence": "closed_loop"},
    "open loop": {"evidence": {"success": "open_loop"}},
    "nobody compared the environment": {"repro": {"verified": None}},
    "nothing is said about the environment": {"repro": {}},
    "another environment": {"repro": {"verified": False}},
    "the horizon changed": {"repro": {"verified": True, "env_changed": ["max_steps"]}},
    "another version": {"repro": {"verified": True, "env_match": False}},
    "not deterministic": {"repro": {"verified": True, "deterministic": False}},
    "a success that is no truth value": {"success_candidate": "yes"},
}


def test_a_pass_that_was_not_measured_opens_no_critical_scenario(team: Campaigner) -> None:
    """Copied from a completed run, recorded for that run, and recorded for none."""
    episodes = dict(zip(UNMEASURED, team.baselines(len(UNMEASURED), success=False), strict=True))
    scenarios = {name: promote(team, each, name=name) for name, each in episodes.items()}
    run_id = team.run([*episodes.values()])
    sent = {name: {**MEASURED, **changes} for name, changes in UNMEASURED.items()}
    for name, each in episodes.items():
        team.result(run_id, each, metrics=sent[name])
    team.finalize(run_id)
    for more in ({}, {"eval_run_id": run_id}):
        _, body = team.check()
        assert (body["critical_passed"], body["critical_total"]) == (0, len(UNMEASURED))
        for name, scenario_id in scenarios.items():
            said = record(team, scenario_id, status="pass", metrics=MEASURED, **more)
            assert (said["status"], said["measured"]) == ("pass", False), name
    status, body = team.check()
    assert (status, body["critical_passed"]) == (422, 0)
    standing = {each["name"]: each for each in body["scenarios"]}
    assert standing["asserted"]["unmeasured_pass"] is True
    assert standing["asserted"]["latest_status"] is None
    assert "not measured" in next(each for each in body["blockers"] if each.startswith("asserted"))


def test_a_gate_may_accept_an_unverified_environment_and_never_an_assertion(
    team: Campaigner,
) -> None:
    unverified, asserted = team.baselines(2)
    for each in (unverified, asserted):
        promote(team, each)
    lenient = {"accept_unverified_environment": True, "evidence": ["asserted", "closed_loop"]}
    run_id = team.run([unverified, asserted], gate=lenient)
    team.result(run_id, unverified, metrics={**MEASURED, "repro": {}})
    team.result(run_id, asserted, metrics={**MEASURED, "evidence": {"success": "asserted"}})
    summary = team.finalize(run_id)["summary"]
    latest = {
        each["baseline_episode_id"]: each["latest_status"] for each in team.check()[1]["scenarios"]
    }
    assert latest == {unverified: "pass", asserted: None}
    held = [each for each in summary["decision"]["reasons"] if each.startswith("critical_scenario")]
    assert len(held) == 1


def test_a_pass_that_was_not_measured_closes_nothing_either(team: Campaigner) -> None:
    [episode] = team.baselines(1)
    scenario_id = promote(team, episode)
    passes(team, episode)
    record(team, scenario_id, status="pass")
    assert team.check()[0] == 200
    record(team, scenario_id, status="fail")
    record(team, scenario_id, status="pass")
    [standing] = team.check()[1]["scenarios"]
    assert (standing["latest_status"], standing["unmeasured_pass"]) == ("fail", False)


def test_a_pass_of_a_warning_needs_no_measurement_until_it_becomes_critical(
    team: Campaigner,
) -> None:
    [episode] = team.baselines(1)
    scenario_id = promote(team, episode, "warning")
    record(team, scenario_id, status="pass")
    assert team.check()[1]["scenarios"][0]["latest_status"] == "pass"
    team.http.patch(f"/api/scenarios/{scenario_id}", json={"severity": "critical"})
    assert team.check()[0] == 422


def test_a_retried_pair_passes_no_critical_scenario(team: Campaigner) -> None:
    [episode] = team.baselines(1)
    scenario_id = promote(team, episode)
    run_id = team.run([episode])
    team.result(run_id, episode, None, status="failed", error="Boom")
    team.result(run_id, episode, metrics=MEASURED)
    assert record(team, scenario_id, status="pass", eval_run_id=run_id)["measured"] is False
    team.finalize(run_id)
    assert team.check()[0] == 422


def test_a_pass_that_was_recorded_before_the_run_lost_it_does_not_count(team: Campaigner) -> None:
    [episode] = team.baselines(1)
    scenario_id = promote(team, episode)
    run_id = team.run([episode], gate={"accept_retried": True})
    team.result(run_id, episode, metrics=MEASURED)
    assert record(team, scenario_id, status="pass", eval_run_id=run_id)["measured"] is True
    team.result(run_id, episode, metrics={**MEASURED, "success_candidate": False})
    team.finalize(run_id)
    assert team.check()[0] == 422


# ------------------------------------------------------------------------------------------ mirror


def test_a_completed_run_tells_the_active_scenarios_among_its_baselines(team: Campaigner) -> None:
    good, bad, broken, skipped, aside = ids = team.baselines(5)
    scenarios = {each: promote(team, each) for each in ids}
    team.http.patch(f"/api/scenarios/{scenarios[aside]}", json={"active": False})
    run_id = team.run(ids)
    team.result(run_id, good, metrics=MEASURED)
    team.result(run_id, bad, False)
    team.result(run_id, broken, None, status="failed", error="Boom")
    team.result(run_id, aside, metrics=MEASURED)
    assert team.check()[1]["critical_pending"] == 4
    team.finalize(run_id)
    _, body = team.check()
    latest = {each["baseline_episode_id"]: each["latest_status"] for each in body["scenarios"]}
    assert latest == {good: "pass", bad: "fail", broken: "error", skipped: None}
    assert {each["eval_run_id"] for each in body["scenarios"]} == {run_id, None}


def test_a_result_that_may_be_a_copy_of_its_baseline_passes_nothing(team: Campaigner) -> None:
    copied, measured, told, lost = ids = team.baselines(4, success=True, total_reward=2.0)
    for each in ids:
        promote(team, each, "critical" if each == measured else "warning")
    run_id = team.run(ids)
    same = {"success_baseline": True, "success_candidate": True}
    rewards = {"reward_total_baseline": 2.0, "reward_total_candidate": 2.0}
    team.result(run_id, copied, metrics={**same, **rewards})
    team.result(run_id, measured, metrics={**same, **MEASURED})
    team.result(run_id, told, metrics={**same, **rewards, "reward_total_candidate": 2.5})
    team.result(run_id, lost, metrics={**same, **rewards, "success_candidate": False})
    team.finalize(run_id)
    status, body = team.check()
    latest = {each["baseline_episode_id"]: each["latest_status"] for each in body["scenarios"]}
    assert latest == {copied: None, measured: "pass", told: "pass", lost: "fail"}
    assert (status, body["critical_passed"]) == (200, 1)


def test_what_was_recorded_counts_before_what_the_run_says(team: Campaigner) -> None:
    """In either order, and only for that run."""
    [episode] = team.baselines(1)
    scenario_id = promote(team, episode)
    run_id = team.run([episode])
    team.result(run_id, episode, metrics=MEASURED)
    record(team, scenario_id, status="fail", eval_run_id=run_id)
    for _ in range(2):
        team.finalize(run_id)
        assert team.check()[1]["scenarios"][0]["latest_status"] == "fail"
    assert record(team, scenario_id, status="pass", eval_run_id=run_id)["measured"] is True
    assert team.check()[1]["scenarios"][0]["latest_status"] == "pass"
    later = team.run([episode])
    team.result(later, episode, False)
    team.finalize(later)
    assert team.check()[1]["scenarios"][0]["latest_status"] == "fail"


def test_a_run_that_failed_or_was_cancelled_tells_nothing(team: Campaigner) -> None:
    [episode] = team.baselines(1)
    promote(team, episode)
    for status in ("failed", "cancelled"):
        run_id = team.run([episode])
        team.result(run_id, episode, True)
        team.finalize(run_id, status=status)
    assert team.check()[1]["critical_pending"] == 1


def test_what_a_scenario_learned_outlives_the_run_and_the_replay(team: Campaigner) -> None:
    [episode, replay] = team.baselines(2)
    promote(team, episode)
    run_id = team.run([episode])
    team.result(run_id, episode, metrics=MEASURED, candidate_episode_id=replay)
    team.finalize(run_id)
    team.http.delete(f"/api/eval-runs/{run_id}").raise_for_status()
    team.http.delete(f"/api/episodes/{replay}").raise_for_status()
    [standing] = team.check()[1]["scenarios"]
    assert standing["latest_status"] == "pass"
    assert (standing["eval_run_id"], standing["candidate_episode_id"]) == (None, None)


def test_a_critical_scenario_that_fails_is_in_the_decision(team: Campaigner) -> None:
    ids = team.episodes(*({"success": False} for _ in range(30)))
    scenario_id = promote(team, ids[0])
    gate = {"evidence": ["asserted", "closed_loop"]}
    run_id = team.run(ids, gate=gate)
    for each in ids:
        team.result(run_id, each, each != ids[0])
    decision = team.finalize(run_id)["summary"]["decision"]
    assert decision["recommend"] == "hold"
    assert any(scenario_id in reason for reason in decision["reasons"]), decision


# ------------------------------------------------------------------------------------------- list


def test_scenarios_are_listed_newest_first_in_pages(team: Campaigner) -> None:
    made = [promote(team, each) for each in team.baselines(3)]
    team.http.patch(f"/api/scenarios/{made[1]}", json={"active": False}).raise_for_status()

    def listed(**params: Any) -> list[str]:
        page = team.get("/api/scenarios", **params)
        return [each["scenario_id"] for each in page["scenarios"]]

    assert listed() == made[::-1]
    assert listed(active="true") == [made[2], made[0]]
    assert listed(active="false") == [made[1]]
    page = team.get("/api/scenarios", limit=2)
    assert listed(limit=2, cursor=page["next_cursor"]) == [made[0]]
    assert team.refused("/api/scenarios?active=maybe", method="GET") == (400, "invalid_value")
