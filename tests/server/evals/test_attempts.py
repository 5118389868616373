"""What a run rests on cannot be made better afterwards: earlier results stay, baselines stay, labels stay."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rollbook.contracts.evals import INFRASTRUCTURE
from rollbook.contracts.gate import Gate
from rollbook.errors import EpisodeInUse
from rollbook.server.db.engine import Database
from rollbook.server.queries import EvalResultRow, NewResult
from tests.server.campaigns import Campaigner, campaigner
from tests.server.fixtures import StartServer
from tests.server.running import RunningServer
from tests.server.shared_server import shared_server
from tests.server.tenants import Organisation, new_organisation

WON = {"success_candidate": True, "evidence": {"success": "closed_loop"}}
LOST = {**WON, "success_candidate": False}
BROKEN = f"{INFRASTRUCTURE}the baseline could not be fetched"
CRASHED = "ValueError: no grasp"


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


@pytest.fixture
def team(server: RunningServer) -> Campaigner:
    return campaigner(server)


# ------------------------------------------------------------------------ attempts, on both databases


class Pair:
    """One baseline in a run of its own."""

    def __init__(self, database: Database, org: Organisation | None = None) -> None:
        self.org = org or new_organisation(database)
        self.baseline = self.org.episode(metadata={"scene": "kitchen"}).id
        run = {"candidate_policy_version": "v2", "runner_kind": "client", "metadata": {}}
        gate = {"gate": Gate().as_dict(), "gate_digest": Gate().digest}
        self.run_id = self.org.write(
            lambda scope: scope.create_eval_run({**run, **gate}, [self.baseline])
        ).id

    def send(self, *results: tuple[str, dict[str, Any], str | None]) -> int:
        """All in one request. Returns the number of pairs that became retried."""
        sent = [
            NewResult(self.baseline, status, metrics, error=error)
            for status, metrics, error in results
        ]
        return self.org.write(lambda scope: scope.write_eval_results(self.run_id, sent))

    def row(self) -> EvalResultRow:
        [row] = self.org.read(lambda scope: scope.all_eval_results(self.run_id))
        return row

    def earlier(self) -> list[tuple[int, str, Any]]:
        found, _ = self.org.read(lambda scope: scope.eval_attempts(self.run_id))
        return [(each.number, each.status, each.error or each.metrics) for each in found]


def test_the_same_result_again_is_no_attempt(shared_database: Database) -> None:
    pair = Pair(shared_database)
    for _ in range(2):
        assert pair.send(("complete", WON, None)) == 0
    assert (pair.row().attempts, pair.row().retried, pair.earlier()) == (1, False, [])
    pair.send(("failed", {}, CRASHED))
    assert pair.send(("failed", {}, CRASHED)) == 0
    assert pair.row().attempts == 2


def test_every_result_that_is_replaced_is_kept_in_order(shared_database: Database) -> None:
    pair = Pair(shared_database)
    pair.send(("failed", {}, CRASHED))
    pair.send(("complete", LOST, None), ("complete", WON, None))
    assert (pair.row().status, pair.row().metrics, pair.row().attempts) == ("complete", WON, 3)
    assert pair.earlier() == [(1, "failed", CRASHED), (2, "complete", LOST)]


def test_a_request_that_repeats_the_stored_result_before_another_one_keeps_it_once(
    shared_database: Database,
) -> None:
    pair = Pair(shared_database)
    pair.send(("complete", LOST, None))
    assert pair.send(("complete", LOST, None), ("complete", WON, None)) == 1
    assert (pair.row().attempts, pair.earlier()) == (2, [(1, "complete", LOST)])


SENT: dict[str, tuple[bool, list[Any]]] = {
    "infrastructure broke": (False, [("failed", {}, BROKEN), ("complete", WON, None)]),
    "infrastructure broke twice": (
        False,
        [("failed", {}, BROKEN), ("failed", {}, f"{BROKEN} twice"), ("complete", WON, None)],
    ),
    "the policy failed": (True, [("failed", {}, CRASHED), ("complete", WON, None)]),
    "a failure without a reason": (True, [("failed", {}, None), ("complete", WON, None)]),
    "a failure behind a broken infrastructure": (
        True,
        [("failed", {}, CRASHED), ("failed", {}, BROKEN), ("complete", WON, None)],
    ),
    "lost before": (True, [("complete", LOST, None), ("complete", WON, None)]),
    "a loss behind a broken infrastructure": (
        True,
        [("complete", LOST, None), ("failed", {}, BROKEN), ("complete", WON, None)],
    ),
    "only a time differs": (
        False,
        [("complete", {**WON, "step_ms": 1}, None), ("complete", {**WON, "step_ms": 2}, None)],
    ),
    "only the isolation differs": (
        False,
        [
            ("complete", {**WON, "repro": {"isolation": "thread", "verified": True}}, None),
            ("complete", {**WON, "repro": {"isolation": "process", "verified": True}}, None),
        ],
    ),
    "another world before": (
        True,
        [("complete", {**WON, "repro": {"env_match": False}}, None), ("complete", WON, None)],
    ),
    "another baseline before": (
        True,
        [("complete", {**WON, "success_baseline": True}, None), ("complete", WON, None)],
    ),
}


def test_a_pair_is_retried_when_an_earlier_result_says_something_about_the_candidate(
    shared_database: Database,
) -> None:
    org = new_organisation(shared_database)
    for name, (retried, results) in SENT.items():
        apart, together = Pair(shared_database, org), Pair(shared_database, org)
        became = [apart.send(each) for each in results]
        assert (apart.row().retried, sum(became)) == (retried, int(retried)), name
        assert together.send(*results) == int(retried), name
        assert apart.earlier() == together.earlier(), name


def test_attempts_belong_to_their_run_and_go_with_it_or_with_the_baseline(
    shared_database: Database,
) -> None:
    org = new_organisation(shared_database)
    first, second = Pair(shared_database, org), Pair(shared_database, org)
    for pair in (first, second):
        pair.send(("complete", LOST, None), ("complete", WON, None))
    org.write(lambda scope: scope.delete_eval_run(first.run_id))
    assert (first.earlier(), len(second.earlier())) == ([], 1)
    org.write(lambda scope: scope.change_eval_run(second.run_id, {"status": "completed"}))
    org.write(lambda scope: scope.delete_episode(second.baseline))
    assert second.earlier() == []


# ------------------------------------------------------------------------------- attempts, over HTTP


def test_the_run_counts_its_retried_pairs_and_lists_what_was_replaced(team: Campaigner) -> None:
    ids = team.baselines(4)
    run_id = team.run(ids)
    for each in ids[:3]:
        team.result(run_id, each, None, status="failed", error=CRASHED)
    results = [{"baseline_episode_id": each, "status": "complete", "metrics": WON} for each in ids]
    for _ in range(2):  # the second is a resend
        team.post(f"/api/ingest/eval-run/{run_id}/results", {"results": results})
    run = team.get(f"/api/eval-runs/{run_id}")
    assert (run["retried"], run["altered"], run["episodes_failed"]) == (3, 0, 0)
    [listed] = team.get("/api/eval-runs")["eval_runs"]
    assert listed["retried"] == 3
    rows = team.results(run_id)
    assert [each["attempts"] for each in rows] == [2, 2, 2, 1]
    assert [each["retried"] for each in rows] == [True, True, True, False]
    path = f"/api/eval-runs/{run_id}/attempts"
    page = team.get(path, limit=2)
    rest = team.get(path, limit=2, cursor=page["next_cursor"])
    found = [*page["attempts"], *rest["attempts"]]
    assert sorted(each["baseline_episode_id"] for each in found) == sorted(ids[:3])
    assert {(each["number"], each["status"], each["error"]) for each in found} == {
        (1, "failed", CRASHED)
    }
    assert rest["next_cursor"] is None
    assert team.refused("/api/eval-runs/none/attempts", method="GET") == (404, "not_found")


def test_a_coin_that_is_thrown_again_until_it_wins_does_not_ship(team: Campaigner) -> None:
    """The policy raises where it would lose, and its failures are replayed again, round after round."""
    ids = team.episodes(*[{"success": number % 2 == 0} for number in range(40)])
    measured = {**WON, "repro": {"verified": True, "env_match": True, "deterministic": True}}
    honest, lenient = (team.run(ids, gate={"accept_retried": accept}) for accept in (False, True))
    for run_id in (honest, lenient):
        for lost in (ids[::2], ids[::4], ids[::8], []):
            sent = [
                {"baseline_episode_id": each, "status": "failed", "metrics": {}, "error": CRASHED}
                if each in lost
                else {"baseline_episode_id": each, "status": "complete", "metrics": measured}
                for each in ids
            ]
            team.post(f"/api/ingest/eval-run/{run_id}/results", {"results": sent})
    decision = team.finalize(honest)["summary"]["decision"]
    assert (decision["recommend"], "retried" in decision["reasons"]) == ("hold", True)
    assert team.get(f"/api/eval-runs/{honest}")["retried"] == 20
    assert team.finalize(lenient)["summary"]["decision"]["recommend"] == "ship"


def test_two_runners_that_send_different_results_at_once_lose_none(team: Campaigner) -> None:
    [baseline] = team.baselines(1)
    run_id = team.run([baseline])

    def send(reward: int) -> None:
        metrics = {**WON, "reward_total_candidate": reward}
        team.result(run_id, baseline, metrics=metrics)

    threads = [threading.Thread(target=send, args=(reward,)) for reward in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    [row] = team.results(run_id)
    earlier = team.get(f"/api/eval-runs/{run_id}/attempts")["attempts"]
    rewards = [each["metrics"]["reward_total_candidate"] for each in (*earlier, row)]
    assert (row["attempts"], sorted(rewards)) == (8, [*range(8)])
    assert [each["number"] for each in earlier] == [*range(1, 8)]


# ---------------------------------------------------------------------------------- deleted baselines


def test_a_baseline_cannot_be_deleted_while_a_run_on_it_can_take_results(team: Campaigner) -> None:
    [baseline] = team.baselines(1)
    finished, failed, open_run = (team.run([baseline]) for _ in range(3))
    team.finalize(finished)
    team.finalize(failed, status="failed")  # it can be continued
    for blocking in (failed, open_run):
        answer = team.http.delete(f"/api/episodes/{baseline}")
        told = answer.json()
        assert (answer.status_code, told["code"]) == (409, "episode_in_use")
        assert told["eval_run_id"] == blocking
        assert blocking in told["error"]
        team.post(f"/api/eval-runs/{blocking}/cancel")
    team.http.delete(f"/api/episodes/{baseline}").raise_for_status()
    altered = {each["id"]: each["altered"] for each in team.get("/api/eval-runs")["eval_runs"]}
    assert altered == dict.fromkeys((finished, failed, open_run), 1)


def test_a_baseline_is_in_a_run_or_deleted_and_never_both(shared_database: Database) -> None:
    """Whoever is first wins, also when both begin at the same moment."""
    org = new_organisation(shared_database)
    for _ in range(5):
        baseline = org.episode().id
        start = threading.Barrier(2)
        ended: list[tuple[str, bool]] = []

        def create(baseline: str = baseline, start: Any = start, ended: Any = ended) -> None:
            start.wait()
            values = {"candidate_policy_version": "v", "runner_kind": "client", "metadata": {}}
            gate = {"gate": Gate().as_dict(), "gate_digest": Gate().digest}

            def work(scope: Any) -> bool:
                if scope.unknown_episodes([baseline]):
                    return False
                scope.create_eval_run({**values, **gate}, [baseline])
                return True

            ended.append(("run", org.write(work)))

        def delete(baseline: str = baseline, start: Any = start, ended: Any = ended) -> None:
            start.wait()
            try:
                org.write(lambda scope: scope.delete_episode(baseline))
                ended.append(("deleted", True))
            except EpisodeInUse:
                ended.append(("deleted", False))

        threads = [threading.Thread(target=each) for each in (create, delete)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(ok for _, ok in ended) == [False, True], ended


def test_deleting_what_a_candidate_lost_changes_no_decision(team: Campaigner) -> None:
    """Also with a gate that forgives missing pairs."""
    ids = team.episodes(*[{"success": False}] * 9, *[{"success": True}] * 3)
    gate = {"n_min": 5, "missing": "ignore", "min_used_share": 0.5, "evidence": ["asserted"]}
    run_id = team.run(ids, gate=gate)
    for each in ids:
        team.result(run_id, each, each not in ids[9:])
    before = team.finalize(run_id)
    assert before["summary"]["decision"]["recommend"] == "hold"
    for each in ids[9:]:
        team.http.delete(f"/api/episodes/{each}").raise_for_status()
    again = team.finalize(run_id, metadata={"asked": "again"})
    assert again["summary"] == before["summary"]
    run = team.get(f"/api/eval-runs/{run_id}")
    assert (run["decision"], run["altered"], run["episode_count"]) == ("hold", 3, 12)
    assert (run["episodes_completed"], run["metadata"]) == (9, {"asked": "again"})
    assert run["summary"] == before["summary"]
    [point] = team.get("/api/trends")["points"]
    assert (point["decision"], point["altered"]) == ("hold", 3)


# --------------------------------------------------------------------------------------------- labels


def test_labels_are_those_of_the_baselines_when_the_run_was_created(team: Campaigner) -> None:
    """Whoever records baselines cannot take their scenes away after the results are known."""
    known, nested, without = team.episodes(
        {"scene": "kitchen", "shift": 2, "note": "x"}, {"rollout": {"scene": "hall"}}, {}
    )
    run_id = team.run([known, nested, without], gate={"cluster": "shift"})
    body = {"status": "ready", "metadata": {"scene": known, "shift": known}}
    team.post(f"/api/ingest/episode/{known}/finalize", body)
    team.post(f"/api/episodes/{without}/tags", {"add": ["night"]})
    assert [each["labels"] for each in team.results(run_id)] == [
        {"scene": ["kitchen"], "shift": ["2"]},
        {"scene": ["hall"]},
        {},
    ]
