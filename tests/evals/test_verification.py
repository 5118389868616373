"""The regression gate: promote, check, replay what stands in the way, check again."""

from __future__ import annotations

from typing import Any

import pytest

from rollbook.adapters.gymnasium import record
from rollbook.errors import ConfigurationError, NotFoundError, ValidationError
from rollbook.evals import verify
from tests.evals.campaigns import Campaign, log_baseline
from tests.evals.conftest import MakeClient
from tests.evals.recorded_runs import SlidingEnv, away, push_away, push_towards, sliding
from tests.evals.replay_policies import follow
from tests.server.running import RunningServer


@pytest.fixture
def other(client_at: MakeClient, campaign_server: RunningServer) -> Campaign:
    """Of the second organisation, whose gate no other test closes."""
    client = client_at(api_key=campaign_server.second_org.api_key)
    return Campaign(client, [log_baseline(client, number) for number in range(2)])


def succeeding(obs: Any) -> Any:
    return {**follow(obs), "_outcome": {"success": True}}


def test_a_critical_scenario_closes_the_gate_until_it_is_passed(other: Campaign) -> None:
    made = record(SlidingEnv(), away, seed=1, client=other.client, env_version="sliding-1")
    assert made.episode is not None
    spill = str(made.episode.id)
    promoted = verify.promote(
        baseline_episode_id=spill, severity="critical", name="red cup", client=other.client
    )
    again = verify.promote(baseline_episode_id=spill, severity="critical", client=other.client)
    assert promoted["promoted"] is True
    assert (again["promoted"], again["scenario_id"]) == (False, promoted["scenario_id"])

    gate = verify.check_gate(candidate_policy_version="v5", client=other.client)
    assert (gate["passed"], gate["critical_pending"]) == (False, 1)
    with pytest.raises(ConfigurationError, match="policy_callable="):
        verify.run_check(candidate_policy_version="v5", client=other.client)

    asked: dict[str, Any] = {"candidate_policy_version": "v5", "client": other.client}
    inside: dict[str, Any] = {**asked, "environment": sliding}
    code, gate = verify.run_check(**inside, policy_callable=push_towards, dry_run=True)
    assert [each["status"] for each in gate["dry_run"]] == ["pass"]
    assert code == 0
    assert verify.check_gate(**asked)["passed"] is False  # it was only tried

    code, gate = verify.run_check(**inside, policy_callable=push_away)
    assert (code, gate["passed"], gate["critical_failed"]) == (1, False, 1)
    code, gate = verify.run_check(**inside, policy_callable=push_towards)
    assert (code, gate["passed"]) == (0, True)
    code, gate = verify.run_check(**asked)
    assert code == 0  # open: no policy is needed


def test_what_a_policy_states_about_itself_passes_no_critical_scenario(other: Campaign) -> None:
    baseline = log_baseline(other.client, 7)
    verify.promote(baseline_episode_id=baseline, severity="critical", client=other.client)
    asked: dict[str, Any] = {"candidate_policy_version": "v9", "client": other.client}
    code, gate = verify.run_check(**asked, policy_callable=succeeding, dry_run=True)
    [tried] = [each for each in gate["dry_run"] if each["baseline_episode_id"] == baseline]
    assert (code, tried["status"]) == (1, "fail")
    assert "not measured" in tried["error"]
    for policy in (succeeding, follow):  # an outcome that nobody knows is no success either
        code, gate = verify.run_check(**asked, policy_callable=policy)
        assert (code, gate["passed"], gate["critical_passed"]) == (1, False, 0)


def test_a_result_can_be_recorded_by_hand(other: Campaign) -> None:
    scenario = verify.promote(baseline_episode_id=other.ids[1], client=other.client)["scenario_id"]
    recorded = verify.record_result(
        scenario_id=scenario,
        candidate_policy_version="v6",
        metrics={"success_candidate": True},
        client=other.client,
    )
    assert recorded["status"] == "pass"


def test_errors_have_their_types(other: Campaign) -> None:
    with pytest.raises(NotFoundError):
        verify.promote(baseline_episode_id="no-such-episode", client=other.client)
    severity: Any = "terrible"
    with pytest.raises(ValidationError):
        verify.promote(baseline_episode_id=other.ids[0], severity=severity, client=other.client)
    with pytest.raises(ConfigurationError, match="candidate_policy_version"):
        verify.check_gate(candidate_policy_version=" ", client=other.client)
