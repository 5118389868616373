"""A source store small enough to make for a test: two coarse one-room flats, a walk through each."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store

_FOLDER = tempfile.TemporaryDirectory(prefix="tiny-source-")


@lru_cache
def tiny_source() -> Path:
    """All rows are of the split `train`. Made once for all tests; read-only."""
    path = Path(_FOLDER.name) / "source"
    scene = SceneConfig.of_difficulty("easy", max_edge_m=1.0)
    make_source_store(path, MakeSourcesConfig(scenes=2, seed=3, scene=scene))
    return path


def tiny_table(out: Path, **changes: Any) -> dict[str, Any]:
    """A config as TOML would give it; keyword arguments replace whole entries."""
    table: dict[str, Any] = {
        "max_targets_per_sample": 1,
        "target_source": "actor_visible_selector",
        "source": {"store_dir": str(tiny_source()), "split": "train"},
        "store": {"store_dir": str(out)},
        "target_scorer": {"render_size_px": 40, "scene_samples": 1000, "target_samples": 400},
        "selected_depth": {"width_px": 32, "height_px": 24},
        "recipes": [
            {"name": "random", "selection_policy": "random_valid"},
            {"name": "greedy", "selection_policy": "oracle_greedy"},
        ],
    }
    return table | changes


def tiny_config(out: Path, **changes: Any) -> RolloutDatasetWriterConfig:
    return RolloutDatasetWriterConfig.from_table(tiny_table(out, **changes), folder=Path("/"))
