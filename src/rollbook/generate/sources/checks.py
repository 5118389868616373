"""The checks of a source store. Each yields violations, and skips data that another check reports as missing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from rollbook.errors import NotASourceStore, RollbookError, StorageError
from rollbook.generate.sources.documents import (
    SceneGeometryFacts,
    SourceEntry,
    SourceManifest,
    config_sha256,
    content_sha256,
    decoded,
    decoded_lines,
    read_document,
)
from rollbook.generate.sources.layout import (
    ARRAYS_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    OFFSETS,
    SCENES_FILE,
    SEALED_FILES,
    SPLITS_FILE,
    TABLES,
    TREES,
    ArrayEntry,
    Column,
    Table,
    array_sha256,
    open_array,
    part_sha256,
    row_sha256,
    sample_key,
    shard_name,
)
from rollbook.generate.sources.reader import SourceStore
from rollbook.generate.sources.row_checks import actor_problems, camera_space, oracle_problems
from rollbook.generate.sources.splits import SPLITS, SplitConfig, Splits, assign_splits
from rollbook.store.checks.violation import Violation

Progress = Callable[[int, int], None]
T = TypeVar("T")
_SHOWN_ROWS = 5
_THREADS = 4


class CheckedStore:
    """A store under validation. An unreadable document is reported and then counts as empty."""

    def __init__(
        self, folder: Path, manifest: SourceManifest, deep: bool, progress: Progress
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.deep = deep
        self.progress = progress
        self.reported: list[Violation] = []
        """Violations of the documents."""
        self.splits = self._read(
            SPLITS_FILE, lambda data: decoded(Splits, data, folder, SPLITS_FILE)
        )
        index = self._lines(SourceEntry, INDEX_FILE)
        self.arrays = {each.path: each for each in self._lines(ArrayEntry, ARRAYS_FILE)}
        facts = self._lines(SceneGeometryFacts, SCENES_FILE)
        self.facts = {each.scene_id: each for each in facts}
        self.notes = {each.scene_id: each.notes for each in manifest.scenes}
        splits = self.splits or assign_splits([], SplitConfig())
        self.store = SourceStore(folder, manifest, splits, tuple(index), actor_only=False)

    def _lines(self, kind: type[T], name: str) -> list[T]:
        read = self._read(name, lambda data: decoded_lines(kind, data, self.folder, name))
        return read or []

    def _read(self, name: str, decode: Callable[[bytes], T]) -> T | None:
        try:
            data = read_document(self.folder, name)
        except StorageError as error:
            self.reported.append(Violation("document_missing", "", str(error)))
            return None
        if hashlib.sha256(data).hexdigest() != self.manifest.files.get(name):
            message = f"{name} is not the one the store was finished with; copy the store again"
            self.reported.append(Violation("document_mismatch", "", message))
        try:
            return decode(data)
        except NotASourceStore as error:
            self.reported.append(Violation("document_unreadable", "", str(error)))
            return None

    @cached_property
    def expected(self) -> dict[str, Column]:
        return self.manifest.arrays()


Found = Iterator[Violation]


# ------------------------------------------------------------------------------------------ files


def check_files(store: CheckedStore) -> Found:
    """All required arrays must exist, and no other file. The names of all files under actor/ are known."""
    known = {*store.expected, *SEALED_FILES, MANIFEST_FILE}
    for path in sorted(store.expected):
        if path not in store.arrays:
            yield Violation("missing_array", "", f"{ARRAYS_FILE} does not list {path}")
        if not (store.folder / path).is_file():
            yield Violation("missing_array", "", f"{path} is missing; copy the store again")
    for path in sorted(store.arrays.keys() - store.expected.keys()):
        yield Violation("missing_array", "", f"{ARRAYS_FILE} lists {path}, which has no place here")
    for path, linked in _files_below(store.folder):
        if linked:
            yield Violation("linked_file", "", f"{path} is a link: its target may change")
        if path in known:
            continue
        if path.startswith("actor/"):
            message = f"{path} does not belong to the actor; remove it or move it under oracle/"
            yield Violation("oracle_in_actor", "", message)
        else:
            yield Violation("unlisted_file", "", f"{path} does not belong to the store")


def _files_below(folder: Path) -> list[tuple[str, bool]]:
    """Every file and every linked folder, and whether it is a link."""
    found: list[tuple[str, bool]] = []
    for place, folders, names in os.walk(folder):
        linked = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*names, *linked):
            full = os.path.join(place, name)
            found.append((os.path.relpath(full, folder), os.path.islink(full)))
    return sorted(found)


def check_arrays(store: CheckedStore) -> Found:
    """Checks type and shape of every array, and with `deep` its values."""
    sound: list[ArrayEntry] = []
    for path, column in sorted(store.expected.items()):
        entry = store.arrays.get(path)
        if entry is None or not (store.folder / path).is_file():
            continue  # check_files reports it
        try:
            values = open_array(store.folder, path, column)
        except StorageError as error:
            yield Violation("unreadable_array", "", str(error))
            continue
        if [values.dtype.str, list(values.shape)] == [entry.dtype, entry.shape]:
            sound.append(entry)
        else:
            listed = f"{entry.dtype}{entry.shape}"
            message = f"{path} is {values.dtype}{list(values.shape)}, {ARRAYS_FILE} says {listed}"
            yield Violation("wrong_array", "", message)
    if store.deep:
        yield from _checksum_violations(store, sound)


def _checksum_violations(store: CheckedStore, entries: list[ArrayEntry]) -> Found:
    def computed(entry: ArrayEntry) -> str:
        return array_sha256(open_array(store.folder, entry.path, store.expected[entry.path]))

    with ThreadPoolExecutor(_THREADS) as pool:
        for done, (entry, found) in enumerate(
            zip(entries, pool.map(computed, entries), strict=True), 1
        ):
            store.progress(done, len(entries) + len(store.store))
            if found != entry.sha256:
                message = f"{entry.path} was changed after it was written; copy the store again"
                yield Violation("checksum_mismatch", "", message)


# ----------------------------------------------------------------------------------------- splits


def check_splits(store: CheckedStore) -> Found:
    """Every scene is in exactly one split with all its rows. Otherwise tests would use training scenes."""
    splits = store.splits
    if splits is None:
        return
    members = {split: set(splits.scenes(split)) for split in SPLITS}
    scenes = {scene.scene_id for scene in store.manifest.scenes}
    for scene_id in sorted(set().union(*members.values()) | scenes):
        inside = [split for split in SPLITS if scene_id in members[split]]
        if len(inside) > 1:
            message = f"scene {scene_id} is in {' and in '.join(inside)}"
            yield Violation("scene_in_two_splits", "", message)
        if not inside:
            yield Violation("scene_without_split", "", f"scene {scene_id} is in no split")
        if scene_id not in scenes:
            yield Violation(
                "unknown_scene", "", f"{SPLITS_FILE} names {scene_id}, which has no row"
            )
    for scene in store.manifest.scenes:
        if scene.split in members and scene.scene_id not in members[scene.split]:
            message = f"the manifest has scene {scene.scene_id} in {scene.split}, {SPLITS_FILE} not"
            yield Violation("split_differs", "", message)
    wrong = [
        entry.sample_index
        for entry in store.store.index
        if entry.scene_id not in members.get(entry.split, ())
    ]
    if wrong:
        yield _of_rows("split_differs", wrong, f"rows are in another split than {SPLITS_FILE} says")
    hashes = {
        splits.split_manifest_hash,
        splits.computed_hash(),
        store.manifest.split_manifest_hash,
    }
    if len(hashes) > 1:
        yield Violation(
            "split_hash_mismatch", "", "the split manifest hash is not that of the splits"
        )


# ------------------------------------------------------------------------------------------ index


def check_index(store: CheckedStore) -> Found:
    index, size = store.store.index, store.manifest.rows_per_shard
    keys = [(entry.scene_id, entry.snippet_id) for entry in index]
    facts = {
        "wrong_order": (
            [row for row in range(1, len(keys)) if keys[row - 1] >= keys[row]],
            "rows do not stand in order of scene and snippet",
        ),
        "wrong_place": (
            [
                row
                for row, entry in enumerate(index)
                if (entry.sample_index, entry.shard_id, entry.row)
                != (row, shard_name(row // size), row % size)
            ],
            "rows are not where the index says",
        ),
        "wrong_key": (
            [
                row
                for row, entry in enumerate(index)
                if entry.sample_key != sample_key(entry.scene_id, entry.snippet_id)
                or entry.scene_id not in store.facts
            ],
            "rows have a key that is not that of their scene and snippet",
        ),
        "wrong_digest": (
            [
                row
                for row, entry in enumerate(index)
                if entry.row_sha256
                != row_sha256(
                    entry.scene_id, entry.snippet_id, entry.actor_sha256, entry.oracle_sha256
                )
            ],
            "rows have a digest that is not that of their parts",
        ),
    }
    for code, (wrong, message) in facts.items():
        if wrong:
            yield _of_rows(code, wrong, message)


def check_counts(store: CheckedStore) -> Found:
    manifest, index = store.manifest, store.store.index
    rows: dict[str, int] = {}
    for entry in index:
        rows[entry.scene_id] = rows.get(entry.scene_id, 0) + 1
    expected = {
        "rows": (manifest.counts.get("rows"), len(index)),
        "scenes": (manifest.counts.get("scenes"), len(rows)),
        "arrays": (manifest.counts.get("arrays"), len(store.arrays)),
        "rows of shards": (sum(shard.rows for shard in manifest.shards), len(index)),
        "rows of scenes": ({each.scene_id: each.rows for each in manifest.scenes}, rows),
        "content_sha256": (manifest.content_sha256, content_sha256(index)),
        "config_sha256": (manifest.config_sha256, config_sha256(manifest.config)),
    }
    for name, (stated, found) in expected.items():
        if stated != found:
            message = f"the manifest's {name} is {_short(stated)}, the store's is {_short(found)}"
            yield Violation("wrong_count", "", message)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


# ---------------------------------------------------------------------------------------- content


def check_offsets(store: CheckedStore) -> Found:
    for shard in store.manifest.shards:
        for table in TABLES:
            problem = _offsets_problem(store, table, shard.shard_id, shard.rows)
            if problem:
                path = table.path(shard.shard_id, OFFSETS.name)
                yield Violation("wrong_offsets", "", f"{path}: {problem}")


def _offsets_problem(store: CheckedStore, table: Table, shard_id: str, rows: int) -> str | None:
    try:
        columns = {
            column.name: open_array(store.folder, path, column)
            for path, column in table.paths(shard_id).items()
        }
    except StorageError:
        return None  # check_arrays reports it
    offsets = columns.pop(OFFSETS.name, None)
    if offsets is None:
        offsets = np.arange(rows + 1)
    if len(offsets) != rows + 1:
        return f"there are {len(offsets)}, expected {rows + 1}"
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        return "they do not rise from 0"
    lengths = {name: len(values) for name, values in columns.items()}
    if any(length != offsets[-1] for length in lengths.values()):
        return f"they end at {offsets[-1]}, the columns at {lengths}"
    return None


def check_rows(store: CheckedStore) -> Found:
    """Checks poses, times, cameras, points and boxes of every row, and with `deep` its digests."""
    found: dict[tuple[str, str], list[int]] = {}
    messages: dict[tuple[str, str], str] = {}
    total = len(store.store) + (len(store.arrays) if store.deep else 0)
    for row in range(len(store.store)):
        for code, table, message in _row_problems(store, row):
            found.setdefault((code, table), []).append(row)
            messages.setdefault((code, table), message)
        store.progress(total - len(store.store) + row + 1, total)
    for (code, table), rows in found.items():
        yield _of_rows(code, rows, messages[code, table], table)


def _row_problems(store: CheckedStore, row: int) -> Iterator[tuple[str, str, str]]:
    entry = store.store.index[row]
    try:
        actor = store.store.tables(row, "actor")
        oracle = store.store.tables(row, "oracle")
    except (RollbookError, ValueError) as error:
        yield "unreadable_row", "", str(error)
        return
    facts = store.facts.get(entry.scene_id)
    space = camera_space(facts.bounds if facts else None, store.notes.get(entry.scene_id, {}))
    for problem in (*actor_problems(actor), *oracle_problems(oracle, actor, space)):
        yield problem.code, problem.about, f"{problem.detail} ({entry.sample_key})"
    if store.deep:
        mesh = facts.mesh_sha256 if facts else None
        sums = (part_sha256("actor", actor), part_sha256("oracle", oracle, mesh))
        for tree, computed in zip(TREES, sums, strict=True):
            if computed != getattr(entry, f"{tree}_sha256"):
                yield "wrong_digest", tree, f"the values are not those of {entry.sample_key}"


# ----------------------------------------------------------------------------------------- meshes


def check_scenes(store: CheckedStore) -> Found:
    """Checks the facts of every scene, and with `deep` its mesh."""
    for scene in store.manifest.scenes:
        facts = store.facts.get(scene.scene_id)
        if facts is None or facts.mesh_sha256 != scene.mesh_sha256:
            message = f"{SCENES_FILE} and the manifest differ on scene {scene.scene_id}"
            yield Violation("wrong_scene_facts", "", message)
        elif store.deep:
            yield from _mesh_violations(store, facts)


def _mesh_violations(store: CheckedStore, facts: SceneGeometryFacts) -> Found:
    try:
        mesh = store.store.mesh(facts.scene_id)
    except (RollbookError, ValueError) as error:
        yield Violation("mesh_mismatch", "", f"scene {facts.scene_id}: {error}")
        return
    found = [len(mesh.vertices), len(mesh), mesh.bounds.tolist()]
    if found != [facts.vertices, facts.faces, facts.bounds]:
        message = f"size or bounds of scene {facts.scene_id} are not those of its mesh"
        yield Violation("wrong_scene_facts", "", message)


# ------------------------------------------------------------------------------------------ notes


def shared_mesh_notes(store: CheckedStore) -> Iterator[str]:
    """Scenes of different splits with one mesh: what is learned in the one would be judged in the other."""
    split = {
        scene: name
        for name in SPLITS
        for scene in (store.splits.scenes(name) if store.splits else ())
    }
    first: dict[str, str] = {}
    for scene in sorted(store.manifest.scenes, key=lambda each: each.scene_id):
        name = first.setdefault(scene.mesh_sha256, scene.scene_id)
        if split.get(name) != split.get(scene.scene_id):
            yield (
                f"scene {scene.scene_id} ({split.get(scene.scene_id)}) has the same mesh as scene {name} "
                f"({split.get(name)})"
            )


def path_notes(store: CheckedStore) -> Iterator[str]:
    """Where recorded paths pass through surfaces: what the import noted, and with `deep` what the meshes show."""
    if not store.deep:
        for scene_id, notes in store.notes.items():
            if "paths" in notes:
                yield f"scene {scene_id}: {notes['paths']}"
        return
    from rollbook.generate.raycast.scene_geometry import SceneGeometry
    from rollbook.generate.sources.path_notes import crossing_note, crossings

    geometry: SceneGeometry | None = None
    for entry in store.store.index:
        try:
            row = store.store.row(entry.sample_index)
            assert row.oracle is not None
            mesh = row.oracle.mesh
        except (RollbookError, ValueError):
            continue  # check_rows or check_scenes reports it
        if geometry is None or geometry.mesh.sha256 != mesh.sha256:
            geometry = SceneGeometry(mesh)
        path = np.concatenate([row.actor.poses, row.oracle.continuation])
        note = crossing_note(entry.sample_key, crossings(geometry, path))
        if note is not None:
            yield note


def _of_rows(code: str, rows: list[int], message: str, table: str = "") -> Violation:
    return Violation(code, table, message, tuple(rows[:_SHOWN_ROWS]), len(rows))
