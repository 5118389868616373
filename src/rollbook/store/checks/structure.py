"""Checks of the structure: groups, columns, counts and coded words must match the schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rollbook.store.checks.columns import ARRAYS, ENABLED, NotUsable, StoreColumns, StoredArray
from rollbook.store.checks.violation import Violation, violations_at
from rollbook.store.schema import DICTIONARIES, REQUIRED_GROUPS, TABLES

_MANIFEST_COUNTS = {
    "sources": "num_sources",
    "targets": "num_targets",
    "rollouts": "num_rollouts",
    "steps": "num_steps",
    "candidates": "num_candidates",
    "candidate_diagnostics": "num_candidate_diagnostics",
    "selected_depths": "num_selected_depths",
    "target_eval_crops": "num_target_eval_crops",
    "q_h_states": "num_q_h_states",
    "q_h_max_candidates": "q_h_max_candidates",
}
"""Count in the manifest → the root attribute that must have the same value."""

_ALIGNED = {
    "num_candidate_diagnostics": "num_candidates",
    "num_q_h_states": "num_steps",
    "q_h_state_count": "num_steps",
}
"""Root attributes that count the same rows."""


def check_groups(columns: StoreColumns) -> Iterator[Violation]:
    for name in REQUIRED_GROUPS:
        try:
            columns.group_attrs(name)
        except NotUsable as problem:
            yield Violation("missing_group", name, f"{problem}; write the store again")


def check_columns(columns: StoreColumns) -> Iterator[Violation]:
    for table in TABLES:
        arrays = {array.name: array for array in ARRAYS.values() if array.table == table}
        kept = [name for name, array in arrays.items() if columns.has(array.path)]
        if columns.enabled(table) and (kept or columns.rows(table) != 0):
            yield from _column_flaws(columns, arrays)
        elif kept or columns.rows(table) != 0:
            yield Violation(
                "disabled_but_kept",
                table,
                f"the root attribute {ENABLED[table]} is not true, but it has rows or columns "
                f"({', '.join(kept) or 'none'})",
            )
        yield from _unknown_columns(columns, table, arrays)


def _column_flaws(columns: StoreColumns, arrays: Mapping[str, StoredArray]) -> Iterator[Violation]:
    for array in arrays.values():
        flaw = columns.flaw(array.path)
        if flaw is not None and (columns.has(array.path) or not array.optional):
            yield Violation(flaw.code, array.table, flaw.message)


def _unknown_columns(
    columns: StoreColumns, table: str, arrays: Mapping[str, StoredArray]
) -> Iterator[Violation]:
    folder = columns.store.store_dir / table
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if place.is_dir() and place.name not in arrays:
            yield Violation(
                "unknown_column", table, f"the schema has no column {place.name}; remove it"
            )


def check_optional_columns(columns: StoreColumns) -> Iterator[Violation]:
    """Actor features must be in both tables, candidates and dense view, or in neither."""
    facts = columns.has("candidates/actor_features")
    if facts != columns.has("q_h/actor_features"):
        has, lacks = ("candidates", "q_h") if facts else ("q_h", "candidates")
        yield Violation(
            "actor_features_in_one_table",
            lacks,
            f"there is no column actor_features, but {has} has one; write the store again",
        )


def check_counts(columns: StoreColumns) -> Iterator[Violation]:
    """Compare the root attributes with the manifest and with each other. `wrong_row_count` covers the rows."""
    attrs, counts = columns.attrs, columns.store.manifest()["manifest"].get("counts")
    counts = counts if isinstance(counts, dict) else {}
    for name, attribute in _MANIFEST_COUNTS.items():
        if counts.get(name) != attrs.get(attribute):
            yield Violation(
                "count_mismatch",
                "",
                f"the manifest counts {counts.get(name)} {name}, the root attribute {attribute} "
                f"says {attrs.get(attribute)}",
            )
    for name, other in _ALIGNED.items():
        if attrs.get(name) != attrs.get(other):
            yield Violation(
                "count_mismatch",
                "",
                f"the root attributes {name} ({attrs.get(name)}) and {other} ({attrs.get(other)}) differ",
            )


def check_dictionaries(columns: StoreColumns) -> Iterator[Violation]:
    for name in DICTIONARIES:
        try:
            words = columns.words(name)
        except NotUsable as problem:
            yield Violation("unreadable_dictionary", "dictionaries", str(problem))
            continue
        if len(set(words)) != len(words):
            twice = next(word for at, word in enumerate(words) if word in words[:at])
            yield Violation(
                "duplicate_word", "dictionaries", f"the dictionary {name} has {twice!r} twice"
            )


def check_codes(columns: StoreColumns) -> Iterator[Violation]:
    """Every code must be an index into its dictionary, or -1."""
    for table in TABLES.values():
        for name, column in table.columns.items():
            if column.words is None or not columns.enabled(table.name):
                continue
            try:
                codes, size = columns[f"{table.name}/{name}"], len(columns.words(column.words))
            except NotUsable:
                continue  # the column or the dictionary has its own violation
            yield from violations_at(
                "code_out_of_range",
                table.name,
                (codes < -1) | (codes >= np.int64(size)),
                f"{name} has codes that the dictionary {column.words}, of {size} words, does not have",
            )
