"""Checks of the links between tables: row ids, offsets and owners."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollbook.store.checks.columns import Array, Rows, StoreColumns
from rollbook.store.checks.violation import Violation, violation_of_rows, violations_at

_OWN_IDS = {
    "rollouts": "rollout_row_id",
    "lineage": "rollout_row_id",
    "targets": "target_row_id",
    "steps": "step_row_id",
    "candidates": "candidate_row_id",
    "candidate_diagnostics": "candidate_row_id",
}


def check_row_ids(columns: StoreColumns) -> Iterator[Violation]:
    """The id of a row must be its place, so that an id can be used as an index."""
    for table, name in _OWN_IDS.items():
        ids = columns[f"{table}/{name}"]
        wrong = ids != np.arange(len(ids))
        yield from violations_at(
            "row_ids_not_dense", table, wrong, f"{name} is not the number of its row"
        )


def check_step_counts(columns: StoreColumns) -> Iterator[Violation]:
    yield from _counts_add_up(columns, "rollouts", "num_steps", "steps")


def check_candidate_counts(columns: StoreColumns) -> Iterator[Violation]:
    yield from _counts_add_up(columns, "steps", "num_candidates", "candidates")


def _counts_add_up(columns: StoreColumns, table: str, name: str, of: str) -> Iterator[Violation]:
    counts = columns[f"{table}/{name}"]
    yield from violations_at("negative_count", table, counts < 0, f"{name} is negative")
    total = int(counts.sum(dtype=np.int64))
    if total != columns.rows(of):
        yield Violation(
            "counts_do_not_add_up",
            table,
            f"{name} adds up to {total}, {of} has {columns.rows(of)} rows; rows of {of} could not be "
            "told apart, so most checks of them were left out",
        )


def check_step_offsets(columns: StoreColumns) -> Iterator[Violation]:
    yield from _differs(
        "wrong_offset", "rollouts", "step_offset", columns, columns.chains.starts, "its first step"
    )


def check_candidate_offsets(columns: StoreColumns) -> Iterator[Violation]:
    yield from _differs(
        "wrong_offset",
        "steps",
        "candidate_offset",
        columns,
        columns.shells.starts,
        "its first candidate",
    )


def check_step_links(columns: StoreColumns) -> Iterator[Violation]:
    chains = columns.chains
    yield from _differs(
        "wrong_link", "steps", "rollout_row_id", columns, chains.owner, "the chain it lies in"
    )
    yield from _differs(
        "wrong_index", "steps", "step_index", columns, chains.place, "its place in the chain"
    )


def check_candidate_links(columns: StoreColumns) -> Iterator[Violation]:
    shells, chains = columns.shells, columns.chains
    yield from _differs(
        "wrong_link", "candidates", "step_row_id", columns, shells.owner, "the step it lies in"
    )
    yield from _differs(
        "wrong_link",
        "candidates",
        "rollout_row_id",
        columns,
        shells.spread(chains.owner),
        "the chain of its step",
    )
    yield from _differs(
        "wrong_index",
        "candidates",
        "step_index",
        columns,
        shells.spread(chains.place.astype(np.int16)),
        "the index of its step",
    )
    yield from _differs(
        "wrong_index",
        "candidates",
        "shell_index",
        columns,
        shells.place,
        "its place in the shell",
    )


def _differs(
    code: str, table: str, name: str, columns: StoreColumns, expected: Array, meaning: str
) -> Iterator[Violation]:
    wrong = columns[f"{table}/{name}"] != expected
    yield from violations_at(code, table, wrong, f"{name} is not {meaning}")


def check_diagnostics(columns: StoreColumns) -> Iterator[Violation]:
    wrong = columns["candidate_diagnostics/position_id"] != columns["candidates/position_id"]
    yield from violations_at(
        "diagnostics_differ",
        "candidate_diagnostics",
        wrong,
        "position_id is not that of the candidate",
    )


# ----------------------------------------------------------------------------- sources and targets


def check_source_links(columns: StoreColumns) -> Iterator[Violation]:
    known = columns["sources/source_row_id"]
    yield from _duplicates("duplicate_source", "sources", known, "source_row_id stands twice")
    missing = ~np.isin(columns["rollouts/source_row_id"], known)
    yield from violations_at(
        "unknown_source",
        "rollouts",
        missing,
        "source_row_id names a row that sources does not have",
    )


def check_target_links(columns: StoreColumns) -> Iterator[Violation]:
    _, there = columns.target_rows
    yield from violations_at(
        "unknown_target", "rollouts", ~there, "target_row_id names a row that targets does not have"
    )
    yield from _duplicates(
        "duplicate_target",
        "targets",
        columns["targets/target_row_id"],
        "target_row_id stands twice",
    )


def _duplicates(code: str, table: str, ids: Array, message: str) -> Iterator[Violation]:
    _, first = np.unique(ids, return_index=True)
    repeated = np.ones(len(ids), np.bool_)
    repeated[first] = False
    yield from violations_at(code, table, repeated, message)


def check_one_source_per_target(columns: StoreColumns) -> Iterator[Violation]:
    """A target belongs to one source row. Two sources with the same target row are an error."""
    targets, sources = columns["rollouts/target_row_id"], columns["rollouts/source_row_id"]
    pairs = np.unique(np.stack([targets, sources], axis=1), axis=0)[:, 0]
    shared = np.unique(pairs[1:][pairs[1:] == pairs[:-1]])
    if len(shared):
        yield violation_of_rows(
            "target_of_several_sources",
            "targets",
            shared,
            "rollouts with different source_row_id use one target row",
        )


def check_rollout_sources(columns: StoreColumns) -> Iterator[Violation]:
    rows = columns.source_rows
    for name in ("scene_id", "snippet_id", "split_id"):
        wrong = columns[f"rollouts/{name}"] != columns[f"sources/{name}"][rows]
        yield from violations_at(
            "source_differs", "rollouts", wrong, f"{name} is not that of its source row"
        )


# ------------------------------------------------------------------------------------ parent edges


def check_parents(columns: StoreColumns) -> Iterator[Violation]:
    parents, forks = columns["rollouts/parent_rollout_row_id"], columns["rollouts/fork_step_index"]
    rows = np.arange(len(parents))
    alone = (parents == -1) & (forks == -1)
    earlier = (parents >= 0) & (parents < rows) & (forks >= 0)
    yield from violations_at(
        "wrong_parent",
        "rollouts",
        ~(alone | earlier),
        "parent_rollout_row_id and fork_step_index are neither both -1 nor an earlier chain and a step",
    )
    children = np.flatnonzero(earlier)
    yield from _parent_links(columns, children, parents[children])
    yield from _forks(columns, children, parents[children], forks[children].astype(np.int64))


def _parent_links(columns: StoreColumns, children: Rows, parents: Rows) -> Iterator[Violation]:
    for name in ("source_row_id", "target_row_id"):
        values = columns[f"rollouts/{name}"]
        strangers = children[values[children] != values[parents]]
        if len(strangers):
            yield violation_of_rows(
                "foreign_parent", "rollouts", strangers, f"the parent chain has another {name}"
            )


def _forks(
    columns: StoreColumns, children: Rows, parents: Rows, forks: Rows
) -> Iterator[Violation]:
    steps = columns["rollouts/num_steps"]
    late = forks > np.minimum(steps[children], steps[parents])
    if late.any():
        yield violation_of_rows(
            "wrong_fork",
            "rollouts",
            children[late],
            "fork_step_index lies beyond the steps of the chain or of its parent",
        )
    chosen, starts = columns["steps/selected_shell_index"], columns.chains.starts
    whole = np.flatnonzero(~late)
    strays = np.zeros(len(children), np.bool_)
    for step in range(int(forks[whole].max(initial=0))):
        whole = whole[forks[whole] > step]
        own, other = starts[children[whole]] + step, starts[parents[whole]] + step
        strays[whole] |= chosen[own] != chosen[other]
    if strays.any():
        yield violation_of_rows(
            "wrong_fork",
            "rollouts",
            children[strays],
            "the chain chose differently from its parent before fork_step_index",
        )
