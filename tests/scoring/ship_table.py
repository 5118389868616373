"""How often the shipped gate says "ship", by simulation. `python -m tests.scoring.ship_table 4000` prints it."""

from __future__ import annotations

import sys
from typing import NamedTuple

import msgspec

from rollbook.contracts.gate import Gate
from rollbook.scoring.decision import judge
from rollbook.scoring.run_rollup import measured
from rollbook.scoring.vote import vote
from tests.scoring.simulated_runs import simulated_runs

DEFAULT = Gate()
STRICT = Gate(
    n_min=20, rules=(msgspec.structs.replace(DEFAULT.rules[0], margin=0.05), *DEFAULT.rules[1:])
)
SETTINGS = {
    "strict": (STRICT, (5, 10, 20, 50, 100, 200), (-0.10, -0.05, 0.0, 0.10)),
    "default": (DEFAULT, (10, 25, 50, 100, 200), (-0.20, -0.10, -0.05, 0.0, 0.05, 0.10)),
}
SEED = 1


class Rates(NamedTuple):
    vote: float
    superiority: float
    non_inferiority: float


Table = dict[tuple[str, int, float], Rates]


def ship_rates(n: int, delta: float, runs: int) -> dict[str, Rates]:
    """Both settings judge the same runs."""
    gates = [
        msgspec.structs.replace(gate, mode=mode)
        for gate, _, _ in SETTINGS.values()
        for mode in ("superiority", "non_inferiority")
    ]
    voted, shipped = 0, [0] * len(gates)
    for columns in simulated_runs(n, delta, runs, SEED):
        facts, statistics = measured(columns, DEFAULT)
        voted += vote(columns).recommend == "ship"
        for place, gate in enumerate(gates):
            shipped[place] += judge(statistics, gate, facts).recommend == "ship"
    share = [count / runs for count in shipped]
    return {
        "strict": Rates(voted / runs, share[0], share[1]),
        "default": Rates(voted / runs, share[2], share[3]),
    }


def ship_table(runs: int) -> Table:
    wanted = {
        name: [(n, delta) for n in counts for delta in deltas]
        for name, (_, counts, deltas) in SETTINGS.items()
    }
    table: Table = {}
    for n, delta in sorted({cell for cells in wanted.values() for cell in cells}):
        rates = ship_rates(n, delta, runs)
        for name, cells in wanted.items():
            if (n, delta) in cells:
                table[name, n, delta] = rates[name]
    return table


def printed(table: Table) -> str:
    """As Markdown; each cell is vote / superiority / non-inferiority."""
    lines = []
    for name, (gate, counts, deltas) in SETTINGS.items():
        lines.append(
            f"{name}: success margin {gate.rules[0].margin}, at least {gate.n_min} pairs\n"
        )
        lines.append("| n | " + " | ".join(f"{100 * delta:+.0f} points" for delta in deltas) + " |")
        lines.append("|" + "---|" * (len(deltas) + 1))
        for n in counts:
            cells = [
                " / ".join(f"{rate:.3f}" for rate in table[name, n, delta]) for delta in deltas
            ]
            lines.append(f"| {n} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(printed(ship_table(int(sys.argv[1]))))  # noqa: T201
