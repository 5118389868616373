"""Slices of a run: what each says, how chance is kept out of many of them, and when one holds the candidate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.contracts.decision import Rollup, SliceSummary
from rollbook.contracts.gate import Gate, MetricRule, SliceGuard
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring import rollup
from rollbook.scoring.bounds.gain_bounds import GainBounds
from rollbook.scoring.labels import Labels
from rollbook.scoring.paired_tests import mcnemar_exact
from rollbook.scoring.slices import MOST_LISTED, SlicedPairs, SliceReport, slice_report
from tests.scoring.result_rows import pending, successes

LEVEL = 0.05


def sliced_pairs(
    metric: Outcome,
    gains: Sequence[float] | NDArray[np.float64],
    labels: Sequence[Labels | None],
    worst_loss: float = 1.0,
    clusters: Sequence[int] | None = None,
) -> SlicedPairs:
    bounds = GainBounds(
        gains=np.array(gains, float),
        worst_loss=worst_loss,
        is_success=metric == "success",
        labels=None if clusters is None else np.array(clusters, np.intp),
    )
    return SlicedPairs(metric, bounds, labels)


def pairs(
    values: Sequence[str],
    gains: Sequence[float] | NDArray[np.float64],
    *,
    by: str = "task",
    clusters: Sequence[int] | None = None,
) -> SlicedPairs:
    return sliced_pairs("success", gains, [{by: (value,)} for value in values], clusters=clusters)


def report(sliced: SlicedPairs, *guards: SliceGuard) -> SliceReport:
    return slice_report({"success": sliced}, Gate(guard_slices=guards), LEVEL)


def slices(sliced: SlicedPairs) -> dict[str, SliceSummary]:
    return {each.value: each for each in report(sliced).slices}


def test_each_slice_has_its_own_pairs_and_difference() -> None:
    found = slices(pairs(["pick"] * 10 + ["place"] * 20, [1.0] * 10 + [-1.0] * 5 + [0.0] * 15))
    assert {name: (each.pairs, each.delta) for name, each in found.items()} == {
        "pick": (10, 1.0),
        "place": (20, -0.25),
    }
    assert list(found) == ["place", "pick"], "the worst is listed first"
    assert found["place"].words == "task place: success −25.0 points in 20 pairs"


def test_one_success_slice_is_the_exact_mcnemar_test_times_the_number_of_slices() -> None:
    found = slices(pairs(["a"] * 20 + ["b"] * 20, [-1.0] * 9 + [1.0] + [0.0] * 30))
    assert found["a"].p_worse == pytest.approx(2 * mcnemar_exact(1, 9).worse, abs=1e-9)
    assert found["b"].p_worse == 1.0


def test_the_bound_of_a_slice_excludes_zero_exactly_when_bonferroni_says_so() -> None:
    for losses in range(4, 12):
        gains = [-1.0] * losses + [0.0] * (20 - losses) + [0.0] * 20
        bad = slices(pairs(["a"] * 20 + ["b"] * 20, gains))["a"]
        assert bad.interval is not None
        assert (bad.interval[1] < 0) == (2 * mcnemar_exact(0, losses).worse <= LEVEL)


def test_a_slice_with_few_pairs_is_listed_and_shows_nothing() -> None:
    found = slices(pairs(["a"] * 20 + ["rare"] * 4, [0.0] * 20 + [-1.0] * 4))
    assert found["rare"].pairs == 4
    assert found["rare"].interval is None
    assert found["rare"].p_worse == 1.0


def test_a_label_that_does_not_divide_the_pairs_is_not_listed() -> None:
    assert not report(pairs(["only"] * 30, [0.0] * 30)).slices
    assert not report(pairs([f"seed {n}" for n in range(30)], [0.0] * 30)).slices


def test_a_pair_with_several_tags_is_in_several_slices() -> None:
    labels = [{"tag": ("night", "wet")}] * 6 + [{"tag": ("night",)}] * 6 + [None] * 6
    sliced = sliced_pairs("success", np.zeros(18), labels)
    assert {name: each.pairs for name, each in slices(sliced).items()} == {"night": 12, "wet": 6}


def test_clusters_inside_a_slice_count_and_a_slice_that_is_one_cluster_counts_its_pairs() -> None:
    clusters = [place // 10 for place in range(100)]
    scenes = [f"scene {each}" for each in clusters]
    lost_in_two_scenes = [-1.0] * 20 + [0.0] * 80
    by_task = pairs(["a"] * 50 + ["b"] * 50, lost_in_two_scenes, clusters=clusters)
    assert slices(by_task)["a"].p_worse > LEVEL, "two bad scenes of five show nothing about a task"
    by_scene = pairs(scenes, lost_in_two_scenes, by="scene", clusters=clusters)
    assert slices(by_scene)["scene 0"].p_worse < LEVEL, "ten losses show something about one scene"


def test_a_lower_value_is_better_for_collisions() -> None:
    gains = np.array([-1.0] * 40 + [0.0] * 40)  # a gain below zero is one collision more
    labels = [{"task": ("a",)}] * 40 + [{"task": ("b",)}] * 40
    sliced = sliced_pairs("collision_count", gains, labels, 3.0)
    gate = Gate(rules=(MetricRule(metric="collision_count", role="primary"),))
    [bad, same] = slice_report({"collision_count": sliced}, gate, LEVEL).slices
    assert (bad.value, bad.delta) == ("a", 1.0)
    assert bad.interval is not None
    assert bad.interval[0] > 0
    assert same.delta == 0.0


def test_only_a_guarded_slice_vetoes_and_only_beyond_its_margin() -> None:
    sliced = pairs(["a"] * 40 + ["b"] * 40, [-1.0] * 14 + [0.0] * 66)
    assert not report(sliced).findings
    [veto] = report(sliced, SliceGuard(by="task")).findings
    assert veto.reason == "slice:task=a"
    assert veto.text == "success got worse where task is a (−35.0 points in 40 pairs)"
    [veto] = report(sliced, SliceGuard(by="task", margin=0.1)).findings
    assert "by more than 10 points" in veto.text
    assert not report(sliced, SliceGuard(by="task", margin=0.3)).findings
    assert not report(sliced, SliceGuard(by="task", least_pairs=41)).findings
    assert not report(sliced, SliceGuard(by="robot")).findings
    assert [each.vetoes for each in report(sliced, SliceGuard(by="task")).slices] == [True, False]


def test_the_sentence_names_at_most_three_slices_that_were_shown_to_be_worse() -> None:
    losses = {"a": 20, "b": 18, "c": 16, "d": 14, "fine": 0}
    values = [name for name in losses for _ in range(20)]
    gains = [-1.0 if place < losses[name] else 0.0 for name in losses for place in range(20)]
    worst = report(pairs(values, gains)).worst(LEVEL)
    assert [each.value for each in worst] == ["a", "b", "c"]
    assert not report(pairs(["a"] * 20 + ["b"] * 20, [-1.0, -1.0] + [0.0] * 38)).worst(LEVEL)


@pytest.mark.slow
def test_equal_policies_have_a_bad_slice_no_more_often_than_the_level_says() -> None:
    runs, tasks, size = 100, 24, 20
    rng = np.random.default_rng(15)
    values = [f"task {place // size}" for place in range(tasks * size)]
    uncorrected = accused = vetoed = 0
    for _ in range(runs):
        gains = rng.choice([-1.0, 0.0, 1.0], tasks * size, p=[0.4, 0.2, 0.4])
        lost, won = ((gains.reshape(tasks, size) == sign).sum(axis=1) for sign in (-1, 1))
        uncorrected += any(
            mcnemar_exact(w, b).worse <= LEVEL for w, b in zip(won, lost, strict=True)
        )
        found = report(pairs(values, gains), SliceGuard(by="task"))
        accused += bool(found.worst(LEVEL))
        vetoed += bool(found.findings)
    limit = runs * LEVEL + 3 * np.sqrt(runs * LEVEL * (1 - LEVEL))
    assert accused <= limit
    assert vetoed <= limit
    assert uncorrected > limit, "without a correction this would be found"


def test_many_slices_are_cut_to_the_worst_and_say_how_many_there_are() -> None:
    rng = np.random.default_rng(1)
    values = [f"scene {place % 200}" for place in range(10_000)]
    gains = rng.normal(0.1, 1.0, 10_000)
    sliced = sliced_pairs("reward_total", gains, [{"scene": (each,)} for each in values], 8.0)
    found = slice_report({"reward_total": sliced}, Gate.for_reward(), LEVEL).slices
    assert len(found) == MOST_LISTED
    assert {each.slices for each in found} == {200}
    assert max(each.delta for each in found) < gains.mean()


def test_numbers_of_an_outcome_read_well() -> None:
    success, reward, seconds = (
        OUTCOMES[name] for name in ("success", "reward_total", "time_to_goal_s")
    )
    assert success.change_text(0.0512) == "+5.1 points"
    assert success.change_text(-0.25) == "−25.0 points"
    assert success.change_text(0.0001) == "0 points"
    assert success.amount_text(0.1) == "10 points"
    assert success.value_text(0.625) == "62.5 %"
    assert reward.change_text(12345.6) == "+12,346"
    assert reward.change_text(-0.0123) == "−0.0123"
    assert seconds.change_text(-1.5) == "−1.5 s"
    assert seconds.value_text(3.0) == "3 s"


def test_a_rollup_has_slices_and_its_sentence_names_those_that_are_worse() -> None:
    results = successes(60, 14, 46)  # wins first, then losses
    tasks = {each.baseline_episode_id: "pick" for each in results[:60]}
    labels = {
        each.baseline_episode_id: {"task": (tasks.get(each.baseline_episode_id, "pour"),)}
        for each in results
    }
    plain = Gate(cluster="none")
    found = rollup(results, plain, labels=labels)
    assert [(each.value, each.pairs) for each in found.slices] == [("pour", 60), ("pick", 60)]
    assert found.decision.recommend == "ship"
    assert "worse in task pour: success −23.3 points in 60 pairs" in found.decision.sentence
    guarded = rollup(
        results, Gate(cluster="none", guard_slices=(SliceGuard(by="task"),)), labels=labels
    )
    assert guarded.decision.reasons == ("slice:task=pour",)
    assert Rollup.from_wire(guarded.to_wire()) == guarded


def test_missing_pairs_say_nothing_about_a_slice() -> None:
    results = [*successes(0, 0, 40), *(pending(place) for place in range(40, 60))]
    labels = {
        each.baseline_episode_id: {"task": ("a" if number < 40 else "b",)}
        for number, each in enumerate(results)
    }
    found = rollup(results, Gate(cluster="none"), labels=labels)
    assert not [each for each in found.slices if each.value == "b"]
