"""Improvement loops small enough for a test: coarse one-room flats, half of them held out.

Half of the candidates look away from the target, so that there is much to learn from few flats.
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.sources.make_sources import MakeSourcesConfig, make_source_store
from rollbook.generate.sources.splits import SplitConfig

_FOLDER = tempfile.TemporaryDirectory(prefix="small-loops-")
_CONFIG = """
target_source = "actor_visible_selector"
max_targets_per_sample = 2
[source]
store_dir = "{source}"
[store]
store_dir = "unused.zarr"
[target_scorer]
render_size_px = 24
include_scene = false
target_samples = 300
[selected_depth]
enabled = false
[candidate_rules]
require_floor = false
max_step_length_m = 5.0
max_height_delta_m = 5.0
max_backward_step_m = 5.0
max_yaw_delta_deg = 180.0
[candidate_mixture.base]
sampling_strategy = "uniform_sphere"
min_radius_m = 0.5
max_radius_m = 1.8
min_elev_deg = -20.0
max_elev_deg = 25.0
delta_azimuth_deg = 340.0
[[candidate_mixture.components]]
name = "at_target"
count = 10
position = "upper_bound_free_shell"
view = "target_point"
[[candidate_mixture.components]]
name = "outwards"
count = 10
position = "upper_bound_free_shell"
view = "radial_away"
[[recipes]]
name = "random"
selection_policy = "random_valid"
horizon = 2
[[recipes]]
name = "greedy"
selection_policy = "oracle_greedy"
horizon = 2
seed = 1
"""
_GATE = """
n_min = 4
least_clusters = 2
alpha = 0.2
reward_range = [-1.0, 1.0]
[[rules]]
metric = "reward_total"
role = "primary"
required = true
"""


@lru_cache
def small_source(scenes: int = 24) -> Path:
    """Made once for all tests; read-only."""
    path = Path(_FOLDER.name) / f"source-{scenes}"
    scene = SceneConfig.of_difficulty("easy", max_edge_m=1.0)
    splits = SplitConfig(train=0.5, val=0.5, test=0.0)
    make_source_store(path, MakeSourcesConfig(scenes=scenes, seed=5, scene=scene, splits=splits))
    return path


def written_config(folder: Path, scenes: int = 24) -> list[str]:
    """The options of `rollbook train loop` that name the files it reads."""
    (folder / "config.toml").write_text(_CONFIG.format(source=small_source(scenes)))
    (folder / "gate.toml").write_text(_GATE)
    return ["--config", str(folder / "config.toml"), "--gate-file", str(folder / "gate.toml")]
