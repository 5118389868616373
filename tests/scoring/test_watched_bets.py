"""Watched bets: a sequential run bets on success or on a bounded reward, in the order of ids, and counts clusters."""

from __future__ import annotations

import numpy as np
import pytest

from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate, MetricRule
from rollbook.scoring import rollup
from rollbook.scoring.decision import judge
from rollbook.scoring.looks import leading_pairs
from rollbook.scoring.paired_tests import log_e_value
from rollbook.scoring.result_columns import ResultColumns
from rollbook.scoring.run_rollup import measured
from rollbook.scoring.watched_bets import WatchedBets, has_crossed, watched_metric
from tests.scoring.result_rows import at, pending, rewards, rollup_json, row, successes

ON_SUCCESS = Gate(design="sequential")
ON_REWARD = Gate(
    design="sequential",
    reward_range=(-4.0, 4.0),
    rules=(MetricRule(metric="reward_total", role="primary", required=True),),
)
WITH_A_MARGIN = Gate(
    design="sequential",
    reward_range=(-4.0, 4.0),
    rules=(
        MetricRule(metric="reward_total", role="primary", required=True),
        MetricRule(metric="success", role="primary", margin=0.1, required=True),
    ),
)
"""The reward is bet on, and success must not lose ten points."""
GAINS = np.random.default_rng(9).normal(1.0, 1.0, 60).clip(-4, 3).tolist()


def test_a_reward_that_is_better_ships_before_the_run_is_over() -> None:
    summary = rollup_json(rewards(GAINS), ON_REWARD, total=400)
    assert summary["decision"]["recommend"] == summary["decision"]["early_stop"] == "ship"
    assert summary["decision"]["better"] == ["reward_total"]
    assert summary["sequential"]["metric"] == "reward_total"
    assert summary["sequential"]["e_better"] > summary["sequential"]["threshold"] == 20
    assert summary["reward_mean"]["p_value"] == pytest.approx(1 / summary["sequential"]["e_better"])
    assert summary["reward_mean"]["interval"] is None, "a bound holds for one look"


def test_a_reward_that_is_worse_ends_the_run_too() -> None:
    summary = rollup_json(rewards([-gain for gain in GAINS]), ON_REWARD, total=400)
    assert summary["decision"]["recommend"] == summary["decision"]["early_stop"] == "hold"
    assert "regression:reward_total" in summary["decision"]["reasons"]


def test_a_reward_that_is_not_shown_yet_says_about_how_many_pairs_it_takes() -> None:
    summary = rollup(rewards(GAINS[:26]), ON_REWARD)
    assert summary.decision.reasons == ("not_better",)
    assert summary.decision.needed_n is not None
    assert 26 < summary.decision.needed_n < 120


def test_the_first_primary_with_a_known_worst_loss_is_bet_on() -> None:
    reward, success = (
        MetricRule(metric=name, role="primary") for name in ("reward_total", "success")
    )
    assert watched_metric(Gate()) == "success"
    assert watched_metric(Gate(rules=(reward, success))) == "success"
    assert watched_metric(Gate(rules=(reward, success), reward_range=(0, 1))) == "reward_total"
    assert watched_metric(Gate.for_reward()) is None


def test_a_pair_without_a_result_hides_all_pairs_after_it() -> None:
    """Otherwise a candidate could hang where it would fail, and ship on the rest."""
    won = successes(40, 0, 0)
    assert rollup(won, ON_SUCCESS, total=60).decision.recommend == "ship"
    hung: list[EvalResult] = [each for place, each in enumerate(won) if place not in (3, 9)]
    hung += [pending(3), pending(9)]
    summary = rollup(hung, ON_SUCCESS, total=60)
    assert summary.decision.recommend == "hold"
    assert summary.success_rate.n_pairs == 3
    assert summary.decision.early_stop is None
    assert leading_pairs(np.array([True, True, False, True])) == 2


def test_a_lasting_reason_to_hold_ends_the_run() -> None:
    changed = {"verified": False, "env_changed": ["max_steps"]}
    results = [row(place, success=(False, True), repro=changed) for place in range(30)]
    assert rollup(results, ON_SUCCESS, total=60).decision.early_stop == "hold"
    assert rollup(results, Gate(looks=2), total=60).decision.early_stop == "hold"
    assert rollup(results, Gate(), total=60).decision.early_stop is None, "it is judged once"


def test_missing_outcomes_are_lost_bets() -> None:
    gains, known = np.array([1.0] * 20 + [-8.0] * 3), np.array([True] * 20 + [False] * 3)
    bets = WatchedBets.of(gains, known, 8.0, is_exact=False)
    assert bets.better < bets.better_measured
    success = WatchedBets.of(np.sign(gains), known, 1.0, is_exact=True)
    assert success.better < success.better_measured


def test_a_cluster_counts_when_all_its_pairs_have_a_result() -> None:
    gains, known = np.ones(30), np.ones(30, bool)
    scenes = np.repeat(np.arange(10), 3)
    alone = WatchedBets.of(gains, known, 1.0, is_exact=False)
    whole = WatchedBets.of(gains, known, 1.0, is_exact=False, clusters=scenes)
    open_ = WatchedBets.of(
        gains, known, 1.0, is_exact=False, clusters=scenes, unfinished=np.array([8, 9])
    )
    eight = WatchedBets.of(gains[:8], known[:8], 1.0, is_exact=False)
    assert open_ == pytest.approx(eight)
    assert eight.better < whole.better < alone.better


def test_equal_policies_in_scenes_are_rarely_called_better() -> None:
    """20 scenes of 10 pairs, correlation .5, looked at after every scene; 200 runs have a standard error of .015."""
    rng = np.random.default_rng(21)
    known, scenes = np.ones(200, bool), np.repeat(np.arange(20), 10)
    as_pairs = as_scenes = 0
    for _ in range(200):
        kind = rng.choice([-1.0, 0.0, 1.0], 20, p=[0.3, 0.4, 0.3])
        own = rng.choice([-1.0, 0.0, 1.0], (20, 10), p=[0.3, 0.4, 0.3])
        gains = np.where(rng.random((20, 10)) < 0.7, kind[:, None], own).ravel()
        ever = [False, False]
        for seen in range(50, 201, 50):
            part = gains[:seen], known[:seen], 1.0
            pairs = WatchedBets.of(*part, is_exact=True)
            whole = WatchedBets.of(*part, is_exact=False, clusters=scenes[:seen])
            ever = [
                ever[0] or has_crossed(pairs.better, 0.05),
                ever[1] or has_crossed(whole.better, 0.05),
            ]
        as_pairs, as_scenes = as_pairs + ever[0], as_scenes + ever[1]
    assert as_pairs / 200 > 0.15
    assert as_scenes / 200 <= 0.05 + 3 * 0.015


def test_a_run_ships_early_only_after_its_critical_scenarios_were_passed() -> None:
    won = successes(30, 0, 0)
    for gate in (ON_SUCCESS, Gate(looks=2)):
        critical = {"ep-0050": "s-1"}
        waiting = rollup([*won, pending(50)], gate, total=60, critical=critical)
        assert waiting.decision.early_stop is None
        measured = row(50, success=(False, True))
        passed = rollup([*won, measured], gate, total=60, critical=critical)
        assert passed.decision.early_stop == "ship"


def test_a_margin_is_not_passed_by_looking_often() -> None:
    """The reward, which is bet on, is better, and success is worse by the margin: a test for one look, made after every
    ten pairs, would pass in about a quarter of the runs."""
    rng = np.random.default_rng(3)
    ships = sum(_ever_ships(rng, WITH_A_MARGIN) for _ in range(60))
    assert ships <= 8, "0.05 of 60, and three standard errors"


def _ever_ships(rng: np.random.Generator, gate: Gate) -> bool:
    luck, gains = rng.random(400), rng.normal(0.7, 0.5, 400).clip(-2, 2)
    kinds = np.where(luck < 0.05, 1, np.where(luck < 0.20, -1, 0)).tolist()
    sides = {1: (False, True), -1: (True, False), 0: (True, True)}
    rows = [
        row(place, success=sides[kind], reward=(0.0, float(gain)))
        for place, (kind, gain) in enumerate(zip(kinds, gains, strict=True))
    ]
    columns = ResultColumns.of(rows)
    for count in range(30, 401, 10):
        facts, statistics = measured(columns.first(count), gate, total=400)
        if judge(statistics, gate, facts).recommend == "ship":
            return True
    return False


def test_a_margin_that_is_not_passed_yet_says_about_how_many_pairs_it_takes() -> None:
    rows = [row(place, success=(True, True), reward=(0.0, 2.0)) for place in range(400)]
    early = rollup(rows[:30], WITH_A_MARGIN).decision
    assert early.reasons == ("could_be_worse:success",)
    assert early.needed_n is not None
    assert rollup(rows[: early.needed_n], WITH_A_MARGIN).decision.recommend == "ship"


def test_merged_pairs_are_bet_on_by_their_mean_gain_and_not_by_its_sign() -> None:
    """Many situations that are won by a little do not make up for a few that are lost completely."""
    little = [
        at(row(10 * place + again, success=(False, again == 0)), place)
        for place in range(30)
        for again in range(10)
    ]
    lost = [at(row(1000 + place, success=(True, False)), 1000 + place) for place in range(3)]
    summary = rollup(little + lost, Gate(design="sequential"))
    assert summary.success_rate.paired_delta == pytest.approx(0.0)
    assert "not_better" in summary.decision.reasons


def test_as_many_pairs_as_are_needed_ship_in_four_of_five_runs() -> None:
    decision = rollup(successes(9, 3, 48), ON_SUCCESS).decision
    assert decision.needed_n is not None
    luck = np.random.default_rng(4).random((2000, decision.needed_n))
    won, lost = (luck < 0.15).cumsum(axis=1), (luck > 0.95).cumsum(axis=1)
    ever = (log_e_value(won, lost) >= np.log(20)).any(axis=1)
    assert 0.75 < ever.mean() < 0.9
