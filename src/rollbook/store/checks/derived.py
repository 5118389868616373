"""Checks of the derived views: `q_h` and `returns` are computed again from the facts and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rollbook.store.checks.columns import Array, Mask, NotUsable, Segments, StoreColumns
from rollbook.store.checks.violation import Violation, any_in_row, violations_at
from rollbook.store.q_h import CANDIDATE_COLUMNS, q_h_block
from rollbook.store.returns import returns_block
from rollbook.store.schema import REWARD_METRIC, TABLES, TD_SEMANTICS

_BLOCK_STEPS = 4096
_TOLERANCE = 1e-6


def check_q_h(columns: StoreColumns) -> Iterator[Violation]:
    names = ["actor_features"] if columns.has("candidates/actor_features") else []
    facts = {name: columns[f"candidates/{name}"] for name in (*CANDIDATE_COLUMNS, *names)}
    rollouts = {
        "source_row_id": columns["rollouts/source_row_id"],
        "target_row_id": columns["rollouts/target_row_id"],
        "num_steps": columns.chains.counts,
    }
    gamma, width = _gamma(columns), int(columns.shells.counts.max(initial=0))
    comparison = _Comparison(columns, "q_h")
    for steps in _step_blocks(columns.chains):
        linked = _linked_steps(columns, steps)
        first, end = columns.shells.starts[steps][0], columns.shells.ends[steps][-1]
        shells = {name: values[first:end] for name, values in facts.items()}
        view = q_h_block(linked, rollouts, shells, width=width, gamma=gamma)
        comparison.add(steps, view)
    yield from comparison.violations()


def _linked_steps(columns: StoreColumns, steps: slice) -> dict[str, Array]:
    """The links that follow from the counts. A wrong stored link has its own violation and must not hide others."""
    return {
        "step_row_id": np.arange(steps.start, steps.stop),
        "rollout_row_id": columns.chains.owner[steps],
        "step_index": columns.chains.place[steps],
        "selected_candidate_row_id": columns["steps/selected_candidate_row_id"][steps],
        "num_candidates": columns.shells.counts[steps],
        "candidate_offset": columns.shells.starts[steps],
    }


def check_returns(columns: StoreColumns) -> Iterator[Violation]:
    taken, chains = columns.taken, columns.chains
    valid = columns["candidates/actor_action_mask"][taken]
    gains = columns["candidates/target_root_gain"][taken]
    rewards = np.where(valid, gains, np.float32(np.nan))
    lengths = chains.spread(chains.counts)
    horizon = int(columns["rollouts/horizon"].max(initial=1))
    comparison = _Comparison(columns, "returns")
    for steps in _step_blocks(chains):
        view = returns_block(
            rewards[steps],
            chains.place[steps],
            lengths[steps],
            horizon=horizon,
            gamma=_gamma(columns),
        )
        comparison.add(steps, view)
    yield from comparison.violations()


def check_q_h_rules(columns: StoreColumns) -> Iterator[Violation]:
    """The rules that a trainer relies on."""
    trained, valid = columns["q_h/q_train_mask"], columns["q_h/valid_action_mask"]
    gains = columns["q_h/one_step_target_root_gain"]
    yield from violations_at(
        "train_on_invalid",
        "q_h",
        trained & ~valid,
        "q_train_mask has an action that is not valid",
    )
    yield from violations_at(
        "train_without_label",
        "q_h",
        trained & ~np.isfinite(gains),
        "q_train_mask has an action without a finite one_step_target_root_gain",
    )
    yield from violations_at(
        "terminal_with_discount",
        "q_h",
        columns["q_h/td_terminal_mask"] & (columns["q_h/td_discount"] != 0),
        "td_discount is not 0 in a terminal state",
    )


def check_derived_attrs(columns: StoreColumns) -> Iterator[Violation]:
    root = columns.attrs
    horizon = int(columns["rollouts/horizon"].max(initial=1))
    shared = {
        "reward_metric": REWARD_METRIC,
        "horizon": horizon,
        "discount_gamma": root.get("discount_gamma"),
    }
    yield from _attrs_differ(columns, "returns", shared)
    yield from _attrs_differ(
        columns,
        "q_h",
        {
            **shared,
            "state_count": columns.rows("steps"),
            "max_candidates": int(columns["steps/num_candidates"].max(initial=0)),
            "td_semantics": TD_SEMANTICS,
            "return_semantics": root.get("return_semantics"),
        },
    )


def _attrs_differ(
    columns: StoreColumns, table: str, expected: Mapping[str, Any]
) -> Iterator[Violation]:
    attrs = columns.group_attrs(table)
    for name, value in expected.items():
        if attrs.get(name) != value:
            yield Violation(
                "wrong_attr",
                table,
                f"its attribute {name} is {attrs.get(name)!r}, expected {value!r}",
            )


# ------------------------------------------------------------------------------------- comparing


class _Comparison:
    """Compares the stored columns of a view with the computed ones, block by block."""

    def __init__(self, columns: StoreColumns, table: str) -> None:
        self._table = table
        self._stored = {
            name: columns[f"{table}/{name}"]
            for name, column in TABLES[table].columns.items()
            if not column.optional or columns.has(f"{table}/{name}")
        }
        self._wrong: dict[str, Mask] = {}

    def add(self, steps: slice, view: Mapping[str, Array]) -> None:
        for name, stored in self._stored.items():
            if name in view and not _same_bits(stored[steps], view[name]):
                wrong = self._wrong.setdefault(name, np.zeros(len(stored), np.bool_))
                wrong[steps] = any_in_row(_differs(stored[steps], view[name]))

    def violations(self) -> Iterator[Violation]:
        for name, wrong in self._wrong.items():
            yield from violations_at(
                f"{self._table}_differs",
                self._table,
                wrong,
                f"{name} is not what the tables give; rebuild the view",
            )


def _same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays have the same bits. This is faster than a comparison with NaNs, and nearly always true."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = f"u{one.dtype.itemsize}"
    return bool((one.view(bits) == np.ascontiguousarray(other).view(bits)).all())


def _differs(stored: Array, rebuilt: Array) -> Mask:
    if stored.shape != rebuilt.shape:
        return np.ones(len(stored), np.bool_)
    if stored.dtype.kind != "f":
        return np.asarray(stored != rebuilt)
    return ~np.isclose(stored, rebuilt, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)


def _gamma(columns: StoreColumns) -> float:
    gamma = columns.attrs.get("discount_gamma")
    if not isinstance(gamma, int | float) or not 0 <= gamma < np.inf:
        raise NotUsable(f"the root attribute discount_gamma is {gamma!r}")
    return float(gamma)


def _step_blocks(chains: Segments) -> Iterator[slice]:
    """Complete chains, a few thousand steps at a time."""
    first, total = 0, int(chains.ends[-1]) if len(chains.ends) else 0
    while first < total:
        at = int(np.searchsorted(chains.ends, first + _BLOCK_STEPS, side="right")) - 1
        end = int(chains.ends[at]) if at >= 0 else 0
        if end <= first:  # one chain is longer than a block
            end = int(chains.ends[at + 1])
        yield slice(first, end)
        first = end
