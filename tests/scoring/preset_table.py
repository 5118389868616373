"""How often each preset ships: `python -m tests.scoring.preset_table 4000` prints it for docs/explain/statistics.md."""

from __future__ import annotations

import sys
from functools import cache
from typing import NamedTuple

import numpy as np

from rollbook.contracts.evals import EVIDENCE
from rollbook.contracts.gate import Gate
from rollbook.contracts.gate_presets import GATE_PRESETS
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.scoring.decision import judge
from rollbook.scoring.planning import ExpectedPairs, first_run_level, plan_pairs
from rollbook.scoring.result_columns import OutcomeColumn, ResultColumns
from rollbook.scoring.run_rollup import measured

WORLDS = {
    "equal": (0.15, 0.15),
    "10 points worse": (0.10, 0.20),
    "+10": (0.20, 0.10),
    "+15": (0.225, 0.075),
    "+20": (0.25, 0.05),
}
"""Shares of the pairs that are won and lost."""
COUNTS = (100, 200)
SEED = 15


class Cell(NamedTuple):
    preset: str
    pairs: int
    world: str


@cache
def ships(preset: str, n: int, wins: int, losses: int) -> bool:
    """Whether the shipped gate ships a first run with this table of success."""
    gate = GATE_PRESETS[preset].gate
    level = first_run_level(gate)
    facts, statistics = measured(_columns(n, wins, losses), gate, level=level)
    return judge(statistics, gate, facts, level).recommend == "ship"


def ship_rate(cell: Cell, runs: int) -> float:
    win, loss = WORLDS[cell.world]
    rng = np.random.default_rng([SEED, cell.pairs, list(WORLDS).index(cell.world)])
    tables = rng.multinomial(cell.pairs, [win, loss, 1 - win - loss], runs)
    kinds, counts = np.unique(tables[:, :2], axis=0, return_counts=True)
    shipped = [ships(cell.preset, cell.pairs, int(won), int(lost)) for won, lost in kinds]
    return float(counts[shipped].sum()) / runs


def preset_table(runs: int) -> dict[Cell, float]:
    cells = [Cell(name, n, world) for name in GATE_PRESETS for n in COUNTS for world in WORLDS]
    return {cell: ship_rate(cell, runs) for cell in cells}


def printed(table: dict[Cell, float]) -> str:
    """As Markdown."""
    lines = [
        "| preset | pairs | " + " | ".join(WORLDS) + " | pairs for +10, +15, +20 |",
        "|" + "---|" * (len(WORLDS) + 3),
    ]
    for name, preset in GATE_PRESETS.items():
        for n in COUNTS:
            rates = [f"{table[Cell(name, n, world)]:.3f}".lstrip("0") for world in WORLDS]
            needed = ", ".join(str(_planned(world, preset.gate)) for world in list(WORLDS)[2:])
            lines.append(f"| {name} | {n} | " + " | ".join(rates) + f" | {needed} |")
    return "\n".join(lines)


def _planned(world: str, gate: Gate) -> int:
    win, loss = WORLDS[world]
    planned = plan_pairs(ExpectedPairs(effect=win - loss, differ=win + loss), gate)
    assert planned is not None
    return planned.pairs


def _columns(n: int, wins: int, losses: int) -> ResultColumns:
    """Success alone, measured in a closed loop that was checked."""
    no = np.zeros(n, bool)
    unknown = OutcomeColumn(
        np.full(n, np.nan),
        np.full(n, np.nan),
        np.full(n, EVIDENCE.index("not_measured"), np.int8),
        0,
    )
    baseline, candidate = np.ones(n), np.ones(n)
    baseline[:wins], candidate[wins : wins + losses] = 0.0, 0.0
    closed_loop = np.full(n, EVIDENCE.index("closed_loop"), np.int8)
    success = OutcomeColumn(baseline, candidate, closed_loop, 0)
    return ResultColumns(
        ids=tuple(f"{i:06}" for i in range(n)),
        complete=~no,
        failed=no,
        outcomes={name: success if name == "success" else unknown for name in OUTCOMES},
        env_mismatch=no,
        nondeterministic=no,
        metrics=({},) * n,
        repeated=0,
    )


if __name__ == "__main__":
    print(printed(preset_table(int(sys.argv[1]))))  # noqa: T201
