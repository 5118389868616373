"""SourceStoreWriter: writes scenes and rows into a source store, which appears only when it is finished."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from rollbook import __version__
from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.files import write_errors
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.sources.documents import (
    SceneEntry,
    SceneGeometryFacts,
    ShardEntry,
    SourceEntry,
    SourceManifest,
    config_sha256,
    content_sha256,
)
from rollbook.generate.sources.layout import (
    ARRAYS_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    MESH_COLUMNS,
    OFFSETS,
    SCENES_FILE,
    SCHEMA_ID,
    SCHEMA_VERSION,
    SPLITS_FILE,
    TABLES,
    Array,
    ArrayEntry,
    Columns,
    checked_id,
    mesh_path,
    part_sha256,
    row_sha256,
    sample_key,
    save_array,
    shard_name,
)
from rollbook.generate.sources.reader import ActorView, oracle_tables
from rollbook.generate.sources.row_checks import actor_problems, camera_space, oracle_problems
from rollbook.generate.sources.splits import SplitConfig, Splits, assign_splits
from rollbook.store.manifest import json_bytes
from rollbook.store.staging import StagedStore

ROWS_PER_SHARD = 64
"""About 35 MB of semidense points, which stay in memory until the shard is written."""


class SourceStoreWriter:
    """Writes into a temporary folder and renames it at the end. Without `finish` nothing remains.

    Rows must come in the order of (scene_id, snippet_id), each scene before its rows.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: Mapping[str, Any],
        kind: str = "custom",
        splits: SplitConfig | None = None,
        split_of: Mapping[str, str] | None = None,
        rows_per_shard: int = ROWS_PER_SHARD,
        replace: bool = False,
    ) -> None:
        """`config` describes how the rows were made, in plain values. `split_of` fixes the split of some scenes."""
        if rows_per_shard < 1:
            message = f"rows_per_shard is {rows_per_shard}, expected at least 1"
            raise ConfigurationError(message=message)
        self._config = _plain(config)
        self._kind = kind
        self._splits = splits or SplitConfig()
        self._split_of = dict(split_of or {})
        self._rows_per_shard = rows_per_shard
        self._stage = StagedStore(Path(path), replace=replace, kept_because=_not_a_source_store)
        self._arrays: list[ArrayEntry] = []
        self._scenes: dict[str, _Scene] = {}
        self._entries: list[SourceEntry] = []
        self._buffer: list[dict[str, Columns]] = []
        self._totals = dict.fromkeys((table.name for table in TABLES if table.ragged), 0)

    def __enter__(self) -> SourceStoreWriter:
        self._stage.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stage.__exit__(kind, error, traceback)

    # ------------------------------------------------------------------------------- scenes, rows

    def add_scene(
        self,
        scene_id: str,
        mesh: TriangleMesh,
        boxes: Boxes,
        *,
        recipe: Mapping[str, Any] | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """`boxes` are the true boxes of all its rows. `recipe` allows to make a procedural scene again."""
        checked_id(scene_id, "scene_id")
        if scene_id in self._scenes:
            raise _invalid("scene_id", repr(scene_id), "a scene that was not added before")
        if mesh.sha256 not in {scene.facts.mesh_sha256 for scene in self._scenes.values()}:
            for column in MESH_COLUMNS:
                path, values = mesh_path(mesh.sha256, column.name), getattr(mesh, column.name)
                self._arrays.append(save_array(self._stage.folder, path, values))
        facts = SceneGeometryFacts(
            scene_id=scene_id,
            mesh_sha256=mesh.sha256,
            vertices=len(mesh.vertices),
            faces=len(mesh),
            bounds=mesh.bounds.tolist(),
            recipe=None if recipe is None else _plain(recipe),
        )
        self._scenes[scene_id] = _Scene(facts, boxes, dict(notes or {}))

    def add_row(
        self,
        scene_id: str,
        snippet_id: str,
        actor: ActorView,
        continuation: Array | None = None,
        continuation_t_ns: Array | None = None,
    ) -> str:
        """Adds one row and returns its key. Refuses a row with problems that validation would report."""
        key = self._next_key(scene_id, snippet_id)
        scene = self._scenes[scene_id]
        if (actor.detections.inst_id != -1).any():
            raise _invalid(
                "detections.inst_id", "known", "-1: a detection does not know its object"
            )
        seen = actor.tables()
        truth = oracle_tables(
            scene.boxes,
            np.zeros((0, 12), np.float32) if continuation is None else continuation,
            np.zeros(0, np.int64) if continuation_t_ns is None else continuation_t_ns,
        )
        for problem in (
            *actor_problems(seen),
            *oracle_problems(truth, seen, camera_space(scene.facts.bounds, scene.notes)),
        ):
            raise problem.as_error(key)
        self._append(key, scene, snippet_id, seen, truth)
        return key

    def _next_key(self, scene_id: str, snippet_id: str) -> str:
        checked_id(snippet_id, "snippet_id")
        if scene_id not in self._scenes:
            raise _invalid("scene_id", repr(scene_id), "a scene that add_scene was called with")
        last = self._entries[-1] if self._entries else None
        if last is not None and (scene_id, snippet_id) <= (last.scene_id, last.snippet_id):
            shown = sample_key(scene_id, snippet_id)
            expected = f"a row after {last.sample_key!r}: rows come sorted, each once"
            raise _invalid("sample_key", repr(shown), expected)
        return sample_key(scene_id, snippet_id)

    def _append(
        self,
        key: str,
        scene: _Scene,
        snippet_id: str,
        seen: dict[str, Columns],
        truth: dict[str, Columns],
    ) -> None:
        index, facts = len(self._entries), scene.facts
        actor, oracle = part_sha256("actor", seen), part_sha256("oracle", truth, facts.mesh_sha256)
        entry = SourceEntry(
            sample_index=index,
            sample_key=key,
            scene_id=facts.scene_id,
            snippet_id=snippet_id,
            split="",  # set by `finish`, when all scenes are known
            shard_id=shard_name(index // self._rows_per_shard),
            row=index % self._rows_per_shard,
            actor_sha256=actor,
            oracle_sha256=oracle,
            row_sha256=row_sha256(facts.scene_id, snippet_id, actor, oracle),
        )
        self._entries.append(entry)
        self._buffer.append(seen | truth)
        scene.rows += 1
        if len(self._buffer) == self._rows_per_shard:
            self._write_shard()

    def _write_shard(self) -> None:
        if not self._buffer:
            return
        shard_id = shard_name((len(self._entries) - 1) // self._rows_per_shard)
        for table in TABLES:
            rows = [each[table.name] for each in self._buffer]
            columns = {
                column.name: np.concatenate([row[column.name] for row in rows])
                for column in table.columns
            }
            if table.ragged:
                first = table.columns[0].name
                lengths = np.array([len(row[first]) for row in rows], np.int64)
                columns[OFFSETS.name] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
                self._totals[table.name] += int(lengths.sum())
            for path, column in table.paths(shard_id).items():
                saved = save_array(self._stage.folder, path, columns[column.name])
                self._arrays.append(saved)
        self._buffer = []

    # ------------------------------------------------------------------------------------- finish

    def finish(self) -> SourceManifest:
        """Writes the last shard and the documents, and renames the store to its final name."""
        empty = [scene_id for scene_id, scene in self._scenes.items() if not scene.rows]
        if not self._entries or empty:
            shown = f"none for {', '.join(empty[:3])}" if empty else "none at all"
            raise _invalid("rows", shown, "at least one row for every scene")
        self._write_shard()
        splits = assign_splits(list(self._scenes), self._splits, self._split_of)
        manifest = self._write_documents(splits)
        self._stage.promote()
        return manifest

    def _write_documents(self, splits: Splits) -> SourceManifest:
        split_of = {each: name for name in ("train", "val", "test") for each in splits.scenes(name)}
        entries = [
            msgspec.structs.replace(entry, split=split_of[entry.scene_id])
            for entry in self._entries
        ]
        facts = [self._scenes[scene_id].facts for scene_id in sorted(self._scenes)]
        arrays = sorted(self._arrays, key=lambda each: each.path)
        files = {
            SPLITS_FILE: self._write(
                SPLITS_FILE, json_bytes(msgspec.to_builtins(splits), "splits")
            ),
            INDEX_FILE: self._write(INDEX_FILE, _lines(entries)),
            ARRAYS_FILE: self._write(ARRAYS_FILE, _lines(arrays)),
            SCENES_FILE: self._write(SCENES_FILE, _lines(facts)),
        }
        manifest = self._manifest(splits, split_of, entries, files)
        self._write(MANIFEST_FILE, json_bytes(msgspec.to_builtins(manifest), "the manifest"))
        return manifest

    def _manifest(
        self,
        splits: Splits,
        split_of: Mapping[str, str],
        entries: list[SourceEntry],
        files: dict[str, str],
    ) -> SourceManifest:
        meshes = {scene.facts.mesh_sha256 for scene in self._scenes.values()}
        size, rows = self._rows_per_shard, len(entries)
        manifest = SourceManifest(
            schema_id=SCHEMA_ID,
            schema_version=SCHEMA_VERSION,
            created_by=f"rollbook {__version__}",
            kind=self._kind,
            config=self._config,
            config_sha256=config_sha256(self._config),
            counts={
                "rows": rows,
                "scenes": len(self._scenes),
                "meshes": len(meshes),
                "arrays": len(self._arrays),
                **self._totals,
            },
            rows_per_shard=size,
            shards=[
                ShardEntry(
                    shard_id=shard_name(first // size),
                    first_sample_index=first,
                    rows=min(size, rows - first),
                )
                for first in range(0, rows, size)
            ],
            scenes=[
                SceneEntry(
                    scene_id=scene_id,
                    split=split_of[scene_id],
                    rows=scene.rows,
                    mesh_sha256=scene.facts.mesh_sha256,
                    notes=scene.notes,
                )
                for scene_id, scene in sorted(self._scenes.items())
            ],
            split_manifest_hash=splits.split_manifest_hash,
            content_sha256=content_sha256(entries),
            files=files,
        )
        return msgspec.structs.replace(manifest, manifest_digest=manifest.computed_digest())

    def _write(self, name: str, data: bytes) -> str:
        with write_errors(self._stage.folder / name):
            (self._stage.folder / name).write_bytes(data)
        return hashlib.sha256(data).hexdigest()


@dataclass(slots=True, eq=False)
class _Scene:
    facts: SceneGeometryFacts
    boxes: Boxes
    notes: dict[str, str]
    rows: int = 0


def _not_a_source_store(folder: Path) -> str | None:
    """Why a folder must not be replaced. A source store, even a damaged one, and an empty folder may be."""
    try:
        if folder.is_dir() and not any(folder.iterdir()):
            return None
        parsed = json.loads((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError):
        parsed = None
    is_ours = isinstance(parsed, dict) and parsed.get("schema_id") == SCHEMA_ID
    return None if is_ours else "it is not a source store"


def _lines(rows: Sequence[msgspec.Struct]) -> bytes:
    return msgspec.json.Encoder(order="sorted").encode_lines(rows)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values after a round trip through JSON, so that their digest equals that of the stored values."""
    plain: dict[str, Any] = json.loads(json_bytes(msgspec.to_builtins(values), "the config"))
    return plain


def _invalid(field: str, value: str, expected: str) -> InvalidValue:
    return InvalidValue(record="source store", field=field, value=value, expected=expected)
