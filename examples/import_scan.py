"""Rollouts around scanned objects: two scans on a table, cameras around it, targets from the nodes of the mesh.

    python examples/import_scan.py my_folder

Downloads the wheel of `genesis-world` (84 MB) for two scans of the Stanford 3D Scanning Repository in it, the bunny and
the dragon; nothing of the wheel is installed or run, and nothing of it belongs to this project.

The commands that it prints are those for a scan of your own. `scan.png` shows the imported row, `rollout.png` the best
views of one rollout.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import zipfile
from pathlib import Path
from shlex import join
from typing import Any

import numpy as np
import trimesh.creation

WHEEL = "genesis-world==1.4.5"
SCANS = {"bunny": ("z", -0.35, 0.05), "dragon": ("y", 0.35, -0.05)}
"""The axis that points up in each scan, and where it stands on the table, in metres."""
SIZE_M = 0.5

CONFIG = """
target_source = "actor_visible_selector"
max_targets_per_sample = 1
[source]
store_dir = "source"
[store]
store_dir = "rollouts.zarr"
[target_scorer]
render_size_px = 60
scene_samples = 5_000
target_samples = 1_000
[candidate_rules]
# the camera on an arm, not on a person: it may move up, down and back, and turn as it likes
max_height_delta_m = 0.5
max_backward_step_m = 1.0
max_yaw_delta_deg = 180
[[recipes]]
name = "greedy"
selection_policy = "oracle_greedy"
horizon = 3
"""


def download(folder: Path) -> Path:
    """The wheel, which is a zip file."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL]
    subprocess.run([*command, "--dest", str(folder)], check=True)
    return next(folder.glob("genesis_world-*.whl"))


def write_table(wheel: Path, folder: Path) -> None:
    """table.glb: the scans stand on a table top, whose upper side is at height 0. Every object is a node."""
    scene: Any = trimesh.Scene()
    top = trimesh.creation.box((1.8, 1.2, 0.04))
    scene.add_geometry(top.apply_translation((0, 0, -0.02)), node_name="table")
    upright: np.ndarray = np.array([[1, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0], [0, 0, 0, 1.0]])
    for name, (up, x, y) in SCANS.items():
        with zipfile.ZipFile(wheel) as archive:
            file = archive.extract(f"genesis/assets/meshes/{name}.obj", folder)
        scan: Any = trimesh.load_mesh(file, process=False, skip_materials=True)
        if up == "y":
            scan.apply_transform(upright)
        scan.apply_scale(SIZE_M / scan.extents.max())
        middle, low = scan.bounds.mean(axis=0), scan.bounds[0]
        scan.apply_translation((x - middle[0], y - middle[1], -low[2]))
        scene.add_geometry(scan, node_name=name)
    scene.export(folder / "table.glb")


def write_orbit(path: Path, frames: int = 40) -> None:
    """Poses of a camera that goes along one side of the table and looks at its middle: x right, y down, z forward."""
    matrices = []
    for angle in np.linspace(-2.2, -0.6, frames):
        eye = np.array([1.6 * math.cos(angle), 1.3 * math.sin(angle), 0.7])
        forward = -eye / np.linalg.norm(eye)
        right = np.cross(forward, (0, 0, 1))
        right /= np.linalg.norm(right)
        pose = np.eye(4)
        pose[:3] = np.column_stack([right, np.cross(forward, right), forward, eye])
        matrices.append(pose.tolist())
    path.write_text(json.dumps(matrices))


def rollbook(folder: Path, *words: str) -> None:
    print(f"\n$ {join(('rollbook', *words))}", flush=True)
    subprocess.run([Path(sys.executable).with_name("rollbook"), *words], cwd=folder, check=True)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_table(download(folder), folder)
    write_orbit(folder / "orbit.json")
    (folder / "scan.toml").write_text(CONFIG)
    files = ("--mesh", "table.glb", "--trajectory", "orbit.json")
    how = ("--instances", "nodes", "--outside-in", "--root-frame", "30", "--fov", "70")
    rollbook(folder, "source", "import", "source", *files, *how)
    rollbook(folder, "source", "validate", "source")
    rollbook(folder, "source", "preview", "source", "--out", "scan.png")
    rollbook(folder, "generate", "run", "--config", "scan.toml")
    rollbook(folder, "generate", "preview", "--config", "scan.toml", "--out", "rollout.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "scan"))
