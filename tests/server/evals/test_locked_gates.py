"""Locked gates: what an admin locks, no author of a run can weaken."""

from __future__ import annotations

from typing import Any

import pytest

from rollbook.contracts.gate import Gate
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


def lock(team: Campaigner, name: str, **gate: Any) -> dict[str, Any]:
    answer = team.http.put(f"/api/gates/{name}", json={"gate": gate})
    assert answer.is_success, answer.text
    locked: dict[str, Any] = answer.json()
    return locked


def body(team: Campaigner, **more: Any) -> dict[str, Any]:
    return {"candidate_policy_version": "v2", "baseline_episode_ids": team.baselines(1), **more}


def test_a_run_without_a_gate_is_judged_by_the_locked_one(team: Campaigner) -> None:
    locked = lock(team, "release", n_min=40)
    run_id = team.post("/api/ingest/eval-run", body(team))["eval_run_id"]
    run = team.get(f"/api/eval-runs/{run_id}")
    assert (run["gate_name"], run["gate"]) == ("release", locked["gate"])
    decision = team.finalize(run_id)["summary"]["decision"]
    assert (decision["gate_name"], decision["gate_digest"]) == ("release", locked["gate_digest"])


def test_a_weaker_gate_is_refused_with_the_names_of_its_fields(team: Campaigner) -> None:
    lock(team, "release", n_min=40)
    asked = body(team, gate={"alpha": 0.2, "n_min": 10, "accept_retried": True})
    answer = team.http.post("/api/ingest/eval-run", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (400, "weaker_gate")
    assert answer.json()["fields"] == ["alpha", "n_min", "accept_retried"]
    assert "release" in answer.json()["error"]


def test_a_stricter_gate_judges_beside_the_name_of_the_locked_one(team: Campaigner) -> None:
    lock(team, "release", n_min=40)
    made = team.post("/api/ingest/eval-run", body(team, gate={"n_min": 60}))
    assert (made["gate"]["n_min"], made["gate_name"]) == (60, "release")


def test_without_a_name_the_gate_called_default_counts_else_the_only_one(team: Campaigner) -> None:
    path = "/api/ingest/eval-run"
    assert "gate_name" not in team.post(path, body(team))
    lock(team, "strict", n_min=99)
    assert team.post(path, body(team))["gate_name"] == "strict"
    lock(team, "nightly", n_min=30)
    assert team.refused(path, body(team)) == (400, "gate_name_missing")
    assert team.post(path, body(team, gate_name="nightly"))["gate"]["n_min"] == 30
    lock(team, "default", n_min=50)
    assert team.post(path, body(team))["gate"]["n_min"] == 50
    assert team.refused(path, body(team, gate_name="unknown")) == (400, "unknown_gate")


def test_a_run_keeps_its_gate_when_the_locked_one_changes_or_goes(team: Campaigner) -> None:
    lock(team, "release", n_min=40)
    run_id = team.post("/api/ingest/eval-run", body(team))["eval_run_id"]
    lock(team, "release", n_min=400)
    assert team.http.delete("/api/gates/release").is_success
    run = team.get(f"/api/eval-runs/{run_id}")
    assert (run["gate"]["n_min"], run["gate_name"]) == (40, "release")
    assert team.post("/api/ingest/eval-run", body(team))["gate"] == Gate().as_dict()


def test_locking_and_unlocking_are_in_the_audit_log(team: Campaigner) -> None:
    first = lock(team, "release")["gate_digest"]
    second = lock(team, "release", n_min=40)["gate_digest"]
    team.http.delete("/api/gates/release")
    events = [each for each in team.audited() if each["event"].startswith("gate.")]
    assert [(each["event"], each["subject"]) for each in events] == [
        ("gate.unlocked", "release"),
        ("gate.locked", "release"),
        ("gate.locked", "release"),
    ]
    assert events[1]["detail"] == {"gate_digest": second, "replaced": first}


def test_a_decision_says_how_often_its_baselines_were_used(team: Campaigner) -> None:
    baselines = team.baselines(2, success=False)
    told = []
    for ledger in ("print", "print", "decide"):
        run_id = team.run(baselines, gate={"ledger": ledger})
        team.result(run_id, baselines[0])
        told.append(team.finalize(run_id)["summary"]["decision"])
    numbers = [each["ledger"] and each["ledger"]["number"] for each in told]
    assert numbers == [None, 2, 3]
    assert told[1]["ledger"]["level"] == pytest.approx(0.05 / 6)
    assert [each["ledger"]["decides"] for each in told[1:]] == [False, True]
    assert "2nd run on these baselines" in told[1]["sentence"]


def test_a_locked_gate_binds_nobody_else(team: Campaigner, server: RunningServer) -> None:
    lock(team, "release", n_min=40)
    others = campaigner(server)
    assert others.get("/api/gates") == {"gates": []}
    assert others.post("/api/ingest/eval-run", body(others))["gate"] == Gate().as_dict()
    assert others.refused("/api/ingest/eval-run", body(others, gate_name="release"))[0] == 400
