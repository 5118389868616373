"""The walk: from one record to all that it was made from, and to all that was made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from rollbook.errors import APIError, RollbookError, TransportError
from rollbook.lineage.imported_files import ImportedFiles
from rollbook.lineage.judged_runs import Episodes, Runs
from rollbook.lineage.policy_revisions import Revisions, TrainingRuns
from rollbook.lineage.record_ref import RecordRef
from rollbook.lineage.records import Records, Step
from rollbook.lineage.report import Kind, LineageReport, Link, Node, broken_by
from rollbook.lineage.shelf import Shelf
from rollbook.lineage.source_store import SourceRows
from rollbook.lineage.stored_rollouts import StoredRollouts
from rollbook.lineage.trained_batches import Artifacts, Batches

Told = Callable[[Node], None]


def walk(start: RecordRef, shelf: Shelf, *, on_node: Told | None = None) -> LineageReport:
    """Origins of the start and of its origins; uses of the start and of its uses. Each record is checked once.

    `on_node` is called with each record when its checks are done.
    """
    return _Walk(shelf, on_node).report(start)


class _Walk:
    def __init__(self, shelf: Shelf, on_node: Told | None) -> None:
        self._shelf = shelf
        self._on_node = on_node
        self._nodes: dict[str, Node] = {}
        self._links: dict[tuple[str, str, str], Link] = {}
        stored, sources = StoredRollouts(shelf), SourceRows(shelf)
        self._records: Mapping[Kind, Records] = {
            "rollouts": stored,
            "store": stored,
            "source_rows": sources,
            "source": sources,
            "artifacts": Artifacts(shelf),
            "batch": Batches(shelf),
            "revision": Revisions(shelf),
            "training": TrainingRuns(shelf),
            "run": Runs(shelf),
            "episodes": Episodes(shelf),
            "recording": ImportedFiles(shelf),
        }

    def report(self, start: RecordRef) -> LineageReport:
        self._follow(start, to_origins=True)
        self._follow(start, to_origins=False)
        return LineageReport(
            start=start.key,
            nodes=self._nodes,
            links=tuple(self._links.values()),
            looked_in=tuple(self._shelf.looked_in),
        )

    def _follow(self, start: RecordRef, *, to_origins: bool) -> None:
        """In one direction only: what else was made of an origin has nothing to do with the start."""
        waiting, seen = [start], {start}
        while waiting:
            ref = waiting.pop(0)
            self._add(ref)
            for step in self._steps(ref, to_origins):
                self._add(step.ref)
                self._link(ref, step, to_origins)
                if step.ref not in seen:
                    seen.add(step.ref)
                    waiting.append(step.ref)

    def _add(self, ref: RecordRef) -> None:
        if ref.key in self._nodes:
            return
        node = self._nodes[ref.key] = self._records[ref.kind].describe(ref)
        if self._on_node is not None:
            self._on_node(node)

    def _steps(self, ref: RecordRef, to_origins: bool) -> Iterable[Step]:
        node = self._nodes[ref.key]
        if node.place is None:
            return []  # it was not found
        records = self._records[ref.kind]
        try:
            return list(records.origins(ref) if to_origins else records.uses(ref))
        except (TransportError, APIError):
            raise  # that the server does not answer says nothing about the record
        except RollbookError as error:
            check = broken_by("origins" if to_origins else "uses", error, node.place)
            if all(each.detail != check.detail for each in node.checks):
                self._nodes[ref.key] = msgspec.structs.replace(node, checks=(*node.checks, check))
            return []

    def _link(self, ref: RecordRef, step: Step, to_origins: bool) -> None:
        source, made = (step.ref, ref) if to_origins else (ref, step.ref)
        key = (source.key, made.key, step.relation)
        self._links[key] = Link(
            source=source.key,
            made=made.key,
            relation=step.relation,
            state=self._nodes[step.ref.key].state,
            by=step.by,
            to_origins=to_origins,
        )
