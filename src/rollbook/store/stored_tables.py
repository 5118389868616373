"""StoredTables: the tables of a store folder as mapped columns. A column is opened when it is first used.

The derived views, the checks, the data frames and the reader are all built on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.row_numbers import Rows, row_number, row_numbers
from rollbook.errors import (
    ConfigurationError,
    Refusal,
    StorageError,
    UnsupportedVersion,
    near_names,
)
from rollbook.lazy import needs
from rollbook.store.coded_words import coded_words
from rollbook.store.manifest import StoreManifest, read_manifest
from rollbook.store.mapped import MappedArray, is_raw
from rollbook.store.schema import (
    DICTIONARIES,
    ROLLOUT_ZARR_SCHEMA_ID,
    ROLLOUT_ZARR_SCHEMA_VERSION,
    ROW_COUNTS,
    TABLES,
    table_named,
)
from rollbook.store.stored_files import StoredFiles

if TYPE_CHECKING:
    import zarr

Array = NDArray[Any]


class StoredTables:
    """The tables of a finished store. A store is finished when its root attributes name its manifest."""

    def __init__(
        self, store_dir: str | os.PathLike[str], *, fetch: Callable[[str], None] | None = None
    ) -> None:
        """Open the store in `store_dir`. `fetch` copies a file, or all files of a folder, from a remote store there."""
        self.store_dir = Path(store_dir).resolve()
        self.fetch = fetch
        self._identity = _identity(self.store_dir)
        self._manifest = read_manifest(self.store_dir)
        self.attrs: Mapping[str, Any] = self._manifest.root_attrs
        _check_schema(self.store_dir, self.attrs)
        self.files = (
            StoredFiles(self._manifest)
            if fetch is None
            else StoredFiles(self._manifest, "remove it from the cache, then open the store again")
        )
        self._arrays: dict[str, Array] = {}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({str(self.store_dir)!r}: {self.num_rollouts} rollouts, "
            f"{self.num_steps} steps, {self.num_candidates} candidates)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), fetch=self.fetch), (str(self.store_dir),)

    # ----------------------------------------------------------------------------------- metadata

    @property
    def stores(self) -> tuple[Self, ...]:
        """This store alone. A collection has several."""
        return (self,)

    @property
    def title(self) -> str:
        return self.store_dir.name

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
        """The store as a read-only group of zarr-python."""
        with needs("the store as a group of zarr-python"):
            import zarr

        self.local("")
        return zarr.open_group(str(self.store_dir), mode="r", use_consolidated=False)

    @property
    def store_manifest(self) -> StoreManifest:
        return self._manifest

    def manifest(self) -> dict[str, Any]:
        return {"root_attrs": dict(self.attrs), "manifest": self._manifest.payload}

    def column_names(self, table: str) -> tuple[str, ...]:
        """The columns of a table in this store. An optional table that was not kept has none."""
        return tuple(name for name in table_named(table).columns if self.has(f"{table}/{name}"))

    def has(self, path: str) -> bool:
        """Whether the store has a column. The manifest decides: a column whose files are lost is not an absent one."""
        return f"{self._place(path)[0]}/zarr.json" in self._manifest.payload["files"]

    def local(self, path: str) -> Path:
        """The local path of a file or of a folder with all its files. Files of a remote store are fetched first.

        A file that the manifest lists and that is missing, or has another size, is a TruncatedFile.
        """
        if self.fetch is not None:
            self.fetch(path)
        try:
            self.files.check(path)
        except StorageError:
            self._refuse_replaced()
            raise
        return self.store_dir / path

    def verify_columns(self, table: str, columns: Sequence[str]) -> None:
        """Compare every byte of these columns, and of the words of their codes, with the manifest."""
        for name in columns:  # a misspelt one would be passed over without a word
            if name not in table_named(table).columns:
                raise self._no_column(f"{table}/{name}")
        arrays = {self._place(f"{table}/{name}")[0]: None for name in columns}
        for path in (*arrays, "dictionaries/zarr.json"):
            self.local(path)
            self.files.verify(path)

    def _refuse_replaced(self) -> None:
        """Columns that are already open belong to the old store, so nothing of the new one may be read."""
        if _identity(self.store_dir) != self._identity:
            detail = "the store was replaced while it was open; open it again"
            raise StorageError(path=str(self.store_dir), detail=detail)

    def _place(self, path: str) -> tuple[str, int | None]:
        """The array that holds a column, and the index of the column where several share an array."""
        table, _, name = path.partition("/")
        column = TABLES[table].columns.get(name) if table in TABLES else None
        if column is None or column.packed is None:
            return path, None
        return f"{table}/{column.packed}", TABLES[table].packed()[column.packed].index(name)

    # ------------------------------------------------------------------------------------ columns

    def array(self, path: str) -> Array:
        """A whole column (`candidates/target_rri`), read-only. It is mapped unless it is compressed."""
        if path not in self._arrays:
            values = self._open_array(path)
            self._refuse_replaced()
            self._arrays[path] = values
        return self._arrays[path]

    def _open_array(self, path: str) -> Array:
        place, index = self._place(path)
        if index is not None:
            return self.array(place)[:, index]
        if not self.has(path):
            raise self._no_column(path)
        folder = self.local(path)
        if is_raw(folder):
            return MappedArray.open(folder).view()
        with needs("a store of the archive profile"):
            import zarr

        array = zarr.open_array(str(folder), mode="r")
        values: Array = np.asarray(array[...])
        values.flags.writeable = False
        return values

    def _no_column(self, path: str) -> StorageError:
        table, _, name = path.partition("/")
        known = self.column_names(table) if table in TABLES else tuple(TABLES)
        near = near_names(name if table in TABLES else table, known)
        detail = f"there is no such column in this store; {near}"
        return StorageError(path=str(self.store_dir / path), detail=detail)

    def table(
        self, name: str, columns: Sequence[str] | None = None, rows: slice | Array | None = None
    ) -> dict[str, Array]:
        """All or some columns of a table, for all rows, for a slice of rows or for these row ids."""
        chosen = self.column_names(name) if columns is None else columns
        taken = self._chosen_rows(name, rows)
        return {column: self.array(f"{name}/{column}")[taken] for column in chosen}

    def _chosen_rows(self, table: str, rows: slice | Array | None) -> slice | Rows:
        """Negative row ids are refused: -1 means "none" in a store, and numpy would take it for the last row."""
        if rows is None or isinstance(rows, slice):
            return rows or slice(None)
        table_named(table)
        return row_numbers(rows, int(self.attrs.get(ROW_COUNTS[table], 0)), table)

    @cached_property
    def dictionaries(self) -> Mapping[str, tuple[str, ...]]:
        """The words of every dictionary."""
        group = json.loads(self.local("dictionaries/zarr.json").read_bytes())
        return {name: tuple(words) for name, words in group["attributes"]["words"].items()}

    @cached_property
    def policy_revisions(self) -> Mapping[str, PolicyRevision]:
        """The learned policies of this store that were described, by the digest that `lineage/model_checkpoint_id`
        stands for."""
        return {each.policy_digest: each for each in self._revisions("policy_revisions")}

    @cached_property
    def stated_policy_revisions(self) -> Sequence[PolicyRevision]:
        """The learned policies as single records describe them; `lineage/policy_revision_index` counts them."""
        return self._revisions("stated_policy_revisions")

    def _revisions(self, attribute: str) -> list[PolicyRevision]:
        path = self.local("metadata/zarr.json")
        described = json.loads(path.read_bytes())["attributes"].get(attribute, [])
        try:
            return msgspec.convert(described, list[PolicyRevision])
        except (msgspec.ValidationError, Refusal) as error:
            detail = f"{attribute} are not policy revisions: {error}"
            raise StorageError(path=str(path), detail=detail) from error

    def words(self, dictionary: str) -> tuple[str, ...]:
        found = self.dictionaries
        refuse_unknown_dictionary(dictionary)
        return found[dictionary]

    def decoded(
        self, table: str, column: str, rows: slice | Array | None = None
    ) -> list[str | None]:
        """A coded column as words; None where a row has no word."""
        values = self.array(f"{table}/{column}")[self._chosen_rows(table, rows)]
        return decoded_column(table, column, values, self.words)

    # ------------------------------------------------------------------------------ rows by range

    def rollout(self, row: int) -> dict[str, Any]:
        """One chain: its row, and its steps and candidates as columns. Nothing else is read."""
        row = row_number(row, self.num_rollouts, "rollout row")
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
        step = row_number(step_row_id, self.num_steps, "step row")
        return self.table("candidates", rows=self._span(slice(step, step + 1)))

    def _span(self, steps: slice) -> slice:
        """The candidate rows of neighbouring steps."""
        offsets = self.array("steps/candidate_offset")[steps]
        if not len(offsets):
            return slice(0, 0)
        last = int(self.array("steps/num_candidates")[steps][-1])
        return slice(int(offsets[0]), int(offsets[-1]) + last)


def refuse_unknown_dictionary(name: str) -> None:
    if name not in DICTIONARIES:
        near = near_names(name, DICTIONARIES)
        raise ConfigurationError(message=f"there is no dictionary {name!r}; {near}")


def decoded_column(
    table: str, column: str, values: Array, words: Callable[[str], Sequence[str]]
) -> list[str | None]:
    found = coded_words(TABLES[table].columns[column], values, words)
    if found is None:
        raise ConfigurationError(message=f"{table}/{column} holds no coded words")
    return found.tolist()


def _identity(store_dir: Path) -> tuple[int, int] | None:
    """Identity of the root file. A store that replaces another has a different one."""
    try:
        found = os.stat(store_dir / "zarr.json")
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _check_schema(
    store_dir: Path,
    attrs: Mapping[str, Any],
    older: str = "`rollbook store migrate` brings older stores up to date",
) -> None:
    schema_id, version = attrs.get("schema_id"), attrs.get("schema_version")
    if schema_id != ROLLOUT_ZARR_SCHEMA_ID:
        raise UnsupportedVersion(
            path=str(store_dir),
            detail=f"its schema is {schema_id!r}, expected {ROLLOUT_ZARR_SCHEMA_ID!r}",
        )
    if version != ROLLOUT_ZARR_SCHEMA_VERSION:
        raise UnsupportedVersion.of(store_dir, version, ROLLOUT_ZARR_SCHEMA_VERSION, older)


def migrate_store(store_dir: str | os.PathLike[str]) -> str:
    """Report that a store has the current schema. Raise UnsupportedVersion for any other schema.

    There is only one schema version so far, so nothing is ever converted.
    """
    folder = Path(store_dir).resolve()
    older = "no release can convert it: write the store again"
    _check_schema(folder, read_manifest(folder).root_attrs, older)
    return f"{store_dir} has schema version {ROLLOUT_ZARR_SCHEMA_VERSION}, which is current"
