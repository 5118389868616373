"""Source rows and their source store: where every rollout begins."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollbook.errors import RollbookError
from rollbook.generate.sources.reader import SourceStore
from rollbook.lineage.record_ref import (
    RecordRef,
    counted,
    listed,
    rollouts,
    short,
    source_rows,
)
from rollbook.lineage.records import Step, not_found
from rollbook.lineage.report import Check, Node, broken_by
from rollbook.lineage.shelf import Shelf


class SourceRows:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def describe(self, ref: RecordRef) -> Node:
        source = self._shelf.source(ref.home)
        is_store = ref.kind == "source"
        title = (
            f"source store {short(ref.home)}"
            if is_store
            else f"{counted(len(ref.ids), 'source row')}: {listed(ref.ids)}"
        )
        if source is None:
            return Node(key=ref.key, kind=ref.kind, title=title, checks=(self._no_source(ref),))
        facts = {"manifest_digest": ref.home, "rows": str(len(source))} if is_store else {}
        check = _documents_check(source) if is_store else _rows_check(source, ref.ids)
        return Node(
            key=ref.key,
            kind=ref.kind,
            title=title,
            place=str(source.path),
            facts=facts,
            checks=(check,),
        )

    def origins(self, ref: RecordRef) -> Iterator[Step]:
        if ref.kind == "source_rows":
            source = RecordRef("source", ref.home)
            yield Step("is in", source, f"manifest digest {short(ref.home)}")

    def uses(self, ref: RecordRef) -> Iterator[Step]:
        if ref.kind == "source":
            entries = self._shelf.sources[ref.home].index
            every = source_rows(ref.home, (each.sample_key for each in entries))
            yield Step("is in", every, f"manifest digest {short(ref.home)}")
            return
        for digest, store in self._shelf.sound_stores(
            sources=("sample_key_id", "source_offline_store_manifest_hash_id", "source_row_id"),
            rollouts=("source_row_id",),
        ):
            words = store.words("source_key")
            wanted = [code for code, word in enumerate(words) if word in set(ref.ids)]
            of_source = store.words("config")
            if not wanted or ref.home not in of_source:
                continue
            same = np.isin(store.array("sources/sample_key_id"), wanted) & (
                store.array("sources/source_offline_store_manifest_hash_id")
                == of_source.index(ref.home)
            )
            ids = store.array("sources/source_row_id")[same]
            rows = np.flatnonzero(np.isin(store.array("rollouts/source_row_id"), ids))
            if len(rows):
                by = f"source manifest {short(ref.home)}"
                yield Step("used by", rollouts(digest, rows.tolist()), by)

    def _no_source(self, ref: RecordRef) -> Check:
        others = listed(
            f"{each.path} has {short(digest)}" for digest, each in self._shelf.sources.items()
        )
        wanted = f"a source store with the manifest digest {ref.home}"
        return not_found(self._shelf, wanted, ("source",), others or "no source store is there")


def _documents_check(source: SourceStore) -> Check:
    detail = "the digests of the manifest, the splits and the index were computed again"
    return Check(what="manifest digest", state="verified", detail=detail, where=str(source.path))


def _rows_check(source: SourceStore, keys: tuple[str, ...]) -> Check:
    """Reading a row compares the digests of both of its parts; reading a mesh compares its own."""
    place = str(source.path)
    meshes: set[str] = set()
    for key in keys:
        try:
            index = source.find(key)
            source.row(index)
            scene = source.entry(index).scene_id
            if scene not in meshes:
                source.mesh(scene)
                meshes.add(scene)
        except (RollbookError, OSError, ValueError) as error:
            return broken_by(f"source row {key}", error, place)
    detail = f"the values of {counted(len(keys), 'row')} and {counted(len(meshes), 'mesh')[:-1]}es"
    if len(meshes) == 1:
        detail = f"the values of {counted(len(keys), 'row')} and the mesh of its scene"
    return Check(
        what="row digests",
        state="verified",
        detail=f"computed again from {detail}",
        where=place,
    )
