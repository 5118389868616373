"""A sequential gate ends a run as soon as it is settled. Any other sees all baselines."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rollbook.client import Client
from rollbook.errors import ConfigurationError
from rollbook.evals import EvalResult, Gate, complete_run, run_against
from rollbook.evals.verify import promote
from tests.evals.campaigns import Campaign, log_baseline
from tests.evals.conftest import MakeClient
from tests.evals.replay_policies import Counting, follow
from tests.server.running import RunningServer

COUNT = 24
SEQUENTIAL = Gate(design="sequential", n_min=10, evidence=("asserted",))


class Failing(Counting):
    def act(self, obs: Any, context: Any) -> Any:
        action = super().act(obs, context)
        return {**action, "_outcome": {"success": False}} if context.is_last else action


def never(obs: object) -> dict[str, object]:
    raise AssertionError("the run was settled before")


@pytest.fixture(scope="module")
def many(
    campaign_server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> list[list[str]]:
    """Baselines that all failed, and as many that all succeeded."""
    with Client(
        api_key=campaign_server.api_key,
        base_url=campaign_server.base_url,
        cache=tmp_path_factory.mktemp("cache"),
        verbose=False,
    ) as client:
        return [
            [
                log_baseline(
                    client,
                    number,
                    start=number,
                    metadata={"success": success, "reward_total": 1.0},
                )
                for number in range(COUNT)
            ]
            for success in (False, True)
        ]


@pytest.fixture
def lost(client_at: MakeClient, many: list[list[str]]) -> Campaign:
    return Campaign(client_at(), many[0])


@pytest.fixture
def won(client_at: MakeClient, many: list[list[str]]) -> Campaign:
    return Campaign(client_at(), many[1])


def test_no_further_baseline_is_begun_once_the_candidate_is_shown_to_be_better(
    lost: Campaign,
) -> None:
    run = lost.run(gate=SEQUENTIAL)
    landed: list[EvalResult] = []
    results = run_against(run, policy_callable=Counting, on_episode=landed.append)
    assert [each.baseline_episode_id for each in results] == lost.ids[:10]
    assert len(landed) == 10
    assert lost.statuses(run) == ["complete"] * 10 + ["pending"] * (COUNT - 10)
    again = run_against(run, policy_callable=never, resume=True)
    assert len(again) == 10
    decision = complete_run(run)["summary"]["decision"]
    assert (decision["recommend"], decision["early_stop"]) == ("ship", "ship")


def test_a_candidate_that_is_shown_to_be_worse_is_spared_the_rest(won: Campaign) -> None:
    run = won.run(gate=SEQUENTIAL, dry_run=True)
    assert len(run_against(run, policy_callable=Failing)) == 10


def test_what_is_under_way_is_finished_and_delivered(lost: Campaign) -> None:
    run = lost.run(gate=SEQUENTIAL)
    results = run_against(run, policy_callable=Counting, workers=3)
    assert len(results) >= 10
    assert {each.status for each in results} == {"complete"}
    assert lost.statuses(run).count("complete") == len(results)


def test_nothing_ships_before_its_critical_scenarios_were_passed(
    lost: Campaign, campaign_server: RunningServer
) -> None:
    made = promote(baseline_episode_id=lost.ids[14], severity="critical", client=lost.client)
    try:
        run = lost.run(gate=SEQUENTIAL)
        assert len(run_against(run, policy_callable=Counting)) == COUNT
        reasons = complete_run(run)["summary"]["decision"]["reasons"]
        assert reasons == [f"critical_scenario:{made['scenario_id']}"], "its success is asserted"
    finally:
        with campaign_server.client(campaign_server.new_key("admin")) as admin:
            admin.delete(f"/api/scenarios/{made['scenario_id']}").raise_for_status()


def test_nothing_settled_means_all_baselines(lost: Campaign, won: Campaign) -> None:
    fixed = lost.run(gate=Gate(n_min=10, evidence=("asserted",)), dry_run=True)
    assert len(run_against(fixed, policy_callable=Counting)) == COUNT
    unmeasured = lost.run(gate=SEQUENTIAL, dry_run=True)
    assert len(run_against(unmeasured, policy_callable=follow)) == COUNT
    no_difference = won.run(gate=SEQUENTIAL, dry_run=True)
    assert len(run_against(no_difference, policy_callable=Counting)) == COUNT


# ------------------------------------------------------------------------------------- several looks

LOOKS = Gate(looks=2, n_min=10, evidence=("asserted",))


def test_a_run_with_looks_is_replayed_in_the_order_of_ids_and_ends_at_a_look_that_ships(
    lost: Campaign,
) -> None:
    run = lost.run(ids=lost.ids[::-1], gate=LOOKS)
    landed: list[EvalResult] = []
    run_against(run, policy_callable=Counting, on_episode=landed.append)
    first_half = sorted(lost.ids)[: COUNT // 2]
    assert [each.baseline_episode_id for each in landed] == first_half
    decision = complete_run(run)["summary"]["decision"]
    assert (decision["recommend"], decision["early_stop"]) == ("ship", "ship")
    assert (decision["look"]["number"], decision["look"]["pairs"]) == (1, COUNT // 2)


def test_a_look_that_shows_a_loss_ends_the_run(won: Campaign) -> None:
    run = won.run(gate=LOOKS)
    assert len(run_against(run, policy_callable=Failing)) == COUNT // 2
    decision = complete_run(run)["summary"]["decision"]
    assert (decision["recommend"], decision["early_stop"]) == ("hold", "hold")
    assert "regression:success" in decision["reasons"]


def test_a_look_that_decides_nothing_is_followed_by_the_next(won: Campaign) -> None:
    run = won.run(gate=LOOKS, dry_run=True)
    assert len(run_against(run, policy_callable=Counting)) == COUNT


def test_where_the_ledger_decides_the_run_is_replayed_to_its_end(lost: Campaign) -> None:
    """The runner does not know how many runs were there before, and so not the level either."""
    run = lost.run(gate=replace(LOOKS, ledger="decide"))
    assert len(run_against(run, policy_callable=Counting)) == COUNT


def test_the_runner_counts_clusters_as_the_server_does(
    client_at: MakeClient, campaign_server: RunningServer
) -> None:
    """All pairs are won, but in two scenes only: neither may call that better."""
    client = client_at()
    ids = [
        log_baseline(
            client,
            number,
            start=float(number),
            metadata={"success": False, "scene": f"room {number % 2}"},
        )
        for number in range(COUNT)
    ]
    scenes = Campaign(client, ids)
    run = scenes.run(gate=SEQUENTIAL)
    assert len(run_against(run, policy_callable=Counting)) == COUNT
    decision = complete_run(run)["summary"]["decision"]
    assert "insufficient_clusters" in decision["reasons"]


def test_a_completed_run_gets_no_more_pairs(lost: Campaign) -> None:
    """Neither by resuming it, nor by completing it again."""
    run = lost.run(gate=LOOKS)
    run_against(run, policy_callable=Counting)
    first = complete_run(run)["summary"]
    assert len(run_against(run, policy_callable=never, resume=True)) == COUNT // 2
    fixed = lost.run(gate=Gate(n_min=10, evidence=("asserted",)))
    complete_run(fixed)
    with pytest.raises(ConfigurationError, match=r"is completed.*new run"):
        run_against(fixed, policy_callable=never, resume=True)
    with pytest.raises(ConfigurationError, match=r"is completed.*new run"):
        run_against(fixed, policy_callable=never)
    assert lost.statuses(fixed) == ["pending"] * COUNT
    assert complete_run(run)["summary"] == first
