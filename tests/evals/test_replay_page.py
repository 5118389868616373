"""docs/guides/replay.md: what it shows with a server is run with one. tests/test_docs.py runs the rest."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.client import Client, default
from tests.evals.generated.generated_stores import SOURCE, generated_store
from tests.evals.small_stores import small_store
from tests.server.running import RunningServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "replay.md").read_text()
ENVIRONMENT = """
import gymnasium

def make_env():
    return gymnasium.make("CartPole-v1")
"""
POLICIES = """
def balance(obs):
    _, _, angle, spin = obs["observation/value"]
    return {"action/value": int(angle + spin > 0)}
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """The page's reader: in a folder with stores, and with a server of their own."""
    (tmp_path / "server").mkdir()
    (tmp_path / "rollouts.zarr").symlink_to(small_store(30))
    (tmp_path / "flats.zarr").symlink_to(generated_store())
    (tmp_path / "flats").symlink_to(SOURCE())
    with RunningServer(tmp_path / "server") as running:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("ROLLBOOK_API_KEY", running.api_key)
        monkeypatch.setenv("ROLLBOOK_BASE_URL", running.base_url)
        yield running
        default.close()


def test_the_page_runs_from_top_to_bottom(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, object] = {}
    for text in blocks("py"):
        exec(compile(text, "docs/guides/replay.md", "exec"), names)
    client = names["client"]
    assert isinstance(client, Client)
    printed = capsys.readouterr().out
    assert "Ship: 30 pairs measured" in printed
    assert "closed_loop CounterfactualRelation(n_pairs=2" in printed
    assert "0.0 {'replayed': 'actions', 'deterministic': 30" in printed

    client.close()
    (tmp_path / "my_policies.py").write_text(POLICIES)
    (tmp_path / "my_env.py").write_text(ENVIRONMENT)
    rollbook = str(Path(sys.executable).with_name("rollbook"))
    (gate,) = (block for block in blocks("toml") if block.startswith("reward_range"))
    (tmp_path / "gate.toml").write_text(gate)
    (job,) = blocks("yaml")
    steps = job.partition("run: >")[2].replace("${{ github.sha }}", "0123abc").split("&&")
    install, replay = map(shlex.split, steps)
    assert install[:2] == ["pip", "install"]
    done = subprocess.run([rollbook, *replay[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "replay.xml").exists()
    assert os.environ["ROLLBOOK_HOME"] == str(tmp_path / "home")
