"""The example of scanned objects on a table, with files of a public package."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from rollbook.generate.sources.reader import SourceStore
from rollbook.store.reader import RolloutZarrStoreReader

EXAMPLE = Path(__file__).parents[2] / "examples" / "import_scan.py"


@pytest.mark.slow
def test_scans_of_a_public_package_become_rollouts_and_pictures(tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLE))
    try:
        example["download"](tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the package index cannot be reached: {error}")
    example["main"](tmp_path)
    row = SourceStore.open(tmp_path / "source").row(0)
    assert row.oracle is not None
    assert row.oracle.boxes.class_name == ("bunny", "dragon")
    assert len(row.actor.detections) >= 1
    store = RolloutZarrStoreReader(tmp_path / "rollouts.zarr")
    assert store.array("rollouts/final_cumulative_target_root_gain").min() > 0.1
    for name in ("scan.png", "rollout.png"):
        with Image.open(tmp_path / name) as picture:
            assert min(picture.size) > 400
            assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 1000
