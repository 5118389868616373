"""Calibration: the baseline against itself, to show what a comparison gives when nothing has changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate
from rollbook.evals.baseline_labels import record_labels
from rollbook.evals.baselines import Baseline
from rollbook.evals.failures import failed_by
from rollbook.evals.policies.policy import as_policy
from rollbook.evals.worlds.closed_loop import MOST_STEPS, closed_loop_metrics, run_closed_loop
from rollbook.evals.worlds.environments import EnvironmentFactory
from rollbook.evals.worlds.world_check import RecordedActions
from rollbook.scoring.labels import Labels, label_names
from rollbook.scoring.run_rollup import rollup


def calibrate(
    factory: EnvironmentFactory,
    baselines: Iterable[Baseline],
    *,
    policy: Any = None,
    gate: Gate | None = None,
    max_steps: int = MOST_STEPS,
) -> dict[str, Any]:
    """Compares the baseline with itself, to show what a comparison in this set-up gives when nothing has changed.

    Plays the recorded actions again, or runs its `policy` if given. The summary is that of a run; every difference in
    it is noise. `calibration` counts the episodes that had the recorded observations again.
    """
    names, results = label_names(gate or Gate()), []
    labels: dict[str, Labels] = {}
    for each in baselines:
        results.append(_against_itself(factory, each, policy, max_steps))
        if each.record is not None:
            labels[each.id] = record_labels(names, each.record)
    verdicts = [each.metrics.get("repro", {}).get("deterministic") for each in results]
    summary = rollup(results, gate, labels=labels).to_wire()
    summary["calibration"] = {
        "replayed": "actions" if policy is None else "policy",
        "deterministic": verdicts.count(True),
        "nondeterministic": verdicts.count(False),
        "unknown": verdicts.count(None),
    }
    return summary


def _against_itself(
    factory: EnvironmentFactory, baseline: Baseline, policy: Any, max_steps: int
) -> EvalResult:
    recorded = RecordedActions(baseline.actions or {})
    limit = max_steps if policy is not None else max(1, min(recorded.steps, max_steps))
    try:
        run = run_closed_loop(
            factory, baseline, as_policy(recorded if policy is None else policy), max_steps=limit
        )
        metrics = closed_loop_metrics(run, baseline)
    except Exception as error:  # noqa: BLE001 - policy or environment failed: a failed result, as in a run
        return failed_by(baseline.id, error)
    return EvalResult(baseline.id, None, "complete", metrics)
