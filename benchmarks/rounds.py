"""Rounds: three rounds of `train loop`: the policy that is current after each of them, closed loop, on unseen flats.

The loop has its own flats: it trains on one split and decides about promotion on another. The gains of this page are
measured on the test flats of the benchmark `learning`, which no round has seen: every policy starts from the same
roots, at most two of a flat. The policy that a round trained is measured too, whether it was promoted or not. Gains are
means over flats; differences are paired by flat, with 95 % intervals of Student's t. Finished parts are kept in
`.bench/rounds`, so that an interrupted measurement goes on.
"""

from __future__ import annotations

import dataclasses
import os
from itertools import pairwise
from pathlib import Path

import msgspec

from benchmarks.learning import (
    HORIZON,
    LEAST_FLATS,
    TEST_FLATS,
    TEST_SEED,
    TRAINING_SEED,
    kept_or_made,
    make_flats,
    rollouts_config,
)
from benchmarks.results import RESULTS
from benchmarks.timing import Claim
from rollbook.digest import digest_of
from rollbook.files import make_folders, write_bytes
from rollbook.generate.compare import PolicyResult, compare_policies, recipe_for
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig, SourceConfig
from rollbook.generate.sources.splits import SplitConfig
from rollbook.improve import LoopRecord, improve_policy

FLATS = 82
"""Of the loop: 60 to train on, 22 to judge on."""
SPLITS = SplitConfig(train=0.73, val=0.27, test=0.0)
ROUNDS = 3


class _Compared(msgspec.Struct):
    """Results of `random`, `greedy` and each trained policy, by the policy that they are compared with."""

    versus: dict[str, list[PolicyResult]]


def main(scale: float = 1.0) -> list[Claim]:
    known = rollouts_config(Path("flats"), Path("data.zarr")).config_hash
    set_up = [FLATS, TRAINING_SEED, TEST_FLATS, TEST_SEED, ROUNDS, scale]
    folder = RESULTS / "rounds" / digest_of("rollbook.benchmark", [*set_up, known])[:12]
    make_folders(folder)
    flats, test = max(8, round(FLATS * scale)), max(2, round(TEST_FLATS * scale))
    source = kept_or_made(
        folder / "flats", lambda path: make_flats(path, flats, TRAINING_SEED, scale, SPLITS)
    )
    unseen = kept_or_made(
        folder / "test-flats", lambda path: make_flats(path, test, TEST_SEED, scale)
    )
    record = improve_policy(
        dataclasses.replace(
            rollouts_config(source, folder / "unused.zarr"), workers=os.cpu_count() or 1
        ),
        folder / "loop",
        rounds=ROUNDS,
        options={"iterations": 20} if scale < 1 else None,
    )
    runs = {
        each.number: str(folder / "loop" / each.run.place) for each in record.rounds if each.run
    }
    compared = _compared(
        folder, rollouts_config(unseen, folder / "unused.zarr"), list(runs.values())
    )
    return _claims(record, runs, compared)


def _compared(folder: Path, config: RolloutDatasetWriterConfig, runs: list[str]) -> _Compared:
    """Every policy from the same roots of the test flats, closed loop."""
    kept = folder / "compared.json"
    if not kept.exists():
        names = ["random", "greedy", *runs]
        config = dataclasses.replace(
            config,
            source=SourceConfig(store_dir=config.source.store_dir),
            recipes=tuple(recipe_for(name, HORIZON) for name in names),
        )
        opened, rows = config.setup_target().rows(one_split=False)
        comparison = compare_policies(config, opened, rows, names)
        found = _Compared({name: comparison.results(name) for name in ("random", *runs)})
        write_bytes(kept, msgspec.json.encode(found))
    return msgspec.json.decode(kept.read_bytes(), type=_Compared)


def _claims(record: LoopRecord, runs: dict[int, str], compared: _Compared) -> list[Claim]:
    of = {each.policy: each for each in compared.versus["random"]}
    scenes, scale = of["random"].scenes, of["greedy"].target_gain - of["random"].target_gain
    print(
        f"rounds: {record.plan.training_rows} flats to train on, {record.plan.held_out_rows} to judge on; "
        f"{scenes} test flats, {of['random'].roots} roots"
    )
    current = ["random"]
    print(f"  chance                gain {of['random'].target_gain:.3f}")
    for each in record.rounds:
        trained = of[runs[each.number]]
        current.append(runs[each.number] if each.promoted else current[-1])
        closed = (trained.target_gain - of["random"].target_gain) / scale
        print(
            f"  round {each.number} {'promoted' if each.promoted else 'held':>9}     "
            f"gain {trained.target_gain:.3f}, {closed:6.1%} of the gap;   "
            f"current policy {of[current[-1]].target_gain:.3f}"
        )
    print(f"  greedy oracle         gain {of['greedy'].target_gain:.3f}")
    worst = min(of[new].target_gain - of[old].target_gain for old, new in pairwise(current))
    first, last = runs[min(runs)], runs[max(runs)]
    newest = next(each for each in compared.versus[first] if each.policy == last)
    print(
        f"  trained in round {max(runs)} - in round {min(runs)}: {newest.difference:+.3f}, "
        f"95 % interval {newest.low:+.3f} to {newest.high:+.3f}"
    )
    enough = scenes >= LEAST_FLATS  # a small run only shows that all parts work
    over_chance = of[current[-1]].low if current[-1] != "random" else 0.0
    return [
        Claim(
            "smallest change of the current policy's gain in a round",
            worst if enough else None,
            0,
            "",
        ),
        Claim(
            "current policy after three rounds - random, lower limit",
            over_chance if enough else None,
            0,
            "",
        ),
        Claim(
            "policy trained in round 3 - in round 1, upper limit",
            newest.high if enough else None,
            0,
            "",
        ),
    ]
