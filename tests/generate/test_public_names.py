"""rollbook.generate: its public names load, and importing the room loads no kernels."""

from __future__ import annotations

import subprocess
import sys

import rollbook.generate


def test_every_public_name_loads() -> None:
    names = dir(rollbook.generate)
    assert {"RolloutDatasetWriter", "CounterfactualEnv", "SourceStore", "SCORERS"} <= set(names)
    for name in names:
        assert getattr(rollbook.generate, name) is not None


def test_the_room_itself_is_light() -> None:
    program = "import sys, rollbook.generate; print('numba' in sys.modules, 'zarr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]
