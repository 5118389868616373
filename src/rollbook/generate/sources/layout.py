"""The layout of a source store on disk: its files, tables and columns, the scope of its digests, and valid ids.

    manifest.json           kind and config of the store, its shards and scenes, and a digest of all of it
    splits.json             the scenes for training, validation and test
    index.jsonl             one line per row: its key, split and place, and the digests of its content
    arrays.jsonl            one line per array: type, shape, SHA-256 of its values
    actor/<shard>/<table>/<column>.npy       what the robot may know
    oracle/<shard>/<table>/<column>.npy      what only labels may use
    oracle/meshes/<sha256>/<column>.npy
    oracle/scenes.jsonl     one line per scene: its mesh, its bounds, the recipe of a procedural scene

A ragged table has `offsets.npy`: the entries of row r are those from offsets[r] up to offsets[r + 1].
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.digest import Plain, digest_of
from rollbook.errors import InvalidValue, StorageError, TruncatedFile

SCHEMA_ID: Final = "rollbook.source_store"
SCHEMA_VERSION: Final = "1"

MANIFEST_FILE: Final = "manifest.json"
SPLITS_FILE: Final = "splits.json"
INDEX_FILE: Final = "index.jsonl"
ARRAYS_FILE: Final = "arrays.jsonl"
SCENES_FILE: Final = "oracle/scenes.jsonl"
MESHES_FOLDER: Final = "oracle/meshes"
SEALED_FILES: Final = (SPLITS_FILE, INDEX_FILE, ARRAYS_FILE, SCENES_FILE)
"""Files whose SHA-256 is in the manifest."""

Array = NDArray[Any]
Columns = dict[str, Array]
Tree = Literal["actor", "oracle"]
TREES: Final[tuple[Tree, ...]] = ("actor", "oracle")

SAFE_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,119}"
_ROW_DOMAIN = "rollbook.source_row.v1"
_TEXT = "U"


# ---------------------------------------------------------------------------------------- columns


class Column(NamedTuple):
    name: str
    dtype: str
    """Little-endian numpy type, or `U` for text as wide as a shard needs."""
    shape: tuple[int, ...] = ()
    """Shape of one entry."""

    @property
    def is_text(self) -> bool:
        return self.dtype == _TEXT

    def empty(self) -> Array:
        return np.zeros((0, *self.shape), "<U1" if self.is_text else self.dtype)

    def fits(self, dtype: np.dtype[Any], shape: Sequence[int]) -> bool:
        """Whether an array of entries of this column may have this type and shape."""
        kind = dtype.kind == _TEXT if self.is_text else dtype == np.dtype(self.dtype)
        return kind and tuple(shape[1:]) == self.shape


class Table(NamedTuple):
    tree: Tree
    name: str
    columns: tuple[Column, ...]
    ragged: bool = True
    """Whether a row may have any number of entries; otherwise it has exactly one."""

    def paths(self, shard_id: str) -> dict[str, Column]:
        """The table's files in a shard, `offsets` first."""
        found = {f"{self._folder(shard_id)}/offsets.npy": OFFSETS} if self.ragged else {}
        return found | {self.path(shard_id, each.name): each for each in self.columns}

    def path(self, shard_id: str, column: str) -> str:
        return f"{self._folder(shard_id)}/{column}.npy"

    def _folder(self, shard_id: str) -> str:
        return f"{self.tree}/{shard_id}/{self.name}"


OFFSETS = Column("offsets", "<i8")
_POSE = Column("pose", "<f4", (12,))
_T_NS = Column("t_ns", "<i8")
_BOX = (
    Column("pose_world_object", "<f4", (12,)),
    Column("extents", "<f4", (3,)),
    Column("sem_id", "<i4"),
    Column("confidence", "<f4"),
    Column("class_name", _TEXT),
)

CAMERA_FIELDS: Final = ("width", "height", "fx", "fy", "cx", "cy", "near_m", "far_m")
TABLES: Final = (
    Table("actor", "camera", (Column("pinhole", "<f8", (len(CAMERA_FIELDS),)),), ragged=False),
    Table("actor", "frames", (_POSE, _T_NS)),
    Table(
        "actor",
        "points",
        (
            Column("xyz", "<f4", (3,)),
            Column("frame", "<i4"),
            Column("inv_dist_std", "<f4"),
            Column("dist_std", "<f4"),
        ),
    ),
    # without instance ids: a detection does not know its object
    Table("actor", "detections", _BOX),
    Table("oracle", "continuation", (_POSE, _T_NS)),
    Table("oracle", "boxes", (*_BOX, Column("inst_id", "<i4"))),
)
MESH_COLUMNS: Final = (
    Column("vertices", "<f4", (3,)),
    Column("faces", "<i4", (3,)),
    Column("sem_id", "<i4"),
    Column("inst_id", "<i4"),
)


def tables_of(tree: Tree) -> tuple[Table, ...]:
    return tuple(table for table in TABLES if table.tree == tree)


def mesh_path(sha256: str, column: str) -> str:
    return f"{MESHES_FOLDER}/{sha256}/{column}.npy"


# ---------------------------------------------------------------------------------------- digests


def array_sha256(values: Array) -> str:
    """SHA-256 of C-order little-endian bytes."""
    return hashlib.sha256(_little(values)).hexdigest()


def part_sha256(tree: Tree, tables: Mapping[str, Columns], mesh_sha256: str | None = None) -> str:
    """Digest of a row's content in one tree. It does not depend on the row's place or neighbours."""
    content: dict[str, Plain] = {"mesh": mesh_sha256}
    for table in tables_of(tree):
        for column in table.columns:
            values = tables[table.name][column.name]
            content[f"{table.name}/{column.name}"] = (
                values.tolist()
                if column.is_text
                else [list(values.shape), hashlib.sha256(_little(values)).digest()]
            )
    return digest_of(f"{_ROW_DOMAIN}.{tree}", content)


def row_sha256(scene_id: str, snippet_id: str, actor_sha256: str, oracle_sha256: str) -> str:
    return digest_of(_ROW_DOMAIN, [scene_id, snippet_id, actor_sha256, oracle_sha256])


def _little(values: Array) -> memoryview:
    fixed = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return fixed.reshape(-1).view(np.uint8).data if fixed.size else memoryview(b"")


# -------------------------------------------------------------------------------------------- ids


def checked_id(value: str, field: str) -> str:
    """Ids become parts of paths and keys, so `..` and slashes are refused."""
    if not re.fullmatch(SAFE_ID, value):
        raise InvalidValue(
            record="source row",
            field=field,
            value=repr(value),
            expected="1 to 120 letters, digits and ._+=-, the first one a letter or digit",
        )
    return value


def sample_key(scene_id: str, snippet_id: str) -> str:
    return f"{scene_id}/{snippet_id}"


def shard_name(number: int) -> str:
    return f"shard-{number:06d}"


# ----------------------------------------------------------------------------------------- arrays


class ArrayEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of arrays.jsonl."""

    path: str
    dtype: str
    shape: list[int]
    sha256: str
    """SHA-256 of the values as C-order little-endian bytes, not of the file."""


def save_array(folder: Path, path: str, values: Array) -> ArrayEntry:
    """Writes one array below the store's folder; returns its line of arrays.jsonl."""
    fixed = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    place = folder / path
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        np.save(place, fixed, allow_pickle=False)
    except OSError as error:
        detail = f"cannot be written ({error.strerror or error})"
        raise StorageError(path=str(place), detail=detail) from error
    return ArrayEntry(
        path=path, dtype=fixed.dtype.str, shape=list(fixed.shape), sha256=array_sha256(fixed)
    )


def open_array(folder: Path, path: str, column: Column) -> Array:
    """One memory-mapped array of a store. Raises StorageError if it does not match the layout."""
    place = folder / path
    try:
        # not np.load, which would also open archives and pickles
        values = np.lib.format.open_memmap(place, mode="r")
    except FileNotFoundError as error:
        detail = "it is missing; copy the store again"
        raise StorageError(path=str(place), detail=detail) from error
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise TruncatedFile(path=str(place), detail=f"{error}; copy the store again") from error
    if not column.fits(values.dtype, values.shape):
        found = f"{values.dtype}{list(values.shape)}"
        detail = f"it holds {found}, expected {column.dtype}{['n', *column.shape]}"
        raise StorageError(path=str(place), detail=detail)
    return values
