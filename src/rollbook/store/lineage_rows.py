"""LineageRows: the lineage records of a store, put together from the columns that hold their fields.

A lineage is spread over four tables, each fact once. Columns round numbers to float32 and have no way to say None, so a
store also keeps the numbers as given (`targets/lineage_values`) and which fields were stated (`lineage/known_fields`).
With these, every record is the one that was written, and its digest can be computed again. Digests of all rows are
computed column by column: a value that many rows share is encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.lineage import LINEAGE_DOMAIN, RolloutLineage
from rollbook.contracts.policy import PolicyRevision
from rollbook.digest import canonical, canonical_count, sha256
from rollbook.store.schema import LINEAGE_NUMBERS, TABLES

Array = NDArray[Any]
Rows = NDArray[np.int64]
_REVISION = "policy_revision"

LINEAGE_COLUMNS: Mapping[str, str] = {
    "rollout_id": "rollouts/rollout_id",
    "chain_id": "rollouts/chain_id",
    "scene_id": "rollouts/scene_id",
    "snippet_id": "rollouts/snippet_id",
    "mesh_version": "lineage/mesh_version_id",
    "candidate_config_hash": "lineage/candidate_config_id",
    "oracle_config_hash": "lineage/oracle_config_id",
    "model_checkpoint_hash": "lineage/model_checkpoint_id",
    "random_seed": "rollouts/random_seed",
    "rollout_policy": "rollouts/policy_id",
    "source_cache_version": "sources/source_cache_version_id",
    "split": "rollouts/split_id",
    "source_offline_store_manifest_hash": "sources/source_offline_store_manifest_hash_id",
    "source_row_id": "rollouts/source_row_id",
    "source_sample_index": "sources/sample_index",
    "source_sample_key": "sources/sample_key_id",
    "split_manifest_hash": "sources/split_manifest_hash_id",
    "source_shard_id": "sources/source_shard_id",
    "source_shard_row": "sources/source_shard_row",
    "rollout_config_hash": "lineage/rollout_config_id",
    "branch_schedule_id": "lineage/branch_schedule_id",
    "target_row_id": "lineage/selector_target_row_id",
    "target_id": "targets/target_id",
    "target_protocol_version": "lineage/target_protocol_version_id",
    "target_crop_policy": "lineage/target_crop_policy_id",
    "reason_code_version": "lineage/reason_code_version_id",
    "selection_rng_state_hash": "lineage/selection_rng_state_hash_id",
    "target_selection_policy": "targets/target_selection_policy_id",
    "target_selection_rank": "targets/target_selection_rank",
    "target_source": "targets/target_source_id",
    "target_source_index": "targets/target_source_index",
    "target_sem_id": "targets/target_sem_id",
    "target_inst_id": "targets/target_inst_id",
    "target_class_name": "targets/target_class_name_id",
    "target_semidense_support_count": "targets/target_semidense_support_count",
    "target_evl_support_count": "targets/target_evl_support_count",
    "target_invalid_reason_bitset": "targets/target_invalid_reason_bitset",
    "target_primary_invalid_reason": "targets/target_primary_invalid_reason",
    "target_reason_code_version": "targets/target_reason_code_version_id",
    "matched_gt_target_row_id": "targets/matched_gt_target_row_id",
    "matched_gt_target_id": "targets/matched_gt_target_id",
    "gt_match_status": "targets/gt_match_status_id",
}
"""Field → the column that holds it. The others are numbers of `targets/lineage_values`, and the policy revision."""

KNOWN_FIELDS: tuple[str, ...] = (*LINEAGE_COLUMNS, *LINEAGE_NUMBERS)
"""The bits of `lineage/known_fields`, lowest first. A new field goes to the end."""
UNKNOWN_TARGET, NOT_REQUESTED = "unknown-target", "not_requested"
_REPLACED = ("source_row_id", "target_source_index", "target_primary_invalid_reason")
"""Columns that hold a value from another field where theirs is absent."""
_STAND_INS = {
    field: None if column.words is not None else column.fill
    for field, path in LINEAGE_COLUMNS.items()
    for column in [TABLES[path.partition("/")[0]].columns[path.partition("/")[2]]]
    if field not in _REPLACED
} | {"target_id": UNKNOWN_TARGET, "gt_match_status": NOT_REQUESTED}
"""What a column holds where its field is absent."""
_NUMBERS_AT = dict(
    zip(LINEAGE_NUMBERS, pairwise(accumulate((0, *LINEAGE_NUMBERS.values()))), strict=True)
)
"""Field → its place in a row of `targets/lineage_values`."""


# ------------------------------------------------------------------------------------------ writing


def known_fields(lineage: RolloutLineage) -> int:
    """The fields that are not None, as bits."""
    return sum(
        1 << bit for bit, field in enumerate(KNOWN_FIELDS) if getattr(lineage, field) is not None
    )


def lineage_values(lineage: RolloutLineage) -> list[float]:
    """The numbers about the target, as given. NaN where a field is None."""
    values: list[float] = []
    for field, size in LINEAGE_NUMBERS.items():
        value = getattr(lineage, field)
        if value is None:
            values += [np.nan] * size
        else:
            values += value if isinstance(value, tuple) else (value,)
    return values


# ------------------------------------------------------------------------------------------ reading


class LineageRows:
    """`rows` are rollout rows. `of_table` has, for each, its row in `sources` and in `targets`."""

    def __init__(
        self,
        column: Callable[[str], Array],
        words: Callable[[str], Sequence[str]],
        revisions: Sequence[PolicyRevision],
        rows: Rows,
        of_table: Mapping[str, Rows],
    ) -> None:
        self._column = column
        self._words = words
        self._revisions = (*revisions, None)
        self._rows = rows
        self._of_table = {"rollouts": rows, "lineage": rows, **of_table}

    def records(self) -> list[RolloutLineage]:
        columns = self._fields()
        return [
            RolloutLineage(**dict(zip(columns, values, strict=True)))
            for values in zip(*columns.values(), strict=True)
        ]

    def digests(self) -> NDArray[np.uint8]:
        """The digest of every record, [n, 32]: exactly `RolloutLineage.digest`."""
        columns = self._fields()
        encoded = [_encoded(field, columns[field]) for field in sorted(columns, key=str.encode)]
        # a lineage without a policy revision is encoded as before there were any
        without = [revision is None for revision in columns[_REVISION]]
        heads = [
            canonical(LINEAGE_DOMAIN) + canonical_count(b"m", len(columns) - n) for n in (0, 1)
        ]
        digests = b"".join(
            sha256(b"".join((heads[short], *fields))).digest()
            for short, *fields in zip(without, *encoded, strict=True)
        )
        return np.frombuffer(digests, np.uint8).reshape(len(self._rows), 32)

    def _fields(self) -> dict[str, list[Any]]:
        """Every field as a list with one entry per row."""
        known = self._column("lineage/known_fields")[self._rows]
        values = self._column("targets/lineage_values")
        fields: dict[str, list[Any]] = {}
        for bit, field in enumerate(KNOWN_FIELDS):
            if field in LINEAGE_COLUMNS:
                path = LINEAGE_COLUMNS[field]
                table = path.partition("/")[0]
                entries = self._entries(path)
            else:
                table = "targets"
                entries = _numbers(values[:, slice(*_NUMBERS_AT[field])])
            taken = entries[self._of_table[table]]
            absent = known >> np.uint64(bit) & np.uint64(1) == 0
            if field in _STAND_INS:
                # anything else was not written for an absent field: it stays, and the digest shows it
                absent &= taken == _STAND_INS[field]
            taken[absent] = None
            fields[field] = taken.tolist()
        stated = self._column("lineage/policy_revision_index")[self._rows]
        fields[_REVISION] = _taken(self._revisions, stated).tolist()
        return fields

    def _entries(self, path: str) -> NDArray[np.object_]:
        """A column as Python values."""
        table, _, name = path.partition("/")
        dictionary = TABLES[table].columns[name].words
        column = self._column(path)
        if dictionary is None:
            return column.astype(object)
        return _taken((*self._words(dictionary), None), column)


def _taken(entries: Sequence[Any], codes: Array) -> NDArray[np.object_]:
    """The entry of every code. The last entry is for -1, and for codes that there are not."""
    last = len(entries) - 1
    listed = np.empty(len(entries), object)
    listed[:] = entries
    taken: NDArray[np.object_] = listed[np.where((codes < 0) | (codes > last), last, codes)]
    return taken


def _numbers(values: Array) -> NDArray[np.object_]:
    """Single numbers as floats, vectors as tuples."""
    rows = np.empty(len(values), object)
    rows[:] = values[:, 0].tolist() if values.shape[1] == 1 else list(map(tuple, values.tolist()))
    return rows


def _encoded(field: str, values: list[Any]) -> list[bytes]:
    """The canonical bytes of the field in every record. Equal values are encoded once."""
    key = canonical(field)
    if field == _REVISION:
        return [b"" if each is None else key + canonical(each.plain()) for each in values]
    parts = {value: key + canonical(value) for value in set(values)}
    return [parts[value] for value in values]
