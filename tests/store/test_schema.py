"""The schema is declared once; the store on disk and the promise to others follow from it."""

from __future__ import annotations

import hashlib

from rollbook.store.schema import ROLLOUT_ZARR_SCHEMA_VERSION, TABLES

ADDED = {
    "lineage/known_fields": "<u8",
    "lineage/selector_target_row_id": "<i8",
    "lineage/policy_revision_index": "<i4",
    "targets/lineage_values": "<f8",
}
"""Columns that stores of this schema version may lack, because an earlier release wrote them."""


def test_columns_that_were_added_later_are_optional() -> None:
    """Both releases read both kinds of store, so an optional column needs no other schema version."""
    for path, dtype in ADDED.items():
        table, _, name = path.partition("/")
        column = TABLES[table].columns[name]
        assert (column.optional, column.dtype) == (True, dtype)


def test_the_columns_and_types_of_this_schema_version_are_pinned() -> None:
    """A change here is a change of the schema version, and of what older stores need to stay readable."""
    declared = [
        (
            table.name,
            column.name,
            column.dtype,
            str(column.fill),
            column.shape,
            column.words,
            column.packed,
        )
        for table in TABLES.values()
        for column in table.columns.values()
        if f"{table.name}/{column.name}" not in ADDED
    ]
    digest = hashlib.sha256(repr(declared).encode()).hexdigest()
    assert (ROLLOUT_ZARR_SCHEMA_VERSION, len(declared), digest[:16]) == (
        "1.0-target-rollout-core",
        197,
        "68f83e7faf95462c",
    )


def test_codes_point_into_dictionaries_and_ids_have_a_word_for_none() -> None:
    for table in TABLES.values():
        for column in table.columns.values():
            if column.words is not None:
                assert (column.dtype, column.fill) == ("<i4", -1)
