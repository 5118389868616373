"""RolloutZarrStoreReader: an open store, with its training views, images, data frames and validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rollbook.contracts.row_numbers import row_number
from rollbook.store import frames
from rollbook.store.batches import state_batches
from rollbook.store.checks.validate import (
    RolloutZarrValidationResult,
    validate_rollout_zarr_store,
)
from rollbook.store.q_h import q_h_for_gamma
from rollbook.store.rasters import depth_of_step
from rollbook.store.returns import returns_of
from rollbook.store.stored_tables import Array, StoredTables

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class RolloutZarrStoreReader(StoredTables):
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
        """Shuffled batches of states from `q_h`, the same for the same seed. `start` skips that many batches."""
        for path in ["q_h"] if columns is None else [f"q_h/{name}" for name in columns]:
            self.local(path)
        return state_batches(
            self, size, seed=seed, epochs=epochs, columns=columns, start=start, prefetch=prefetch
        )

    def selected_depth(self, step_row_id: int) -> dict[str, Array] | None:
        """Depth image, mask and camera of one step; None if the store has none."""
        step = row_number(step_row_id, self.num_steps, "step row")
        return depth_of_step(self, step)

    # -------------------------------------------------------------------- data frames and validation

    def to_arrow(self, table: str, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """A table as Arrow over the mapped columns. Codes become words."""
        return frames.arrow_table(self, table, columns)

    def to_pandas(self, table: str, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        return frames.pandas_frame(self, table, columns)

    def to_polars(self, table: str, columns: Sequence[str] | None = None) -> polars.DataFrame:
        return frames.polars_frame(self, table, columns)

    def validate(self, *, deep: bool = False) -> RolloutZarrValidationResult:
        return validate_rollout_zarr_store(self.local(""), deep=deep)
