"""From what somebody typed to the record that is meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.rl.table_digests import Digests
from rollbook.errors import ConfigurationError, StorageError
from rollbook.lineage.imported_files import imported_at
from rollbook.lineage.policy_revisions import Revisions
from rollbook.lineage.record_ref import (
    RecordRef,
    artifacts,
    batch,
    episodes,
    listed,
    numbered,
    recording,
    revision,
    rollouts,
    short,
    source_rows,
)
from rollbook.lineage.records import whole_store
from rollbook.lineage.report import Kind
from rollbook.lineage.shelf import (
    FoundBatch,
    Shelf,
    folder_kind,
    is_collection,
    stores_collected,
)

_PREFIX = re.compile(r"[0-9a-f]{8,64}")
_WHOLE = re.compile(r"[0-9a-f]{64}")
_SHORT = re.compile(r"[0-9a-f]{1,7}")
_ROW = re.compile(r"(?P<store>.+):(?P<row>\d+)")


def resolve(text: str, shelf: Shelf, kind: Kind | None = None) -> RecordRef:
    """The record with this id, digest, beginning of a digest, or path. Refuses an id that several records have."""
    path = Path(text)
    if path.exists():
        shelf.looked_in.append(str(path.absolute()))
        shelf.add(path, before_copies=True)
        for damaged in shelf.damaged:
            if Path(damaged.path) == path:
                raise damaged.error
    found = [
        each for each in _each_once(_candidates(text, shelf), shelf) if kind in (None, each.kind)
    ]
    if len(found) == 1:
        [only] = found
        return whole_store(shelf, only.home) if only.kind == "store" else only
    if found:
        # one text can be the id of a row and of the artifact made of it; the row is where the artifact leads
        preferred = [each for each in found if each.kind == "rollouts"]
        if len(preferred) == 1 and {each.kind for each in found} <= {"rollouts", "artifacts"}:
            return preferred[0]
        names = listed(f"--kind {each.kind}: {_named(each)}" for each in found)
        same_kind = len({each.kind for each in found}) < len(found)
        advice = "; name one by its digest or path" if same_kind else ""
        raise ConfigurationError(
            message=f"{text!r} is the id of {len(found)} records{advice}. {names}"
        )
    for damaged in shelf.damaged:
        detail = f"no record has the id {text!r}, and this one cannot be opened: {damaged.error}"
        raise StorageError(path=damaged.path, detail=detail)
    what = "record" if kind is None else f"record of the kind {kind}"
    where = ", ".join(dict.fromkeys(shelf.looked_in)) or "no place"
    asked = "" if shelf.server is not None else ", and asked no server"
    message = f"no {what} has the id {text!r}; looked in {where}{asked}"
    if _SHORT.fullmatch(text.lower()):
        message += "; of a digest give 8 digits or more"
    more = "name more places with --in, --store, --run-folder, --table, --source, --evidence or --recording"
    raise ConfigurationError(message=f"{message}; {more}")


def _each_once(found: Iterable[RecordRef], shelf: Shelf) -> Iterator[RecordRef]:
    """Copies of one artifact in several tables are one record: every training keeps a table of its own."""
    seen: set[RecordRef | bytes] = set()
    for ref in found:
        identity: RecordRef | bytes = ref
        if ref.kind == "artifacts" and len(ref.rows) == 1:
            table, [row] = shelf.tables[ref.home], ref.rows
            identity = table.artifact_digests[row].tobytes() + table.content_digests[row].tobytes()
        if identity not in seen:
            seen.add(identity)
            yield ref


def _candidates(text: str, shelf: Shelf) -> Iterator[RecordRef]:
    if Path(text).exists():
        yield from _at_path(Path(text), shelf)
        return
    yield from _rows(text, shelf)
    yield from _by_digest(text, shelf)
    yield from _with_server(text, shelf)
    for digest, found in shelf.batches.items():
        if found.batch.batch_id == text:
            yield batch(digest, text)
    for place, table in shelf.tables.items():
        ids = table.columns.artifact_id
        yield from (artifacts(place, [row]) for row, each in enumerate(ids) if each == text)
    for each, _ in Revisions(shelf).described():
        if text in (each.revision_id, f"{each.policy_family}/{each.revision_id}"):
            yield revision(each.policy_family, each.revision_id)
    for digest, source in shelf.sources.items():
        if any(each.sample_key == text for each in source.index):
            yield source_rows(digest, [text])
    for digest, store in shelf.sound_stores(rollouts=("rollout_id",)):
        words = store.words("rollout")
        if text in words:
            codes = store.array("rollouts/rollout_id")
            yield rollouts(digest, (codes == words.index(text)).nonzero()[0].tolist())


def _with_server(text: str, shelf: Shelf) -> Iterator[RecordRef]:
    """Ids of the server, and of evidence files."""
    for evidence in shelf.evidence.values():
        if text == evidence.run.id:
            yield RecordRef("run", text)
        if text in evidence.episodes:
            yield episodes([text])
    server = shelf.server
    if server is None or "/" in text:
        return
    if server.run(text) is not None:
        yield RecordRef("run", text)
    if server.episodes([text]):
        yield episodes([text])
    for each in server.revisions(text):
        yield revision(each.revision.policy_family, each.revision.revision_id)
    for found in server.batches(text):
        place = f"{server.place}/api/trainer-batches/{text}"
        shelf.batches.setdefault(found.batch_digest, FoundBatch(found, place))
        yield batch(found.batch_digest, found.batch_id)
    if _WHOLE.fullmatch(text):
        for source in server.sources_with(text):
            yield recording(source.digest, source.name, source.names)


def _at_path(path: Path, shelf: Shelf) -> Iterator[RecordRef]:
    place = path.resolve()
    collected = {each.resolve() for each in stores_collected(path)} if is_collection(path) else ()
    for digest, store in shelf.stores.items():
        if store.store_dir == place or store.store_dir in collected:
            yield RecordRef("store", digest)
    for digest, source in shelf.sources.items():
        if source.path.resolve() == place:
            yield RecordRef("source", digest)
    if str(place) in shelf.tables:
        yield artifacts(str(place), range(len(shelf.tables[str(place)])))
    if str(place) in shelf.runs:
        yield RecordRef("training", str(place))
    for run_id, evidence in shelf.evidence.items():
        if Path(evidence.place).resolve() == place:
            yield RecordRef("run", run_id)
    yield from imported_at(path, shelf)


def _rows(text: str, shelf: Shelf) -> Iterator[RecordRef]:
    """`STORE:ROW`, where STORE is a path or the beginning of a digest."""
    match = _ROW.fullmatch(text)
    if match is None:
        return
    name, row = match["store"], int(match["row"])
    if folder_kind(Path(name)) == "store":
        shelf.add_store(Path(name), before_copies=True)
    for digest, store in shelf.stores.items():
        at_path = store.store_dir == Path(name).resolve()
        begins = name.lower()
        if at_path or (_PREFIX.fullmatch(begins) and digest.startswith(begins)):
            yield rollouts(digest, [row])


def _by_digest(given: str, shelf: Shelf) -> Iterator[RecordRef]:
    text = given.lower()
    if not _PREFIX.fullmatch(text):
        return
    for digest, store in shelf.stores.items():
        if digest.startswith(text) or str(store.attrs["manifest_sha256"]).startswith(text):
            yield RecordRef("store", digest)
    for digest in shelf.sources:
        if digest.startswith(text):
            yield RecordRef("source", digest)
    for place, run in shelf.runs.items():
        if run.run.digest.startswith(text):
            yield RecordRef("training", place)
    for each, _ in Revisions(shelf).described():
        if each.policy_digest.startswith(text):
            yield revision(each.policy_family, each.revision_id)
    for digest, found in shelf.batches.items():
        if digest.startswith(text) or found.batch.content_digest.startswith(text):
            yield batch(digest, found.batch.batch_id)
    for place, table in shelf.tables.items():
        same = _begins(table.artifact_digests, text) | _begins(table.content_digests, text)
        yield from (artifacts(place, [row]) for row in np.flatnonzero(same).tolist())


def _begins(digests: Digests, text: str) -> NDArray[np.bool_]:
    """Which of the digests [n, 32] begin with these hexadecimal digits."""
    whole = np.frombuffer(bytes.fromhex(text[: len(text) // 2 * 2]), np.uint8)
    same: NDArray[np.bool_] = (digests[:, : len(whole)] == whole).all(axis=1)
    if len(text) % 2:
        same &= digests[:, len(whole)] >> 4 == int(text[-1], 16)
    return same


def _named(ref: RecordRef) -> str:
    """So that it can be typed: the beginning of its digest, or its path; and which rows or ids."""
    home = short(ref.home) if _WHOLE.fullmatch(ref.home) else ref.home
    if ref.rows:
        return f"{home}:{numbered(ref.rows)}"
    return " ".join(filter(None, (home, listed(ref.ids))))
