"""Eval runs: made whole or not at all, filled by whoever runs them, summed up from what is in the database."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from rollbook.contracts.evals import RESULT_KEYS
from rollbook.contracts.gate import Gate
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import Database
from rollbook.server.queries import EvalRunFilter, NewResult, Scope
from tests.server.campaigns import Campaigner, campaigner
from tests.server.fixtures import StartServer
from tests.server.running import RunningServer
from tests.server.shared_server import shared_server
from tests.server.tenants import new_organisation


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


# ------------------------------------------------------------------------------------------ create


def test_a_run_has_a_pending_result_for_every_baseline_in_order(team: Campaigner) -> None:
    ids = team.baselines(3)
    made = team.post(
        "/api/ingest/eval-run",
        {
            "candidate_policy_version": "v2",
            "baseline_policy_version": "v1",
            "baseline_episode_ids": [ids[2], ids[0], ids[1], ids[0]],
            "name": "nightly",
            "metadata": {"branch": "main"},
        },
    )
    assert (made["status"], made["episode_count"], made["gate_digest"]) == (
        "pending",
        3,
        Gate().digest,
    )
    found = team.results(made["eval_run_id"])
    assert [each["baseline_episode_id"] for each in found] == [ids[2], ids[0], ids[1]]
    assert {each["status"] for each in found} == {"pending"}
    run = team.get(f"/api/eval-runs/{made['eval_run_id']}")
    assert (run["name"], run["metadata"], run["runner_kind"]) == (
        "nightly",
        {"branch": "main"},
        "client",
    )
    assert (run["summary"], run["completed_at"]) == (None, None)


def test_one_unknown_or_foreign_baseline_makes_no_run(
    team: Campaigner, server: RunningServer
) -> None:
    mine, foreign = team.baselines(2), campaigner(server).baselines(1)
    for stranger in (foreign[0], new_id(), "no id at all", "nul\x00"):
        body = {"candidate_policy_version": "v2", "baseline_episode_ids": [*mine, stranger]}
        answer = team.http.post("/api/ingest/eval-run", json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert answer.json()["missing"] == [stranger]
    assert team.get("/api/eval-runs")["eval_runs"] == []


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"candidate_policy_version": "  "}, "$.candidate_policy_version"),
        ({"candidate_policy_version": None}, "$.candidate_policy_version"),
        ({"baseline_episode_ids": []}, "$.baseline_episode_ids"),
        ({"baseline_episode_ids": [""]}, "$.baseline_episode_ids[0]"),
        ({"metadata": []}, "$.metadata"),
        ({"runner_kind": "somebody"}, "$.runner_kind"),
        ({"gate": {"alpha": 7}}, "$.gate"),
        ({"gate": {"no such field": 1}}, "$.gate"),
    ],
)
def test_what_is_wrong_about_a_run_is_named(any_team: Campaigner, wrong: Any, where: str) -> None:
    body = {"candidate_policy_version": "v2", "baseline_episode_ids": ["x"], **wrong}
    answer = any_team.http.post("/api/ingest/eval-run", json=body)
    assert (answer.status_code, answer.json()["where"]) == (400, where), answer.text


def test_more_than_ten_thousand_baselines_are_refused(team: Campaigner) -> None:
    body = {"candidate_policy_version": "v", "baseline_episode_ids": [*map(str, range(10_001))]}
    assert team.refused("/api/ingest/eval-run", body) == (400, "invalid_value")


def test_the_gate_is_stored_whole_and_with_its_digest(team: Campaigner) -> None:
    gate = Gate(n_min=5, mode="non_inferiority")
    run_id = team.run(team.baselines(1), gate={"n_min": 5, "mode": "non_inferiority"})
    run = team.get(f"/api/eval-runs/{run_id}")
    assert (run["gate"], run["gate_digest"]) == (
        json.loads(json.dumps(gate.as_dict())),
        gate.digest,
    )
    summary = team.finalize(run_id)["summary"]
    assert summary["decision"]["gate_digest"] == gate.digest


def test_a_repeated_create_gives_the_first_run_again(team: Campaigner) -> None:
    body = {"candidate_policy_version": "v2", "baseline_episode_ids": team.baselines(1)}
    headers = {"Idempotency-Key": "once"}
    first, again = (
        team.http.post("/api/ingest/eval-run", json=body, headers=headers) for _ in range(2)
    )
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert again.headers["Idempotency-Replayed"] == "true"
    other = {**body, "name": "another"}
    refused = team.http.post("/api/ingest/eval-run", json=other, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_conflict")
    assert len(team.get("/api/eval-runs")["eval_runs"]) == 1


# ----------------------------------------------------------------------------------------- results


def test_a_result_fills_its_row_and_again_replaces_it(team: Campaigner) -> None:
    [baseline, other] = team.baselines(2)
    run_id = team.run([baseline, other])
    first = team.result(run_id, baseline, True)
    again = team.result(run_id, baseline, None, status="failed", error="ValueError: no")
    assert first["eval_result_id"] == again["eval_result_id"]
    assert (first["run_status"], first["episodes_completed"], first["episodes_failed"]) == (
        "running",
        1,
        0,
    )
    assert (again["episodes_completed"], again["episodes_failed"]) == (0, 1)
    [row] = team.results(run_id, status="failed")
    assert (row["baseline_episode_id"], row["error"]) == (baseline, "ValueError: no")
    assert len(team.results(run_id, status="pending")) == 1


def test_an_error_of_any_length_is_kept_to_2000_characters(team: Campaigner) -> None:
    [baseline] = team.baselines(1)
    run_id = team.run([baseline])
    error = "Boom: \x00" + "ä" * 100_000
    team.result(run_id, baseline, None, status="failed", error=error)
    [row] = team.results(run_id)
    assert row["error"] == ("Boom: \ufffd" + "ä" * 100_000)[:2000]


@pytest.mark.parametrize(
    "wrong",
    [
        {"metrics": []},
        {"metrics": None},
        {"metrics": "x"},
        {"status": "pending"},
        {"status": "done"},
        {"metrics": {"name\x00": 1}},
        {"metrics": {"series": ["x" * 70_000]}},
    ],
    ids=str,
)
def test_a_malformed_result_is_a_400(any_team: Campaigner, wrong: Any) -> None:
    [baseline] = any_team.baselines(1)
    run_id = any_team.run([baseline])
    body = {"baseline_episode_id": baseline, "status": "complete", "metrics": {}, **wrong}
    status, _ = any_team.refused(f"/api/ingest/eval-run/{run_id}/result", body)
    assert status == 400
    assert any_team.results(run_id)[0]["status"] == "pending"


def test_nan_is_not_json(team: Campaigner) -> None:
    [baseline] = team.baselines(1)
    path = f"/api/ingest/eval-run/{team.run([baseline])}/result"
    body = {"baseline_episode_id": baseline, "status": "complete", "metrics": {"a": float("nan")}}
    sent = team.http.post(
        path, content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert (sent.status_code, sent.json()["code"]) == (400, "malformed_json")


def test_a_baseline_or_candidate_that_is_not_here_is_a_404(
    team: Campaigner, server: RunningServer
) -> None:
    [baseline, outside] = team.baselines(2)
    [foreign] = campaigner(server).baselines(1)
    run_id = team.run([baseline])
    path = f"/api/ingest/eval-run/{run_id}/result"
    sent = {"status": "complete", "metrics": {}}
    for stranger in (outside, foreign, new_id()):
        assert team.refused(path, {**sent, "baseline_episode_id": stranger})[0] == 404
    for stranger in (foreign, new_id()):
        body = {**sent, "baseline_episode_id": baseline, "candidate_episode_id": stranger}
        assert team.refused(path, body)[0] == 404
    assert team.get(f"/api/eval-runs/{run_id}")["status"] == "pending"


def test_null_baseline_outcomes_are_filled_from_the_recorded_episode(team: Campaigner) -> None:
    recorded = {"outcome": {"success": True, "reward_total": 4.5}, "collision_count": 2}
    [known, silent] = team.episodes(recorded, {"total_reward": 1.5})
    run_id = team.run([known, silent])
    blank = dict.fromkeys(RESULT_KEYS)
    team.result(run_id, known, metrics={**blank, "reward_total_baseline": 9.0})
    team.result(run_id, silent, metrics={})
    first, second = (each["metrics"] for each in team.results(run_id))
    assert (first["success_baseline"], first["reward_total_baseline"]) == (True, 9.0)
    assert (first["collision_count_baseline"], first["time_to_goal_s_baseline"]) == (2, None)
    assert first["success_candidate"] is None, "only the baseline is known from its episode"
    assert second == {"reward_total_baseline": 1.5}


def test_a_candidate_that_crashes_everywhere_is_worse_where_its_baselines_succeeded(
    team: Campaigner,
) -> None:
    ids = team.episodes(*({"success": place < 20} for place in range(30)))
    run_id = team.run(ids)
    crashed = {"status": "failed", "metrics": {}, "error": "Boom"}
    body = {"results": [{"baseline_episode_id": each, **crashed} for each in ids]}
    team.post(f"/api/ingest/eval-run/{run_id}/results", body)
    found = team.results(run_id)
    assert [each["metrics"] for each in found] == [
        {"success_baseline": place < 20} for place in range(30)
    ]
    summary = team.finalize(run_id)["summary"]
    counted = [summary["success_rate"][key] for key in ("n_pairs", "wins", "losses")]
    assert counted == [30, 0, 20]
    assert "regression:success" in summary["decision"]["reasons"]
    assert "not_measured" not in summary["decision"]["reasons"]


def test_a_batch_takes_what_is_right_and_says_what_is_not(team: Campaigner) -> None:
    ids = team.baselines(3)
    run_id = team.run(ids)
    rows = [
        {
            "baseline_episode_id": ids[0],
            "status": "complete",
            "metrics": {"success_candidate": True},
        },
        {"baseline_episode_id": new_id(), "status": "complete", "metrics": {}},
        {"baseline_episode_id": ids[1], "status": "failed", "metrics": {}, "error": "x" * 3000},
        {"baseline_episode_id": ids[2], "status": "complete", "metrics": {"a": "x" * 70_000}},
    ]
    answer = team.post(f"/api/ingest/eval-run/{run_id}/results", {"results": rows})
    counted = {name: answer[name] for name in ("episodes_completed", "episodes_failed")}
    assert (answer["run_status"], counted) == (
        "running",
        {"episodes_completed": 1, "episodes_failed": 1},
    )
    assert [each.get("status_code") for each in answer["results"]] == [None, 404, None, 400]
    found = team.results(run_id)
    assert [each["status"] for each in found] == ["complete", "failed", "pending"]
    assert answer["results"][0]["eval_result_id"] == found[0]["id"]
    assert len(found[1]["error"]) == 2000


def test_results_come_in_pages(team: Campaigner) -> None:
    ids = team.baselines(5)
    run_id = team.run(ids)
    seen, cursor = [], None
    for _ in range(3):
        page = team.get(
            f"/api/eval-runs/{run_id}/results", limit=2, **({"cursor": cursor} if cursor else {})
        )
        seen += [each["baseline_episode_id"] for each in page["results"]]
        cursor = page["next_cursor"]
    assert (seen, cursor) == (ids, None)
    other = team.get(f"/api/eval-runs/{run_id}/results", limit=1, status="pending")["next_cursor"]
    answer = team.http.get(f"/api/eval-runs/{run_id}/results", params={"cursor": other})
    assert answer.status_code == 400
    assert team.http.get("/api/eval-runs", params={"candidate": "x"}).status_code == 400


def test_two_runners_on_one_run_lose_no_result(team: Campaigner) -> None:
    ids = team.baselines(40)
    run_id = team.run(ids)

    def work(mine: list[str]) -> None:
        with team.server.client(team.access) as http:
            for each in mine:
                body = {"baseline_episode_id": each, "status": "complete", "metrics": {}}
                http.post(f"/api/ingest/eval-run/{run_id}/result", json=body).raise_for_status()

    threads = [threading.Thread(target=work, args=(ids[at::2],)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run = team.get(f"/api/eval-runs/{run_id}")
    assert (run["episodes_completed"], run["status"]) == (40, "running")


# ---------------------------------------------------------------------------------------- finalize


def test_finalize_sums_up_what_is_in_the_database(team: Campaigner) -> None:
    ids = team.episodes({"success": False}, {"success": True}, {"success": False}, {})
    run_id = team.run(ids, metadata={"kept": 1, "changed": 1})
    for each in ids[:3]:
        team.result(run_id, each, True)
    team.result(run_id, ids[3], None, status="failed", error="crash")
    done = team.finalize(run_id, metadata={"changed": 2})
    rate = done["summary"]["success_rate"]
    assert (done["eval_run_id"], done["status"]) == (run_id, "completed")
    assert (rate["baseline"], rate["candidate"]) == (pytest.approx(1 / 3), 1.0)
    counts = done["summary"]["counts"]
    assert (counts["total"], counts["complete"], counts["failed"]) == (4, 3, 1)
    run = team.get(f"/api/eval-runs/{run_id}")
    assert run["summary"] == done["summary"]
    assert run["metadata"] == {"kept": 1, "changed": 2}
    assert run["recommend"] == done["summary"]["recommend"] == "ship"
    assert run["decision"] == done["summary"]["decision"]["recommend"] == "hold"
    assert team.finalize(run_id)["summary"] == done["summary"]
    assert team.get(f"/api/eval-runs/{run_id}")["completed_at"] == run["completed_at"]


def test_a_run_without_results_can_be_finalized(team: Campaigner) -> None:
    done = team.finalize(team.run(team.baselines(2)))
    assert (done["summary"]["recommend"], done["summary"]["metric_total"]) == ("hold", 0)


def test_odd_metrics_of_any_client_never_break_a_summary(team: Campaigner) -> None:
    ids = team.baselines(3)
    run_id = team.run(ids)
    odd: list[dict[str, Any]] = [
        dict.fromkeys(RESULT_KEYS, "yes"),
        {key: [1] for key in RESULT_KEYS} | {"evidence": 5, "actions": "none"},
        dict.fromkeys(RESULT_KEYS, 10**300) | {"counterfactual": {"regret": "x"}},
    ]
    for each, metrics in zip(ids, odd, strict=True):
        team.result(run_id, each, metrics=metrics)
    assert team.finalize(run_id)["summary"]["counts"]["complete"] == 3


def test_a_completed_run_takes_no_more_results(team: Campaigner) -> None:
    [baseline] = team.baselines(1)
    run_id = team.run([baseline])
    team.finalize(run_id)
    body = {"baseline_episode_id": baseline, "status": "complete", "metrics": {}}
    path = f"/api/ingest/eval-run/{run_id}"
    assert team.refused(f"{path}/result", body) == (409, "eval_run_closed")
    assert team.refused(f"{path}/results", {"results": [body]}) == (409, "eval_run_closed")
    assert team.refused(f"/api/eval-runs/{run_id}/cancel") == (409, "eval_run_closed")
    for status in ("failed", "cancelled"):  # it would take results again, and decide again
        assert team.refused(f"{path}/finalize", {"status": status}) == (409, "eval_run_closed")
    assert team.finalize(run_id)["status"] == "completed"


def test_a_cancelled_run_keeps_what_came_and_takes_no_more(team: Campaigner) -> None:
    [baseline, other] = team.baselines(2)
    run_id = team.run([baseline, other])
    team.result(run_id, baseline)
    for _ in range(2):
        assert team.post(f"/api/eval-runs/{run_id}/cancel")["status"] == "cancelled"
    path = f"/api/ingest/eval-run/{run_id}"
    body = {"baseline_episode_id": other, "status": "complete", "metrics": {}}
    assert team.refused(f"{path}/result", body) == (409, "eval_run_closed")
    assert team.refused(f"{path}/finalize", {}) == (409, "eval_run_closed")
    assert [each["status"] for each in team.results(run_id)] == ["complete", "pending"]


def test_a_runner_may_say_that_its_run_failed_and_go_on_later(team: Campaigner) -> None:
    [baseline] = team.baselines(1)
    run_id = team.run([baseline])
    assert team.finalize(run_id, status="failed")["status"] == "failed"
    assert team.get(f"/api/eval-runs/{run_id}")["completed_at"] is None
    assert team.result(run_id, baseline)["run_status"] == "running"
    assert team.finalize(run_id)["status"] == "completed"
    path = f"/api/ingest/eval-run/{run_id}/finalize"
    assert team.refused(path, {"status": "whatever"}) == (400, "invalid_value")


# ----------------------------------------------------------------------------- lists and deletions


def test_runs_are_found_by_version_and_status_newest_first(team: Campaigner) -> None:
    ids = team.baselines(1)
    runs = [
        team.run(ids, f"v{number % 2}", baseline_policy_version=f"b{number}") for number in range(4)
    ]
    team.finalize(runs[0])

    def found(**params: Any) -> list[str]:
        return [each["id"] for each in team.get("/api/eval-runs", **params)["eval_runs"]]

    assert found() == runs[::-1]
    assert found(candidate_policy_version="v0") == [runs[2], runs[0]]
    assert found(candidate_policy_version="v0", status="completed") == [runs[0]]
    assert found(baseline_policy_version="b3") == [runs[3]]
    page = team.get("/api/eval-runs", limit=3)
    assert found(limit=3, cursor=page["next_cursor"]) == [runs[0]]


def test_a_deleted_replay_leaves_its_result(team: Campaigner) -> None:
    [baseline, replay] = team.baselines(2)
    run_id = team.run([baseline])
    team.result(run_id, baseline, candidate_episode_id=replay)
    assert team.results(run_id)[0]["candidate_episode_id"] == replay
    team.http.delete(f"/api/episodes/{replay}").raise_for_status()
    [row] = team.results(run_id)
    assert (row["candidate_episode_id"], row["status"]) == (None, "complete")


def test_an_archived_episode_can_be_a_baseline(team: Campaigner) -> None:
    [baseline] = team.baselines(1, success=True)
    team.post(f"/api/episodes/{baseline}/archive")
    run_id = team.run([baseline])
    team.result(run_id, baseline, False)
    assert team.results(run_id)[0]["metrics"]["success_baseline"] is True


def test_a_deleted_run_is_gone_with_its_results_and_its_episodes_stay(team: Campaigner) -> None:
    [baseline] = team.baselines(1)
    run_id = team.run([baseline])
    team.http.delete(f"/api/eval-runs/{run_id}").raise_for_status()
    for path in (f"/api/eval-runs/{run_id}", f"/api/eval-runs/{run_id}/results"):
        assert team.refused(path, method="GET") == (404, "not_found")
    assert team.get(f"/api/episodes/{baseline}")["id"] == baseline
    assert "eval_run.deleted" in {each["event"] for each in team.audited()}


# -------------------------------------------------------------------------------- on both databases

NEW = {
    "candidate_policy_version": "v2",
    "runner_kind": "client",
    "metadata": {},
    "gate": Gate().as_dict(),
    "gate_digest": Gate().digest,
}


@pytest.mark.slow
def test_ten_thousand_baselines_take_seconds(shared_database: Database) -> None:
    """Made, filled, listed and read back whole; rows as large as our runner sends them."""
    org = new_organisation(shared_database)
    episodes = [({"metadata": {"success": True}}, ()) for _ in range(10_000)]
    ids = [each.id for each in org.write(lambda scope: scope.create_episodes(episodes))]
    began = time.perf_counter()

    def create(scope: Scope) -> str:
        assert scope.unknown_episodes(ids) == []
        return scope.create_eval_run(NEW, ids).id

    run_id = org.write(create)
    metrics = {"success_candidate": True, "actions": {"top": [{"step": 1, "t_ns": 2}] * 5}}
    for start in range(0, 10_000, 1000):
        some = [NewResult(each, "complete", metrics) for each in ids[start : start + 1000]]
        org.write(lambda scope, some=some: scope.write_eval_results(run_id, some))  # type: ignore[misc]
    run = org.write(lambda scope: scope.recount_eval_run(run_id))
    assert run is not None
    assert run.episodes_completed == 10_000
    found, _ = org.read(lambda scope: scope.eval_results(run_id, limit=1000))
    assert [each.baseline_episode_id for each in found] == ids[:1000]
    assert len(org.read(lambda scope: scope.all_eval_results(run_id))) == 10_000
    assert time.perf_counter() - began < 30


def test_a_summary_is_refused_when_a_result_came_in_between(shared_database: Database) -> None:
    org = new_organisation(shared_database)
    baseline = org.episode().id
    run = org.write(lambda scope: scope.create_eval_run(NEW, [baseline]))
    counted = org.write(lambda scope: scope.recount_eval_run(run.id, "running"))
    assert counted is not None
    changes = {"status": "completed"}

    def finish(revision: int) -> bool:
        return org.write(
            lambda scope: scope.change_eval_run(run.id, changes, revision=revision) is not None
        )

    assert not finish(run.revision)
    assert finish(counted.revision)


def test_an_unstorable_text_finds_nothing(shared_database: Database) -> None:
    org = new_organisation(shared_database)
    for text in ("nul\x00", "half\ud800"):
        assert org.read(lambda scope, t=text: scope.eval_run(t)) is None  # type: ignore[misc]
        wanted = EvalRunFilter(candidate_policy_version=text)
        assert org.read(lambda scope, w=wanted: scope.eval_runs(w)) == ([], None)  # type: ignore[misc]
        assert org.write(lambda scope, t=text: scope.unknown_episodes([t])) == [text]  # type: ignore[misc]
        assert org.read(lambda scope, t=text: scope.eval_results(t)) == ([], None)  # type: ignore[misc]
