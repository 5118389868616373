"""A reader follows a page of docs/start or docs/guides from top to bottom, in an empty folder: every block works.

A block of `sh` is typed into a shell, a block of `python` goes on where the one before it ended. A block whose first
line is a comment with a file name, such as `# gate.toml`, is saved under that name. A page that shows `rollbook serve`
has a server, and its key in the environment. Other blocks are only shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from examples.replay.throwaway_server import throwaway_server
from rollbook.client import default

ROOT = Path(__file__).parents[1]
ELSEWHERE = {"generation.md", "campaigns.md", "recording.md", "replay.md"}
"""tests/test_docs.py and tests of their rooms run these."""
QUICK = {
    *("choose-a-gate.md", "proven-batch.md", "prove-to-an-auditor.md", "trainer-batches.md"),
    "record-an-agent.md",
}
PAGES = [
    page
    for folder in ("start", "guides", "formats")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    if page.name not in ELSEWHERE
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w./-]+\.(?:py|toml|yml|yaml|json))\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a reader, with a home of its own."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(place)
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.syspath_prepend(place)
    for name in ("ROLLBOOK_API_KEY", "ROLLBOOK_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    known = set(sys.modules)
    yield place
    default.close()
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(place)):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[] if page.name in QUICK else pytest.mark.slow)
        for page in PAGES
    ],
)
def test_every_block_of_a_page_works(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text()
    names: dict[str, object] = {"__name__": "__page__"}
    with ExitStack() as stack:
        if re.search(r"^\$ rollbook serve", text, re.MULTILINE):
            url, key = stack.enter_context(throwaway_server(folder.parent / "server"))
            monkeypatch.setenv("ROLLBOOK_API_KEY", key)
            monkeypatch.setenv("ROLLBOOK_BASE_URL", url)
        for kind, block in BLOCK.findall(text):
            named = FILE.match(block)
            if named:
                place = folder / named[1]
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(block)
            elif kind == "sh":
                typed(block)
            elif kind == "python":
                exec(compile(block, str(page), "exec"), names)


def typed(block: str) -> None:
    done = subprocess.run(["bash", "-eu"], input=block, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
