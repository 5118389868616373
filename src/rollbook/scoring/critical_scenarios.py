"""Critical scenarios: baselines on which a candidate must not fail once, whatever the averages say."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollbook.contracts.gate import Gate
from rollbook.scoring.decision import SHOWN, Statistics
from rollbook.scoring.result_columns import ResultColumns


def failed_scenarios(
    columns: ResultColumns, statistics: Statistics, gate: Gate, critical: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Those of this run that did not pass, by id, each with its first reason."""
    failed: dict[str, str] = {}
    for row, baseline in enumerate(columns.ids):
        if baseline in critical:
            why = _failure(columns, statistics, gate, row)
            if why is not None:
                failed.setdefault(critical[baseline], why)
    return tuple(sorted(failed.items()))


def _failure(columns: ResultColumns, statistics: Statistics, gate: Gate, row: int) -> str | None:
    if columns.failed[row]:
        return "the candidate crashed"
    if not columns.complete[row]:
        return "it has no result yet"
    success = columns.outcomes["success"]
    measured = success.told[row] and np.isfinite(success.candidate[row])
    if measured and success.candidate[row] == 0:
        return "the candidate failed"
    if not measured and gate.rule("success").role != "info":
        return "success was not measured"
    for rule in gate.rules:
        if rule.role != "info" and row in (statistics[rule.metric].catastrophic_rows or ()):
            return f"{SHOWN[rule.metric]} got worse by more than is borne"
    return None
