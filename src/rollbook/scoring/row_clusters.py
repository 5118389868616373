"""Row clusters: which rows of a run are alike because they share a scene, a task or a start."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.gate import FOUND_CLUSTERS, NO_CLUSTERS, Gate
from rollbook.scoring.labels import Labels, cluster_name
from rollbook.scoring.result_columns import ResultColumns

START = "start"
"""Rows with the same first observation."""


@dataclass(frozen=True)
class RowClusters:
    by: str
    """The label that rows of a cluster share."""
    of_rows: NDArray[np.intp]
    """Number of the cluster of each row."""
    unlabelled: int = 0
    """Rows without the label that the gate names. They count as one cluster."""

    def first(self, count: int) -> RowClusters:
        """Of the first rows."""
        return replace(self, of_rows=self.of_rows[:count])


def row_clusters(
    columns: ResultColumns, labels: Mapping[str, Labels], gate: Gate
) -> RowClusters | None:
    """None where every row counts alone."""
    if gate.cluster == NO_CLUSTERS:
        return None
    of_rows = [labels.get(each) for each in columns.ids]
    name = cluster_name(gate, of_rows)
    if name is not None:
        values = [each.get(name) if each else None for each in of_rows]
        named_by_gate = gate.cluster != FOUND_CLUSTERS
        unlabelled = values.count(None) if named_by_gate else 0
        return RowClusters(name, _numbered(values, named_by_gate), unlabelled)
    starts = columns.starts
    if starts is None or len(set(starts)) == len(starts):
        return None
    numbers = _numbered(starts, False)
    return RowClusters(START, numbers) if len(set(numbers.tolist())) < len(numbers) else None


def _numbered(values: Sequence[Hashable | None], together: bool) -> NDArray[np.intp]:
    """Rows without a value are one cluster, or each is one of its own."""
    first: dict[Hashable, int] = {}
    return np.array(
        [
            row if value is None and not together else first.setdefault(value, row)
            for row, value in enumerate(values)
        ],
        np.intp,
    )
