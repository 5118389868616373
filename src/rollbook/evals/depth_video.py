"""The depth images of a chain as a video: one frame for each step, seen from where the step went. Near is bright."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollbook.client.video import VideoWriter
from rollbook.store.audit.charts import colour_ramp
from rollbook.store.reader import RolloutZarrStoreReader

_UNKNOWN = (190, 190, 190)
_COLOURS = 256


@dataclass(frozen=True, slots=True)
class DepthVideo:
    data: bytes
    near_m: float
    """Depth of the brightest colour: the nearest in the chain."""
    far_m: float
    """Depth of the darkest colour: the farthest in the chain."""


def depth_video(reader: RolloutZarrStoreReader, states: slice, fps: float) -> DepthVideo | None:
    """None where the store has no depth image of one of these steps."""
    images = [reader.selected_depth(step) for step in range(states.start, states.stop)]
    known = [each for each in images if each is not None]
    if not known or len(known) < len(images):
        return None
    depth = np.stack([each["depth_m"] for each in known]).astype(np.float32)
    seen = np.stack([each["valid_mask"] for each in known]) & np.isfinite(depth)
    near, far = (float(depth[seen].min()), float(depth[seen].max())) if seen.any() else (0.0, 0.0)
    with tempfile.TemporaryDirectory(prefix="rollbook-depth-") as folder:
        path = Path(folder) / "video.mp4"
        with VideoWriter(path, fps) as video:
            for frame in _coloured(depth, seen, near, far):
                video.add(frame)
        return DepthVideo(path.read_bytes(), near, far)


def _coloured(
    depth: NDArray[np.float32], seen: NDArray[np.bool_], near: float, far: float
) -> NDArray[np.uint8]:
    share = np.where(seen, depth - near, 0) / max(far - near, 1e-6)
    shown = _ramp()[np.round(share * (_COLOURS - 1)).astype(np.uint8)]
    return np.where(seen[..., None], shown, np.array(_UNKNOWN, np.uint8))


@cache
def _ramp() -> NDArray[np.uint8]:
    return colour_ramp(_COLOURS)
