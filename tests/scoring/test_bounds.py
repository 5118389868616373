"""Bounds: exact where there is an exact answer, and the test and the printed bound are always the same."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import betainc

from rollbook.contracts.gate import Gate, Tails
from rollbook.scoring.bounds import exponential_sums
from rollbook.scoring.bounds.exponential_sums import chance_not_above_zero
from rollbook.scoring.bounds.flip_bound import FlipBound
from rollbook.scoring.bounds.gain_bounds import GainBounds, is_below
from rollbook.scoring.bounds.pair_clusters import PairClusters, least_clusters_for
from rollbook.scoring.bounds.tail_bound import tail_bound, tail_chance
from rollbook.scoring.labels import cluster_name

Floats = NDArray[np.float64]

COUNTS = st.integers(0, 60)
GAINS = st.lists(st.integers(-20, 20), min_size=2, max_size=40).map(lambda v: np.array(v) / 10)
LEVELS = st.sampled_from([0.1, 0.05, 0.0304, 0.0169, 0.0012])


# ---------------------------------------------------------------------- sums of exponential variables


def closed_form(weights: Floats) -> float:
    """P(sum <= 0) by partial fractions, for weights that all differ."""
    above = 0.0
    for place, weight in enumerate(weights):
        if weight > 0:
            others = np.delete(weights, place)
            above += float(np.prod(weight / (weight - others)))
    return 1 - above


@given(st.sets(st.integers(-30, 30).filter(bool), min_size=1, max_size=7), st.integers(-300, 300))
def test_the_integral_is_the_closed_form_at_every_scale(whole: set[int], exponent: int) -> None:
    weights = np.array(sorted(whole), np.float64)
    found = chance_not_above_zero(weights * 2.0**exponent)
    assert found == pytest.approx(closed_form(weights), abs=1e-9)


@pytest.mark.parametrize("tiny", [0.0, 5e-324, 1e-300, 1e-160])
def test_weights_that_vanish_beside_others_change_nothing(tiny: float) -> None:
    assert chance_not_above_zero(np.array([tiny, -1e300])) == 1.0
    assert chance_not_above_zero(np.array([-tiny, 1e300])) == 0.0
    assert chance_not_above_zero(np.array([tiny, -tiny, 1e300, -1e300])) == pytest.approx(0.5)
    assert chance_not_above_zero(np.array([tiny, tiny])) == float(tiny == 0)


@given(COUNTS, COUNTS)
def test_the_tail_bound_of_success_is_mcnemars_test(wins: int, losses: int) -> None:
    gains = np.array([1.0] * wins + [-1.0] * losses + [0.0] * 3)
    exact = 1.0 if wins == 0 else float(betainc(wins, losses + 1, 0.5))
    assert tail_chance(gains, 1.0) == pytest.approx(exact, abs=1e-11)


@pytest.mark.parametrize("kind", ["normal", "heavy", "skewed", "many scales"])
def test_the_series_for_many_weights_is_the_plain_sum(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    runs = []
    for _ in range(6):
        gains = {
            "normal": rng.normal(0.05, 1, 600),
            "heavy": rng.standard_t(2, 600),
            "skewed": 1 - rng.exponential(1, 600),
            "many scales": rng.normal(0, 1, 600) * 10.0 ** rng.integers(-6, 6, 600),
        }[kind]
        runs.append(np.append(gains, -(10.0 ** rng.integers(-1, 3))))
    fast = [chance_not_above_zero(weights) for weights in runs]
    monkeypatch.setattr(exponential_sums, "_MANY", 10**9)
    monkeypatch.setattr(exponential_sums, "_STEP", 0.05)
    monkeypatch.setattr(exponential_sums, "_BLOCK", 64)
    assert fast == pytest.approx([chance_not_above_zero(weights) for weights in runs], abs=1e-9)


# ------------------------------------------------------------------------------------ the tail bound


def test_twelve_won_and_two_lost_of_sixty_are_five_points() -> None:
    gains = np.array([1.0] * 12 + [-1.0] * 2 + [0.0] * 46)
    assert tail_bound(gains, 1.0, 0.05) == pytest.approx(0.0512, abs=1e-4)


@settings(max_examples=60)
@given(GAINS, st.sampled_from([2.0, 3.0, 20.0]), LEVELS)
def test_the_bound_is_where_its_p_value_is_the_level(
    gains: Floats, worst: float, level: float
) -> None:
    bound = tail_bound(gains, worst, level)
    assert -worst <= bound <= gains.mean() + 1e-12
    if -worst < bound < gains.mean() - 1e-9:
        assert tail_chance(gains, worst, bound) <= level + 1e-9
        assert tail_chance(gains, worst, bound + 1e-7 * worst) >= level - 1e-9
    assert tail_bound(8 * gains, 8 * worst, level) == pytest.approx(8 * bound, abs=1e-6)


@settings(max_examples=60)
@given(GAINS, st.integers(0, 39), st.floats(0.01, 5), LEVELS)
def test_a_better_pair_never_lowers_the_bound(
    gains: Floats, place: int, more: float, level: float
) -> None:
    raised = gains.copy()
    raised[place % len(gains)] += more
    assert tail_chance(raised, 2.0) <= tail_chance(gains, 2.0) + 1e-10
    assert tail_bound(raised, 2.0, level) >= tail_bound(gains, 2.0, level) - 1e-7
    assert tail_chance(gains, 2.0) <= tail_chance(gains, 3.0) + 1e-10, "a larger loss is possible"


@given(GAINS, LEVELS)
def test_clusters_of_one_pair_are_pairs(gains: Floats, level: float) -> None:
    alone = np.ones(len(gains))
    assert tail_chance(gains, 2.0, 0.0, alone) == pytest.approx(tail_chance(gains, 2.0), abs=1e-12)


# --------------------------------------------------------------------------------- flips of clusters


def p_by_flipping(sums: Floats, sizes: Floats, delta: float) -> float:
    """Every combination of signs of the sums less delta."""
    rest = sums - delta * sizes
    signs = np.array(list(itertools.product([1.0, -1.0], repeat=len(sums))))
    return float(np.mean(signs @ rest >= rest.sum() - 1e-9))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(-30, 30), st.integers(1, 9)), min_size=1, max_size=9),
    st.sampled_from([0.0, -0.35, 0.6]),
)
def test_the_bound_over_clusters_is_the_test_by_flipping(
    clusters: list[tuple[int, int]], delta: float
) -> None:
    sums = np.array([each[0] for each in clusters]) / 10
    sizes = np.array([each[1] for each in clusters], np.float64)
    bound = FlipBound(sums, sizes)
    assert bound.p_better(delta) == pytest.approx(p_by_flipping(sums, sizes, delta), abs=1e-9)
    mirrored = FlipBound(-sums, sizes)
    assert bound.p_worse(delta) == pytest.approx(mirrored.p_better(-delta))
    assert bound.upper(0.05) == -mirrored.lower(0.05)


@given(st.integers(0, 2**31), LEVELS)
def test_random_sets_agree_with_their_own_p_value(seed: int, level: float) -> None:
    rng = np.random.default_rng(seed)
    bound = FlipBound(rng.normal(0.2, 1, 15), rng.integers(1, 5, 15).astype(np.float64), seed)
    lower = bound.lower(level)
    assert is_below(bound.p_better(lower - 1e-6), level)
    assert not is_below(bound.p_better(lower + 1e-6), level)


# ----------------------------------------------------------------------------------------- clusters


def test_pairs_of_a_cluster_that_are_all_alike_are_worth_one() -> None:
    scenes = np.array([0.9, -0.3, 0.4, -1.2, 0.1, 0.7, -0.5, 0.2, 1.1, -0.9])
    labels = np.repeat(np.arange(10), 10)
    alike = PairClusters.of(np.repeat(scenes, 10), labels.tolist())
    assert (len(alike), alike.pairs, alike.equal_clusters) == (10, 100, 10.0)
    assert alike.effective_pairs == pytest.approx(9, abs=0.2)
    assert alike.correlation == 1.0
    alone = PairClusters.of(np.repeat(scenes, 10))
    assert (alone.effective_pairs, alone.correlation) == (100.0, None)


@pytest.mark.parametrize(
    ("margin", "least"), [(0.20, 14), (0.15, 19), (0.10, 29), (0.05, 59), (1.0, 1)]
)
def test_a_margin_asks_for_so_many_clusters(margin: float, least: int) -> None:
    assert least_clusters_for(margin, 0.05) == least


def test_clusters_are_found_where_two_pairs_share_a_scene_or_else_a_task() -> None:
    gate = Gate()
    scenes = [{"scene": ("a",)}, {"scene": ("a",)}, {"scene": ("b",)}]
    assert cluster_name(gate, scenes) == "scene"
    assert cluster_name(gate, [*scenes, None, {}]) == "scene", "one without a label hides no others"
    tasks = [{"scene": (str(i),), "task": ("pick",)} for i in range(3)]
    assert cluster_name(gate, tasks) == "task"
    assert cluster_name(gate, [{"task": ("pick",)}, {"task": ("place",)}]) is None


# ------------------------------------------------------------------------------------- the whole rule


@settings(max_examples=80, deadline=None)
@given(
    GAINS,
    st.sampled_from([0, 1, 3]),
    st.sampled_from(["gaffke", "scenes", "proven"]),
    st.booleans(),
    LEVELS,
)
def test_a_gain_is_shown_exactly_when_its_printed_bound_is_above_zero(
    gains: Floats, share: int, tails: Tails, is_success: bool, level: float
) -> None:
    values = np.sign(gains) if is_success else gains
    labels = np.arange(len(gains)) // share if share else None
    bounds = GainBounds(values, 2.0, is_success, labels, tails=tails, level=level)
    lower, upper = bounds.lower(level), bounds.upper(level)
    if lower != 0:
        assert (lower > 0) == is_below(bounds.p_better, level)
    if upper != 0:
        assert (upper < 0) == is_below(bounds.p_worse, level)
    assert lower <= values.mean() + 1e-9
    assert upper >= values.mean() - 1e-9
    assert bounds.lower_for_margin(level) <= values.mean() + 1e-9
    margin = 0.7
    if abs(bounds.lower_for_margin(level) + margin) > 1e-6 and tails != "proven":
        not_worse = is_below(bounds.p_not_worse(margin), level)
        assert (bounds.lower_for_margin(level) > -margin) == not_worse


def test_success_alone_needs_no_flips_and_success_in_clusters_does() -> None:
    gains = np.array([1.0] * 9 + [0.0] * 31)
    alone = GainBounds(gains, 1.0, is_success=True)
    assert alone.is_exact
    assert alone.p_better == pytest.approx(0.5**9)
    together = GainBounds(gains, 1.0, is_success=True, labels=np.arange(40) // 20)
    assert together.p_better == 0.5, "all wins are in one of two clusters"


def test_nothing_is_shown_by_too_few_clusters() -> None:
    bounds = GainBounds(np.full(8, 0.5), 1.0, labels=np.arange(8) // 2)
    assert bounds.lower(0.05) == -math.inf


@pytest.mark.parametrize("margin", [1e-18, 5e-324])
def test_a_margin_that_is_tiny_beside_the_worst_loss_takes_more_clusters_than_anybody_has(
    margin: float,
) -> None:
    """A single reward of 1e300 makes one of every margin."""
    assert least_clusters_for(margin, 0.05) == 1_000_000_000
