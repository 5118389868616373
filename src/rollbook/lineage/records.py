"""Records: what a walk asks of one kind of record, and the step from one record to the next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from rollbook.lineage.record_ref import RecordRef, rollouts
from rollbook.lineage.report import Check, Kind, Node
from rollbook.lineage.shelf import Shelf


class Step(NamedTuple):
    relation: str
    """What the later record has to do with the earlier one, such as `generated from`."""
    ref: RecordRef
    by: str
    """The digest or id that joins the two."""


class Records(Protocol):
    """Records of some kinds. `origins` and `uses` are called only for records that were found."""

    def describe(self, ref: RecordRef) -> Node: ...
    def origins(self, ref: RecordRef) -> Iterable[Step]: ...
    def uses(self, ref: RecordRef) -> Iterable[Step]: ...


def not_found(shelf: Shelf, wanted: str, kinds: tuple[Kind, ...], others: str = "") -> Check:
    """A record that is on no shelf. If something of its kind there cannot be opened, that is the likely cause."""
    damaged = shelf.damaged_of(*kinds)
    where = ", ".join(shelf.looked_in) or "nowhere: name a place with an option, or --in FOLDER"
    if damaged:
        errors = "; ".join(each.told() for each in damaged)
        return Check(what=wanted, state="broken", detail=f"not found, and {errors}", where=where)
    detail = f"looked for {wanted}" + (f"; {others}" if others else "")
    return Check(what=wanted, state="missing", detail=detail, where=where)


def whole_store(shelf: Shelf, digest: str) -> RecordRef:
    """All rollouts of a store; only the store where it is not here."""
    store = shelf.stores.get(digest)
    if store is None or not store.num_rollouts:
        return RecordRef("store", digest)
    return rollouts(digest, range(store.num_rollouts))
