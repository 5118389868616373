"""Artifacts of tables, and the trainer batches made of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.table_file import open_table
from rollbook.errors import RollbookError
from rollbook.lineage.record_ref import (
    RecordRef,
    artifacts,
    batch,
    counted,
    listed,
    numbered,
    revision,
    rollouts,
    short,
)
from rollbook.lineage.records import Step, not_found
from rollbook.lineage.report import Check, Node, broken_by, compared, worst
from rollbook.lineage.shelf import FoundBatch, Shelf
from rollbook.lineage.stored_rollouts import checks_of_store
from rollbook.train.artifacts import chains_table
from rollbook.train.store_proofs import rows_by_store, stores_named


class Artifacts:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._table_checks: dict[str, Check] = {}

    def describe(self, ref: RecordRef) -> Node:
        name = Path(ref.home).name
        rows = f"row {ref.rows[0]}" if len(ref.rows) == 1 else f"rows {numbered(ref.rows)}"
        title = f"{counted(len(ref.rows), 'artifact')}: {rows} of {name}"
        table = self._shelf.tables.get(ref.home)
        if table is None:
            check = not_found(self._shelf, f"the table {ref.home}", ("artifacts",))
            return Node(key=ref.key, kind=ref.kind, title=title, checks=(check,))
        ids = [table.columns.artifact_id[row] for row in ref.rows]
        facts = {"artifacts": listed(ids), "root": table.root}
        if len(ref.rows) == 1:
            facts["artifact_digest"] = table[ref.rows[0]].artifact_digest
        return Node(
            key=ref.key,
            kind=ref.kind,
            title=title,
            place=ref.home,
            facts=facts,
            checks=tuple(self._checks(ref, table)),
        )

    def origins(self, ref: RecordRef) -> Iterator[Step]:
        table = self._shelf.tables[ref.home]
        for store, rows in rows_by_store(table).items():
            mine = [rows[row] for row in ref.rows if row in rows]
            if mine:
                yield Step("made from", rollouts(store, mine), f"proof of store {short(store)}")
        codes = np.unique(table.columns.revision_index[list(ref.rows)])
        for each in (table.columns.revisions[code] for code in codes.tolist()):
            by = f"policy digest {short(each.policy_digest)}"
            yield Step("chosen by", revision(each.policy_family, each.revision_id), by)

    def uses(self, ref: RecordRef) -> Iterator[Step]:
        columns = self._shelf.tables[ref.home].columns
        ids = {columns.artifact_id[row] for row in ref.rows}
        for digest, found in self._shelf.batches.items():
            if not ids.isdisjoint(found.batch.rollout_ids):
                yield Step("put into", batch(digest, found.batch.batch_id), "artifact digests")

    def _checks(self, ref: RecordRef, table: RolloutTable) -> Iterator[Check]:
        if ref.home not in self._table_checks:
            self._table_checks[ref.home] = _file_check(ref.home)
        whole = self._table_checks[ref.home]
        yield whole
        if whole.state == "broken":
            return
        for store, rows in rows_by_store(table).items():
            mine = [row for row in ref.rows if row in rows]
            if mine and self._is_sound(store):
                yield self._rebuilt_check(ref.home, table, mine, [rows[row] for row in mine], store)

    def _is_sound(self, store: str) -> bool:
        """Nothing is made again from a damaged store; the store itself says what is wrong with it."""
        if store not in self._shelf.stores:
            return False
        return worst(each.state for each in checks_of_store(self._shelf, store)) == "verified"

    def _rebuilt_check(
        self, place: str, table: RolloutTable, mine: list[int], rows: list[int], store: str
    ) -> Check:
        """The same artifacts, made again from the store. Their content digests have to be the same."""
        what = f"artifacts of store {short(store)}"
        families = {each.policy_family for each in table.columns.revisions}
        try:
            again = chains_table(self._shelf.stores[store], rows, family=sorted(families)[0])
        except RollbookError as error:
            return broken_by(what, error, place)
        wrong = np.flatnonzero((again.content_digests != table.content_digests[mine]).any(axis=1))
        if not len(wrong):
            detail = f"{counted(len(mine), 'artifact')} made again from the store, the same digests"
            return Check(what=what, state="verified", detail=detail, where=place)
        first = int(wrong[0])
        return compared(
            f"content digest of {table.columns.artifact_id[mine[first]]}",
            table.content_digests[mine[first]].tobytes().hex(),
            again.content_digests[first].tobytes().hex(),
            f"{len(wrong)} of {len(mine)} differ from the rows of the store",
            place,
        )


class Batches:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def describe(self, ref: RecordRef) -> Node:
        title = f"batch {ref.ids[0]} {short(ref.home)}"
        found = self._shelf.batches.get(ref.home)
        if found is None:
            wanted = f"the batch {ref.ids[0]} with the digest {ref.home}"
            check = not_found(self._shelf, wanted, ("batch", "training"))
            return Node(key=ref.key, kind=ref.kind, title=title, checks=(check,))
        facts = {
            "batch_digest": found.batch.batch_digest,
            "rollouts": str(found.batch.rollout_count),
            "rollouts_root": found.batch.rollouts_root or "not stated",
        }
        return Node(
            key=ref.key,
            kind=ref.kind,
            title=title,
            place=found.path,
            facts=facts,
            checks=tuple(self._checks(found)),
        )

    def origins(self, ref: RecordRef) -> Iterator[Step]:
        made = self._shelf.batches[ref.home].batch
        in_tables: set[str] = set()
        for place, rows in self._in_tables(set(made.rollout_ids)):
            by = counted(made.rollout_count, "artifact digest")
            yield Step("made of", artifacts(place, rows), by)
            ids = self._shelf.tables[place].columns.artifact_id
            in_tables.update(ids[row] for row in rows)
        named = stores_named(made, set(made.rollout_ids) - in_tables)
        for store, stored_rows in named.items():
            there = rollouts(store, stored_rows)
            yield Step("made of artifacts of", there, f"proof of store {short(store)}")
        # artifacts in tables lead to their revisions themselves
        unseen = in_tables != set(made.rollout_ids)
        for each in made.policy_lineage.source_revisions if unseen else ():
            by = f"policy digest {short(each.policy_digest)}"
            yield Step("has rollouts of", revision(each.policy_family, each.revision_id), by)

    def uses(self, ref: RecordRef) -> Iterator[Step]:
        target = self._shelf.batches[ref.home].batch.policy_lineage.target_revision
        by = f"policy digest {short(target.policy_digest)}"
        yield Step("trained", revision(target.policy_family, target.revision_id), by)

    def _in_tables(self, ids: set[str]) -> Iterator[tuple[str, list[int]]]:
        """The tables that have these artifacts. An artifact that several tables have is taken from the first."""
        left = set(ids)
        for place, table in self._shelf.tables.items():
            rows = [row for row, name in enumerate(table.columns.artifact_id) if name in left]
            left -= {table.columns.artifact_id[row] for row in rows}
            if rows:
                yield place, rows

    def _checks(self, found: FoundBatch) -> Iterator[Check]:
        made = found.batch
        try:
            made.verify()
        except RollbookError as error:
            yield broken_by("batch digest", error, found.path)
            return
        detail = "its lineage, batch and content digests were computed again"
        yield Check(what="batch digest", state="verified", detail=detail, where=found.path)
        named = dict(zip(made.rollout_ids, made.rollout_digests, strict=True))
        for place, rows in self._in_tables(set(named)):
            table = self._shelf.tables[place]
            digests = table.artifact_digests[rows]
            ids = [table.columns.artifact_id[row] for row in rows]
            wrong = [
                (name, digest.tobytes().hex())
                for name, digest in zip(ids, digests, strict=True)
                if digest.tobytes().hex() != named[name]
            ]
            for name, digest in wrong[:1]:
                yield compared(f"digest of artifact {name}", named[name], digest, where=place)
            for name in () if wrong else ids:
                del named[name]
        if named:
            wanted = f"the artifacts {listed(named)} of batch {made.batch_id}"
            yield not_found(self._shelf, wanted, ("artifacts",))
        else:
            detail = f"{counted(made.rollout_count, 'digest')} are those of the tables"
            yield Check(what="artifact digests", state="verified", detail=detail)


def _file_check(place: str) -> Check:
    try:
        open_table(place, verify="all")
    except (RollbookError, OSError) as error:
        return broken_by("table", error, place)
    detail = "every byte was compared, and every digest computed again"
    return Check(what="table", state="verified", detail=detail, where=place)
