"""RolloutZarrStoreConfig: where a store is written and its metadata; RolloutZarrWriteResult: what was written."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from rollbook.contracts.reasons import INVALID_REASON_VERSION
from rollbook.errors import ConfigurationError
from rollbook.store.q_h import checked_gamma
from rollbook.store.schema import DEFAULT_RETURN_SEMANTICS


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutZarrStoreConfig:
    """Where a store is written, its metadata, and which optional payloads it keeps."""

    store_dir: str | os.PathLike[str]
    return_semantics: str = DEFAULT_RETURN_SEMANTICS
    discount_gamma: float = 1.0
    target_protocol_version: str = "v1_observed"
    reason_code_version: str = INVALID_REASON_VERSION
    field_retention_policy: str = "compact"
    source_offline_store_version: str = "unknown-source-version"
    split_manifest_hash: str = "unknown-split-manifest"
    selected_depth_enabled: bool = True
    selected_depth_width_px: int = 240
    selected_depth_height_px: int = 240
    selected_depth_chunk_steps: int = 64
    """Images per shard file."""
    selected_depth_renderer: str = "unknown-renderer"
    selected_depth_znear_m: float | None = 1e-3
    selected_depth_zfar_m: float | None = 20.0
    selected_depth_source_resolution: str = "exact_output_size"
    q_h_chunk_states: int = 64
    """Minimum number of states per chunk file of the dense view."""
    target_eval_crop_max_points: int = 50_000
    target_eval_crops_enabled: bool = False
    replace: bool = False
    """Whether an existing store may be replaced."""

    def __post_init__(self) -> None:
        checked_gamma(self.discount_gamma)
        for name in (
            "selected_depth_width_px",
            "selected_depth_height_px",
            "selected_depth_chunk_steps",
            "q_h_chunk_states",
            "target_eval_crop_max_points",
        ):
            if getattr(self, name) < 1:
                raise ConfigurationError(
                    message=f"{name} is {getattr(self, name)}, expected at least 1"
                )
        for name in ("selected_depth_znear_m", "selected_depth_zfar_m"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ConfigurationError(message=f"{name} is {value}, expected a number or None")


@dataclass(slots=True)
class RolloutZarrWriteResult:
    """What was written, and where."""

    store_dir: Path
    num_rollouts: int
    num_steps: int
    num_candidates: int
    manifest_path: Path
    manifest_sha256: str
    content_sha256: str
