"""Violation: one problem of a store, with a stable code and the rows concerned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHOWN = 5

CODES: Mapping[str, tuple[str, ...]] = {
    "opening": (
        *("not_a_store", "schema_id", "schema_version"),
        *("manifest_missing", "manifest_unreadable", "manifest_mismatch"),
    ),
    "files": (
        *("manifest_field", "missing_file", "wrong_file_size", "unlisted_file"),
        "checksum_mismatch",
    ),
    "structure": (
        *("missing_group", "missing_column", "unreadable_column", "unknown_column"),
        *("wrong_dtype", "wrong_row_shape", "wrong_row_count", "count_mismatch"),
        *("disabled_but_kept", "actor_features_in_one_table", "not_checked"),
        *("unreadable_dictionary", "duplicate_word", "code_out_of_range"),
    ),
    "links": (
        *("row_ids_not_dense", "negative_count", "counts_do_not_add_up", "wrong_offset"),
        *("wrong_link", "wrong_index", "diagnostics_differ"),
        *("duplicate_source", "unknown_source", "source_differs"),
        *("duplicate_target", "unknown_target", "target_of_several_sources"),
        *("wrong_parent", "foreign_parent", "wrong_fork"),
    ),
    "provenance": (
        *("missing_attr", "missing_word", "missing_shard_row", "missing_lineage_digest"),
        *("wrong_lineage_digest", "lineage_value_differs"),
        *("duplicate_rollout", "several_splits", "lineage_version_differs", "foreign_target"),
        *("wrong_target_mask", "wrong_target_reasons", "wrong_target_primary_reason"),
        "wrong_gt_label_mask",
    ),
    "selection": (
        *("wrong_valid_count", "wrong_compact_index", "not_one_selected", "selected_invalid"),
        *("wrong_selected_id", "missing_provenance"),
        *("probability_out_of_range", "probability_on_invalid", "probability_sum"),
        "log_probability_differs",
    ),
    "reasons": (
        *("unknown_reason_bit", "reason_missing", "reason_contradicts_mask"),
        *("valid_with_reasons", "wrong_primary_reason", "reason_codes_differ"),
        *("collision_valid", "collision_without_reason"),
    ),
    "labels": (
        *("label_on_invalid", "wrong_label_mask", "wrong_train_mask"),
        *("wrong_cumulative", "wrong_final", "wrong_horizon", "wrong_termination"),
    ),
    "poses": ("pose_not_finite", "pose_not_rigid", "wrong_relative_pose"),
    "derived views": (
        *("q_h_differs", "returns_differs", "wrong_attr"),
        *("train_on_invalid", "train_without_label", "terminal_with_discount"),
    ),
    "images and points": (
        *("missing_depth", "wrong_depth_link", "wrong_depth_camera"),
        *("unreadable_depth", "wrong_depth_pixel"),
        *("wrong_crop_link", "wrong_crop_role", "wrong_crop_length"),
        *("wrong_crop_mask", "wrong_crop_points"),
    ),
}
"""Every code, by topic. A code keeps its meaning; new codes may be added."""

WARNING_CODES = ("labels_all_zero",)
"""Codes of what is unusual but breaks no rule."""


@dataclass(frozen=True, slots=True)
class Violation:
    code: str
    """Stable. Tests, scripts and dashboards may rely on it."""
    table: str
    """The table concerned; empty if it is the whole store."""
    message: str
    rows: tuple[int, ...] = ()
    """The first few rows; empty if no rows are concerned."""
    count: int = 0
    """The number of all rows concerned."""

    def __str__(self) -> str:
        where = f"{self.table}: " if self.table else ""
        return f"{where}{self.message}{self._shown_rows()} [{self.code}]"

    def _shown_rows(self) -> str:
        if not self.rows:
            return ""
        more = self.count - len(self.rows)
        rest = f" and {more} more" if more else ""
        return f" ({'row' if self.count == 1 else 'rows'} {', '.join(map(str, self.rows))}{rest})"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "code": self.code,
            "table": self.table,
            "rows": list(self.rows),
            "count": self.count,
            "message": self.message,
        }


def violations_at(
    code: str, table: str, wrong: NDArray[np.bool_], message: str
) -> Iterator[Violation]:
    """One violation for all wrong rows; none if no row is wrong."""
    if wrong.any():
        yield violation_of_rows(code, table, np.flatnonzero(any_in_row(wrong)), message)


def any_in_row(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """One value per row, whatever the shape of a row."""
    return mask if mask.ndim == 1 else np.asarray(mask.reshape(len(mask), -1).any(axis=1))


def violation_of_rows(code: str, table: str, rows: NDArray[np.intp], message: str) -> Violation:
    return Violation(code, table, message, tuple(rows[:_SHOWN].tolist()), len(rows))
