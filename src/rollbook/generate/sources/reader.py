"""SourceStore: the immutable rows from which rollouts start. `actor` is the part that the robot may know.

A store that is opened actor-only never opens a file under `oracle/`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    RowOutOfRange,
    StorageError,
)
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.sources.documents import (
    SceneGeometryFacts,
    SourceEntry,
    SourceManifest,
    decoded,
    decoded_lines,
    read_manifest,
    sealed_bytes,
)
from rollbook.generate.sources.layout import (
    CAMERA_FIELDS,
    INDEX_FILE,
    MESH_COLUMNS,
    MESHES_FOLDER,
    OFFSETS,
    SCENES_FILE,
    SPLITS_FILE,
    Columns,
    Table,
    Tree,
    mesh_path,
    open_array,
    part_sha256,
    tables_of,
)
from rollbook.generate.sources.remote_source import RemoteSource
from rollbook.generate.sources.splits import Splits
from rollbook.notebook import card, table
from rollbook.store.urls.url_folder import Options, local_path

_OPEN_SHARDS = 64
"""Most open shards. The actor and the oracle part of a shard count as two."""
_MAPPED_BYTES = 1 << 18
"""Larger arrays are memory-mapped. Smaller ones are read, because every map keeps a file open."""
_KEPT_MESHES = 4


# ------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True, eq=False)
class ActorView:
    """What the robot knows at the root: its path, its points and its detections."""

    poses: NDArray[np.float32]
    """[F, 12]: the path so far; the last frame is the root."""
    t_ns: NDArray[np.int64]
    camera: Camera
    points: NDArray[np.float32]
    """[P, 3], semidense."""
    point_frame: NDArray[np.int32]
    """The frame that saw each point; -1 if unknown."""
    inv_dist_std: NDArray[np.float32]
    """1/m; NaN if unknown."""
    dist_std: NDArray[np.float32]
    """m; NaN if unknown."""
    detections: Boxes

    @property
    def root_pose(self) -> NDArray[np.float32]:
        root: NDArray[np.float32] = self.poses[-1]
        return root

    def tables(self) -> dict[str, Columns]:
        """The view as columns of `actor/`."""
        pinhole = [[float(getattr(self.camera, field)) for field in CAMERA_FIELDS]]
        return {
            "camera": {"pinhole": np.array(pinhole, np.float64)},
            "frames": {
                "pose": np.asarray(self.poses, np.float32).reshape(-1, 12),
                "t_ns": np.asarray(self.t_ns, np.int64),
            },
            "points": {
                "xyz": np.asarray(self.points, np.float32).reshape(-1, 3),
                "frame": np.asarray(self.point_frame, np.int32),
                "inv_dist_std": np.asarray(self.inv_dist_std, np.float32),
                "dist_std": np.asarray(self.dist_std, np.float32),
            },
            "detections": _box_columns(self.detections),
        }

    @classmethod
    def from_tables(cls, tables: Mapping[str, Columns]) -> ActorView:
        frames, points = tables["frames"], tables["points"]
        width, height, *rest = tables["camera"]["pinhole"][0].tolist()
        camera = Camera(
            width=int(width), height=int(height), **dict(zip(CAMERA_FIELDS[2:], rest, strict=True))
        )
        return cls(
            frames["pose"],
            frames["t_ns"],
            camera,
            points["xyz"],
            points["frame"],
            points["inv_dist_std"],
            points["dist_std"],
            _boxes(tables["detections"]),
        )


class OracleView:
    """The data from which labels are made. A policy must never get it."""

    __slots__ = ("_mesh", "boxes", "continuation", "continuation_t_ns")

    def __init__(
        self,
        mesh: TriangleMesh | Callable[[], TriangleMesh],
        boxes: Boxes,
        continuation: NDArray[np.float32],
        continuation_t_ns: NDArray[np.int64],
    ) -> None:
        """`mesh` may be a function that loads the mesh; it is called when the mesh is needed."""
        self._mesh = mesh
        self.boxes = boxes
        self.continuation = continuation
        """[K, 12]: recorded poses after the root."""
        self.continuation_t_ns = continuation_t_ns

    @property
    def mesh(self) -> TriangleMesh:
        return self._mesh if isinstance(self._mesh, TriangleMesh) else self._mesh()

    @classmethod
    def from_tables(
        cls, tables: Mapping[str, Columns], mesh: Callable[[], TriangleMesh]
    ) -> OracleView:
        continuation = tables["continuation"]
        return cls(mesh, _boxes(tables["boxes"]), continuation["pose"], continuation["t_ns"])


def oracle_tables(
    boxes: Boxes, continuation: NDArray[np.float32], continuation_t_ns: NDArray[np.int64]
) -> dict[str, Columns]:
    """The oracle's data as columns of `oracle/`."""
    return {
        "continuation": {
            "pose": np.asarray(continuation, np.float32).reshape(-1, 12),
            "t_ns": np.asarray(continuation_t_ns, np.int64),
        },
        "boxes": _box_columns(boxes) | {"inst_id": boxes.inst_id},
    }


@dataclass(frozen=True, slots=True, eq=False)
class SourceRow:
    sample_index: int
    sample_key: str
    scene_id: str
    snippet_id: str
    split: str
    shard_id: str
    shard_row: int
    actor: ActorView
    oracle: OracleView | None
    """None if the store was opened actor-only."""


def _box_columns(boxes: Boxes) -> Columns:
    return {
        "pose_world_object": boxes.pose_world_object,
        "extents": boxes.extents,
        "sem_id": boxes.sem_id,
        "confidence": boxes.confidence,
        "class_name": np.array(boxes.class_name, np.str_) if len(boxes) else np.zeros(0, "<U1"),
    }


def _boxes(columns: Columns) -> Boxes:
    return Boxes.build(
        columns["pose_world_object"],
        columns["extents"],
        columns["sem_id"],
        inst_id=columns.get("inst_id"),
        confidence=columns["confidence"],
        class_name=columns["class_name"].tolist(),
    )


# ------------------------------------------------------------------------------------------ store


class SourceStore:
    """A finished source store. Pickling stores only its place. Rows are copies, so they stay valid without it."""

    def __init__(
        self,
        folder: Path,
        manifest: SourceManifest,
        splits: Splits,
        index: tuple[SourceEntry, ...],
        actor_only: bool,
        remote: RemoteSource | None = None,
    ) -> None:
        """Used by `open`; call `open` to get a store."""
        self.path = folder
        """The folder of the store, or of the cache for a store at a URL."""
        self._remote = remote
        self.manifest = manifest
        self.splits = splits
        self.index = index
        """The lines of index.jsonl, in order."""
        self.actor_only = actor_only
        self._shard = lru_cache(_OPEN_SHARDS)(self._open_shard)
        self._mesh = lru_cache(_KEPT_MESHES)(self._load_mesh)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        actor_only: bool = False,
        cache_dir: str | os.PathLike[str] | None = None,
        storage_options: Options | None = None,
    ) -> SourceStore:
        """Reads the documents and checks their digests. Arrays are opened when they are needed.

        `path` may be a URL that fsspec supports. Then files are fetched when they are needed into `cache_dir` (default
        `~/.cache/rollbook/sources`), and stay there. `storage_options` are passed to the filesystem; a pickle of the
        store has them too, including any keys in them.
        """
        place, remote = local_path(path), None
        if place is None:
            remote = RemoteSource.open(str(path), cache_dir, storage_options)
            place = remote.folder
        folder = place.absolute()
        manifest = read_manifest(folder)
        splits = decoded(Splits, sealed_bytes(folder, manifest, SPLITS_FILE), folder, SPLITS_FILE)
        lines = sealed_bytes(folder, manifest, INDEX_FILE)
        index = tuple(decoded_lines(SourceEntry, lines, folder, INDEX_FILE))
        return cls(folder, manifest, splits, index, actor_only, remote)

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {"actor_only": self.actor_only}
        if self._remote is not None:
            options |= self._remote.open_options
        return partial(_opened_again, **options), (self.place, self.manifest_digest)

    def __repr__(self) -> str:
        return f"SourceStore({self.place!r}, {len(self)} rows of {len(self.scenes)} scenes)"

    def _repr_html_(self) -> str:
        """In a notebook."""
        counted = Counter(entry.split for entry in self.index)
        scenes = Counter(split for split, _ in {(each.split, each.scene_id) for each in self.index})
        rows = [(split, scenes[split], counted[split]) for split in sorted(counted)]
        facts = [
            ("contents", f"{len(self):,} rows of {len(self.scenes):,} scenes"),
            ("manifest", self.manifest_digest),
            ("place", self.place),
        ]
        listed = table(("split", "scenes", "rows"), rows)
        return card(f"Source store {self.path.name}", facts, listed)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def place(self) -> str:
        """The path or the URL of the store."""
        return str(self.path) if self._remote is None else self._remote.url

    def local(self) -> Path:
        """The folder with all files of the store. Those of a store at a URL are fetched."""
        if self._remote is not None:
            self._remote.fetch_all()
        return self.path

    def size_bytes(self) -> int:
        """The size of all files, here or at the URL."""
        if self._remote is not None:
            return self._remote.size_bytes()
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def _fetch(self, paths: Iterable[str]) -> None:
        """Fetch files of a store at a URL, before they are opened."""
        if self._remote is not None:
            self._remote.fetch(paths)

    @property
    def manifest_digest(self) -> str:
        return self.manifest.manifest_digest

    @property
    def split_manifest_hash(self) -> str:
        return self.splits.split_manifest_hash

    @property
    def version(self) -> str:
        return self.manifest.schema_version

    @property
    def scenes(self) -> list[str]:
        """Sorted ids of the scenes."""
        return [scene.scene_id for scene in self.manifest.scenes]

    @cached_property
    def _position(self) -> dict[str, int]:
        return {entry.sample_key: index for index, entry in enumerate(self.index)}

    def find(self, sample_key: str) -> int:
        """The index of the row with this key."""
        index = self._position.get(sample_key)
        if index is None:
            raise RowOutOfRange(path=str(self.path), detail=f"there is no row {sample_key!r}")
        return index

    def indices(self, split: str | None = None) -> list[int]:
        """Indices of the rows of a split, or of all rows."""
        return [i for i, entry in enumerate(self.index) if split in (None, entry.split)]

    def row(self, index: int) -> SourceRow:
        """One row, after a check of its digests."""
        entry = self.entry(index)
        actor = self._part(entry, "actor", entry.actor_sha256)
        oracle = None
        if not self.actor_only:
            tables = self._part(entry, "oracle", entry.oracle_sha256)
            oracle = OracleView.from_tables(tables, lambda: self.mesh(entry.scene_id))
        return SourceRow(
            entry.sample_index,
            entry.sample_key,
            entry.scene_id,
            entry.snippet_id,
            entry.split,
            entry.shard_id,
            entry.row,
            ActorView.from_tables(actor),
            oracle,
        )

    def entry(self, index: int) -> SourceEntry:
        if not 0 <= index < len(self):
            detail = f"there is no row {index}; the store has {len(self)}, counted from 0"
            raise RowOutOfRange(path=str(self.path), detail=detail)
        return self.index[index]

    def tables(self, index: int, tree: Tree) -> dict[str, Columns]:
        """The stored columns of one row, without a check of their digests."""
        return self._tables(self.entry(index), tree)

    def _tables(self, entry: SourceEntry, tree: Tree) -> dict[str, Columns]:
        shard = self._shard(entry.shard_id, tree)
        return {table.name: shard[table.name].row(entry.row) for table in tables_of(tree)}

    def _part(self, entry: SourceEntry, tree: Tree, expected: str) -> dict[str, Columns]:
        tables = self._tables(entry, tree)
        mesh = self._mesh_sha256[entry.scene_id] if tree == "oracle" else None
        if part_sha256(tree, tables, mesh) != expected:
            detail = (
                f"{tree}/{entry.shard_id} has other values at row {entry.row} ({entry.sample_key})"
            )
            raise ChecksumMismatch(path=str(self.path), detail=detail)
        return tables

    def _open_shard(self, shard_id: str, tree: Tree) -> dict[str, _ShardTable]:
        self._refuse_oracle(tree)
        self._fetch(path for table in tables_of(tree) for path in table.paths(shard_id))
        return {table.name: _ShardTable(self.path, table, shard_id) for table in tables_of(tree)}

    # ------------------------------------------------------------------------------------ scenes

    @cached_property
    def _mesh_sha256(self) -> dict[str, str]:
        return {scene.scene_id: scene.mesh_sha256 for scene in self.manifest.scenes}

    @cached_property
    def geometry_facts(self) -> dict[str, SceneGeometryFacts]:
        """Size, bounds and recipe of every scene, by its id."""
        self._refuse_oracle("oracle")
        self._fetch([SCENES_FILE])
        data = sealed_bytes(self.path, self.manifest, SCENES_FILE)
        lines = decoded_lines(SceneGeometryFacts, data, self.path, SCENES_FILE)
        return {facts.scene_id: facts for facts in lines}

    def mesh(self, scene_id: str) -> TriangleMesh:
        """A scene's mesh, after a check of its digest. The last few meshes are cached."""
        self._refuse_oracle("oracle")
        if scene_id not in self._mesh_sha256:
            raise RowOutOfRange(path=str(self.path), detail=f"there is no scene {scene_id!r}")
        return self._mesh(scene_id)

    def _load_mesh(self, scene_id: str) -> TriangleMesh:
        expected = self._mesh_sha256[scene_id]
        self._fetch(mesh_path(expected, column.name) for column in MESH_COLUMNS)
        columns = [
            np.array(open_array(self.path, mesh_path(expected, column.name), column))
            for column in MESH_COLUMNS
        ]
        mesh = TriangleMesh(*columns, name=scene_id)
        if mesh.sha256 != expected:
            place = str(self.path / MESHES_FOLDER / expected)
            raise ChecksumMismatch(path=place, detail=f"its content gives {mesh.sha256}")
        return mesh

    def _refuse_oracle(self, tree: Tree) -> None:
        if tree == "oracle" and self.actor_only:
            message = f"{self.path} was opened actor-only: files under oracle/ stay closed"
            raise ConfigurationError(message=message)


def _opened_again(place: str, manifest_digest: str, **options: Any) -> SourceStore:
    """The store that was pickled. Refuses another one that took its place meanwhile."""
    store = SourceStore.open(place, **options)
    if store.manifest_digest != manifest_digest:
        detail = "another source store took its place meanwhile; start again"
        raise ChecksumMismatch(path=place, detail=detail)
    return store


class _ShardTable:
    """One table of one shard."""

    def __init__(self, folder: Path, table: Table, shard_id: str) -> None:
        self._columns: Columns = {}
        for path, column in table.paths(shard_id).items():
            mapped = open_array(folder, path, column)
            small = mapped.nbytes < _MAPPED_BYTES
            self._columns[column.name] = np.array(mapped) if small else mapped
        self._place = str(folder / table.path(shard_id, "offsets"))
        self._offsets = self._columns.pop(OFFSETS.name, None)

    def row(self, row: int) -> Columns:
        start, end = row, row + 1
        if self._offsets is not None:
            # a missing offset gives an invalid range, which is refused below
            start, end = (*self._offsets[row : row + 2].tolist(), 0, -1)[:2]
        if not 0 <= start <= end or any(end > len(each) for each in self._columns.values()):
            raise StorageError(path=self._place, detail=f"there is no row {row}")
        return {
            name: np.array(values[start:end], values.dtype.newbyteorder("="))
            for name, values in self._columns.items()
        }
