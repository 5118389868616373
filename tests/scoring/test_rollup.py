"""Rollup: the summary every client knows, and beside it how sure one may be. Any JSON in, plain JSON out."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts.evals import RESULT_KEYS, EvalResult
from rollbook.contracts.gate import Gate
from rollbook.scoring.paired_tests import mcnemar_exact
from tests.scoring.result_rows import at, crash, pending, rewards, rollup_json, row, successes

SIDES = ("baseline", "candidate", "delta", "delta_is_better")


def six_episodes(evidence: str | None = "closed_loop") -> list[EvalResult]:
    """Whose means are those of the published example."""
    baseline = [(True, 0), (True, 1), (True, 2), (True, 2), (False, 2), (False, 3)]
    candidate = [(True, 0), (True, 0), (True, 0), (True, 0), (True, 1), (False, 1)]
    return [
        row(
            place,
            success=(before[0], after[0]),
            reward=(11.1, 16.4),
            collisions=(before[1], after[1]),
            time=(23.5, 19.1),
            evidence=evidence,
            ood_action_share=0.06,
        )
        for place, (before, after) in enumerate(zip(baseline, candidate, strict=True))
    ]


def test_the_published_example_reads_as_published() -> None:
    summary = rollup_json(six_episodes())
    shown = {
        key: [summary[key][side] for side in SIDES]
        for key in ("success_rate", "reward_mean", "collision_rate", "time_to_goal_s")
    }
    assert shown == {
        "success_rate": [pytest.approx(4 / 6), pytest.approx(5 / 6), pytest.approx(1 / 6), True],
        "reward_mean": [pytest.approx(11.1), pytest.approx(16.4), pytest.approx(5.3), True],
        "collision_rate": [
            pytest.approx(10 / 6),
            pytest.approx(2 / 6),
            pytest.approx(-8 / 6),
            True,
        ],
        "time_to_goal_s": [pytest.approx(23.5), pytest.approx(19.1), pytest.approx(-4.4), True],
    }
    assert summary["ood_action_share"] == {
        "baseline": None,
        "candidate": pytest.approx(0.06),
        "delta": None,
        "delta_is_better": None,
    }
    assert (summary["better_count"], summary["metric_total"]) == (4, 4)
    assert summary["recommend"] == "ship"


def test_what_the_vote_ships_on_six_episodes_the_decision_holds() -> None:
    decision = rollup_json(six_episodes())["decision"]
    assert decision["recommend"] == "hold"
    assert "insufficient_n" in decision["reasons"]


@pytest.mark.parametrize(
    ("better", "total", "recommend"),
    [
        *((0, 0, "hold"), (1, 1, "ship"), (1, 2, "hold"), (2, 2, "ship")),
        *((1, 3, "hold"), (2, 3, "ship"), (2, 4, "hold"), (3, 4, "ship")),
    ],
)
def test_the_vote_asks_for_more_than_half(better: int, total: int, recommend: str) -> None:
    names = ("success", "reward", "collisions", "time")
    moved = {"success": (False, True), "reward": (1, 2), "collisions": (1, 0), "time": (2, 1)}
    still = {"success": (True, True), "reward": (1, 1), "collisions": (1, 1), "time": (1, 1)}
    pairs = {name: (moved if place < better else still)[name] for place, name in enumerate(names)}
    measured: dict[str, Any] = {name: pairs[name] for name in names[:total]}
    summary = rollup_json([row(0, **measured)])
    assert (summary["better_count"], summary["metric_total"]) == (better, total)
    assert summary["recommend"] == recommend


def test_no_difference_is_not_better_and_still_has_a_vote() -> None:
    summary = rollup_json([row(0, reward=(3.0, 3.0))])
    assert summary["reward_mean"]["delta"] == 0
    assert summary["reward_mean"]["delta_is_better"] is False
    assert summary["metric_total"] == 1


def test_means_are_over_the_same_pairs_or_each_side_alone() -> None:
    paired = rollup_json([row(0, reward=(1.0, 2.0)), row(1, reward=(9.0, None))])["reward_mean"]
    assert [paired[side] for side in SIDES] == [1.0, 2.0, 1.0, True]
    alone = rollup_json([row(0, reward=(1.0, None)), row(1, reward=(3.0, None))])["reward_mean"]
    assert [alone[side] for side in SIDES] == [2.0, None, None, None]


def test_failed_and_pending_rows_are_counted_and_not_averaged() -> None:
    results = [*successes(1, 0, 1), crash(5, success_baseline=True), pending(6)]
    summary = rollup_json(results, total=10)
    assert summary["success_rate"]["candidate"] == 1.0
    assert summary["counts"] == {
        **{"total": 10, "complete": 2, "failed": 1, "pending": 7, "repeated": 0}
    }
    assert rollup_json(results, total=1)["counts"]["total"] == 4, "never less than there are"


def test_copied_outcomes_of_another_client_are_not_measured() -> None:
    same = successes(0, 0, 30, 10, evidence=None, reward=(2.0, 2.0))
    summary = rollup_json(same)
    assert summary["success_rate"]["evidence"] == "not_measured"
    assert summary["success_rate"]["n_pairs"] == 0
    assert summary["success_rate"]["interval"] is None
    assert summary["success_rate"]["delta"] == 0, "the plain summary stays what that client expects"
    assert "not_measured" in summary["decision"]["reasons"]


def test_of_another_client_only_pairs_in_which_something_differs_are_asserted() -> None:
    """One answer does not vouch for thirty copies."""
    mixed = successes(4, 0, 36, evidence=None, reward=(2.0, 2.0))
    summary = rollup_json(mixed, Gate(evidence=("asserted",), n_min=1))
    for key in ("success_rate", "reward_mean"):
        assert (summary[key]["evidence"], summary[key]["n_pairs"]) == ("asserted", 4)
    assert summary["decision"]["recommend"] == "hold"
    assert "missing_data" in summary["decision"]["reasons"]


def test_a_difference_in_any_outcome_vouches_for_all_of_its_pair() -> None:
    told = successes(0, 0, 30, evidence=None, reward=(2.0, 3.0))
    success = rollup_json(told)["success_rate"]
    assert (success["evidence"], success["n_pairs"]) == ("asserted", 30)
    news = rollup_json([row(0, success=(None, True), reward=(2.0, 2.0), evidence=None)])
    assert news["reward_mean"]["evidence"] == "asserted", "nobody could have copied the success"
    silent = rollup_json([row(0, success=(True, None), reward=(2.0, 2.0), evidence=None)])
    assert silent["reward_mean"]["evidence"] == "not_measured"


def test_evidence_is_named_per_outcome() -> None:
    kinds = {"success": "closed_loop", "reward_total": "asserted", "time_to_goal_s": "open_loop"}
    summary = rollup_json(
        [
            row(
                0,
                success=(True, True),
                reward=(1, 2),
                time=(1, 2),
                collisions=(0, 0),
                evidence=kinds,
            )
        ]
    )
    assert summary["success_rate"]["evidence"] == "closed_loop"
    assert summary["reward_mean"]["evidence"] == "asserted"
    assert summary["time_to_goal_s"]["evidence"] == "open_loop"
    assert "says nothing about the outcome" in summary["time_to_goal_s"]["note"]
    assert summary["collision_rate"]["evidence"] == "not_measured"


def test_an_outcome_comes_with_all_that_is_known_of_it() -> None:
    rng = np.random.default_rng(1)
    results = rewards(rng.normal(0.5, 1, 60).tolist(), evidence="counterfactual")
    reward = rollup_json(results, Gate.for_reward())["reward_mean"]
    assert reward["role"] == "primary"
    assert reward["method"] == "sign_flip+gaffke"
    assert reward["interval"][0] < reward["paired_delta"] < reward["interval"][1]
    assert reward["p_value"] < 0.05 < reward["p_worse"]
    assert reward["iqm"]["baseline"] == 1.0
    assert 0.5 < reward["probability_of_improvement"] < 1
    assert reward["catastrophes"] is None
    assert "was not ruled out" in reward["note"]
    assert (reward["worst_loss_declared"], reward["interval_level"]) == (False, 0.9)


def test_success_has_both_arms_and_a_belief() -> None:
    success = rollup_json([*successes(9, 3, 10, 8)])["success_rate"]
    assert success["interval"] == pytest.approx([-0.0220, 0.4013], abs=1e-4)
    assert (success["wins"], success["losses"]) == (9, 3)
    assert success["p_value"] == pytest.approx(0.0729980, abs=1e-6)
    assert success["mid_p"] < success["p_value"]
    assert success["wilson"]["candidate"][0] < 19 / 30 < success["wilson"]["candidate"][1]
    assert success["wilson"]["baseline"][0] < 13 / 30 < success["wilson"]["baseline"][1]
    assert 0.9 < success["bayes"]["p_better"] < success["bayes"]["p_not_worse"] < 1
    assert success["catastrophes"]["count"] == 3


def test_an_interval_is_in_the_sign_of_its_delta() -> None:
    rng = np.random.default_rng(2)
    fewer = [row(i, collisions=(3, int(k))) for i, k in enumerate(rng.integers(0, 3, 40))]
    collisions = rollup_json(fewer)["collision_rate"]
    assert collisions["interval"][0] < collisions["paired_delta"] < collisions["interval"][1] < 0
    assert collisions["p_value"] < 0.05, "fewer is better"


def test_too_few_pairs_have_no_interval() -> None:
    few = rollup_json(rewards([1.0, 2.0, 3.0]))["reward_mean"]
    assert few["interval"] is None
    assert few["p_value"] > 1 / 8
    alike = rollup_json(rewards([2.0] * 30))["reward_mean"]
    assert alike["interval"][0] < 2.0 == alike["interval"][1], "a larger loss was never seen"


def test_what_rounding_leaves_is_no_difference() -> None:
    results = [row(place, reward=(0.3, 0.1 + 0.2)) for place in range(40)]
    reward = rollup_json(results)["reward_mean"]
    assert (reward["p_value"], reward["p_worse"]) == (1.0, 1.0)
    assert rollup_json(results, Gate.for_reward())["decision"]["reasons"] == ["not_better"]


def test_no_collision_seen_is_not_no_collision_ever() -> None:
    note = rollup_json(successes(0, 0, 30, collisions=(0, 0)))["collision_rate"]["note"]
    assert "0/30 episodes with a collision on both sides: at most 3/30 (10.0%)" in note


def test_time_to_goal_is_compared_only_where_both_succeeded() -> None:
    results = [
        *successes(0, 0, 10, time=(20.0, 18.0)),
        row(20, success=(True, False), time=(20.0, 2.0)),
        row(21, success=(True, True), time=(20.0, None)),
    ]
    time = rollup_json(results)["time_to_goal_s"]
    assert (time["n_pairs"], time["n_total"]) == (10, 11)
    assert time["paired_delta"] == pytest.approx(-2.0)
    assert "given both succeed" in time["note"]


def test_values_of_the_wrong_kind_are_left_out_and_counted() -> None:
    results = rewards([1.0] * 10)
    wrong: list[Any] = ["12", [1], {"a": 1}, float("nan"), float("inf"), 10**400, 1e301]
    for result, value in zip(results, wrong, strict=False):
        result.metrics["reward_total_candidate"] = value
    reward = rollup_json(results)["reward_mean"]
    assert (reward["n_pairs"], reward["unusable"]) == (3, 7)
    results = successes(0, 0, 4)
    for result, value in zip(results, ["yes", 2, 1, None], strict=True):
        result.metrics["success_candidate"] = value
    success = rollup_json(results)["success_rate"]
    assert (success["n_pairs"], success["unusable"]) == (1, 2)
    negative = rollup_json([row(0, collisions=(0, -5))])["collision_rate"]
    assert (negative["n_pairs"], negative["unusable"]) == (0, 1)


def test_changes_of_actions_are_shown_and_have_no_direction() -> None:
    results = [
        row(
            place,
            action_l2_distance=float(place),
            actions={"scaled_distance": {"mean": 2.0 * place}, "ood_share": 0.5},
        )
        for place in range(3)
    ]
    summary = rollup_json(results)
    assert summary["action_l2_distance"] == {"mean": 1.0, "p95": pytest.approx(1.9)}
    assert summary["action_change"] == {
        **{"mean": 2.0, "p95": pytest.approx(3.8), "ood_share": 0.5, "n_pairs": 3},
        "evidence": None,
    }
    assert summary["metric_total"] == 0
    assert "regret" not in summary
    for place, kind in enumerate(("open_loop", "open_loop", "not_measured")):
        results[place].metrics["evidence"] = {"actions": kind}
    assert rollup_json(results)["action_change"]["evidence"] == "open_loop"
    results[0].metrics["evidence"] = {"actions": "closed_loop"}
    assert rollup_json(results)["action_change"]["evidence"] == "mixed"


def test_regret_is_summed_up_when_a_store_knows_it() -> None:
    regret = {"best_total": 4.0, "random_total": 1.0, "chosen_total": 3.0, "regret": 1.0}
    blob = {**regret, "regret_share": 1 / 3, "invalid_choices": 2, "steps": 5}
    summary = rollup_json([row(place, counterfactual=blob) for place in range(3)])
    assert summary["regret"] == {
        **{**regret, "regret_share": pytest.approx(1 / 3)},
        **{"n_pairs": 3, "invalid_choices": 6.0},
    }


def test_a_baseline_counts_once() -> None:
    results = successes(12, 0, 28)
    twice = rollup_json(results + results)
    assert twice["success_rate"]["n_pairs"] == 40
    assert twice["counts"]["repeated"] == 40
    failed_too = rollup_json([*results, crash(0)])
    assert failed_too["counts"] | {"total": 0} == {
        **{"total": 0, "complete": 39, "failed": 1, "pending": 0, "repeated": 1}
    }


# -------------------------------------------------------------------------------------- situations


def test_one_situation_run_thirty_times_is_one_pair() -> None:
    alone = rollup_json(successes(30, 0, 0, reward=(1.0, 2.0)))
    assert alone["decision"]["recommend"] == "ship"
    summary = rollup_json([at(each, 7) for each in successes(30, 0, 0, reward=(1.0, 2.0))])
    success, reward = summary["success_rate"], summary["reward_mean"]
    for outcome in (success, reward):
        counts = [outcome[key] for key in ("n_pairs", "n_total", "n_repeats")]
        assert counts == [1, 1, 29]
        assert outcome["p_value"] == 0.5
        assert "30 pairs of 1 situation" in outcome["note"]
    assert (success["wins"], success["delta"], reward["delta"]) == (1, 1.0, 1.0)
    decision = summary["decision"]
    assert (decision["recommend"], decision["reasons"][0]) == ("hold", "insufficient_n")
    assert "missing_data" not in decision["reasons"]
    assert decision["sentence"].startswith("Hold: 30 pairs of 1 situation measured;")


def test_a_situation_has_the_mean_of_its_pairs() -> None:
    """Two of three won is won, one of two is neither; rewards are averaged."""
    results = [
        at(row(0, success=(False, True), reward=(0.0, 3.0)), 1),
        at(row(1, success=(True, False), reward=(0.0, 1.0)), 2),
        at(row(2, success=(False, True), reward=(0.0, 0.0)), 1),
        at(row(3, success=(False, True), reward=(0.0, -1.0)), 2),
        at(row(4, success=(True, True), reward=(0.0, 0.0)), 1),
        at(row(5, success=(True, False), reward=(0.0, -2.0)), 3),
    ]
    summary = rollup_json(results)
    success, reward = summary["success_rate"], summary["reward_mean"]
    assert (success["wins"], success["losses"], success["n_pairs"]) == (1, 1, 3)
    assert success["paired_delta"] == pytest.approx((2 / 3 + 0 - 1) / 3)
    assert reward["paired_delta"] == pytest.approx((1.0 + 0.0 - 2.0) / 3)
    assert reward["probability_of_improvement"] == 0.5
    assert success["catastrophes"]["count"] == 2, "a disaster is one, whatever came of its repeats"
    assert success["wilson"] == {"baseline": None, "candidate": None}


def test_situations_won_by_a_little_do_not_make_up_for_those_lost_for_good() -> None:
    """60 situations of ten pairs: 50 won by one pair, 10 lost in all of them, which is 8 points worse on the whole."""
    little = [(False, True)] + [(True, True)] * 9
    kinds = [*little * 50, *[(True, False)] * 100]
    results = [at(row(i, success=pair), i // 10) for i, pair in enumerate(kinds)]
    summary = rollup_json(results)
    success = summary["success_rate"]
    assert (success["wins"], success["losses"], success["delta"]) == (
        50,
        10,
        pytest.approx(-1 / 12),
    )
    assert mcnemar_exact(50, 10).better < 0.001, "more often better"
    assert success["p_value"] > 0.5, "and worse on the whole"
    assert success["paired_delta"] == pytest.approx(-1 / 12)
    assert "could_be_worse:success" in summary["decision"]["reasons"]


def test_a_seed_names_no_situation() -> None:
    """One seed recorded all day long, or one that the environment ignores, says nothing about the start."""
    same_seed = {"seed": {"baseline": 1, "candidate": 1}, "env_version": {"baseline": "a"}}
    rows = [row(place, reward=(1, 2), repro=same_seed) for place in range(3)]
    assert rollup_json(rows)["reward_mean"]["n_pairs"] == 3
    odd = [row(place, reward=(1, 2), repro={"situation": 7}) for place in range(3)]
    assert rollup_json(odd)["reward_mean"]["n_pairs"] == 3, "a name is a text"
    only_one_measured = [at(row(0, reward=(1, 2)), 1), at(row(1, reward=(1, None)), 1)]
    reward = rollup_json(only_one_measured)["reward_mean"]
    assert [reward[key] for key in ("n_pairs", "n_total", "n_repeats")] == [1, 2, 0]


def test_repeats_of_situations_do_not_depend_on_the_order_of_results() -> None:
    results = [at(each, place % 20) for place, each in enumerate(mixed_run(60)[:60])]
    expected = json.dumps(rollup_json(results))
    assert json.loads(expected)["reward_mean"]["n_pairs"] == 20
    random.Random(0).shuffle(results)
    assert json.dumps(rollup_json(results)) == expected


def test_a_critical_scenario_fails_alone_in_its_situation() -> None:
    results = [at(each, 1) for each in successes(5, 1, 0)]
    decision = rollup_json(results, critical={"ep-0005": "sc-5"})["decision"]
    assert "critical_scenario:sc-5" in decision["reasons"]


def test_the_decision_carries_the_gate_it_was_made_by() -> None:
    gate = Gate(n_min=30, seed=7)
    decision = rollup_json([], gate)["decision"]
    assert decision["gate"] == gate.as_dict()
    assert decision["gate_digest"] == gate.digest


def mixed_run(count: int) -> list[EvalResult]:
    rng = np.random.default_rng(3)
    results: list[EvalResult] = [
        row(
            place,
            success=(bool(rng.random() < 0.7), bool(rng.random() < 0.8)),
            reward=(float(rng.normal()), float(rng.normal(0.2))),
            collisions=(int(rng.poisson(0.4)), int(rng.poisson(0.3))),
        )
        for place in range(count)
    ]
    return [*results, crash(count), pending(count + 1)]


def test_the_order_of_the_results_makes_no_difference() -> None:
    results = mixed_run(60)
    expected = json.dumps(rollup_json(results))
    for seed in range(3):
        random.Random(seed).shuffle(results)
        assert json.dumps(rollup_json(results)) == expected


def test_ten_thousand_episodes_roll_up() -> None:
    summary = rollup_json(mixed_run(10_000))
    assert summary["reward_mean"]["method"] == "sign_flip+gaffke"
    assert summary["decision"]["recommend"] == "ship"


NUMBERS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**300, max_value=10**320),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([1e300, -1e300, 5e-324, 1e-300, 0.0, -0.0, 1, 0, True]),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)
WORDS: st.SearchStrategy[object] = st.sampled_from(
    ["closed_loop", "counterfactual", "asserted", "open_loop", "not_measured", "?", None, 3, []]
)
OBJECTS = st.one_of(
    NUMBERS,
    st.dictionaries(
        st.sampled_from(
            [
                *("env_match", "deterministic", "seed", "env_version"),
                *("regret", "ood_share", "scaled_distance"),
            ]
        ),
        st.one_of(
            NUMBERS, st.dictionaries(st.sampled_from(["mean", "baseline", "candidate"]), NUMBERS)
        ),
    ),
)
METRICS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(RESULT_KEYS, NUMBERS),
        "evidence": st.one_of(
            NUMBERS,
            st.fixed_dictionaries(
                {"success": WORDS, "reward_total": WORDS, "collision_count": WORDS},
                optional={"time_to_goal_s": WORDS},
            ),
        ),
        "repro": OBJECTS,
        "counterfactual": OBJECTS,
        "actions": OBJECTS,
    },
)
ROWS = st.builds(
    EvalResult,
    baseline_episode_id=st.sampled_from([f"ep-{place}" for place in range(60)]),
    candidate_episode_id=st.none(),
    status=st.sampled_from(["complete", "complete", "complete", "failed", "pending"]),
    metrics=METRICS,
)
RUNS = st.lists(ROWS, max_size=60)
GATES = st.sampled_from(
    [
        Gate(),
        Gate.for_reward(),
        Gate(mode="non_inferiority", n_min=1, min_used_share=1.0),
        Gate(design="sequential", n_min=1, evidence=("asserted", "closed_loop")),
        Gate(design="sequential", mode="non_inferiority"),
    ]
)


@settings(max_examples=60, deadline=None)
@given(RUNS, GATES, st.integers(0, 80))
def test_no_json_makes_it_raise_or_answer_with_what_is_not_json(
    results: list[EvalResult], gate: Gate, total: int
) -> None:
    critical = {"ep-3": "sc-3", "ep-9": "sc-9"}
    summary = rollup_json(results, gate, total=total, critical=critical)
    text = json.dumps(summary, allow_nan=False)
    results.reverse()
    assert json.dumps(rollup_json(results, gate, total=total, critical=critical)) == text
    decision = summary["decision"]
    assert (decision["recommend"] == "ship") == (not decision["reasons"])


HUGE = st.sampled_from([1e300, -1e300, 5e-324, -5e-324, 1e-310, 0.0, 1.0, 1e150])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(HUGE, HUGE), min_size=8, max_size=70), GATES)
def test_huge_and_tiny_rewards_stay_numbers(pairs: list[tuple[float, float]], gate: Gate) -> None:
    results = [row(place, reward=pair) for place, pair in enumerate(pairs)]
    reward = rollup_json(results, gate)["reward_mean"]
    json.dumps(reward, allow_nan=False)
    assert reward["n_pairs"] == len(pairs)
