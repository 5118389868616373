"""Rows of rollout stores, and the stores: from a rollout to its source row and its policy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.row_numbers import Rows
from rollbook.errors import RollbookError
from rollbook.lineage.record_ref import (
    RecordRef,
    artifacts,
    counted,
    episodes,
    listed,
    numbered,
    revision,
    short,
    source_rows,
)
from rollbook.lineage.records import Step, not_found
from rollbook.lineage.report import Check, Node, broken_by, compared
from rollbook.lineage.shelf import Shelf
from rollbook.store.lineage_rows import LINEAGE_COLUMNS, LineageRows
from rollbook.store.manifest import content_sha256
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.stored_files import file_checksums
from rollbook.train.store_proofs import rows_of_store

_MOST_SHOWN = 5
_WHOLE_LINEAGE = "lineage/known_fields"
_READ = (
    *LINEAGE_COLUMNS.values(),
    *("lineage/lineage_digest", _WHOLE_LINEAGE, "lineage/policy_revision_index"),
    *("sources/source_row_id", "rollouts/target_row_id", "targets/lineage_values"),
)
"""Every column that is read here, or of which a lineage is made."""
_COLUMNS = {
    table: sorted({path.partition("/")[2] for path in _READ if path.startswith(f"{table}/")})
    for table in ("rollouts", "lineage", "sources", "targets")
}


class StoredRollouts:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def describe(self, ref: RecordRef) -> Node:
        return self._store_node(ref) if ref.kind == "store" else self._rollouts_node(ref)

    def origins(self, ref: RecordRef) -> Iterator[Step]:
        if ref.kind == "store":
            return
        store = self._shelf.stores[ref.home]
        rows = np.array([row for row in ref.rows if row < store.num_rollouts], np.int64)
        yield Step("is in", RecordRef("store", ref.home), f"content digest {short(ref.home)}")
        _check_columns(store)
        for digest, keys in _sources_of(store, rows).items():
            by = f"source manifest {short(digest)}"
            yield Step("generated from", source_rows(digest, keys), by)
        for each in _revisions_of(store, rows):
            by = f"policy digest {short(each.policy_digest)}"
            yield Step("chosen by", revision(each.policy_family, each.revision_id), by)

    def uses(self, ref: RecordRef) -> Iterator[Step]:
        if ref.kind == "store":
            return
        for place, table in self._shelf.tables.items():
            mine = rows_of_store(table, ref.home)
            used = [row for row, of_store in mine.items() if of_store in set(ref.rows)]
            if used:
                by = f"proof of store {short(ref.home)}"
                yield Step("made into", artifacts(place, used), by)
        logged = [each for each, row in self._episodes(ref.home).items() if row in set(ref.rows)]
        if logged:
            yield Step("logged as", episodes(logged), f"content digest {short(ref.home)}")

    def _episodes(self, digest: str) -> dict[str, int]:
        """Baselines that were logged from the store, with their rows: on the server and in evidence files."""
        found: dict[str, int] = {}
        for evidence in self._shelf.evidence.values():
            for each in evidence.episodes.values():
                about = each.rollout or {}
                if about.get("store_content_sha256") == digest and each.source != "replay":
                    found[each.id] = int(about.get("rollout_row_id", -1))
        if self._shelf.server is not None:
            found |= self._shelf.server.episodes_of_store(digest)
        return found

    # ---------------------------------------------------------------------------------- checks

    def _rollouts_node(self, ref: RecordRef) -> Node:
        count = len(ref.rows)
        title = f"{counted(count, 'rollout')} {short(ref.home)}:{numbered(ref.rows)}"
        store = self._shelf.stores.get(ref.home)
        if store is None:
            check = self._no_store(ref.home)
            return Node(key=ref.key, kind=ref.kind, title=title, checks=(check,))
        place = str(store.store_dir)
        check, facts = _lineage_check(store, np.array(ref.rows, np.int64))
        return Node(
            key=ref.key, kind=ref.kind, title=title, place=place, facts=facts, checks=(check,)
        )

    def _store_node(self, ref: RecordRef) -> Node:
        store = self._shelf.stores.get(ref.home)
        title = f"store {short(ref.home)}"
        if store is None:
            return Node(key=ref.key, kind=ref.kind, title=title, checks=(self._no_store(ref.home),))
        facts = {
            "content_sha256": ref.home,
            "manifest_sha256": str(store.attrs["manifest_sha256"]),
            "rollouts": str(store.num_rollouts),
        }
        return Node(
            key=ref.key,
            kind=ref.kind,
            title=f"store {store.store_dir.name} {short(ref.home)}",
            place=str(store.store_dir),
            facts=facts,
            checks=checks_of_store(self._shelf, ref.home),
        )

    def _no_store(self, digest: str) -> Check:
        others = listed(short(each) for each in self._shelf.stores)
        known = f"the stores there have the digests {others}" if others else "no store is there"
        archived = [
            str(each.store_dir)
            for each in self._shelf.stores.values()
            if each.attrs.get("profile") == "archive"
        ]
        if archived:  # a digest covers the files, and compressed files are others
            known += (
                f"; {listed(archived)} may be a compressed copy of it: "
                "`rollbook store repack STORE COPY --profile local` makes the same files again"
            )
        return not_found(
            self._shelf, f"a store with the content digest {digest}", ("store",), known
        )


def checks_of_store(shelf: Shelf, digest: str) -> tuple[Check, ...]:
    """Every byte of the store is compared once in a walk."""
    if digest not in shelf.store_checks:
        shelf.store_checks[digest] = tuple(_store_checks(shelf.stores[digest]))
    return shelf.store_checks[digest]


def _store_checks(store: RolloutZarrStoreReader) -> Iterator[Check]:
    manifest, place = store.store_manifest, str(store.store_dir)
    listed_files = manifest.files
    stated = str(manifest.payload["content_sha256"])
    yield compared(
        "content digest",
        stated,
        content_sha256(listed_files),
        "computed from the list of files in manifest.json",
        place,
    )
    found = file_checksums(
        store.store_dir, {path: size for path, (size, _) in listed_files.items()}
    )
    wrong = [path for path, (_, known) in listed_files.items() if found[path] != known]
    for path in wrong[:_MOST_SHOWN]:
        yield Check(
            what=f"checksum of {path}",
            state="broken",
            detail=f"manifest.json lists {listed_files[path][1]}, the file has {found[path] or 'gone'}",
            where=f"{place}/{path}",
            expected=listed_files[path][1],
            found=found[path] or "no such file",
        )
    if not wrong:
        detail = f"every byte of {counted(len(listed_files), 'file')} was compared"
        yield Check(what="files", state="verified", detail=detail, where=place)


def _lineage_check(store: RolloutZarrStoreReader, rows: Rows) -> tuple[Check, dict[str, str]]:
    """The digest of each lineage, computed again from the columns."""
    place, what = str(store.store_dir), "lineage digest"
    beyond = rows[rows >= store.num_rollouts]
    if len(beyond):
        detail = f"the store has {counted(store.num_rollouts, 'row')}, there is no row {beyond[0]}"
        return Check(what="rows", state="broken", detail=detail, where=place), {}
    try:
        _check_columns(store)
        if not store.has(_WHOLE_LINEAGE):
            detail = "the store was written before stores kept the whole lineage"
            return Check(what=what, state="missing", detail=detail, where=place), {}
        computed = _lineages(store, rows).digests()
        facts = _facts(store, rows)
    except RollbookError as error:
        return broken_by(what, error, place), {}
    recorded = store.array("lineage/lineage_digest")[rows]
    wrong = np.flatnonzero((computed != recorded).any(axis=1))
    if len(wrong):
        first = int(wrong[0])
        check = compared(
            f"lineage digest of row {rows[first]}",
            recorded[first].tobytes().hex(),
            computed[first].tobytes().hex(),
            f"{counted(len(wrong), 'row')} of {len(rows)} differ",
            place,
        )
        return check, facts
    detail = f"computed again from the columns of {counted(len(rows), 'row')}"
    return Check(what=what, state="verified", detail=detail, where=place), facts


def _check_columns(store: RolloutZarrStoreReader) -> None:
    """Damaged columns are refused before anything is read from them."""
    for table, columns in _COLUMNS.items():
        there = [name for name in columns if store.has(f"{table}/{name}")]
        store.verify_columns(table, there)
    store.files.verify("metadata/zarr.json")


def _lineages(store: RolloutZarrStoreReader, rows: Rows) -> LineageRows:
    return LineageRows(
        store.array,
        store.words,
        store.stated_policy_revisions,
        rows,
        {
            "sources": _source_places(store, rows),
            "targets": store.array("rollouts/target_row_id")[rows],
        },
    )


def _source_places(store: RolloutZarrStoreReader, rows: Rows) -> Rows:
    """The row in `sources` of every rollout."""
    known = store.array("sources/source_row_id")
    order = np.argsort(known)
    wanted = store.array("rollouts/source_row_id")[rows]
    places = order[np.searchsorted(known, wanted, sorter=order)]
    return np.asarray(places, np.int64)


def _sources_of(store: RolloutZarrStoreReader, rows: Rows) -> dict[str, list[str]]:
    """The keys of the source rows, by the digest of their source."""
    places = np.unique(_source_places(store, rows))
    keys = store.decoded("sources", "sample_key_id", places)
    digests = store.decoded("sources", "source_offline_store_manifest_hash_id", places)
    found: dict[str, list[str]] = {}
    for key, digest in zip(keys, digests, strict=True):
        found.setdefault(digest or "not stated", []).append(key or "not stated")
    return found


def _revisions_of(store: RolloutZarrStoreReader, rows: Rows) -> Iterator[PolicyRevision]:
    if not store.has("lineage/policy_revision_index"):
        return
    stated = store.stated_policy_revisions
    for index in np.unique(store.array("lineage/policy_revision_index")[rows]).tolist():
        if index >= 0:
            yield stated[index]


def _facts(store: RolloutZarrStoreReader, rows: Rows) -> dict[str, str]:
    policies = dict.fromkeys(store.decoded("rollouts", "policy_id", rows))
    scenes = dict.fromkeys(store.decoded("rollouts", "scene_id", rows))
    facts = {"policy": listed(map(str, policies)), "scene": listed(map(str, scenes))}
    if len(rows) == 1:
        facts["rollout_id"] = str(store.decoded("rollouts", "rollout_id", rows)[0])
        facts["lineage_digest"] = store.array("lineage/lineage_digest")[rows[0]].tobytes().hex()
    return facts
