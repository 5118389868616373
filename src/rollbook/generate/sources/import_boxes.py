"""Boxes from JSON: [{"T_world_object": 4x4 or "pose12": 12 numbers, "extents", "class", "confidence", "inst"}]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from rollbook.errors import InvalidBoxes
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.poses import are_rigid, centres, poses_of, rotations
from rollbook.generate.sources.import_mesh import Y_UP_TO_Z_UP, Up
from rollbook.generate.sources.import_text import read_text

_RIGID_TOLERANCE = 1e-2


class ImportedBox(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a file. Extents are full side lengths."""

    T_world_object: list[list[float]] | None = None
    pose12: Annotated[list[float], msgspec.Meta(min_length=12, max_length=12)] | None = None
    """Nine row-major rotation values and the centre."""
    extents: Annotated[list[float], msgspec.Meta(min_length=3, max_length=3)]
    class_name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] = msgspec.field(
        default="unknown", name="class"
    )
    confidence: float = 1.0
    inst: int = -1


def load_boxes(path: str | Path) -> list[ImportedBox]:
    """The boxes of a file, unchanged."""
    place = Path(path)
    text = read_text(place, lambda detail: InvalidBoxes(record=place.name, detail=detail))
    try:
        return msgspec.json.decode(text, type=list[ImportedBox])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidBoxes(record=place.name, detail=str(error)) from error


def class_table(
    files: Iterable[Sequence[ImportedBox]], others: Iterable[str] = ()
) -> tuple[str, ...]:
    """All class names of boxes and the others, sorted; the position of a class is its semantic id."""
    return tuple(sorted({*(box.class_name for boxes in files for box in boxes), *others}))


def placed_boxes(
    given: Sequence[ImportedBox],
    classes: Sequence[str],
    *,
    name: str,
    up: Up = "z",
    scale: float = 1.0,
) -> Boxes:
    """The boxes in metres with +Z up. Refuses a box without a rigid pose, without volume or of an unknown class."""
    if not given:
        return Boxes.none()
    sem_of = {each: number for number, each in enumerate(classes)}
    for row, box in enumerate(given):
        if box.class_name not in sem_of:
            detail = f"box {row} is a {box.class_name!r}, which is not among the classes"
            raise InvalidBoxes(record=name, detail=detail)
    poses = np.array([_pose(box, row, name) for row, box in enumerate(given)])
    extents = np.array([box.extents for box in given])
    _refuse_bad(poses, extents, name)
    left, _, right = np.linalg.svd(rotations(poses))
    turn = Y_UP_TO_Z_UP if up == "y" else np.eye(3)
    return Boxes.build(
        poses_of(turn @ left @ right, centres(poses) * scale @ turn.T),
        extents * scale,
        [sem_of[box.class_name] for box in given],
        inst_id=[box.inst for box in given],
        confidence=[box.confidence for box in given],
        class_name=[box.class_name for box in given],
        name=name,
    )


def _pose(box: ImportedBox, row: int, name: str) -> list[float]:
    matrix = box.T_world_object
    if (matrix is None) == (box.pose12 is None):
        detail = f"box {row}: give T_world_object or pose12, one of them"
        raise InvalidBoxes(record=name, detail=detail)
    if matrix is None:
        return list(box.pose12 or ())
    if [len(line) for line in matrix] not in ([4, 4, 4, 4], [4, 4, 4]):
        raise InvalidBoxes(record=name, detail=f"box {row}: T_world_object is not a 4x4 matrix")
    return [value for line in matrix[:3] for value in line[:3]] + [line[3] for line in matrix[:3]]


def _refuse_bad(poses: np.ndarray, extents: np.ndarray, name: str) -> None:
    bent = np.flatnonzero(~are_rigid(poses, _RIGID_TOLERANCE))
    if len(bent):
        detail = f"box {bent[0]} has no rigid pose; {len(bent)} of {len(poses)} have none"
        raise InvalidBoxes(record=name, detail=detail)
    flat = np.flatnonzero(~(extents > 0).all(axis=1))
    if len(flat):
        detail = f"box {flat[0]} has extents {extents[flat[0]].tolist()}, expected above 0"
        raise InvalidBoxes(record=name, detail=detail)
