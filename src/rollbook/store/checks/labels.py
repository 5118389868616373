"""Checks of the labels: which candidates have one, which may be used for training, and the sums along a chain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rollbook.store.checks.columns import Array, Mask, Segments, StoreColumns
from rollbook.store.checks.violation import Violation, violation_of_rows, violations_at
from rollbook.store.schema import CANDIDATES, STEPS
from rollbook.store.zero_labels import find_zero_labels

_TOLERANCE = 1e-5
_SUM = "cumulative_"
_SUMMED = tuple(name.removeprefix(_SUM) for name in STEPS.columns if name.startswith(_SUM))
"""Metrics whose sums steps and rollouts store."""
_ALL = tuple(CANDIDATES.columns)
_SCORES = _ALL[_ALL.index("scene_rri") : _ALL.index("selection_logits") + 1]
"""Columns that the oracle and the policy fill; NaN where they gave no value."""


def check_labels_on_invalid(columns: StoreColumns) -> Iterator[Violation]:
    """An invalid candidate has no score; a low score would be wrong."""
    invalid = ~columns["candidates/actor_action_mask"]
    for name in _SCORES:
        values = columns[f"candidates/{name}"]
        yield from violations_at(
            "label_on_invalid",
            "candidates",
            invalid & (values == values),  # NaN is the only value that differs from itself
            f"{name} is not NaN for a candidate the actor could not take",
        )


def check_label_masks(columns: StoreColumns) -> Iterator[Violation]:
    valid = columns["candidates/actor_action_mask"]
    labelled = valid & np.isfinite(columns["candidates/target_root_gain"])
    stored = columns["candidates/oracle_label_mask"]
    yield from violations_at(
        "wrong_label_mask",
        "candidates",
        stored != labelled,
        "oracle_label_mask is not: the actor could take it, and target_root_gain is finite",
    )
    trainable = columns.of_target("target_valid_mask") & columns.of_target("gt_label_valid_mask")
    expected = stored & columns.shells.spread(columns.chains.spread(trainable))
    yield from violations_at(
        "wrong_train_mask",
        "candidates",
        columns["candidates/q_train_mask"] != expected,
        "q_train_mask is not: it has a label, and its target is valid and matched to ground truth",
    )


def warn_zero_labels(columns: StoreColumns) -> Iterator[Violation]:
    names = ("steps/step_index", "candidates/step_row_id", "candidates/target_root_gain")
    found = find_zero_labels(*(columns[name] for name in names))
    if found.warning is not None:
        yield violation_of_rows("labels_all_zero", "steps", found.steps, found.warning)


def check_cumulative(columns: StoreColumns) -> Iterator[Violation]:
    taken, chains = columns.taken, columns.chains
    for name in _SUMMED:
        values = columns[f"candidates/{name}"][taken]
        wrong = _differs_from_sum(columns[f"steps/cumulative_{name}"], values, chains)
        yield from violations_at(
            "wrong_cumulative",
            "steps",
            wrong,
            f"cumulative_{name} is not the sum of the selected candidates' {name} up to this step",
        )


def _differs_from_sum(stored: Array, values: Array, chains: Segments) -> Mask:
    """All chains at once, one step at a time, so that values of one chain do not affect the sum of another."""
    finite = np.isfinite(values)
    values = np.where(finite, values, 0).astype(np.float64)
    total, size = np.zeros((2, len(chains.counts)))
    seen = np.zeros(len(chains.counts), np.bool_)
    wrong = np.zeros(len(stored), np.bool_)
    for step in range(int(chains.counts.max(initial=0))):
        alive = np.flatnonzero(chains.counts > step)
        rows = chains.starts[alive] + step
        total[alive] += values[rows]
        size[alive] += np.abs(values[rows])
        seen[alive] |= finite[rows]
        wrong[rows] = ~_close(stored[rows], total[alive], size[alive], seen[alive])
    return wrong


def _close(
    stored: Array, total: NDArray[np.float64], size: NDArray[np.float64], seen: Mask
) -> Mask:
    """Whether a stored sum is right, within the rounding of float32. Before the first label it must be NaN."""
    near: Mask = np.abs(stored - total) <= _TOLERANCE * size + 1e-7
    return np.where(seen, near, np.isnan(stored))


def check_finals(columns: StoreColumns) -> Iterator[Violation]:
    chains = columns.chains
    some = chains.counts > 0
    last = chains.ends[some] - 1
    for name in _SUMMED:
        expected = np.full(len(chains.counts), np.float32(np.nan))
        expected[some] = columns[f"steps/cumulative_{name}"][last]
        stored = columns[f"rollouts/final_cumulative_{name}"]
        wrong = (stored != expected) & ~(np.isnan(stored) & np.isnan(expected))
        yield from violations_at(
            "wrong_final",
            "rollouts",
            wrong,
            f"final_cumulative_{name} is not that of its last step",
        )


def check_termination(columns: StoreColumns) -> Iterator[Violation]:
    horizon, steps = columns["rollouts/horizon"], columns["rollouts/num_steps"]
    yield from violations_at(
        "wrong_horizon",
        "rollouts",
        (horizon < 1) | (steps > horizon),
        "horizon is less than 1, or than the steps of the chain",
    )
    words = columns.words("termination_reason")
    codes = columns["rollouts/termination_reason"]
    expected = np.where(steps >= horizon, "fixed_horizon", "incomplete_rollout")
    found = np.array([*words, ""])[np.clip(codes, -1, len(words))]
    yield from violations_at(
        "wrong_termination",
        "rollouts",
        (found != expected) & (found != "terminated_early"),
        "termination_reason does not go with its steps and its horizon",
    )
