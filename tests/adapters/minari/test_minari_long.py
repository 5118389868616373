"""The memory of a Minari import does not depend on the length of an episode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from rollbook.adapters.minari import MinariImporter
from tests.adapters.memory import most_memory_of_import
from tests.adapters.minari_datasets import made_up, write


@pytest.mark.slow
@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_memory_does_not_grow_with_the_episode(data_format: str, tmp_path: Path) -> None:
    def make(steps: int) -> Path:
        values = np.zeros((steps + 1, 64))
        return write(
            tmp_path / str(steps),
            [made_up(steps, values, np.zeros((steps, 2), np.float32))],
            data_format=data_format,
            observation_space=spaces.Box(-1, 1, (64,), np.float64),
            action_space=spaces.Box(-1, 1, (2,)),
        )

    short, long = make(30_000), make(300_000)
    importer = MinariImporter()
    most_memory_of_import(importer, short, tmp_path)  # what is loaded once does not count
    before = most_memory_of_import(importer, short, tmp_path)
    assert most_memory_of_import(importer, long, tmp_path) < before + (4 << 20)
