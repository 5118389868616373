"""Measuring: interleaved repetitions, best of several, CPU time or wall time; and printing a claim with its bar."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


def best(
    runs: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    in_a_row: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Seconds of the best repetition of each; repetitions take turns, so a noisy moment hits all of them.

    `in_a_row` is for what takes microseconds: each turn is that many calls, so that caches are as warm as in use.
    """
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            start = clock()
            for _ in range(in_a_row):
                run()
            seconds[name] = min(seconds[name], (clock() - start) / in_a_row)
    return seconds


@dataclass(frozen=True)
class Claim:
    """One measured ratio beside the bar it should meet."""

    name: str
    value: float | None
    """None if a peer is missing. The claim is then not measured, and never met."""
    bar: float
    unit: str
    at_most: bool = False

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        return "met" if self.met else "MISSED"

    def __str__(self) -> str:
        bar = f"(bar {'<=' if self.at_most else '>='} {self.bar:g})"
        if self.value is None:
            return f"  {self.verdict}  {self.name} {bar}"
        return f"  {self.verdict:12}  {self.name}: {self.value:.2f} {self.unit} {bar}"
