"""What the shipped gate does to policies whose truth is known. Slow: thousands of simulated runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from rollbook.contracts.gate import Gate
from rollbook.scoring.decision import judge
from rollbook.scoring.intervals import mean_interval, tango_interval, wilson_interval
from rollbook.scoring.paired_tests import log_e_value
from rollbook.scoring.run_rollup import measured
from tests.scoring.ship_table import SETTINGS, printed, ship_table
from tests.scoring.simulated_runs import first_pairs, simulated_runs

pytestmark = pytest.mark.slow

RUNS = 200
"""Per cell; a rate of 5 % is then known to 1.5 points (one standard error)."""
REPEATS = 2_000
"""Of a sample whose interval is looked at; a coverage of 95 % is then known to 0.5 points."""


def test_equal_and_worse_policies_do_not_ship(capsys: pytest.CaptureFixture[str]) -> None:
    table = ship_table(RUNS)
    with capsys.disabled():
        print(f"\n{RUNS} runs per cell: vote / superiority / non-inferiority\n")  # noqa: T201
        print(printed(table))  # noqa: T201
    noise = 3 * math.sqrt(0.05 * 0.95 / RUNS)
    for (name, n, delta), rates in table.items():
        margin = SETTINGS[name][0].rules[0].margin
        if delta == 0:
            assert rates.superiority <= 0.05 + noise, (name, n)
        if delta <= -0.10:
            assert rates.superiority <= 0.01, (name, n)
        if margin is not None and delta <= -margin:
            assert rates.non_inferiority <= 0.05 + noise, (name, n)
    assert table["default", 200, 0.10].superiority > 0.6
    assert table["default", 200, 0.0].non_inferiority > 0.7
    assert table["default", 200, 0.0].vote > 0.2, "the vote has no such bound"


@pytest.mark.parametrize("share", [0.02, 0.1, 0.2])
def test_looking_after_every_pair_does_not_make_equal_policies_ship(share: float) -> None:
    rng = np.random.default_rng(3)
    kind = rng.choice(3, (5_000, 200), p=[share, share, 1 - 2 * share])
    wins, losses = np.cumsum(kind == 0, axis=1), np.cumsum(kind == 1, axis=1)
    bar = -math.log(0.05)
    assert np.mean((log_e_value(wins, losses) >= bar).any(axis=1)) <= 0.05
    assert np.mean((log_e_value(losses, wins) >= bar).any(axis=1)) <= 0.05


def test_the_whole_sequential_verdict_may_be_looked_at_again_and_again() -> None:
    gate = Gate(design="sequential")
    looks = range(25, 201, 10)
    shipped = stopped_worse = 0
    runs = 80
    for columns in simulated_runs(200, 0.0, runs, seed=4):
        verdicts = []
        for look in looks:
            facts, statistics = measured(first_pairs(columns, look), gate, total=200)
            verdicts.append(judge(statistics, gate, facts))
        shipped += any(verdict.recommend == "ship" for verdict in verdicts)
        stopped_worse += any(verdict.early_stop == "hold" for verdict in verdicts)
    noise = 3 * math.sqrt(0.05 * 0.95 / runs)
    assert shipped / runs <= 0.05 + noise
    assert stopped_worse / runs <= 0.05 + noise


def test_a_much_better_candidate_stops_early() -> None:
    gate = Gate(design="sequential")
    stops = []
    for columns in simulated_runs(200, 0.18, 60, seed=5):
        for look in range(25, 201, 5):
            facts, statistics = measured(first_pairs(columns, look), gate, total=200)
            if judge(statistics, gate, facts).early_stop == "ship":
                stops.append(look)
                break
    assert len(stops) > 50
    assert np.median(stops) < 100


def samples(kind: str, n: int) -> NDArray[np.float64]:
    """Differences whose mean is zero."""
    rng = np.random.default_rng([7, n])
    if kind == "normal":
        return rng.normal(size=(REPEATS, n))
    return rng.choice([0.0, 1.0, -1.0], (REPEATS, n), p=[0.85, 0.075, 0.075])


def coverage(kind: str, n: int) -> float:
    found = [mean_interval(sample).interval for sample in samples(kind, n)]
    # all pairs alike: no interval is given, so none can be wrong
    given = [interval for interval in found if interval is not None]
    assert given
    return float(np.mean([low <= 0 <= high for low, high in given]))


@pytest.mark.parametrize("n", [8, 20, 49])
def test_students_interval_covers_what_it_claims(n: int) -> None:
    assert 0.93 <= coverage("normal", n) <= 0.97


@pytest.mark.parametrize("n", [50, 200])
def test_the_joined_interval_covers_what_it_claims(n: int) -> None:
    assert 0.93 <= coverage("normal", n) <= 0.97
    assert coverage("mostly zero", n) >= 0.93


@pytest.mark.parametrize("n", [20, 49])
def test_mostly_equal_pairs_are_covered_at_least_as_often(n: int) -> None:
    assert coverage("mostly zero", n) >= 0.93


@pytest.mark.parametrize("n", [5, 10, 20, 30, 50])
@pytest.mark.parametrize("cells", [(0.05, 0.15), (0.1, 0.1), (0.02, 0.02), (0.3, 0.1)])
def test_tangos_interval_covers_in_every_table_there_is(n: int, cells: tuple[float, float]) -> None:
    """No simulation: every table and its probability. Careful with few pairs, so it may cover more."""
    win, loss = cells
    covered = above = 0.0
    for wins in range(n + 1):
        for losses in range(n + 1 - wins):
            ties = n - wins - losses
            chance = stats.multinomial.pmf([wins, losses, ties], n, [win, loss, 1 - win - loss])
            if chance > 1e-9:
                low, high = tango_interval(wins, losses, n)
                covered += chance * (low <= win - loss <= high)
                above += chance * (low <= win - loss)
    assert covered >= 0.94
    assert above >= 0.97


@pytest.mark.parametrize("n", [10, 25, 50, 100])
def test_wilsons_interval_covers_on_average_over_rates(n: int) -> None:
    hits = np.arange(n + 1)
    bounds = np.array([wilson_interval(int(k), n) for k in hits])
    rates = np.linspace(0.05, 0.95, 91)
    chance = stats.binom.pmf(hits[None, :], n, rates[:, None])
    inside = (bounds[:, 0] <= rates[:, None]) & (rates[:, None] <= bounds[:, 1])
    assert 0.93 <= float((chance * inside).sum(axis=1).mean()) <= 0.97
