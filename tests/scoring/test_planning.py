"""Planning: how many pairs a gate takes, and that runs of that size do ship as often as planned."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats

from rollbook.contracts.gate import Gate
from rollbook.contracts.gate_presets import GATE_PRESETS, gate_preset
from rollbook.scoring.looks import look_sizes
from rollbook.scoring.planning import ExpectedPairs, plan_pairs, plan_scenes
from tests.scoring.preset_table import preset_table, printed

TEN_POINTS = ExpectedPairs(effect=0.1, differ=0.3)


def pairs_of(expected: ExpectedPairs, gate: Gate, power: float = 0.8) -> int:
    planned = plan_pairs(expected, gate, power)
    assert planned is not None
    return planned.pairs


def test_success_takes_the_known_number_of_pairs() -> None:
    assert [pairs_of(TEN_POINTS, preset.gate) for preset in GATE_PRESETS.values()] == [
        150,
        199,
        361,
    ]


def test_the_least_number_of_pairs_of_the_gate_is_planned() -> None:
    large = ExpectedPairs(effect=0.6, differ=0.7)
    assert pairs_of(large, Gate()) == Gate().n_min
    undeclared = ExpectedPairs(effect=1.0)
    assert pairs_of(undeclared, Gate.for_reward()) == 150
    assert pairs_of(replace_loss(undeclared, 8.0), Gate.for_reward()) < 100


def replace_loss(expected: ExpectedPairs, worst: float) -> ExpectedPairs:
    return ExpectedPairs(effect=expected.effect, spread=expected.spread, worst_loss=worst)


def test_a_second_primary_and_more_power_take_more_pairs() -> None:
    two = plan_pairs(TEN_POINTS, Gate(), primaries=2)
    assert two is not None
    assert two.pairs > pairs_of(TEN_POINTS, Gate())
    assert pairs_of(TEN_POINTS, Gate(), 0.9) > pairs_of(TEN_POINTS, Gate())


def test_scenes_take_more_pairs_and_at_least_as_many_scenes_as_the_gate_asks_for() -> None:
    alike = ExpectedPairs(effect=0.1, differ=0.3, scene_size=10, correlation=0.3)
    planned = plan_pairs(alike, Gate())
    assert planned is not None
    assert planned.scenes is not None
    assert planned.pairs == 10 * planned.scenes > 2 * 199
    easy = ExpectedPairs(effect=0.5, differ=0.5, scene_size=10, correlation=0.0)
    least = plan_pairs(easy, Gate())
    assert least is not None
    assert least.scenes == Gate().least_clusters


def test_few_scenes_are_never_enough() -> None:
    alike = ExpectedPairs(effect=0.1, differ=0.3, correlation=0.5)
    assert plan_scenes(alike, Gate(), 12) is None
    assert plan_scenes(alike, Gate(), 40) is None, "they are too alike"
    planned = plan_scenes(ExpectedPairs(effect=0.15, differ=0.3, correlation=0.2), Gate(), 60)
    assert planned is not None
    assert planned.scenes == 60


def test_looks_take_more_pairs_at_most_and_fewer_on_average() -> None:
    one = pairs_of(TEN_POINTS, Gate())
    three = plan_pairs(TEN_POINTS, Gate(looks=3))
    assert three is not None
    assert three.mean_pairs < one < three.pairs
    reward = ExpectedPairs(effect=0.3, worst_loss=4.0)
    once = pairs_of(reward, Gate.for_reward())
    twice = plan_pairs(reward, replace(Gate.for_reward(), looks=2))
    assert twice is not None
    assert twice.mean_pairs < twice.pairs
    assert once < twice.pairs


def test_an_effect_that_is_too_small_for_any_run_is_not_planned() -> None:
    assert plan_pairs(ExpectedPairs(effect=0.0001, differ=0.3), Gate()) is None
    assert plan_pairs(ExpectedPairs(effect=1e-6, worst_loss=1.0), Gate.for_reward()) is None
    assert plan_pairs(ExpectedPairs(effect=0.0, differ=0.3), Gate(looks=2)) is None


def test_a_planned_run_ships_as_often_as_planned() -> None:
    """With scipy's binomial test as the judge; 4 000 runs have a standard error of .006."""
    rng = np.random.default_rng(2)
    gate = Gate(looks=3)
    total = pairs_of(TEN_POINTS, gate)
    kinds = rng.choice([1, -1, 0], (4000, total), p=[0.2, 0.1, 0.7])
    ships = np.zeros(4000, bool)
    for size in look_sizes(total, 3):
        won, lost = ((kinds[:, :size] == sign).sum(axis=1) for sign in (1, -1))
        ships |= (size >= gate.n_min) & (stats.binom.sf(won - 1, won + lost, 0.5) <= 0.0218)
    assert ships.mean() == pytest.approx(0.8, abs=0.03)


def test_presets_are_planned_for_rewards_too() -> None:
    reward = ExpectedPairs(effect=0.3, worst_loss=4.0)
    pairs = [pairs_of(reward, gate_preset(name, reward=True)) for name in GATE_PRESETS]
    assert pairs == sorted(pairs)
    assert pairs[1] == pytest.approx(104, abs=3)


@pytest.mark.slow
def test_the_documented_table_of_presets_is_what_they_do() -> None:
    """Ten seconds: 4 000 runs per cell, judged by the shipped gates."""
    table = preset_table(4_000)
    documented = (Path(__file__).parents[2] / "docs" / "explain" / "statistics.md").read_text()
    assert printed(table) in documented
    for (name, _, world), rate in table.items():
        alpha = GATE_PRESETS[name].gate.alpha
        if world == "equal":
            assert rate <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / 4_000)
        if world == "10 points worse":
            assert rate <= 0.01
