"""Decision: what ships, and every reason not to."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate, MetricRule
from rollbook.scoring.bounds.tail_bound import tail_bound
from rollbook.scoring.decision import judge
from rollbook.scoring.paired_tests import mcnemar_exact
from rollbook.scoring.result_columns import ResultColumns
from rollbook.scoring.run_rollup import measured
from tests.scoring.result_rows import crash, pending, rewards, rollup_json, row, successes

SUCCESS_ONLY = Gate(
    rules=(MetricRule(metric="success", role="primary", margin=0.1, required=True),)
)
REWARD = msgspec.structs.replace(Gate.for_reward(), reward_range=(-2.0, 4.0))
NOT_WORSE = msgspec.structs.replace(SUCCESS_ONLY, mode="non_inferiority")
SEQUENTIAL = msgspec.structs.replace(SUCCESS_ONLY, design="sequential")


def decided(results: list[EvalResult], gate: Gate | None = None, **more: Any) -> dict[str, Any]:
    decision: dict[str, Any] = rollup_json(results, gate, **more)["decision"]
    return decided_consistently(decision)


def decided_consistently(decision: dict[str, Any]) -> dict[str, Any]:
    assert (decision["recommend"] == "ship") == (not decision["reasons"])
    assert decision["sentence"].startswith(("Ship: ", "Hold: "))
    assert decision["reasons"] == list(
        dict.fromkeys(finding["reason"] for finding in decision["findings"])
    )
    return decision


def gains(n: int, mean: float, seed: int = 1) -> list[float]:
    values = np.random.default_rng(seed).normal(size=n)
    return (values - values.mean() + mean).tolist()  # type: ignore[no-any-return]


def test_many_wins_and_few_losses_ship() -> None:
    decision = decided(successes(12, 1, 27))
    assert decision["recommend"] == "ship"
    assert decision["better"] == ["success"]
    assert decision["needed_n"] == 0
    assert decision["left_out"] == ["reward_total", "collision_count"]
    assert decision["sentence"].startswith(
        "Ship: 40 pairs measured; success +27.5 points, at least"
    )


def test_as_many_wins_as_losses_hold() -> None:
    decision = decided(successes(5, 5, 90))
    assert decision["reasons"] == ["not_better"]
    assert decision["needed_n"] is None
    assert "nothing says that more pairs would show it" in decision["sentence"]


def test_a_clear_loss_is_a_regression_and_no_number_of_pairs_helps() -> None:
    decision = decided(successes(0, 12, 28))
    assert decision["reasons"] == ["regression:success", "not_better"]
    assert decision["needed_n"] is None


def test_too_few_pairs_hold_and_say_how_many_more() -> None:
    decision = decided(successes(3, 0, 9), SUCCESS_ONLY, total=25)
    assert decision["reasons"] == ["missing_data", "insufficient_n", "not_better"]
    assert decision["needed_n"] == 13
    start = "Hold: 12 of 25 pairs measured (missing: 13 pending, counted as lost); success +25.0"
    assert decision["sentence"].startswith(start)
    assert "13 pairs of this run have no result yet" in decision["sentence"]
    assert decision["next_step"] == "Finish the run: 13 of 25 pairs have no result yet."


def test_a_loss_that_is_not_shown_but_not_ruled_out_asks_for_more_pairs() -> None:
    decision = decided(successes(3, 3, 24), NOT_WORSE)
    assert decision["reasons"] == ["could_be_worse:success"]
    assert 80 < decision["needed_n"] < 180


def test_a_refactoring_ships_when_it_is_not_worse() -> None:
    assert decided(successes(0, 0, 29), NOT_WORSE)["recommend"] == "ship"
    assert decided(successes(0, 0, 28), NOT_WORSE)["reasons"] == ["could_be_worse:success"]
    assert decided(successes(0, 0, 24), NOT_WORSE)["reasons"][0] == "insufficient_n"
    decision = decided(successes(2, 4, 194), NOT_WORSE)
    assert decision["recommend"] == "ship"
    assert "not worse than the gate allows" in decision["sentence"]


def test_a_loss_that_was_not_shown_is_never_called_a_regression() -> None:
    for gate in (NOT_WORSE, SUCCESS_ONLY):
        decision = decided(successes(0, 4, 26), gate)
        assert mcnemar_exact(0, 4).worse > 0.05
        assert "regression:success" not in decision["reasons"]
        assert decision["reasons"][0] == "could_be_worse:success"
        assert decision["needed_n"] > 30, "pairs that tell whether it is so"
    assert "regression:success" in decided(successes(0, 5, 25), SUCCESS_ONLY)["reasons"]


def test_crashes_count_as_losses() -> None:
    rows = successes(12, 1, 27)
    crashed = [crash(100 + place) for place in range(4)]
    summary = rollup_json(rows + crashed)
    assert summary["success_rate"]["losses"] == 5
    assert summary["success_rate"]["crashes"] == 4
    assert summary["success_rate"]["n_pairs"] == 44
    assert summary["success_rate"]["paired_delta"] == pytest.approx(7 / 44)
    assert summary["success_rate"]["delta"] == pytest.approx(11 / 40), "other clients' mean stays"
    assert summary["counts"]["failed"] == 4
    assert "(4 crashed)" in summary["decision"]["sentence"]


def test_a_crash_where_the_baseline_failed_too_lost_nothing() -> None:
    summary = rollup_json([*successes(2, 0, 8), crash(50, success_baseline=False)])
    assert (summary["success_rate"]["losses"], summary["success_rate"]["n_pairs"]) == (0, 11)


def test_a_candidate_that_only_crashes_is_worse() -> None:
    decision = decided([crash(place, success_baseline=True) for place in range(30)])
    assert decision["reasons"] == ["regression:success", "not_better"]


def test_crashes_where_every_baseline_failed_are_no_loss_and_no_measurement() -> None:
    tied = [crash(place, success_baseline=False) for place in range(99)]
    for rows in (tied, [*tied, crash(99, success_baseline=True)]):
        decision = decided(rows, NOT_WORSE)
        assert decision["reasons"] == ["not_measured"], "a margin is not kept by crashing"


def test_crashes_alone_say_nothing_about_a_success_nobody_knows() -> None:
    decision = decided([crash(place) for place in range(30)])
    assert decision["reasons"] == ["not_measured"]
    assert "(30 crashed)" in decision["sentence"]
    assert "why no replay came to its end" in decision["next_step"]
    assert "Measure the outcome" in decided([row(0)])["next_step"], "it ended, and nobody measured"


def test_crashing_does_not_help_the_reward() -> None:
    """Without its crashes the candidate would look better."""
    some = rewards(gains(60, 0.5))
    assert decided(some, REWARD)["recommend"] == "ship"
    crashed = some + [crash(100 + place) for place in range(4)]
    summary = rollup_json(crashed, REWARD)
    assert summary["decision"]["reasons"] == ["not_better"]
    assert summary["reward_mean"]["crashes"] == 4
    assert summary["reward_mean"]["note"].startswith(
        "4 crashed, counted as the lowest reward, but not in the mean of each policy"
    )


def test_a_crash_is_a_loss_where_no_measured_pair_is_one() -> None:
    """The worst pair that was measured may be a gain, or no difference at all."""
    margin = MetricRule(metric="reward_total", role="primary", margin=0.5, required=True)
    not_worse = Gate(mode="non_inferiority", rules=(margin,))
    equal = [row(place, reward=(10.0, 10.0)) for place in range(150)]
    assert decided(equal, not_worse)["recommend"] == "ship"
    crashed = [crash(200 + place) for place in range(6)]
    summary = rollup_json(equal + crashed, not_worse)
    assert summary["decision"]["recommend"] == "hold"
    assert summary["reward_mean"]["paired_delta"] == pytest.approx(-60 / 156)
    gained = rollup_json([row(place, reward=(1.0, 2.0)) for place in range(28)] + crashed)
    assert gained["reward_mean"]["paired_delta"] == pytest.approx((28 - 6 * 2) / 34)


def test_a_guard_whose_values_are_all_nonsense_is_not_left_out() -> None:
    decision = decided(successes(20, 0, 20, collisions=(3, -5)))
    assert decision["reasons"] == ["not_measured"]
    assert "40 values" in decision["findings"][0]["text"]


def test_a_time_to_goal_of_few_pairs_is_no_claim() -> None:
    rules = (
        MetricRule(metric="success", role="guard"),
        MetricRule(metric="time_to_goal_s", role="primary"),
    )
    reached = [row(place, success=(True, True), time=(10, 9 - place / 50)) for place in range(150)]
    assert decided(reached, Gate(rules=rules))["better"] == ["time_to_goal_s"]
    failed = [row(place, success=(False, False)) for place in range(5, 30)]
    decision = decided(reached[:5] + failed, Gate(rules=rules))
    assert decision["reasons"] == ["not_better"]
    assert decision["needed_n"] >= 20


@pytest.mark.parametrize("denied", [False, "false", 0, "no", {}])
def test_only_a_yes_says_that_the_situation_was_the_same(denied: Any) -> None:
    for name, reason in (
        ("env_match", "env_mismatch"),
        ("deterministic", "nondeterministic_baseline"),
    ):
        results = successes(12, 1, 27, repro={name: denied})
        assert decided(results)["reasons"] == [reason]
        assert decided(successes(12, 1, 27, repro={name: None}))["recommend"] == "ship"


def test_an_early_stop_does_not_excuse_pairs_that_were_taken_away() -> None:
    results = successes(12, 1, 27)
    assert decided(results, SEQUENTIAL, total=80)["recommend"] == "ship"
    decision = decided(results, SEQUENTIAL, total=80, deleted=40)
    assert decision["reasons"] == ["missing_data"]


def test_a_reward_alone_can_ship() -> None:
    decision = decided(rewards(gains(60, 0.5), evidence="counterfactual"), REWARD)
    assert decision["recommend"] == "ship"
    assert decision["better"] == ["reward_total"]
    assert "better on reward" in decision["sentence"]


def test_by_default_a_better_reward_ships_where_no_baseline_has_a_success() -> None:
    better = rewards(gains(150, 0.5))
    decision = decided(better)
    assert (decision["recommend"], decision["better"]) == ("ship", ["reward_total"])
    assert "was not ruled out" in decision["sentence"]
    assert decision["gate"] == Gate.for_reward().as_dict()
    assert decided(better, Gate())["reasons"] == ["not_measured"], "asked for by name, it is needed"


def test_by_default_a_success_of_one_baseline_has_to_be_measured() -> None:
    """A candidate cannot leave out the success that its baseline has."""
    better = rewards(gains(150, 0.5))
    better[7].metrics["success_baseline"] = True
    decision = decided(better)
    assert (decision["gate"], decision["reasons"]) == (Gate().as_dict(), ["not_measured"])


def test_by_default_collisions_guard_a_better_reward() -> None:
    better = rewards(gains(150, 0.5))
    for number, each in enumerate(better):
        each.metrics.update(collision_count_baseline=0, collision_count_candidate=number % 2)
        each.metrics["evidence"]["collision_count"] = "closed_loop"
    assert decided(better)["reasons"] == ["regression:collision_count"]


def test_a_reward_that_may_yet_be_shown_says_how_many_more() -> None:
    decision = decided(rewards(gains(30, 0.2)), REWARD)
    assert decision["reasons"] == ["not_better"]
    assert 100 < decision["needed_n"] < 400


def test_a_worse_reward_holds_however_good_the_success() -> None:
    values = gains(40, -0.6)
    results = successes(12, 0, 28)
    for result, value in zip(results, values, strict=True):
        result.metrics.update(reward_total_baseline=0.0, reward_total_candidate=value)
        result.metrics["evidence"]["reward_total"] = "closed_loop"
    assert decided(results)["reasons"] == ["regression:reward_total"]


def test_a_guard_that_got_worse_holds_and_is_not_corrected_for() -> None:
    results = successes(12, 0, 28, collisions=(0, 0))
    assert decided(results)["recommend"] == "ship"
    for result in results[:5]:
        result.metrics["collision_count_candidate"] = 1
    assert decided(results)["reasons"] == ["regression:collision_count"]
    results[0].metrics["collision_count_candidate"] = 0
    assert decided(results)["recommend"] == "ship", "four of forty are still within chance"


def test_a_gate_may_forbid_even_one_catastrophe() -> None:
    results = successes(12, 0, 28, collisions=(0, 0))
    results[0].metrics["collision_count_candidate"] = 1
    strict = MetricRule(metric="collision_count", role="guard", most_catastrophes=0)
    gate = Gate(rules=(*Gate().rules[:2], strict))
    assert decided(results)["recommend"] == "ship"
    assert decided(results, gate)["reasons"] == ["catastrophes:collision_count"]


def test_a_guard_with_a_margin_has_to_rule_it_out() -> None:
    rule = MetricRule(metric="reward_total", role="guard", margin=0.2)
    gate = Gate(rules=(SUCCESS_ONLY.rules[0], rule), reward_range=(-3.0, 3.0))
    results = successes(12, 0, 28)
    for result, value in zip(results, gains(40, 0.0), strict=True):
        result.metrics.update(reward_total_baseline=0.0, reward_total_candidate=value)
        result.metrics["evidence"]["reward_total"] = "closed_loop"
    decision = decided(results, gate)
    assert decision["reasons"] == ["could_be_worse:reward_total"]
    assert 100 < decision["needed_n"] < 400
    wide = msgspec.structs.replace(rule, margin=0.7)
    accepting = msgspec.structs.replace(gate, rules=(SUCCESS_ONLY.rules[0], wide))
    assert decided(results, accepting)["recommend"] == "ship"
    undeclared = msgspec.structs.replace(accepting, reward_range=None)
    assert decided(results, undeclared)["reasons"] == ["undeclared_range"]


def test_holm_asks_more_of_two_chances_than_of_one() -> None:
    wins = successes(6, 0, 34)
    assert mcnemar_exact(6, 0).better < 0.025
    assert decided(wins)["recommend"] == "ship"
    five = successes(5, 0, 35)
    assert decided(five)["recommend"] == "ship", "0.031 with one primary measured"
    for result, value in zip(five, gains(40, 0.0), strict=True):
        result.metrics.update(reward_total_baseline=0.0, reward_total_candidate=value)
        result.metrics["evidence"]["reward_total"] = "closed_loop"
    assert decided(five)["recommend"] == "ship", "a reward without a range cannot be claimed"
    declared = Gate(reward_range=(-3.0, 3.0))
    assert decided(five, declared)["reasons"] == ["not_better"], "0.031 is not below 0.05 / 2"


@pytest.mark.parametrize("evidence", ["asserted", "open_loop", "not_measured"])
def test_evidence_the_gate_does_not_take_holds(evidence: str) -> None:
    decision = decided(successes(12, 0, 28, evidence=evidence))
    assert "not_measured" in decision["reasons"]
    assert decision["needed_n"] is None


def test_what_the_policy_says_of_itself_ships_only_when_the_gate_takes_it() -> None:
    gate = Gate(evidence=("closed_loop", "asserted"))
    assert decided(successes(12, 0, 28, evidence="asserted"), gate)["recommend"] == "ship"


def test_numbers_of_two_kinds_do_not_average() -> None:
    gate = Gate(evidence=("closed_loop", "asserted"))
    mixed = successes(12, 0, 28)
    mixed[3] = row(3, success=(False, True), evidence="asserted")
    decision = decided(mixed, gate)
    assert "mixed_evidence" in decision["reasons"]
    assert "partly closed_loop and partly asserted" in decision["sentence"]


def test_gaps_hold() -> None:
    results = successes(12, 0, 28)
    gaps = [row(100 + place) for place in range(5)]
    decision = decided(results + gaps)
    assert decision["reasons"] == ["missing_data"]
    assert "success is missing in 5 of 45 pairs (5 candidate)" in decision["findings"][0]["text"]
    assert decided(results + gaps[:2])["recommend"] == "ship", "12 to 2 is still better"
    waiting = decided(results + [pending(100 + place) for place in range(5)])
    assert waiting["reasons"] == ["missing_data"]
    assert waiting["needed_n"] == 5
    ignoring = Gate(missing="ignore")
    assert decided(results + gaps, ignoring)["reasons"] == ["missing_data"]
    ignored = decided(results + gaps[:4], ignoring)
    assert ignored["recommend"] == "ship"
    assert "(missing: 4 candidate, ignored)" in ignored["sentence"]


def test_another_environment_or_seed_holds() -> None:
    results = successes(12, 0, 28)
    checked = {"verified": True}
    results[7].metrics["repro"] = {**checked, "env_match": False, "deterministic": True}
    assert decided(results)["reasons"] == ["env_mismatch"]
    seeds = {"baseline": 1, "candidate": 2}
    results[7].metrics["repro"] = {**checked, "env_match": True, "seed": seeds}
    assert decided(results)["reasons"] == ["env_mismatch"]
    unknown = {"baseline": None, "candidate": 2}
    results[7].metrics["repro"] = {**checked, "env_match": None, "seed": unknown}
    assert decided(results)["recommend"] == "ship"


def test_a_baseline_that_does_not_repeat_itself_holds() -> None:
    results = successes(12, 0, 28)
    results[7].metrics["repro"] = {"verified": True, "deterministic": False}
    assert decided(results)["reasons"] == ["nondeterministic_baseline"]


def test_one_failure_on_a_critical_scenario_holds() -> None:
    results = successes(12, 1, 27)
    lost = results[12].baseline_episode_id
    assert decided(results, critical={lost: "sc-1"})["reasons"] == ["critical_scenario:sc-1"]
    won = results[0].baseline_episode_id
    assert decided(results, critical={won: "sc-2", "ep-elsewhere": "sc-3"})["recommend"] == "ship"


@pytest.mark.parametrize(
    "result",
    [
        crash(5, success_baseline=False),
        pending(5),
        row(5),
        row(5, success=(True, True), collisions=(0, 1)),
    ],
)
def test_a_critical_scenario_passes_only_when_it_was_seen_to(result: EvalResult) -> None:
    results = successes(20, 0, 40, collisions=(0, 0))
    results[5] = result
    decision = decided(results, critical={"ep-0005": "sc-1"})
    assert decision["reasons"] == ["critical_scenario:sc-1"]


def test_without_success_in_the_gate_a_critical_scenario_needs_no_success() -> None:
    results = rewards(gains(60, 0.5))
    critical = {"ep-0005": "sc-1"}
    assert decided(results, REWARD, critical=critical)["recommend"] == "ship"


def test_nothing_on_a_threshold_ships() -> None:
    """The margin is moved onto the bound itself, and a little to either side of it."""
    results = successes(3, 1, 46)
    bound = -tail_bound(np.array([1.0] * 3 + [-1.0] + [0.0] * 46), 1.0, 0.05)

    def verdict(margin: float) -> str:
        rule = msgspec.structs.replace(NOT_WORSE.rules[0], margin=margin)
        return str(decided(results, msgspec.structs.replace(NOT_WORSE, rules=(rule,)))["recommend"])

    assert verdict(bound) == "hold"
    assert verdict(bound - 1e-6) == "hold"
    assert verdict(bound + 1e-6) == "ship"


def test_a_p_value_of_exactly_alpha_does_not_ship() -> None:
    exact = msgspec.structs.replace(SUCCESS_ONLY, alpha=0.03125)
    assert decided(successes(5, 0, 35), exact)["reasons"] == ["not_better"]
    above = msgspec.structs.replace(SUCCESS_ONLY, alpha=0.0313)
    assert decided(successes(5, 0, 35), above)["recommend"] == "ship"


def test_time_to_goal_never_ships_on_its_own() -> None:
    rules = (
        MetricRule(metric="time_to_goal_s", role="primary"),
        MetricRule(metric="success", role="guard", margin=0.1),
    )
    gate = Gate(rules=rules)
    times = gains(150, 3.0)
    timed = [row(place, time=(20.0, 20.0 - gain)) for place, gain in enumerate(times)]
    assert decided(timed, gate)["reasons"] == ["not_better"], "nobody knows who reached the goal"
    both = [
        row(place, success=(True, True), time=(20.0, 20.0 - gain))
        for place, gain in enumerate(times)
    ]
    assert decided(both, gate)["better"] == ["time_to_goal_s"]


def test_sequential_superiority_comes_from_the_bet_alone() -> None:
    """Six wins of six convince the exact test, and not yet the one that may be asked again and again."""
    assert decided(successes(6, 0, 30), SUCCESS_ONLY)["recommend"] == "ship"
    assert decided(successes(6, 0, 30), SEQUENTIAL)["reasons"] == ["not_better"]
    summary = rollup_json(successes(7, 0, 30), SEQUENTIAL)
    assert summary["decision"]["recommend"] == "ship"
    assert summary["sequential"]["e_better"] > summary["sequential"]["threshold"] == 20
    assert summary["success_rate"]["p_value"] == pytest.approx(
        1 / summary["sequential"]["e_better"]
    )


def test_a_reward_does_not_ship_a_sequential_run() -> None:
    results = successes(0, 0, 150)
    for result, value in zip(results, gains(150, 2.0), strict=True):
        result.metrics.update(reward_total_baseline=0.0, reward_total_candidate=value)
        result.metrics["evidence"]["reward_total"] = "closed_loop"
    assert decided(results)["better"] == ["reward_total"]
    assert decided(results, Gate(design="sequential"))["reasons"] == ["not_better"]


def test_a_sequential_run_may_stop_either_way_before_its_end() -> None:
    won = decided(successes(9, 0, 30), SEQUENTIAL, total=200)
    assert (won["recommend"], won["early_stop"]) == ("ship", "ship")
    lost = decided(successes(0, 8, 2), SEQUENTIAL, total=200)
    assert (lost["recommend"], lost["early_stop"]) == ("hold", "hold")
    assert "regression:success" in lost["reasons"]
    open_still = decided(successes(3, 1, 30), SEQUENTIAL, total=200)
    assert (open_still["recommend"], open_still["early_stop"]) == ("hold", None)
    assert open_still["needed_n"] is not None
    assert decided(successes(9, 0, 30), SEQUENTIAL)["early_stop"] is None, "nothing is left to stop"


def test_a_sequential_run_that_only_must_not_be_worse_runs_to_its_end() -> None:
    gate = msgspec.structs.replace(NOT_WORSE, design="sequential")
    assert decided(successes(0, 0, 60), gate, total=200)["reasons"] == ["missing_data"]
    assert decided(successes(0, 0, 60), gate, total=60)["recommend"] == "ship"
    worse = decided(successes(0, 30, 30), gate, total=200)
    assert (worse["recommend"], worse["early_stop"]) == ("hold", "hold")
    a_little = decided(successes(0, 9, 591), gate, total=2000)
    assert a_little["early_stop"] is None, "within the margin, for all one can say"


def test_an_empty_run_holds() -> None:
    decision = decided([])
    assert decision["reasons"] == ["not_measured"]
    assert decision["sentence"].startswith("Hold: 0 pairs measured; ")
    assert decided([], total=10)["sentence"].startswith("Hold: 0 of 10 pairs measured; ")


def test_the_needed_number_of_pairs_is_about_enough() -> None:
    """A new run of that size, with pairs of the same kind, ships."""
    results = successes(4, 1, 45)
    needed = decided(results, SUCCESS_ONLY)["needed_n"]
    share = needed / 50
    grown = successes(round(4 * share), round(share), round(45 * share))
    assert decided(grown, SUCCESS_ONLY)["recommend"] == "ship"


def test_judging_columns_needs_nothing_that_is_only_shown() -> None:
    columns = ResultColumns.of(successes(12, 0, 28))
    facts, statistics = measured(columns, Gate())
    verdict = judge(statistics, Gate(), facts)
    assert verdict.recommend == "ship"
    assert statistics["success"].judged.lower(0.05) > 0
