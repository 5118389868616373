"""OracleConfig: the metric, its resolution and the camera with which candidates are rendered."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from rollbook.generate.config_checks import expect
from rollbook.generate.geometry.camera import Camera


class OracleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reconstruction error is accuracy (points to surface) plus completeness (surface to points), both means."""

    metric: Literal["area", "face_sq"] = "area"
    """`area`: metres, completeness is the mean over the surface. `face_sq`: squared metres, completeness is the mean
    over faces whatever their size, so it depends on how the surface is cut into triangles."""
    truncation_m: float | None = 1.0
    """Larger distances count as this. Without the limit, unseen rooms outweigh everything else."""
    scene_samples: int = 20_000
    """Samples on the whole mesh; `area` only."""
    target_samples: int = 4_000
    """Samples on the surface in the target's box; `area` only."""
    coverage_radius_m: float = 0.05
    """Surface with a point this near counts as covered."""
    render_size_px: int = 120
    field_of_view_deg: float = 90.0
    near_m: float = 0.05
    far_m: float = 20.0
    backprojection_stride: int = 1
    """Every so-many-th row and column of a depth image becomes points."""
    target_crop_margin_m: float = 0.0
    """The target's box is enlarged by this on every side."""
    min_current_target_points: int = 1
    """With fewer points in the box at the root, the target's error is undefined and the target is skipped."""
    include_scene: bool = True
    """Whether the whole mesh is measured too."""
    root_points: Literal["semidense", "rendered_prefix"] = "semidense"
    """Known points at the root: the recorded points, or depth rendered along the recorded trajectory."""
    seed: int = 0
    """Seed of the surface samples."""

    def __post_init__(self) -> None:
        expect(self, "metric", self.metric in ("area", "face_sq"), "area or face_sq")
        known = self.root_points in ("semidense", "rendered_prefix")
        expect(self, "root_points", known, "semidense or rendered_prefix")
        for name in (
            *("scene_samples", "target_samples", "render_size_px"),
            *("backprojection_stride", "min_current_target_points"),
        ):
            expect(self, name, getattr(self, name) >= 1, "at least 1")
        radius, limit, margin = (
            self.coverage_radius_m,
            self.truncation_m,
            self.target_crop_margin_m,
        )
        expect(self, "coverage_radius_m", 0 < radius < math.inf, "a length above 0")
        fits = limit is None or radius < limit < math.inf
        expect(self, "truncation_m", fits, "a length above coverage_radius_m")
        expect(self, "target_crop_margin_m", 0 <= margin < math.inf, "a length, 0 or more")
        expect(self, "field_of_view_deg", 0 < self.field_of_view_deg < 180, "between 0 and 180")
        fits = 0 < self.near_m < self.far_m < math.inf
        expect(self, "near_m", fits, f"above 0 and below far_m, which is {self.far_m}")
        expect(self, "seed", self.seed >= 0, "0 or more")

    @property
    def camera(self) -> Camera:
        """The camera with which candidates are rendered."""
        return Camera.square(
            self.render_size_px, self.field_of_view_deg, near_m=self.near_m, far_m=self.far_m
        )
