"""Early stop: whether the rest of a run is still needed, asked while results arrive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rollbook.contracts.evals import INFRASTRUCTURE, EvalResult
from rollbook.contracts.gate import NO_CLUSTERS, Gate, gate_from
from rollbook.evals.baseline_labels import chain_labels, episode_labels
from rollbook.evals.eval_run import EvalRun
from rollbook.evals.options import ReplayOptions
from rollbook.evals.server_calls import critical_scenarios
from rollbook.scoring.labels import Labels
from rollbook.scoring.looks import look_sizes
from rollbook.scoring.run_rollup import rollup

if TYPE_CHECKING:
    from rollbook.client import Client

_CHECK_EVERY = 10
"""Pairs between two checks of a sequential gate."""


class EarlyStop:
    """Asks the gate, while results arrive, whether the rest is needed. A gate that judges once, at the end, never stops
    a run.

    Pairs count in the order of their ids, up to the first one without a result, so they are replayed in that order.
    """

    def __init__(self, run: EvalRun, client: Client | None, options: ReplayOptions) -> None:
        gate = None if run.gate is None else gate_from(run.gate)
        self._gate = gate if gate is not None and _may_stop(gate, run) else None
        self._ids = sorted(run.baseline_episode_ids)
        self._critical: Mapping[str, str] = {}
        self._labels: Mapping[str, Labels] = {}
        if self._gate is not None:
            self._labels = _labels(self._gate, self._ids, client, options)
            if client is not None:
                self._critical = critical_scenarios(client, self._ids)
        self._results: dict[str, EvalResult] = {}
        self._leading = 0
        self._checked = 0
        self.reached = False
        """Whether the remaining baselines can be left out."""

    def ordered(self, ids: list[str]) -> list[str]:
        """The order in which they are replayed."""
        return ids if self._gate is None else sorted(ids)

    def take(self, result: EvalResult) -> None:
        if self._gate is None or (result.error or "").startswith(INFRASTRUCTURE):
            return
        self._results[result.baseline_episode_id] = result
        while self._leading < len(self._ids) and self._ids[self._leading] in self._results:
            self._leading += 1
        if self._is_due(self._gate):
            self.check()

    def _is_due(self, gate: Gate) -> bool:
        if gate.design == "sequential":
            return self._leading >= self._checked + _CHECK_EVERY
        sizes = look_sizes(len(self._ids), gate.looks)
        return any(self._checked < size <= self._leading for size in sizes)

    def check(self) -> None:
        if self._gate is not None and self._leading > self._checked:
            self._checked = self._leading
            pending = EvalResult("", None, "pending", {})
            rows = [
                self._results.get(each) or replace(pending, baseline_episode_id=each)
                for each in self._ids
            ]
            summary = rollup(rows, self._gate, critical=self._critical, labels=self._labels)
            self.reached = summary.decision.early_stop is not None


def _may_stop(gate: Gate, run: EvalRun) -> bool:
    """Only the server knows the level of a gate whose ledger decides, so such a run is replayed to its end."""
    if gate.ledger == "decide" and not run.dry:
        return False
    return gate.design == "sequential" or gate.looks > 1


def _labels(
    gate: Gate, ids: list[str], client: Client | None, options: ReplayOptions
) -> Mapping[str, Labels]:
    if gate.cluster == NO_CLUSTERS and not gate.guard_slices:
        return {}
    if client is not None:
        return episode_labels(client, ids, gate)
    from rollbook.evals.store_baselines import StoreBaselines

    assert options.store_path is not None
    return chain_labels(StoreBaselines(options.store_path), gate)
