"""RolloutCollection: many stores read as one. A global row is the row in a store plus all rows of the stores before it.

Nothing is copied or merged on disk. Stores whose rows have different meanings are refused when the collection is made,
because a learner would not notice the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.lineage import RolloutLineage
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.row_numbers import Rows, row_number, row_numbers
from rollbook.digest import text_hash
from rollbook.errors import ConfigurationError, IncompatibleStores, StorageError, near_names
from rollbook.notebook import shown_progress, table
from rollbook.store.batches import epoch_order
from rollbook.store.checks.validate import CollectionValidationResult
from rollbook.store.listed_stores import ListedStores
from rollbook.store.q_h import discount_of
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.row_parts import RowParts, put_rows
from rollbook.store.schema import DICTIONARIES, ROW_COUNTS, TABLES, Column, table_named
from rollbook.store.state_rows import QHRows
from rollbook.store.stored_tables import decoded_column, refuse_unknown_dictionary
from rollbook.store.urls.remote import open_store
from rollbook.store.views.frame_methods import FrameMethods
from rollbook.store.views.store_card import (
    MOST_LISTED,
    MOST_READ,
    POLICY_COLUMNS,
    policies_table,
    store_card,
)

Array = NDArray[Any]
StoreLike = str | os.PathLike[str] | RolloutZarrStoreReader

ROW_IDS: Mapping[str, str] = {
    "rollout_row_id": "rollouts",
    "parent_rollout_row_id": "rollouts",
    "target_row_id": "targets",
    "step_row_id": "steps",
    "step_offset": "steps",
    "state_step_row_id": "steps",
    "td_next_step_row_id": "steps",
    "candidate_row_id": "candidates",
    "candidate_offset": "candidates",
    "selected_candidate_row_id": "candidates",
    "td_selected_candidate_row_id": "candidates",
    "crop_row_id": "target_eval_crops",
}
"""Column → the table whose rows it names. `source_row_id`, `matched_gt_target_row_id` and `selector_target_row_id` are
ids of the source."""

SHARED_ATTRS = (
    "schema_id",
    "schema_version",
    "target_protocol_version",
    "reason_code_version",
    "return_semantics",
    "discount_gamma",
)
"""Attributes that give rows their meaning. They are the same in every store of a collection."""


class RolloutCollection(FrameMethods):
    """Takes paths, URLs and open readers, or the stores of a collection file. Their order is the order of the rows."""

    stores: Sequence[RolloutZarrStoreReader]

    def __init__(self, stores: Iterable[StoreLike] | ListedStores) -> None:
        if isinstance(stores, ListedStores):
            self.stores = stores  # they were compared with each other when they were listed
        else:
            self.stores = tuple(
                store if isinstance(store, RolloutZarrStoreReader) else open_store(store)
                for store in _list_of_stores(stores)
            )
            _check_compatible(self.stores)
        self._merged: dict[str, _Dictionary] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._arrays: dict[str, Array] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        stores = self.stores
        return type(self), (stores if isinstance(stores, ListedStores) else list(stores),)

    def __len__(self) -> int:
        return len(self.stores)

    def __repr__(self) -> str:
        return (
            f"RolloutCollection({len(self.stores)} stores: {self.num_rollouts} rollouts, "
            f"{self.num_steps} steps, {self.num_candidates} candidates)"
        )

    def _repr_html_(self) -> str:
        """In a notebook. Stores of a collection file are not opened for it."""
        counted = self._row_counts("rollouts")
        stores = self.stores
        policies = ""
        if isinstance(stores, ListedStores):
            places = [each.place for each in stores.listed[:MOST_LISTED]]
        else:
            places = [_place(each) for each in stores[:MOST_LISTED]]
            if self.num_rollouts <= MOST_READ and all(each.fetch is None for each in stores):
                rollouts = self.table("rollouts", POLICY_COLUMNS, global_ids=True)
                policies = policies_table(rollouts, self.words("policy"))
        rows = list(zip(places, counted, strict=False))
        more = len(stores) - len(rows)
        listed = table(("store", "rollouts"), rows, f"and {more:,} more" if more else "")
        return store_card(f"Collection of {self.title}", self, [], listed, policies)

    @property
    def title(self) -> str:
        return f"{len(self.stores)} stores"

    # ------------------------------------------------------------------------------------- counts

    @property
    def num_sources(self) -> int:
        """Rows of `sources`. A source row that two stores use counts twice."""
        return self.num_rows("sources")

    @property
    def num_targets(self) -> int:
        return self.num_rows("targets")

    @property
    def num_rollouts(self) -> int:
        return self.num_rows("rollouts")

    @property
    def num_steps(self) -> int:
        return self.num_rows("steps")

    @property
    def num_candidates(self) -> int:
        return self.num_rows("candidates")

    def num_rows(self, table: str) -> int:
        return int(self.offsets(table)[-1])

    def offsets(self, table: str) -> Rows:
        """The first global row of every store, and the total number of rows as last entry."""
        table_named(table)
        return self._offsets[table]

    @cached_property
    def _offsets(self) -> dict[str, Rows]:
        return {
            name: np.cumsum([0, *self._row_counts(name)], dtype=np.int64) for name in ROW_COUNTS
        }

    def _row_counts(self, table: str) -> list[int]:
        if isinstance(self.stores, ListedStores):
            return self.stores.row_counts(table)
        return [int(store.attrs.get(ROW_COUNTS[table], 0)) for store in self.stores]

    def column_names(self, table: str) -> tuple[str, ...]:
        """The columns that a table has in any store."""
        names = {name for store in self._different(table) for name in store.column_names(table)}
        return tuple(name for name in TABLES[table].columns if name in names)

    def has(self, path: str) -> bool:
        """Whether any store has a column."""
        table = path.partition("/")[0]
        return table in TABLES and any(store.has(path) for store in self._different(table))

    def _holders(self, table: str) -> Iterator[RolloutZarrStoreReader]:
        """The stores that have rows of a table; the first store if none has."""
        holders = np.flatnonzero(np.diff(self.offsets(table))).tolist() or [0]
        return (self.stores[index] for index in holders)

    def _different(self, table: str) -> Iterator[RolloutZarrStoreReader]:
        """Stores that may differ in the columns of a table. Listed stores all have the same."""
        holders = self._holders(table)
        return islice(holders, 1) if isinstance(self.stores, ListedStores) else holders

    def row_shape(self, table: str, name: str) -> tuple[int, ...]:
        """The shape of a row of a column: the widest of all stores, in every dimension."""
        path = f"{table}/{name}"
        if path not in self._shapes:
            sizes = TABLES[table].columns[name].shape
            shapes: Iterable[tuple[Any, ...]] = [sizes]
            if isinstance(self.stores, ListedStores):
                known = self.stores.sizes
                shapes = [tuple(known[s] if isinstance(s, str) else s for s in sizes)]
            elif any(isinstance(size, str) for size in sizes):
                shapes = [stored_row_shape(store, path) for store in self._holders(table)]
            self._shapes[path] = tuple(max(each) for each in zip(*shapes, strict=True))
        return self._shapes[path]

    def provenance(self) -> list[dict[str, Any]]:
        """One row per store: path, content address, counts and how it was made."""
        return [
            {
                "store": index,
                "path": _place(store),
                "content_sha256": _content(store),
                "manifest_sha256": store.attrs["manifest_sha256"],
                "schema_version": store.attrs["schema_version"],
                "created_at_utc": store.attrs["created_at_utc"],
                "first_rollout_row": int(self.offsets("rollouts")[index]),
                "first_step_row": int(self.offsets("steps")[index]),
                "first_candidate_row": int(self.offsets("candidates")[index]),
                "counts": dict(_payload(store)["counts"]),
                "config_hashes": dict(_payload(store)["config_hashes"]),
            }
            for index, store in enumerate(self.stores)
        ]

    # --------------------------------------------------------------------------------------- rows

    def locate(self, table: str, global_row: int) -> tuple[int, int]:
        """The index of the store that holds a global row, and the row in that store."""
        row = row_number(global_row, self.num_rows(table), table)
        stores, rows = self._located(table, np.array([row]))
        return int(stores[0]), int(rows[0])

    def _located(self, table: str, rows: Rows) -> tuple[Rows, Rows]:
        offsets = self.offsets(table)
        stores = np.searchsorted(offsets, rows, side="right") - 1
        return stores, rows - offsets[stores]

    def table(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        rows: slice | Array | None = None,
        *,
        global_ids: bool = False,
    ) -> dict[str, Array]:
        """Copies of columns of a table over all stores, for all rows, a slice of rows, or these global rows.

        Row ids and codes are those of their store. With `global_ids`, row ids are global and codes point into the
        `words` of the collection. Where stores differ in width (actions, points), narrow rows are padded with the fill
        value of the column.
        """
        parts = self._parts(name, rows)
        chosen = self.column_names(name) if columns is None else columns
        return {column: self._column(name, column, parts, global_ids) for column in chosen}

    def array(self, path: str) -> Array:
        """A whole column (`candidates/target_rri`) over all stores, read-only, with global ids and codes.

        It is a copy, which is kept for the next call. `table` copies single rows, and `batches` reads without a copy.
        """
        if path not in self._arrays:
            table, _, name = path.partition("/")
            if table not in TABLES:
                near = near_names(table, TABLES)
                detail = f"there is no such column in the schema; {near}"
                raise StorageError(path=path, detail=detail)
            values = self.table(table, (name,), global_ids=True)[name]
            values.flags.writeable = False
            self._arrays[path] = values
        return self._arrays[path]

    def verify_columns(self, table: str, columns: Sequence[str]) -> None:
        """Compare every byte of these columns, and of the words of their codes, with the manifests."""
        for store in self._holders(table):
            store.verify_columns(table, columns)

    def rollout(self, row: int) -> dict[str, Any]:
        """One chain with global ids: its row, and its steps and candidates as columns. Nothing else is read."""
        index, local = self.locate("rollouts", row)
        found = self.stores[index].rollout(local)
        steps, candidates = found.pop("steps"), found.pop("candidates")
        return {
            **self._global_columns(index, "rollouts", found),
            "steps": self._global_columns(index, "steps", steps),
            "candidates": self._global_columns(index, "candidates", candidates),
        }

    def steps(self, rows: slice) -> dict[str, Array]:
        """Steps with global ids."""
        return self.table("steps", rows=rows, global_ids=True)

    def candidates(self, step_row_id: int) -> dict[str, Array]:
        """The shell of one step, with global ids."""
        index, local = self.locate("steps", step_row_id)
        return self._global_columns(index, "candidates", self.stores[index].candidates(local))

    def selected_depth(self, step_row_id: int) -> dict[str, Array] | None:
        """Depth image, mask and camera of one step, with global ids; None if its store has none."""
        index, local = self.locate("steps", step_row_id)
        found = self.stores[index].selected_depth(local)
        return None if found is None else self._global_columns(index, "selected_depth", found)

    def lineage(self, row: int) -> RolloutLineage:
        """What a rollout was made from, exactly as its record stated it."""
        index, local = self.locate("rollouts", row)
        return self.stores[index].lineage(local)

    def _global_columns(
        self, index: int, table: str, columns: Mapping[str, Array]
    ) -> dict[str, Array]:
        return {
            name: self.global_values(index, TABLES[table].columns[name], values)
            for name, values in columns.items()
        }

    def _parts(self, table: str, rows: slice | Array | None) -> RowParts:
        total = self.num_rows(table)
        if rows is None or isinstance(rows, slice):
            first, stop, stride = (rows or slice(None)).indices(total)
            if stride == 1:
                return self._neighbours(table, first, max(first, stop))
            rows = np.arange(first, stop, stride)
        return self.scattered(table, row_numbers(rows, total, table))

    def _neighbours(self, table: str, first: int, stop: int) -> RowParts:
        """Consecutive rows: one slice of each store."""
        parts = RowParts(stop - first)
        offsets = self.offsets(table).tolist()
        for index, (low, high) in enumerate(pairwise(offsets)):
            start, end = max(first, low), min(stop, high)
            if start < end:
                parts.add(index, slice(start - low, end - low), slice(start - first, end - first))
        return parts

    def scattered(self, table: str, rows: Rows) -> RowParts:
        """Where these global rows are. They must exist."""
        parts = RowParts(len(rows))
        stores, local = self._located(table, rows)
        order = np.argsort(stores, kind="stable")
        held, starts = np.unique(stores[order], return_index=True)
        for index, places in zip(
            held.tolist(), np.split(order, starts[1:]), strict=bool(len(rows))
        ):
            parts.add(index, local[places], places)
        return parts

    def _column(self, table: str, name: str, parts: RowParts, global_ids: bool) -> Array:
        column = TABLES[table].columns.get(name)
        path = f"{table}/{name}"
        if column is None:
            near = near_names(name, self.column_names(table))
            raise StorageError(path=path, detail=f"there is no such column in the schema; {near}")
        taken = [self.stores[index].array(path)[rows] for index, rows, _ in parts.each]
        if global_ids:
            taken = [
                self.global_values(index, column, values)
                for (index, _, _), values in zip(parts.each, taken, strict=True)
            ]
        return self._joined(table, column, parts, taken)

    def _joined(self, table: str, column: Column, parts: RowParts, taken: Sequence[Array]) -> Array:
        """One array from the values of every part, padded to the widest."""
        out = np.empty((parts.rows, *self.row_shape(table, column.name)), column.numpy)
        for (_, _, places), values in zip(parts.each, taken, strict=True):
            put_rows(out, places, values, column)
        return out

    def global_values(self, index: int, column: Column, values: Array) -> Array:
        """Ids and codes of one store as global ones. -1, which means "none", stays -1."""
        if column.words is not None:
            recoded: Array = self._dictionary(column.words).codes[index][values]
            return recoded
        if column.name == "policy_revision_index":
            offset = int(self._revision_offsets[index])
        elif column.name in ROW_IDS:
            offset = int(self.offsets(ROW_IDS[column.name])[index])
        else:
            return values
        return np.where(values < 0, values, values + values.dtype.type(offset))

    # -------------------------------------------------------------------------------------- words

    def words(self, dictionary: str) -> tuple[str, ...]:
        """The words of all stores, in order of first use. The codes of `table(..., global_ids=True)` point to them."""
        return self._dictionary(dictionary).words

    @property
    def dictionaries(self) -> Mapping[str, tuple[str, ...]]:
        return {name: self.words(name) for name in DICTIONARIES}

    @property
    def policy_revisions(self) -> Mapping[str, PolicyRevision]:
        """The learned policies of all stores that were described, by digest."""
        return {
            digest: revision
            for store in reversed(self.stores)  # the first description of a policy is kept
            for digest, revision in store.policy_revisions.items()
        }

    @cached_property
    def _revision_offsets(self) -> Rows:
        return np.cumsum([0, *(len(store.stated_policy_revisions) for store in self.stores)])

    @property
    def stated_policy_revisions(self) -> Sequence[PolicyRevision]:
        """The learned policies as records describe them. A global `lineage/policy_revision_index` counts them."""
        return [each for store in self.stores for each in store.stated_policy_revisions]

    def _dictionary(self, name: str) -> _Dictionary:
        refuse_unknown_dictionary(name)
        if name not in self._merged:
            self._merged[name] = _Dictionary([store.words(name) for store in self.stores])
        return self._merged[name]

    def decoded(
        self, table: str, column: str, rows: slice | Array | None = None
    ) -> list[str | None]:
        """A coded column as words; None where a row has no word."""
        values = self.table(table, (column,), rows, global_ids=True)[column]
        return decoded_column(table, column, values, self.words)

    # ----------------------------------------------------------------------------------- training

    def q_h_view(
        self, *, discount_gamma: float | None = None, global_ids: bool = False
    ) -> dict[str, Array]:
        """The dense view of all stores, padded to the widest. This copies everything; `batches` does not."""
        view = self.table("q_h", global_ids=global_ids)
        if discount_gamma is not None:
            view["td_discount"] = discount_of(view["td_terminal_mask"], discount_gamma)
        return view

    def returns_view(self, *, discount_gamma: float | None = None) -> dict[str, Array]:
        """Multi-step returns of all stores as stored, or with another discount; padded to the longest horizon."""
        if discount_gamma is None:
            return self.table("returns")
        parts = self._neighbours("returns", 0, self.num_steps)
        views = [
            self.stores[index].returns_view(discount_gamma=discount_gamma)
            for index, _, _ in parts.each
        ]
        return {
            name: self._joined("returns", column, parts, [view[name] for view in views])
            for name, column in TABLES["returns"].columns.items()
        }

    def batches(
        self,
        size: int,
        *,
        seed: int = 0,
        epochs: int | None = 1,
        columns: Sequence[str] | None = None,
        start: int = 0,
        prefetch: bool = False,
        global_ids: bool = False,
    ) -> Iterator[dict[str, Array]]:
        """Batches of states, shuffled over all stores, the same for the same seed. `start` skips that many batches.

        `columns` are names of columns of `q_h` and `returns`; without them a batch has all of `q_h`.
        """
        if size < 1 or start < 0:
            raise ConfigurationError(
                message=f"a batch of {size} states from {start} on cannot be made"
            )
        return self._batches(QHRows(self, columns, global_ids), size, seed, epochs, start, prefetch)

    def _batches(
        self,
        states: QHRows,
        size: int,
        seed: int,
        epochs: int | None,
        start: int,
        prefetch: bool,
    ) -> Iterator[dict[str, Array]]:
        per_epoch = -(-len(states) // size)
        epoch, first = divmod(start, per_epoch) if per_epoch else (0, 0)
        while len(states) and (epochs is None or epoch < epochs):
            order = epoch_order(len(states), seed, epoch)
            if prefetch:
                states.prefetch(order[first * size : (first + 1) * size])
            for number in range(first, per_epoch):
                if prefetch:
                    states.prefetch(order[(number + 1) * size : (number + 2) * size])
                yield states.take_existing(order[number * size : (number + 1) * size])
            epoch, first = epoch + 1, 0

    def validate(
        self, *, deep: bool = False, on_store: Callable[[int, int], None] | None = None
    ) -> CollectionValidationResult:
        """Validate every store. That they belong together was checked when the collection was made.

        `on_store` is called with the number of stores that were validated and of all stores.
        """
        stores, results = self.stores, []
        with shown_progress("validating stores", on_store) as progress:
            for index in range(len(stores)):
                if isinstance(stores, ListedStores):
                    results.append(stores.validate(index, deep))
                else:
                    results.append(stores[index].validate(deep=deep))
                progress(index + 1, len(stores))
        return CollectionValidationResult(tuple(results))


class _Dictionary:
    """The words of several stores as one list, and the codes of every store in that list."""

    def __init__(self, lists: Sequence[tuple[str, ...]]) -> None:
        merged: dict[str, int] = {}
        self.codes = [
            np.array([*(merged.setdefault(word, len(merged)) for word in words), -1], np.int32)
            for words in lists
        ]
        """The last entry serves the code -1."""
        self.words = tuple(merged)


def stored_row_shape(store: RolloutZarrStoreReader, path: str) -> tuple[int, ...]:
    """The shape of a row from the metadata of the array, so that a remote array is not fetched for it."""
    metadata = json.loads(store.local(f"{path}/zarr.json").read_bytes())
    return tuple(int(size) for size in metadata["shape"][1:])


# ------------------------------------------------------------------------------------ compatibility


def _list_of_stores(stores: Iterable[StoreLike]) -> list[StoreLike]:
    if isinstance(stores, str | os.PathLike | RolloutZarrStoreReader):
        raise ConfigurationError(message="a collection takes a list of stores, not a single one")
    listed = list(stores)
    if not listed:
        raise ConfigurationError(message="a collection needs at least one store")
    return listed


def _place(store: RolloutZarrStoreReader) -> str:
    return str(getattr(store.fetch, "url", store.store_dir))


def _payload(store: RolloutZarrStoreReader) -> Mapping[str, Any]:
    payload: Mapping[str, Any] = store.manifest()["manifest"]
    return payload


def _content(store: RolloutZarrStoreReader) -> str:
    return str(_payload(store)["content_sha256"])


def _check_compatible(stores: Sequence[RolloutZarrStoreReader]) -> None:
    first = stores[0]
    seen: dict[str, RolloutZarrStoreReader] = {}
    for store in stores:
        same = seen.setdefault(_content(store), store)
        if same is not store:
            raise _refused(same, store, f"both hold the content {_content(store)}")
        for attr in SHARED_ATTRS:
            _check_same(first, store, attr, first.attrs.get(attr), store.attrs.get(attr))
        _check_same(first, store, "actor feature count", _features(first), _features(store))
    check_rollout_ids(stores)


def _check_same(
    first: RolloutZarrStoreReader, store: RolloutZarrStoreReader, what: str, a: object, b: object
) -> None:
    if a != b:
        raise _refused(first, store, f"{what} is {a!r} in the first and {b!r} in the second")


def _refused(
    first: RolloutZarrStoreReader, second: RolloutZarrStoreReader, detail: str
) -> IncompatibleStores:
    return IncompatibleStores(path=_place(first), other=_place(second), detail=detail)


def _features(store: RolloutZarrStoreReader) -> int:
    path = "q_h/actor_features"
    return stored_row_shape(store, path)[-1] if store.has(path) else 0


def check_rollout_ids(stores: Sequence[RolloutZarrStoreReader]) -> None:
    """Compare hashes of the ids first: thousands of stores then need 8 bytes per rollout instead of its name."""
    hashes = [np.fromiter(map(text_hash, store.words("rollout")), np.uint64) for store in stores]
    owners = np.repeat(np.arange(len(stores)), [len(each) for each in hashes])
    together = np.concatenate(hashes)
    order = np.argsort(together, kind="stable")
    again = np.flatnonzero(together[order][1:] == together[order][:-1])
    for at in again.tolist():
        first, second = (int(owners[order[place]]) for place in (at, at + 1))
        one, other = stores[first], stores[second]
        shared = sorted(set(one.words("rollout")) & set(other.words("rollout")))
        if first != second and shared:
            more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
            raise _refused(one, other, f"both hold the rollout {shared[0]!r}{more}")
