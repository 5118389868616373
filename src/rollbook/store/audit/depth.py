"""Depth images for people: a summary per step, and a small preview. A missing image is reported with the reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rollbook.contracts.reasons import decode_position_id, decode_strategy_id
from rollbook.errors import ConfigurationError, InvalidNumber, RollbookError
from rollbook.store.audit.candidates import mixture_name
from rollbook.store.audit.rows import (
    Array,
    Coded,
    Row,
    Values,
    columns_of,
    dict_rows,
    gather,
    limited,
    step_span,
)
from rollbook.store.schema import SELECTED_DEPTH, TABLES
from rollbook.store.views.store_view import ImageStoreView


@dataclass(frozen=True, slots=True, eq=False)
class _Image:
    """The depth image of one step and its camera."""

    depth_m: Array
    valid: Array
    focal_px: Array
    principal_point_px: Array

    @property
    def seen(self) -> Array:
        """Pixels where depth is valid and finite."""
        return self.valid & np.isfinite(self.depth_m)


class _Images:
    """The images of a store. `find` returns an image, or the reason why there is none."""

    def __init__(self, reader: ImageStoreView) -> None:
        self._reader = reader

    @cached_property
    def _absent(self) -> str | None:
        if not any(store.attrs.get("selected_depth_enabled") for store in self._reader.stores):
            return "selected depth is disabled in this store"
        missing = [n for n in SELECTED_DEPTH.columns if not self._reader.has(f"selected_depth/{n}")]
        return f"selected_depth lacks {', '.join(missing)}" if missing else None

    @cached_property
    def _order(self) -> tuple[Array, Array]:
        ids = self._reader.array("selected_depth/step_row_id")
        order = np.argsort(ids, kind="stable")
        return ids[order], order

    def find(self, step_row_id: int, selected: int) -> tuple[_Image | None, int | None, str | None]:
        """The image of a step, the candidate it was rendered at, and a warning if something is wrong."""
        if self._absent is not None:
            return None, None, self._absent
        ids, order = self._order
        first, last = np.searchsorted(ids, [step_row_id, step_row_id + 1]).tolist()
        if last - first != 1:
            return None, None, f"selected_depth has {last - first} rows for this step, expected one"
        row = int(order[first])
        candidate = int(self._reader.array("selected_depth/candidate_row_id")[row])
        if candidate != selected:
            return None, candidate, f"rendered at candidate {candidate}, the step took {selected}"
        try:
            return self._read(step_row_id, candidate)
        except ConfigurationError:
            raise  # a missing library says nothing about the store
        except (RollbookError, RuntimeError, ValueError) as error:
            # a codec raises the last two for damaged bytes
            return None, candidate, f"the image cannot be read: {error}"

    def _read(self, step: int, candidate: int) -> tuple[_Image | None, int | None, str | None]:
        found = self._reader.selected_depth(step)
        assert found is not None
        depth, valid = found["depth_m"], found["valid_mask"].astype(bool)
        stated = tuple(found["image_size_hw"].tolist())
        if depth.shape != valid.shape or depth.shape != stated:
            shapes = f"depth {depth.shape}, mask {valid.shape}, image_size_hw {stated}"
            return None, candidate, f"sizes disagree: {shapes}"
        return _Image(depth, valid, found["focal_px"], found["principal_point_px"]), candidate, None


# -------------------------------------------------------------------------------------- summary


def selected_depth_summary_rows(
    reader: ImageStoreView,
    *,
    rollout_row_id: int | None = None,
    step_row_id: int | None = None,
    limit: int | None = 128,
) -> list[Row]:
    """Statistics of the depth images, one row per step. Images beyond the limit are not decoded."""
    steps = limited(step_span(reader, rollout_row_id, step_row_id), limit)
    own = columns_of(
        reader,
        "steps",
        ("rollout_row_id", "step_row_id", "step_index", "selected_candidate_row_id"),
        steps,
    )
    rows = dict_rows({**own, **_action_columns(reader, own["selected_candidate_row_id"])})
    images = _Images(reader)
    return [_summary(row, images) for row in rows]


def _action_columns(reader: ImageStoreView, selected: Array) -> dict[str, Values]:
    def taken(column: str) -> Array:
        declared = TABLES["candidates"].columns[column]
        return gather(reader.array(f"candidates/{column}"), selected, declared.fill)

    return {
        "selected_position": Coded(taken("position_id"), decode_position_id),
        "selected_strategy": Coded(taken("strategy_id"), decode_strategy_id),
        "selected_mixture": Coded(taken("mixture_id"), mixture_name(reader)),
        "selected_target_root_gain": taken("target_root_gain"),
        "selected_target_rri": taken("target_rri"),
    }


_STEP_KEYS = ("rollout_row_id", "step_row_id", "step_index", "selected_candidate_row_id")
_PIXEL_KEYS = (
    "valid_pixels",
    "finite_pixels",
    "pixel_count",
    "valid_fraction",
    "finite_fraction",
    "depth_min_m",
    "depth_mean_m",
    "depth_max_m",
    "image_height",
    "image_width",
    "focal_x_px",
    "focal_y_px",
    "principal_x_px",
    "principal_y_px",
)


def _summary(row: Row, images: _Images) -> Row:
    image, candidate, warning = images.find(row["step_row_id"], row["selected_candidate_row_id"])
    return {
        **{key: row[key] for key in _STEP_KEYS},
        "candidate_row_id": candidate,
        "available": image is not None,
        **(dict.fromkeys(_PIXEL_KEYS) if image is None else _pixels(image)),
        "warning": warning,
        **{key: value for key, value in row.items() if key not in _STEP_KEYS},
    }


def _pixels(image: _Image) -> Row:
    seen = image.depth_m[image.seen].astype(np.float64)
    count = image.depth_m.size
    valid = int(np.count_nonzero(image.valid))
    height, width = image.depth_m.shape
    return {
        "valid_pixels": valid,
        "finite_pixels": len(seen),
        "pixel_count": count,
        "valid_fraction": valid / count if count else None,
        "finite_fraction": len(seen) / count if count else None,
        "depth_min_m": float(seen.min()) if len(seen) else None,
        "depth_mean_m": float(seen.mean()) if len(seen) else None,
        "depth_max_m": float(seen.max()) if len(seen) else None,
        "image_height": height,
        "image_width": width,
        "focal_x_px": _finite(image.focal_px[0]),
        "focal_y_px": _finite(image.focal_px[1]),
        "principal_x_px": _finite(image.principal_point_px[0]),
        "principal_y_px": _finite(image.principal_point_px[1]),
    }


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


# -------------------------------------------------------------------------------------- preview


def selected_depth_preview(
    reader: ImageStoreView, *, step_row_id: int, max_size: int = 96
) -> dict[str, Any]:
    """Every n-th pixel of a depth image, so that no side is longer than `max_size`; NaN where depth is invalid."""
    if max_size < 1:
        raise InvalidNumber(
            record="depth preview", field="max_size", value=str(max_size), expected="at least 1"
        )
    image, candidate, warning = _image_of(reader, step_row_id)
    if image is None:
        return {
            "available": False,
            "step_row_id": step_row_id,
            "candidate_row_id": candidate,
            **dict.fromkeys(("depth_m", "valid_mask", "image_size_hw", "focal_px")),
            **dict.fromkeys(("principal_point_px", "stride")),
            "warning": warning,
        }
    stride = max(math.ceil(max(image.depth_m.shape) / max_size), 1)
    seen = image.seen[::stride, ::stride]
    depth = np.where(seen, image.depth_m[::stride, ::stride], np.nan).astype(np.float32)
    return {
        "available": True,
        "step_row_id": step_row_id,
        "candidate_row_id": candidate,
        "depth_m": depth,
        "valid_mask": seen,
        "image_size_hw": image.depth_m.shape,
        "focal_px": tuple(image.focal_px.tolist()),
        "principal_point_px": tuple(image.principal_point_px.tolist()),
        "stride": stride,
        "warning": warning,
    }


def _image_of(
    reader: ImageStoreView, step_row_id: int
) -> tuple[_Image | None, int | None, str | None]:
    if not 0 <= step_row_id < reader.num_steps:
        return None, None, f"there is no step {step_row_id}; the store has {reader.num_steps} steps"
    selected = int(reader.array("steps/selected_candidate_row_id")[step_row_id])
    return _Images(reader).find(step_row_id, selected)
