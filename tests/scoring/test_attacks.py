"""Attacks: ways to get "ship" for a policy that is not better. Small simulations with fixed seeds, of the whole rollup.

The rates of the rule are in the slow tests; here every attack that once worked has to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.contracts.evals import INFRASTRUCTURE, EvalResult
from rollbook.contracts.gate import Gate, MetricRule
from rollbook.scoring import rollup
from rollbook.scoring.decision import Verdict, judge
from rollbook.scoring.labels import Labels
from rollbook.scoring.result_columns import ResultColumns
from rollbook.scoring.run_rollup import measured
from tests.scoring.result_rows import at, crash, pending, rewards, row, successes

SUCCESS = Gate(rules=(MetricRule(metric="success", role="primary", margin=0.1, required=True),))
NOT_WORSE = msgspec.structs.replace(SUCCESS, mode="non_inferiority")
REWARD = Gate.for_reward()
RUNS = 100


def shipped(runs: int, one: Callable[[np.random.Generator], Verdict]) -> float:
    rng = np.random.default_rng(15)
    return float(np.mean([one(rng).recommend == "ship" for _ in range(runs)]))


def verdict(
    results: Sequence[EvalResult], gate: Gate, labels: Mapping[str, Labels] | None = None
) -> Verdict:
    facts, statistics = measured(ResultColumns.of(results), gate, labels=labels or {})
    return judge(statistics, gate, facts)


def in_scenes(scenes: int, size: int) -> dict[str, Labels]:
    return {f"ep-{place:04}": {"scene": (str(place // size),)} for place in range(scenes * size)}


def kinds_of(gains: NDArray[np.float64]) -> list[EvalResult]:
    """Success pairs of these gains: won, lost or the same."""
    sides = {1: (False, True), -1: (True, False), 0: (True, True)}
    return [row(place, success=sides[int(gain)]) for place, gain in enumerate(gains)]


# ------------------------------------------------------------------------------------------ clusters


def alike_in_scenes(rng: np.random.Generator, correlation: float) -> NDArray[np.float64]:
    """Ten scenes of ten pairs, equal policies."""
    scene = np.repeat(rng.normal(size=10), 10)
    return np.asarray(
        np.sqrt(correlation) * scene + np.sqrt(1 - correlation) * rng.normal(size=100)
    )


def test_pairs_of_one_scene_are_not_many_answers() -> None:
    gate = msgspec.structs.replace(REWARD, reward_range=(-2.0, 4.0))
    labels = in_scenes(10, 10)

    def one(rng: np.random.Generator, used: Gate) -> Verdict:
        return verdict(rewards(alike_in_scenes(rng, 0.8).clip(-3, 3).tolist()), used, labels)

    assert shipped(RUNS, lambda rng: one(rng, gate)) <= 0.115, "0.05 and three standard errors"
    alone = msgspec.structs.replace(gate, cluster="none")
    assert shipped(RUNS, lambda rng: one(rng, alone)) > 0.115, "ten answers counted as a hundred"


def test_success_of_scenes_that_are_won_or_lost_together_is_not_shown_by_their_pairs() -> None:
    labels = in_scenes(10, 10)

    def one(rng: np.random.Generator) -> Verdict:
        scenes = rng.choice([-1.0, 0.0, 1.0], 10, p=[0.3, 0.4, 0.3])
        return verdict(kinds_of(np.repeat(scenes, 10)), SUCCESS, labels)

    assert shipped(RUNS, one) <= 0.115


def test_a_decision_says_what_its_pairs_are_worth() -> None:
    gains = np.repeat([1.0] * 12 + [0.0] * 8, 5)
    summary = rollup(kinds_of(gains), SUCCESS, labels=in_scenes(20, 5))
    clusters = summary.success_rate.clusters
    assert clusters is not None
    assert (clusters.by, clusters.count, clusters.correlation) == ("scene", 20, 1.0)
    start = (
        "Ship: 100 pairs in 20 scenes, worth about 19; success +60.0 points, at least +40.0 points"
    )
    assert summary.decision.sentence.startswith(start)
    assert "; better on success." in summary.decision.sentence


def test_nine_scenes_are_too_few_however_many_pairs_they_have() -> None:
    labels = in_scenes(9, 40)
    decision = rollup(kinds_of(np.ones(360)), SUCCESS, labels=labels).decision
    assert decision.reasons == ("insufficient_clusters",)
    assert decision.findings[0].text == "the pairs are of 9 scenes, the gate asks for 10"
    assert (decision.needed_n, decision.needed_clusters) == (400, 10)


def test_a_margin_asks_for_as_many_scenes_as_it_takes_to_see_one_lost() -> None:
    equal = np.zeros(280)
    few = rollup(kinds_of(equal), NOT_WORSE, labels=in_scenes(28, 10)).decision
    assert few.reasons == ("insufficient_clusters",)
    assert few.needed_clusters == 29
    assert (
        rollup(kinds_of(np.zeros(290)), NOT_WORSE, labels=in_scenes(29, 10)).decision.recommend
        == "ship"
    )


def test_a_named_label_that_no_baseline_has_is_one_cluster() -> None:
    """Otherwise a misspelt name would switch clusters off."""
    gate = msgspec.structs.replace(SUCCESS, cluster="secne")
    decision = rollup(successes(20, 0, 20), gate).decision
    assert decision.reasons[0] == "insufficient_clusters"
    assert "of 40 have no 'secne' in their metadata" in decision.findings[0].text


def test_one_start_recorded_forty_times_is_one_cluster() -> None:
    """Where an environment cannot run again, nobody knows whether recordings with one start differ."""
    same = {"first_observation": "abc"}
    decision = rollup(
        [row(i, success=(False, True), repro=same) for i in range(40)], SUCCESS
    ).decision
    assert decision.reasons[0] == "insufficient_clusters"
    traces = [{**same, "situation": str(i)} for i in range(40)]
    known = [row(i, success=(False, True), repro=each) for i, each in enumerate(traces)]
    assert rollup(known, SUCCESS).decision.reasons[0] == "insufficient_clusters"
    known = [row(i, success=(False, True), repro={"situation": str(i)}) for i in range(40)]
    assert rollup(known, SUCCESS).decision.recommend == "ship", "starts that were told apart"


# --------------------------------------------------------------------------------------------- tails


def test_a_skewed_reward_with_equal_means_does_not_ship() -> None:
    gate = msgspec.structs.replace(REWARD, reward_range=(-19.0, 2.0))

    def one(rng: np.random.Generator, used: Gate) -> Verdict:
        return verdict(rewards((1 - rng.exponential(1.0, 25)).tolist()), used)

    assert shipped(RUNS, lambda rng: one(rng, gate)) == 0
    assert shipped(10, lambda rng: one(rng, REWARD)) == 0, (
        "without a range there have to be 150 pairs"
    )


@pytest.mark.parametrize("n", [25, 100])
def test_a_rare_disaster_does_not_ship(n: int) -> None:
    """A little better in 98 %, and a loss of 20 in 2 %: worse on the whole."""
    gate = msgspec.structs.replace(REWARD, reward_range=(-19.0, 2.0))

    def one(rng: np.random.Generator) -> Verdict:
        return verdict(rewards(np.where(rng.random(n) < 0.02, -20.0, 0.2).tolist()), gate)

    assert shipped(RUNS, one) == 0


def test_a_reward_outside_its_declared_range_holds() -> None:
    gate = msgspec.structs.replace(REWARD, reward_range=(0.0, 2.0))
    decision = rollup(rewards([0.5] * 60 + [7.0]), gate).decision
    assert decision.reasons == ("outside_reward_range",)
    assert "a reward of 8 is outside the declared range 0 to 2" in decision.sentence


def test_the_proven_bound_and_the_bound_over_scenes_ask_for_more() -> None:
    gains = np.random.default_rng(3).normal(0.45, 1.0, 200).clip(-2, 3)
    labels = in_scenes(20, 10)
    gate = msgspec.structs.replace(REWARD, reward_range=(-2.0, 4.0))
    bounds = {}
    for tails in ("gaffke", "proven", "scenes"):
        used = msgspec.structs.replace(gate, tails=tails)
        interval = rollup(rewards(gains.tolist()), used, labels=labels).reward_mean.interval
        assert interval is not None
        bounds[tails] = interval[0]
    assert bounds["proven"] < bounds["gaffke"]
    assert bounds["scenes"] < bounds["gaffke"]


# ------------------------------------------------------------------------------------------- missing


def stalling(
    rng: np.random.Generator, n: int, win: float, loss: float, hidden: float
) -> list[EvalResult]:
    """A candidate that sends no outcome where it would fail, in up to this share of the pairs."""
    gains = rng.choice([1.0, -1.0, 0.0], n, p=[win, loss, 1 - win - loss])
    lost = np.flatnonzero(gains < 0)[: int(hidden * n)]
    rows = kinds_of(gains)
    for place in lost:
        rows[place] = row(int(place), success=(True, None))
    return rows


def test_a_candidate_that_stalls_where_it_would_fail_does_not_ship() -> None:
    def one(rng: np.random.Generator, gate: Gate) -> Verdict:
        return verdict(stalling(rng, 200, 0.15, 0.15, 0.1), gate)

    assert shipped(20, lambda rng: one(rng, SUCCESS)) <= 0.15
    ignoring = msgspec.structs.replace(SUCCESS, missing="ignore")
    assert shipped(20, lambda rng: one(rng, ignoring)) > 0.5, "which is why it is opt-in"


def test_a_worse_candidate_does_not_pass_a_margin_by_stalling() -> None:
    def one(rng: np.random.Generator) -> Verdict:
        return verdict(stalling(rng, 200, 0.05, 0.15, 0.1), NOT_WORSE)

    assert shipped(20, one) <= 0.15


def test_deleting_lost_baselines_does_not_help() -> None:
    results = successes(12, 6, 32)
    kept = [each for each in results if each.metrics["success_candidate"]]
    assert rollup(kept, SUCCESS).decision.recommend == "ship"
    decision = rollup(kept, SUCCESS, total=50, deleted=6).decision
    assert decision.reasons == ("missing_data",)
    assert "(6 deleted); counted as lost" in decision.findings[0].text


def test_what_is_missing_is_counted_by_cause() -> None:
    results = [
        *successes(20, 0, 10),
        row(40, success=(True, None)),
        row(41, success=(None, True)),
        EvalResult("ep-0042", None, "failed", {}, INFRASTRUCTURE + "no disk"),
        crash(43, success_baseline=True),
        pending(44),
    ]
    summary = rollup(results, SUCCESS, total=38, deleted=2).success_rate
    expected = {"pending": 2, "deleted": 2, "infrastructure": 1, "candidate": 1, "baseline": 1}
    assert summary.missing == expected
    assert (summary.n_pairs, summary.n_total, summary.crashes) == (31, 38, 1)
    assert (summary.wins, summary.losses) == (20, 1), "only what has an outcome is won or lost"


def test_an_outcome_that_nobody_measures_is_not_missing() -> None:
    summary = rollup(successes(12, 0, 28), total=45)
    assert summary.success_rate.missing == {"pending": 5}
    assert summary.collision_rate.missing == {}


def test_collisions_that_are_not_told_count_as_the_most_that_were_seen() -> None:
    results = successes(20, 0, 20, collisions=(0, 0))
    for each in results[:8]:
        each.metrics["collision_count_candidate"] = None
    decision = rollup(results).decision
    assert decision.reasons == ("missing_data",)
    assert "collisions are missing in 8 of 40 pairs" in decision.findings[0].text


# ------------------------------------------------------------------------------- words and intervals


def random_tables(count: int, seed: int) -> Sequence[tuple[int, int, int]]:
    rng = np.random.default_rng(seed)
    return [
        tuple(rng.multinomial(int(rng.integers(25, 60)), [0.12, 0.12, 0.76])) for _ in range(count)
    ]


def test_equal_policies_are_not_accused() -> None:
    """A regression is claimed only when it was shown; whatever is not ruled out says how many pairs would tell."""
    accused = 0
    for wins, losses, both in random_tables(30, 4):
        summary = rollup(successes(wins, losses, both), SUCCESS)
        decision, p_worse = summary.decision, summary.success_rate.p_worse
        claimed = any(each.startswith("regression") for each in decision.reasons)
        accused += claimed
        assert p_worse is not None
        assert not claimed or p_worse <= 0.05
        if "could_be_worse:success" in decision.reasons:
            assert decision.needed_n is not None
    assert accused <= 4


def test_a_ship_never_prints_an_interval_that_contains_zero() -> None:
    gate = Gate(reward_range=(-2.0, 4.0))
    ships = 0
    for seed in range(15):
        rng = np.random.default_rng(seed)
        results = rewards((0.55 + rng.normal(size=60)).clip(-3, 3).tolist())
        for each in results:
            won = bool(rng.random() < 0.9), bool(rng.random() < 0.95)
            each.metrics.update(success_baseline=won[0], success_candidate=won[1])
            each.metrics["evidence"]["success"] = "closed_loop"
        summary = rollup(results, gate)
        outcomes = {"success": summary.success_rate, "reward_total": summary.reward_mean}
        for name, outcome in outcomes.items():
            assert outcome.interval is not None
            assert (name in summary.decision.better) == (outcome.interval[0] > 0), (seed, name)
        if summary.decision.recommend == "ship":
            ships += 1
            assert "at least +" in summary.decision.sentence
    assert ships > 3


# ----------------------------------------------------------------------------------- the same world


@pytest.mark.parametrize(
    ("repro", "reason"),
    [
        ({"verified": False, "env_changed": ["max_steps"]}, "env_changed:max_steps"),
        ({"verified": None, "env_changed": "rewards"}, "env_changed:rewards"),
        ({"verified": False, "env_changed": []}, "env_changed:replay"),
        ({"verified": None}, "unverified_environment"),
        ({"verified": "yes"}, "env_changed:replay"),
    ],
)
def test_another_world_holds(repro: dict[str, object], reason: str) -> None:
    results = successes(20, 0, 20)
    results[3].metrics["repro"] = repro
    assert rollup(results, SUCCESS).decision.reasons[0] == reason


def test_a_world_that_nobody_checked_counts_only_where_the_gate_says_so() -> None:
    accepting = msgspec.structs.replace(SUCCESS, accept_unverified_environment=True)
    unknown = successes(20, 0, 20, repro={"verified": None})
    assert rollup(unknown, SUCCESS).decision.reasons == ("unverified_environment",)
    assert rollup(unknown, accepting).decision.recommend == "ship"
    changed = successes(20, 0, 20, repro={"verified": False, "env_changed": ["rewards"]})
    assert rollup(changed, accepting).decision.recommend == "hold"
    stored = successes(20, 0, 20, evidence="counterfactual", repro={"verified": None})
    assert rollup(stored, SUCCESS).decision.recommend == "ship", "a store is its own world"


def test_pairs_that_were_tried_again_hold() -> None:
    results = successes(20, 0, 20)
    assert rollup(results, SUCCESS, retried=3).decision.reasons == ("retried",)
    accepting = msgspec.structs.replace(SUCCESS, accept_retried=True)
    assert rollup(results, accepting, retried=3).decision.recommend == "ship"


# ------------------------------------------------------------------------------------- asking again


def test_a_look_judges_its_own_pairs_at_its_own_level() -> None:
    gate = msgspec.structs.replace(SUCCESS, looks=3)
    results = successes(12, 0, 88)[:25]
    waiting = [pending(place) for place in range(25, 100)]
    decision = rollup(results + waiting, gate).decision
    assert decision.look is not None
    assert (decision.look.number, decision.look.of, decision.look.pairs) == (1, 3, 25)
    assert decision.look.level == 0.0218
    assert (decision.recommend, decision.early_stop) == ("ship", "ship")
    assert "look 1 of 3, after 25 pairs" in decision.sentence
    late = rollup([*results, *waiting[1:], successes(0, 0, 100)[99]], gate).decision
    assert late.look == decision.look, "a result that came early does not count before its look"
    too_weak = rollup(successes(5, 0, 20) + waiting, gate).decision
    assert too_weak.reasons == ("not_better",), "0.031 is not below 0.0218"


def test_the_ledger_is_printed_and_decides_only_where_the_gate_says_so() -> None:
    results = successes(9, 0, 31)
    printed = rollup(results, SUCCESS, earlier_runs=5).decision
    assert printed.recommend == "ship"
    assert printed.ledger is not None
    assert (printed.ledger.number, printed.ledger.would) == (6, "hold")
    assert "; 6th run on these baselines; corrected level .0012: would hold." in printed.sentence
    deciding = msgspec.structs.replace(SUCCESS, ledger="decide")
    decided = rollup(results, deciding, earlier_runs=5).decision
    assert decided.reasons == ("not_better",)
    assert "6th run on these baselines, judged at level .0012" in decided.sentence
    assert rollup(results, deciding).decision.recommend == "ship"
    assert rollup(results, SUCCESS).decision.ledger is None


@pytest.mark.parametrize(
    ("earlier", "level"), [(1, ".0083"), (20, ".0001"), (22, "below .0001"), (200, "below .0001")]
)
def test_a_level_is_printed_however_small_it_is(earlier: int, level: str) -> None:
    results = successes(9, 0, 31)
    sentence = rollup(results, SUCCESS, earlier_runs=earlier).decision.sentence
    assert f"; corrected level {level}: would " in sentence
    deciding = msgspec.structs.replace(SUCCESS, ledger="decide")
    sentence = rollup(results, deciding, earlier_runs=earlier).decision.sentence
    assert f"judged at level {level}" in sentence


def test_every_hold_says_what_to_do_next() -> None:
    holds = [
        rollup([]),
        rollup(successes(3, 3, 24)),
        rollup(successes(0, 12, 28)),
        rollup(successes(3, 0, 9), total=25),
        rollup(rewards([0.5] * 30), REWARD),
        rollup(successes(20, 0, 20), retried=1),
        rollup(kinds_of(np.ones(90)), SUCCESS, labels=in_scenes(9, 10)),
        rollup(successes(20, 0, 20, evidence="asserted")),
    ]
    steps = [each.decision.next_step for each in holds]
    assert all(step and step.endswith(".") for step in steps)
    assert len(set(steps)) >= 7
    assert rollup(successes(20, 0, 20)).decision.next_step is None


def test_a_run_of_one_task_is_told_how_to_be_judged_about_that_task() -> None:
    """More pairs of the task would not help, and nine other tasks are not the cheapest way."""
    results = successes(20, 0, 20)
    labels: dict[str, Labels] = {each.baseline_episode_id: {"task": ("pick",)} for each in results}
    decision = rollup(results, SUCCESS, labels=labels).decision
    assert decision.reasons[0] == "insufficient_clusters"
    assert decision.next_step is not None
    assert decision.next_step.startswith('Set cluster = "none" in the gate of a new run')
    alone = msgspec.structs.replace(SUCCESS, cluster="none")
    assert rollup(results, alone, labels=labels).decision.recommend == "ship"
    misspelt = msgspec.structs.replace(SUCCESS, cluster="secne")
    step = rollup(results, misspelt).decision.next_step
    assert step == "Check cluster in the gate: no baseline has 'secne' in its metadata."


def test_baselines_that_were_all_failures_are_noted() -> None:
    """A fair coin wins half of the episodes that the baseline failed, and loses none."""
    chosen = rollup(successes(20, 0, 0, neither=20), SUCCESS).success_rate
    assert chosen.note == "every baseline failed, so that no pair could be lost"
    assert rollup(successes(20, 0, 1, neither=19), SUCCESS).success_rate.note is None


def test_pairs_that_start_alike_are_not_asked_for_again() -> None:
    """760 more recordings of one start would count as one pair again."""
    results = [at(row(place, success=(False, True)), "the same") for place in range(40)]
    step = rollup(results, SUCCESS).decision.next_step
    assert step is not None
    assert step.startswith("Record baselines that start in about 25 different ways")
    assert step.endswith("the 40 pairs of this run start in 1, and count as so many.")


@pytest.mark.parametrize(
    ("word", "text", "step"),
    [
        ("seed_ignored", "the environment does not start as its seed says in 1 of 40", "Make the"),
        ("rewards", "not the recorded one: other rewards in 1 of 40 pairs", "Replay in the"),
        ("version", "not the recorded one: another version in 1 of 40 pairs", "Replay in the"),
    ],
)
def test_a_changed_world_is_told_in_words_and_with_what_mends_it(
    word: str, text: str, step: str
) -> None:
    results = successes(20, 0, 20)
    results[3].metrics["repro"] = {"verified": False, "env_changed": [word]}
    decision = rollup(results, SUCCESS).decision
    assert text in decision.findings[0].text
    assert decision.next_step is not None
    assert decision.next_step.startswith(step)


def test_a_sentence_says_what_the_gate_forgives() -> None:
    """A lead reads the sentence, and not the gate that an author brought."""
    asserted = msgspec.structs.replace(SUCCESS, evidence=("asserted",))
    told = rollup(successes(20, 0, 20, evidence="asserted"), asserted).decision.sentence
    assert told.startswith("Ship: 40 pairs stated by the policy; success +50.0 points")
    accepting = msgspec.structs.replace(
        SUCCESS, accept_unverified_environment=True, accept_retried=True
    )
    unchecked = successes(20, 0, 20, repro={"verified": None})
    told = rollup(unchecked, accepting, retried=3).decision.sentence
    noted = "(40 in an environment that nobody checked, accepted; 3 retried, accepted)"
    assert told.startswith(f"Ship: 40 pairs measured {noted}; success")
    assert "accepted" not in rollup(successes(20, 0, 20), accepting).decision.sentence


def test_a_sentence_says_that_the_policy_saw_seeds_and_outcomes() -> None:
    trusted = successes(20, 0, 20, repro={"trusted": True})
    told = rollup(trusted, SUCCESS).decision.sentence
    noted = "(40 with --trusted: the policy saw seed and outcome)"
    assert told.startswith(f"Ship: 40 pairs measured {noted}; success")


def test_what_the_infrastructure_broke_is_not_called_a_crash() -> None:
    broken = [
        EvalResult(f"ep-{place:04}", None, "failed", {}, INFRASTRUCTURE + "no disk")
        for place in range(40, 43)
    ]
    told = rollup([*successes(20, 0, 20), *broken], SUCCESS).decision.sentence
    assert "40 of 43 pairs measured (missing: 3 infrastructure, counted as lost)" in told
    told = rollup([*successes(20, 0, 20), *broken, crash(43)], SUCCESS).decision.sentence
    assert "(1 crashed; missing: 3 infrastructure, counted as lost)" in told
