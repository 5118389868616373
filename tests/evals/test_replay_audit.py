"""An audit compares everything that a decision reads of a pair, the side of the baseline included."""

from __future__ import annotations

from typing import Any

import pytest

from rollbook.contracts.evals import EvalResult
from rollbook.evals.replay_audit import AuditedPair

METRICS: dict[str, Any] = {
    "success_baseline": True,
    "success_candidate": True,
    "reward_total_candidate": 2.0,
    "repro": {"verified": True, "digest": "abc"},
}


def differences(**changes: Any) -> list[str]:
    before, again = (
        EvalResult("ep-1", None, "complete", metrics)
        for metrics in ({**METRICS, **changes}, METRICS)
    )
    return AuditedPair(before, again).differences


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"success_candidate": False}, ["success"]),
        ({"reward_total_candidate": 2.0 + 1e-12}, []),
        ({"success_baseline": False}, ["success_baseline"]),
        ({"success_baseline": None}, []),  # the server fills in what it knows
        ({"reward_total_baseline": 1.0}, []),
        ({"repro": {"verified": None, "digest": "abc"}}, ["verified"]),
        ({"repro": {"verified": True, "digest": "abd"}}, ["digest"]),
        ({"repro": "none", "success_candidate": "yes"}, ["digest", "success", "verified"]),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], found: list[str]) -> None:
    assert differences(**changes) == found
