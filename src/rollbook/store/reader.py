"""RolloutZarrStoreReader: an open store, with its training views, images, data frames and validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rollbook.contracts.lineage import RolloutLineage
from rollbook.contracts.row_numbers import Rows, row_number
from rollbook.errors import ChecksumMismatch, StorageError
from rollbook.store.batches import state_batches, state_columns
from rollbook.store.checks.validate import (
    RolloutZarrValidationResult,
    validate_rollout_zarr_store,
)
from rollbook.store.lineage_rows import LineageRows
from rollbook.store.q_h import q_h_for_gamma
from rollbook.store.rasters import depth_of_step
from rollbook.store.returns import returns_of
from rollbook.store.stored_tables import Array, StoredTables
from rollbook.store.views.frame_methods import FrameMethods
from rollbook.store.views.store_card import (
    MOST_READ,
    POLICY_COLUMNS,
    policies_table,
    store_card,
)


class RolloutZarrStoreReader(StoredTables, FrameMethods):
    """Opens a finished store. Needs numpy; images and archived stores need zarr too."""

    def q_h_view(self, *, discount_gamma: float | None = None) -> dict[str, Array]:
        """The dense view as stored, or with another discount."""
        if discount_gamma is None:
            return self.table("q_h")
        return q_h_for_gamma(self, discount_gamma)

    def returns_view(self, *, discount_gamma: float | None = None) -> dict[str, Array]:
        """Multi-step returns as stored, or with another discount."""
        if discount_gamma is None:
            return self.table("returns")
        return returns_of(self, discount_gamma)

    def batches(
        self,
        size: int,
        *,
        seed: int = 0,
        epochs: int | None = 1,
        columns: Sequence[str] | None = None,
        start: int = 0,
        prefetch: bool = False,
    ) -> Iterator[dict[str, Array]]:
        """Shuffled batches of states, the same for the same seed. `start` skips that many batches.

        `columns` are names of columns of `q_h` and `returns`; without them a batch has all of `q_h`.
        """
        chosen = state_columns(self, columns)
        for path in ["q_h"] if columns is None else chosen.values():
            self.local(path)
        return state_batches(
            self, size, seed=seed, epochs=epochs, columns=chosen, start=start, prefetch=prefetch
        )

    def selected_depth(self, step_row_id: int) -> dict[str, Array] | None:
        """Depth image, mask and camera of one step; None if the store has none."""
        step = row_number(step_row_id, self.num_steps, "step row")
        return depth_of_step(self, step)

    def lineage(self, row: int) -> RolloutLineage:
        """What a rollout was made from, exactly as its record stated it. Its digest is compared with the stored one."""
        chosen = np.array([row_number(row, self.num_rollouts, "rollout row")])
        if not self.has("lineage/known_fields"):
            detail = (
                "it was written before stores kept the whole lineage; its tables have the parts"
            )
            raise StorageError(path=str(self.store_dir), detail=detail)
        rows = LineageRows(
            self.array,
            self.words,
            self.stated_policy_revisions,
            chosen,
            {
                "sources": self._source_row(int(self.array("rollouts/source_row_id")[row])),
                "targets": self.array("rollouts/target_row_id")[chosen],
            },
        )
        if not np.array_equal(rows.digests(), self.array("lineage/lineage_digest")[chosen]):
            detail = (
                f"the lineage of rollout row {row} does not have the digest it was written with"
            )
            raise ChecksumMismatch(path=str(self.store_dir), detail=detail)
        return rows.records()[0]

    def _source_row(self, source_row_id: int) -> Rows:
        return np.flatnonzero(self.array("sources/source_row_id") == source_row_id)[:1]

    def validate(self, *, deep: bool = False) -> RolloutZarrValidationResult:
        return validate_rollout_zarr_store(self.local(""), deep=deep)

    def _repr_html_(self) -> str:
        """In a notebook. The gains of a remote or very large store are not read for it."""
        policies = ""
        if self.fetch is None and self.num_rollouts <= MOST_READ:
            policies = policies_table(self.table("rollouts", POLICY_COLUMNS), self.words("policy"))
        facts = [
            ("split", ", ".join(self.words("split"))),
            ("content", str(self.store_manifest.payload["content_sha256"])),
            ("place", str(self.store_dir)),
        ]
        return store_card(f"Rollout store {self.title}", self, facts, policies)
