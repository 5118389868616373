"""Checks of the optional payloads: depth images at the selected poses, and point clouds of the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from rollbook.errors import ConfigurationError
from rollbook.store.checks.columns import UNREADABLE, Array, Mask, NotUsable, Rows, StoreColumns
from rollbook.store.checks.violation import Violation, any_in_row, violation_of_rows, violations_at
from rollbook.store.rasters import FrameReader

_THREADS = 4
_QUICK_IMAGES = 256
_BLOCK_BYTES = 8 << 20
_INFINITE = np.uint16(0x7C00)
_CURRENT, _CANDIDATE = 0, 1
_SHARED_ATTRS = {
    "selected_depth": ("enabled", "width_px", "height_px", "units", "invalid_fill_value"),
    "target_eval_crops": ("enabled", "max_points"),
}


def check_depth_rows(columns: StoreColumns) -> Iterator[Violation]:
    """There must be one image per step, at the selected candidate."""
    if not columns.enabled("selected_depth"):
        return
    images, steps = columns.rows("selected_depth"), columns.rows("steps")
    if images != steps:
        yield Violation(
            "missing_depth",
            "selected_depth",
            f"there are {images} images for {steps} steps; write the store with every image, or without any",
        )
        return
    yield from violations_at(
        "wrong_depth_link",
        "selected_depth",
        columns["selected_depth/step_row_id"] != np.arange(steps or 0),
        "step_row_id is not that of the step",
    )
    yield from violations_at(
        "wrong_depth_link",
        "selected_depth",
        columns["selected_depth/candidate_row_id"] != columns["steps/selected_candidate_row_id"],
        "candidate_row_id is not the selected candidate of the step",
    )


def check_depth_cameras(columns: StoreColumns) -> Iterator[Violation]:
    if not columns.enabled("selected_depth"):
        return
    focal = columns["selected_depth/focal_px"]
    center = columns["selected_depth/principal_point_px"]
    size = (columns.size("H"), columns.size("W"))
    yield from violations_at(
        "wrong_depth_camera",
        "selected_depth",
        ~(np.isfinite(focal) & (focal > 0) & np.isfinite(center)),
        "focal_px is not a finite number above 0, or principal_point_px is not finite",
    )
    yield from violations_at(
        "wrong_depth_camera",
        "selected_depth",
        columns["selected_depth/image_size_hw"] != np.array(size),
        f"image_size_hw is not that of the stored images, {size}",
    )


def check_depth_pixels(columns: StoreColumns) -> Iterator[Violation]:
    """Valid pixels must be finite, others 0. Decoding is slow, so only a deep check reads all images."""
    if not columns.enabled("selected_depth") or not columns.rows("selected_depth"):
        return
    rows = _sampled_rows(columns.rows("selected_depth") or 0, columns.deep)
    depth, mask = _frames(columns, "depth_m"), _frames(columns, "valid_mask")

    def flaw_of(row: int) -> str:
        try:
            return (
                "" if _pixels_are_valid(depth.frame(row), mask.frame(row)) else "wrong_depth_pixel"
            )
        except ConfigurationError:
            raise  # a missing library says nothing about the store
        except Exception:  # noqa: BLE001 - damaged bytes make a codec raise anything
            return "unreadable_depth"

    with ThreadPoolExecutor(_THREADS) as threads:
        found = np.array(list(threads.map(flaw_of, rows.tolist())))
    for code, message in _PIXEL_FLAWS.items():
        if (found == code).any():
            yield violation_of_rows(code, "selected_depth", rows[found == code], message)


def _sampled_rows(images: int, deep: bool) -> Rows:
    """All images, or some that are evenly spread over the store, including the first and the last."""
    count = images if deep else min(images, _QUICK_IMAGES)
    return np.unique(np.linspace(0, images - 1, count).round().astype(np.int64))


_PIXEL_FLAWS = {
    "unreadable_depth": "the image cannot be decoded; copy the store again",
    "wrong_depth_pixel": "depth_m is not finite, or not 0 where valid_mask is false",
}


def _frames(columns: StoreColumns, name: str) -> FrameReader:
    flaw = columns.flaw(f"selected_depth/{name}")
    if flaw is not None:
        raise NotUsable(flaw.message)
    try:
        return FrameReader(columns.store.store_dir / "selected_depth" / name)
    except ConfigurationError:
        raise  # a missing library says nothing about the store
    except UNREADABLE as error:
        raise NotUsable(f"selected_depth/{name} cannot be read: {error}") from error


def _pixels_are_valid(depth: Array, valid: Mask) -> bool:
    """Works on the bits without the sign: bits from the exponent of infinity on are not finite, and 0 is 0."""
    bits = depth.view(np.uint16) & np.uint16(0x7FFF)
    return not (bits >= _INFINITE).any() and not (bits * ~valid).any()


# ------------------------------------------------------------------------------------- point clouds


def check_crop_rows(columns: StoreColumns) -> Iterator[Violation]:
    if not columns.rows("target_eval_crops"):
        return
    ids, roles = (
        columns["target_eval_crops/crop_row_id"],
        columns["target_eval_crops/source_role_id"],
    )
    steps = columns["target_eval_crops/step_row_id"]
    yield from violations_at(
        "row_ids_not_dense",
        "target_eval_crops",
        ids != np.arange(len(ids)),
        "crop_row_id is not the number of its row",
    )
    yield from violations_at(
        "wrong_crop_link",
        "target_eval_crops",
        (steps < 0) | (steps >= (columns.rows("steps") or 0)),
        "step_row_id names a row that steps does not have",
    )
    yield from violations_at(
        "wrong_crop_role",
        "target_eval_crops",
        (roles != _CURRENT) & (roles != _CANDIDATE),
        "source_role_id is neither 0, current, nor 1, candidate",
    )


def check_crop_candidates(columns: StoreColumns) -> Iterator[Violation]:
    """A crop of the state before the step names no candidate; any other crop names a candidate of its step."""
    if not columns.rows("target_eval_crops"):
        return
    roles, rows = (
        columns["target_eval_crops/source_role_id"],
        columns["target_eval_crops/candidate_row_id"],
    )
    owner = columns.shells.owner
    there = (rows >= 0) & (rows < len(owner))
    belongs = there.copy()
    belongs[there] = owner[rows[there]] == columns["target_eval_crops/step_row_id"][there]
    yield from violations_at(
        "wrong_crop_link",
        "target_eval_crops",
        np.where(roles == _CURRENT, rows != -1, ~belongs),
        "candidate_row_id is not -1 for the state before, or not a candidate of the step",
    )


def check_crop_points(columns: StoreColumns) -> Iterator[Violation]:
    if not columns.rows("target_eval_crops"):
        return
    lengths, points = (
        columns["target_eval_crops/lengths"],
        columns["target_eval_crops/points_world"],
    )
    mask, most = columns["target_eval_crops/mask"], columns["target_eval_crops/max_points"]
    width = mask.shape[1]
    outside = (lengths < 0) | (lengths > width) | (most != width)
    yield from violations_at(
        "wrong_crop_length",
        "target_eval_crops",
        outside,
        f"lengths is not from 0 to {width}, or max_points is not {width}",
    )
    masked, placed = np.zeros((2, len(lengths)), np.bool_)
    for rows in _crop_blocks(len(lengths), width):
        inside = np.arange(width) < lengths[rows, None]
        masked[rows] = any_in_row(mask[rows] != inside)
        placed[rows] = _misplaced(points[rows], inside)
    yield from violations_at(
        "wrong_crop_mask",
        "target_eval_crops",
        masked & ~outside,
        "mask does not mark the first points, as many as lengths says",
    )
    yield from violations_at(
        "wrong_crop_points",
        "target_eval_crops",
        placed & ~outside,
        "points_world is not finite where there is a point, or not 0 where there is none",
    )


def _misplaced(points: Array, inside: Mask) -> Mask:
    sound = np.where(inside[..., None], np.isfinite(points), points == 0)
    return any_in_row(~sound)


def _crop_blocks(rows: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK_BYTES // (12 * max(width, 1)))
    return (slice(start, start + step) for start in range(0, rows, step))


def check_payload_attrs(columns: StoreColumns) -> Iterator[Violation]:
    """The attributes of a group must equal the root attributes."""
    for table, names in _SHARED_ATTRS.items():
        attrs = columns.group_attrs(table)
        for name in names:
            own, root = attrs.get(name), columns.attrs.get(f"{table}_{name}")
            if own != root:
                yield Violation(
                    "wrong_attr",
                    table,
                    f"its attribute {name} is {own!r}, the root attribute {table}_{name} is {root!r}",
                )
    crops = columns.group_attrs("target_eval_crops")
    for name, expected in (("role", "oracle_eval_only"), ("coordinate_frame", "world")):
        if crops.get(name) != expected:
            yield Violation(
                "wrong_attr",
                "target_eval_crops",
                f"its attribute {name} is {crops.get(name)!r}, expected {expected!r}",
            )
