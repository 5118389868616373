"""RolloutZarrStoreReader: an open store. Columns are mapped, nothing is read before it is asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import InvalidNumber, StorageError, UnsupportedVersion
from rollbook.store.manifest import StoreManifest, read_manifest
from rollbook.store.mapped import MappedArray, is_raw
from rollbook.store.schema import (
    ROLLOUT_ZARR_SCHEMA_ID,
    ROLLOUT_ZARR_SCHEMA_VERSION,
    TABLES,
)

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    import zarr

    from rollbook.store.checks.validate import RolloutZarrValidationResult

Array = NDArray[Any]


class RolloutZarrStoreReader:
    """Opens a finished store: one with a manifest that its root attributes name. Needs numpy; zarr for archives."""

    def __init__(
        self, store_dir: str | os.PathLike[str], *, fetch: Callable[[str], None] | None = None
    ) -> None:
        """`fetch` brings a file, or all files of a folder, into `store_dir`, for a store that lies elsewhere."""
        self.store_dir = Path(store_dir).resolve()
        self.fetch = fetch
        self._identity = _identity(self.store_dir)
        self._manifest = read_manifest(self.store_dir)
        self.attrs: Mapping[str, Any] = self._manifest.root_attrs
        _check_schema(self.store_dir, self.attrs)
        self._arrays: dict[str, Array] = {}

    def __repr__(self) -> str:
        return (
            f"RolloutZarrStoreReader({str(self.store_dir)!r}: {self.num_rollouts} rollouts, "
            f"{self.num_steps} steps, {self.num_candidates} candidates)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), fetch=self.fetch), (str(self.store_dir),)

    # ------------------------------------------------------------------------------ what it holds

    @property
    def num_sources(self) -> int:
        return int(self.attrs["num_sources"])

    @property
    def num_targets(self) -> int:
        return int(self.attrs["num_targets"])

    @property
    def num_rollouts(self) -> int:
        return int(self.attrs["num_rollouts"])

    @property
    def num_steps(self) -> int:
        return int(self.attrs["num_steps"])

    @property
    def num_candidates(self) -> int:
        return int(self.attrs["num_candidates"])

    @property
    def root(self) -> zarr.Group:
        """The store as zarr-python sees it, read-only."""
        import zarr

        self.local("")
        return zarr.open_group(str(self.store_dir), mode="r", use_consolidated=False)

    @property
    def store_manifest(self) -> StoreManifest:
        return self._manifest

    def manifest(self) -> dict[str, Any]:
        return {"root_attrs": dict(self.attrs), "manifest": self._manifest.payload}

    def column_names(self, table: str) -> tuple[str, ...]:
        """The columns this store has of a table; none where an optional payload was not kept."""
        return tuple(name for name in TABLES[table].columns if self.has(f"{table}/{name}"))

    def has(self, path: str) -> bool:
        """Asked of the disk, or of the manifest where the store lies elsewhere and comes file by file."""
        metadata = f"{self._place(path)[0]}/zarr.json"
        if self.fetch is not None:
            return metadata in self._manifest.payload["files"]
        return (self.store_dir / metadata).is_file()

    def local(self, path: str) -> Path:
        """Where a file, or an array's folder with all its files, lies on this disk; brought here if need be."""
        if self.fetch is not None:
            self.fetch(path)
        return self.store_dir / path

    def _place(self, path: str) -> tuple[str, int | None]:
        """The array a column lies in, and which of its columns it is when it shares one."""
        table, _, name = path.partition("/")
        column = TABLES[table].columns.get(name) if table in TABLES else None
        if column is None or column.packed is None:
            return path, None
        return f"{table}/{column.packed}", TABLES[table].packed()[column.packed].index(name)

    # ------------------------------------------------------------------------------------ columns

    def array(self, path: str) -> Array:
        """A whole column (`candidates/target_rri`), mapped where it is stored raw. Read-only."""
        if path not in self._arrays:
            values = self._open_array(path)
            self._refuse_replaced()
            self._arrays[path] = values
        return self._arrays[path]

    def _refuse_replaced(self) -> None:
        """Columns that are open keep the old store's bytes; a new one must not come from another store."""
        if _identity(self.store_dir) != self._identity:
            detail = "the store was replaced while it was open; open it again"
            raise StorageError(path=str(self.store_dir), detail=detail)

    def _open_array(self, path: str) -> Array:
        place, index = self._place(path)
        if index is not None:
            return self.array(place)[:, index]
        if not self.has(path):
            detail = "there is no such column in this store"
            raise StorageError(path=str(self.store_dir / path), detail=detail)
        folder = self.local(path)
        if is_raw(folder):
            return MappedArray.open(folder).view()
        import zarr

        array = zarr.open_array(str(folder), mode="r")
        values: Array = np.asarray(array[...])
        values.flags.writeable = False
        return values

    def table(
        self, name: str, columns: Sequence[str] | None = None, rows: slice | Array | None = None
    ) -> dict[str, Array]:
        """Columns of a table, all or some, for all rows, a slice of them, or these row ids."""
        chosen = self.column_names(name) if columns is None else columns
        taken = slice(None) if rows is None else rows
        return {column: self.array(f"{name}/{column}")[taken] for column in chosen}

    @cached_property
    def dictionaries(self) -> Mapping[str, tuple[str, ...]]:
        """Every dictionary's words."""
        group = json.loads(self.local("dictionaries/zarr.json").read_bytes())
        return {name: tuple(words) for name, words in group["attributes"]["words"].items()}

    def words(self, dictionary: str) -> tuple[str, ...]:
        return self.dictionaries[dictionary]

    def decoded(
        self, table: str, column: str, rows: slice | Array | None = None
    ) -> list[str | None]:
        """A coded column as words; None where there is none."""
        dictionary = TABLES[table].columns[column].words
        assert dictionary is not None, f"{table}/{column} is not coded"
        words = [*self.words(dictionary), None]
        codes = self.array(f"{table}/{column}")[slice(None) if rows is None else rows]
        return [words[code] for code in codes.tolist()]

    # ------------------------------------------------------------------------------ rows by range

    def rollout(self, row: int) -> dict[str, Any]:
        """One chain: its row, and its steps and candidates as columns. Costs one rollout."""
        row = _checked_row(row, self.num_rollouts, "rollout")
        first = int(self.array("rollouts/step_offset")[row])
        steps = slice(first, first + int(self.array("rollouts/num_steps")[row]))
        own = {
            name: values[0]
            for name, values in self.table("rollouts", rows=slice(row, row + 1)).items()
        }
        return {
            **own,
            "steps": self.steps(steps),
            "candidates": self.table("candidates", rows=self._span(steps)),
        }

    def steps(self, rows: slice) -> dict[str, Array]:
        return self.table("steps", rows=rows)

    def candidates(self, step_row_id: int) -> dict[str, Array]:
        """The shell of one step."""
        step = _checked_row(step_row_id, self.num_steps, "step")
        return self.table("candidates", rows=self._span(slice(step, step + 1)))

    def _span(self, steps: slice) -> slice:
        """Candidate rows of neighbouring steps."""
        offsets = self.array("steps/candidate_offset")[steps]
        if not len(offsets):
            return slice(0, 0)
        last = int(self.array("steps/num_candidates")[steps][-1])
        return slice(int(offsets[0]), int(offsets[-1]) + last)

    # ----------------------------------------------------------------------------------- training

    def q_h_view(self, *, discount_gamma: float | None = None) -> dict[str, Array]:
        """The dense view as stored, or rebuilt from the facts for another discount."""
        if discount_gamma is None:
            return self.table("q_h")
        from rollbook.store.q_h import q_h_for_gamma

        return q_h_for_gamma(self, discount_gamma)

    def returns_view(self, *, discount_gamma: float | None = None) -> dict[str, Array]:
        """Multi-step returns as stored, or for another discount."""
        if discount_gamma is None:
            return self.table("returns")
        from rollbook.store.returns import returns_of

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
        """Shuffled batches of states from `q_h`, the same for the same seed. `start` resumes after that many."""
        from rollbook.store.batches import state_batches

        for path in ["q_h"] if columns is None else [f"q_h/{name}" for name in columns]:
            self.local(path)
        return state_batches(
            self, size, seed=seed, epochs=epochs, columns=columns, start=start, prefetch=prefetch
        )

    def selected_depth(self, step_row_id: int) -> dict[str, Array] | None:
        """Depth and mask of one step; None where none was kept."""
        from rollbook.store.rasters import depth_of_step

        step = _checked_row(step_row_id, self.num_steps, "step")
        if self.fetch is not None and self.has("selected_depth/depth_m"):
            self._bring_depth(step)
        return depth_of_step(self, step)

    def _bring_depth(self, step: int) -> None:
        """Only the shard files that hold one step: the images are most of a store."""
        from rollbook.store.rasters import shard_key

        per_shard = int(self.attrs["selected_depth_chunk_steps"])
        for row in np.flatnonzero(self.array("selected_depth/step_row_id") == step).tolist():
            for name in ("depth_m", "valid_mask"):
                self.local(f"selected_depth/{name}/zarr.json")
                self.local(f"selected_depth/{name}/{shard_key(row // per_shard)}")

    # ---------------------------------------------------------------------------------- elsewhere

    def to_arrow(self, table: str, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """A table as Arrow, over the mapped columns; codes become words."""
        from rollbook.store.audit.frames import arrow_table

        return arrow_table(self, table, columns)

    def to_pandas(self, table: str, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        from rollbook.store.audit.frames import pandas_frame

        return pandas_frame(self, table, columns)

    def to_polars(self, table: str, columns: Sequence[str] | None = None) -> polars.DataFrame:
        from rollbook.store.audit.frames import polars_frame

        return polars_frame(self, table, columns)

    def validate(self, *, deep: bool = False) -> RolloutZarrValidationResult:
        from rollbook.store.checks.validate import validate_rollout_zarr_store

        return validate_rollout_zarr_store(self.local(""), deep=deep)


def _identity(store_dir: Path) -> tuple[int, int] | None:
    """Which root this is; a replaced store has another."""
    try:
        found = os.stat(store_dir / "zarr.json")
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _checked_row(row: int, rows: int, what: str) -> int:
    if not 0 <= row < rows:
        raise InvalidNumber(
            record=f"{what} row",
            field="row",
            value=str(row),
            expected=f"a number from 0 to {rows - 1}",
        )
    return row


def _check_schema(store_dir: Path, attrs: Mapping[str, Any]) -> None:
    schema_id, version = attrs.get("schema_id"), attrs.get("schema_version")
    if schema_id != ROLLOUT_ZARR_SCHEMA_ID:
        raise UnsupportedVersion(
            path=str(store_dir),
            detail=f"its schema is {schema_id!r}, expected {ROLLOUT_ZARR_SCHEMA_ID!r}",
        )
    if version != ROLLOUT_ZARR_SCHEMA_VERSION:
        raise UnsupportedVersion(
            path=str(store_dir),
            detail=f"its schema version is {version!r}, this release reads "
            f"{ROLLOUT_ZARR_SCHEMA_VERSION!r}; `rollbook store migrate` brings older stores up to date",
        )
