"""What the docs say is run. tests/test_readme.py runs the README in order, tests/test_guides.py the guides."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rollbook.contracts import TrainerBatch, batch_to_json, write_file
from rollbook.store.writer import write_rollout_zarr_store
from tests.factories import revision, table
from tests.store.synthetic import make_records
from tests.test_guides import PAGES as GUIDES

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def commands(page: Path) -> list[list[str]]:
    lines = [line for text in blocks(page, "sh") for line in text.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


RUN = [page for page in PAGES if page.name != "README.md" and page not in GUIDES]
WITH_PYTHON = [page for page in RUN if blocks(page, "python")]
SLOW = {"docs/guides/generation.md"}
"""What it shows takes long."""
WITH_COMMANDS = [
    pytest.param(page, marks=pytest.mark.slow) if named(page) in SLOW else page
    for page in RUN
    if commands(page)
]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=named)
def test_python_on_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for text in blocks(page, "python"):
        exec(compile(text, str(page), "exec"), names)


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=named)
def test_commands_on_a_page_run(page: Path, tmp_path: Path) -> None:
    some = table([2, 3])
    batch = TrainerBatch.assemble(
        batch_id="b", target_revision=revision(9), rollouts=some, assembled_at_ms=1
    )
    write_file(some, [], tmp_path / "rollouts.json")
    write_file(some, [], tmp_path / "rollouts.jsonl")
    (tmp_path / "batch.json").write_bytes(batch_to_json(batch))
    write_rollout_zarr_store(
        tmp_path / "rollouts.zarr", make_records(3, seed=1), selected_depth_enabled=False
    )
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    rollbook = Path(sys.executable).with_name("rollbook")
    for command in commands(page):
        if command[0] == "make":
            assert set(command[1:]) <= targets
            continue
        assert command[0] == "rollbook", command
        subprocess.run([rollbook, *command[1:]], cwd=tmp_path, check=True, capture_output=True)


WITH_A_TEST_OF_THEIR_OWN = {"import_scan.py", "learn_in_environment.py", "play_learned_policy.py"}
"""These take longer: they download files, or train a policy."""


@pytest.mark.parametrize(
    "script",
    [
        each
        for each in sorted((ROOT / "examples").glob("*.py"))
        if each.name not in WITH_A_TEST_OF_THEIR_OWN
    ],
    ids=lambda path: path.name,
)
def test_an_example_runs(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out


def headings(page: Path) -> set[str]:
    """The anchors that a forge makes of the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_on_a_page_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^):]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


SOURCE = ROOT / "src" / "rollbook"
ROOMS = "|".join(sorted(path.parent.name for path in SOURCE.glob("*/__init__.py")))
CURRENT_PAGES = [page for page in PAGES if page.parent.name != "decisions"]
"""A decision may name a module that it removed."""


@pytest.mark.parametrize("page", CURRENT_PAGES, ids=named)
def test_modules_and_folders_on_a_page_exist(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)", "", page.read_text())
    paths = re.findall(rf"(?<![\w/.-])((?:{ROOMS})/(?:[\w/]+\.py|[\w/]*/|)(?![\w/]))", text)
    assert [path for path in paths if not (SOURCE / path).exists()] == []
    known = {path.name for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")}
    named = set(re.findall(r"`(\w+\.py)`", text))
    assert page.name == "CONTRIBUTING.md" or named <= known, "CONTRIBUTING.md names modules to add"


DEEP_IMPORT = re.compile(r"^\s*(?:from|import) (rollbook\.\w+\.[\w.]+)", re.MULTILINE)


def test_docs_and_examples_import_from_rooms() -> None:
    """A room exports its public names, so that no page and no example names a module inside a room."""
    texts = [*PAGES, *sorted((ROOT / "examples").rglob("*.py"))]
    deep = {path.name: DEEP_IMPORT.findall(path.read_text()) for path in texts}
    assert {name: found for name, found in deep.items() if found} == {}


def test_a_contributor_finds_every_room_on_the_map() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = [path.parent for path in (ROOT / "src" / "rollbook").glob("*/__init__.py")]
    missing = [room.name for room in rooms if f"](src/rollbook/{room.name}/)" not in text]
    assert missing == []


def test_the_readme_has_two_commands_for_a_newcomer() -> None:
    assert commands(ROOT / "README.md")[:2] == [["make", "demo"], ["make", "test"]]


def test_the_page_about_installing_has_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    named = {
        extra for each in re.findall(r"rollbook\[([\w,]+)\]", page) for extra in each.split(",")
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert named == set(project["optional-dependencies"])
