"""One metric over the completed runs of an organisation."""

from __future__ import annotations

from msgspec import Struct


class TrendPoint(Struct, frozen=True, kw_only=True):
    eval_run_id: str
    name: str | None
    candidate_policy_version: str
    baseline_policy_version: str | None
    completed_at: str
    baseline: float | None
    candidate: float | None
    delta: float | None
    """Difference of the plain means, which leave out crashed episodes."""
    paired_delta: float | None
    """Mean difference of the pairs, with a crash counted as a loss; `interval` is its interval."""
    interval: list[float] | None = None
    interval_level: float | None = None
    """How often an interval like this contains the true difference."""
    n_pairs: int | None
    evidence: str | None
    decision: str | None
    altered: int = 0
    """Baselines that were deleted after the run was created. The decision is the one from before."""


class Trend(Struct, frozen=True):
    metric: str
    points: list[TrendPoint]
    """Oldest first."""
