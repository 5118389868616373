"""Adapters cost nothing until they are used, and say what to install when something is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollbook.adapters import gymnasium, lerobot
from rollbook.errors import ConfigurationError
from tests.adapters.lerobot_datasets import write_v2
from tests.adapters.small_envs import CountingEnv


def test_loading_the_adapters_loads_none_of_the_libraries_they_need() -> None:
    program = """
import sys
import rollbook.adapters.gymnasium, rollbook.adapters.lerobot
print(*sorted(sys.modules.keys() & {"gymnasium", "av", "pyarrow", "httpx", "rollbook.client.client"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("", 0)


@pytest.mark.parametrize("missing", ["av", "gymnasium"])
def test_a_missing_library_is_named_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    env = CountingEnv()
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match=f"{missing}, which is not installed: pip install"):
        gymnasium.encode_rollout(env, lambda observation: 0, tmp_path / "out")
    assert env.seeds == []


def test_a_dataset_cannot_be_read_without_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_v2(tmp_path / "d")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigurationError, match="pyarrow, which is not installed: pip install"):
        lerobot.encode_episode(root, 0, tmp_path / "out")
