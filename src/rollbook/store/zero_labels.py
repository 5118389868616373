"""Roots at which every label is 0: no candidate helps, so there is nothing to learn from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NOTHING = 1e-6
"""A gain below this is 0 but for rounding."""
REACH_ADVICE = (
    "the candidates do not reach the target; allow larger turns and steps back (max_yaw_delta_deg and "
    "max_backward_step_m in [candidate_rules]), or choose other targets"
)
"""What to do about roots without a gain."""


@dataclass(frozen=True, slots=True, eq=False)
class ZeroLabels:
    """The first steps of rollouts whose labelled candidates all have gain 0."""

    steps: NDArray[np.intp]
    """Their rows in the table `steps`."""
    roots: int
    """Number of all first steps with a label."""

    @property
    def warning(self) -> str | None:
        """What is wrong and what to do; None if every root has a candidate that helps."""
        count = len(self.steps)
        if not count:
            return None
        if count == self.roots:
            return f"every candidate of every root has gain 0, so nothing can be learned: {REACH_ADVICE}"
        share = f"{count:,} of {self.roots:,} roots ({count / self.roots:.0%})"
        return f"every candidate has gain 0 at {share}: there, {REACH_ADVICE}"


def find_zero_labels(
    step_index: NDArray[Any], step_row_id: NDArray[Any], gain: NDArray[Any]
) -> ZeroLabels:
    """`step_index` of every step; step and `target_root_gain` of every candidate, NaN without a label."""
    rows = len(step_index)
    there = np.isfinite(gain) & (step_row_id >= 0) & (step_row_id < rows)
    steps = step_row_id[there]
    labels = np.bincount(steps, minlength=rows)
    helpful = np.bincount(steps[np.abs(gain[there]) > _NOTHING], minlength=rows)
    first = (step_index == 0) & (labels > 0)
    return ZeroLabels(np.flatnonzero(first & (helpful == 0)), int(first.sum()))
