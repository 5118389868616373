"""Without an optional library, everything works that does not need it, and all else names the pip command."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollbook
from rollbook.contracts import save_table
from rollbook.lazy import EXTRAS
from rollbook.store import write_rollout_zarr_store
from rollbook.store.repack import repack_store
from tests.factories import table
from tests.store.synthetic import make_records

SOURCES = Path(rollbook.__file__).parent
PROJECT = tomllib.loads((SOURCES.parents[1] / "pyproject.toml").read_text())["project"]
NAMES = {
    "pillow": "PIL",
    "argon2_cffi": "argon2",
    "mcap_protobuf_support": "mcap_protobuf",
    "opentelemetry_api": "opentelemetry",
    "protobuf": "google",
    "rerun_sdk": "rerun",
}
INSTALLED_ALONG = {
    *("botocore", "datasets", "llvmlite", "numcodecs", "stable_baselines3", "starlette"),
    "transformers",
}
"""Libraries that come with one of an extra."""
SERVER = ("server", "portal", "app.py")
"""Rooms that are never entered without the extra `server`: the command and the factory check it."""
ROOMS = {"httpx": "client", "scipy": "scoring"}
"""Rooms that import a library at the top. Their public names say which extra they need."""


def declared(extra: str) -> set[str]:
    listed = (re.split(r"[^\w-]", each)[0] for each in PROJECT["optional-dependencies"][extra])
    plain = (each.replace("-", "_") for each in listed)
    return {NAMES.get(each, each) for each in plain}


def test_every_extra_and_each_of_its_libraries_is_known() -> None:
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - {"bench", "demo", "dev"}
    assert set().union(*map(declared, EXTRAS)) | INSTALLED_ALONG == OPTIONAL
    for extra, libraries in EXTRAS.items():
        assert set(libraries) - INSTALLED_ALONG <= declared(extra)


OPTIONAL = {library for libraries in EXTRAS.values() for library in libraries}
IMPORTS_ONE = re.compile(rf"^\s*(import|from) ({'|'.join(sorted(OPTIONAL))})\b", re.MULTILINE)


def unguarded_imports(path: Path) -> Iterator[str]:
    """Optional libraries that a module imports outside of `with needs(...)`."""
    text = path.read_text()
    if not IMPORTS_ONE.search(text):
        return
    tree = ast.parse(text)
    guarded: set[int] = set()
    for node in ast.walk(tree):
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        asked = isinstance(node, ast.With) and ast.unparse(node.items[0]).startswith("needs(")
        if for_types or asked:
            guarded |= {id(below) for below in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in guarded:
            plain = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            named = plain or [getattr(node, "module", None) or ""]
            yield from {each.partition(".")[0] for each in named} & OPTIONAL


def test_every_import_of_an_optional_library_goes_one_way() -> None:
    found = {
        (str(path.relative_to(SOURCES)), library)
        for path in SOURCES.rglob("*.py")
        if path.relative_to(SOURCES).parts[0] not in SERVER
        for library in unguarded_imports(path)
    }
    others = {
        (name, library) for name, library in found if not name.startswith(f"{ROOMS.get(library)}/")
    }
    assert others == {
        # the command has checked that the extra `server` is installed
        ("cli/serve.py", "uvicorn"),
        # an actor runs in a process that Ray has started
        ("engines/ray_engine.py", "ray"),
        # httpx installs it
        ("client/runtime.py", "anyio"),
        # Embree is optional within its extra: without it our own ray caster is used
        ("generate/raycast/scene_geometry.py", "embreex"),
    }


# ------------------------------------------------------------------------------- with nothing there

WITHOUT = """
import contextlib, io, json, sys
told = json.load(open(sys.argv[1]))
for library in told["libraries"]: sys.modules[library] = None
from rollbook.cli import main as commands
ended = {}
for words in told["commands"]:
    out, err, sys.argv = io.StringIO(), io.StringIO(), ["rollbook", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err): commands.main()
    except SystemExit as stop: code = stop.code
    except BaseException as error: code = f"{type(error).__name__}: {error}"
    ended[" ".join(words)] = (code, err.getvalue())
functions = {}
for text in told["functions"]:
    module, name = text.rsplit(".", 1)
    try: getattr(__import__(module, fromlist=["x"]), name)
    except BaseException as error: functions[text] = (type(error).__name__, str(error))
json.dump([ended, functions], open(told["to"], "w"))
"""
NEED_NOTHING = {
    *("store info", "store waterfall", "store tree", "store audit", "store suspicious"),
    *("store export", "store repack", "store to-artifacts", "replay gate"),
    *("contracts check", "contracts show", "contracts convert"),
}
"""Commands that work after a plain `pip install rollbook`, with some of their options."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extras")
    records = make_records(2, seed=1, depth=(12, 16))
    write_rollout_zarr_store(
        folder / "s.zarr", records, selected_depth_height_px=12, selected_depth_width_px=16
    )
    repack_store(folder / "s.zarr", folder / "a.zarr", "archive")
    save_table(table([2, 3]), folder / "t.table")
    (folder / "m.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    (folder / "t.txt").write_text("0 0 0 1 0 0 0 1\n1 0 0 1 0 0 0 1\n")
    return folder


def commands(folder: Path, out: Path) -> list[list[str]]:
    smoke = SOURCES.parents[1] / "examples/generate/smoke.toml"
    config = next(iter(sorted(smoke.parent.glob("*.toml"))))
    lines = [
        *(f"store {verb} {folder}/s.zarr" for verb in ("info", "validate", "waterfall", "tree")),
        *(f"store {verb} {folder}/s.zarr" for verb in ("audit", "suspicious", "depth")),
        *(f"store {verb} {folder}/a.zarr" for verb in ("validate", "audit", "waterfall")),
        f"store depth {folder}/s.zarr --step 0 --output {out}/d.png",
        f"store audit {folder}/s.zarr --html {out}/a.html",
        f"store export {folder}/s.zarr {out}/x.csv",
        f"store export {folder}/s.zarr {out}/x.parquet",
        f"store repack {folder}/s.zarr {out}/r.zarr --profile archive",
        f"store repack {folder}/s.zarr {out}/l.zarr --profile local",
        f"store to-artifacts {folder}/s.zarr --out {out}/c.table",
        f"store publish {folder}/s.zarr memory://{out}/p",
        "contracts check",
        f"contracts show {folder}/t.table",
        f"contracts convert {folder}/t.table {out}/t.json",
        f"source make {out}/src --scenes 1 --difficulty easy",
        f"source import {out}/src2 --mesh {folder}/m.obj --trajectory {folder}/t.txt",
        f"generate run --config {config} --source {out}/src",
        f"generate compare --config {config} --source {out}/src",
        f"replay run --store {folder}/s.zarr --policy os:getcwd --candidate-version c",
        "replay gate",
        "replay list",
        "verify list",
        "episodes list",
        "keys list",
        "whoami",
        "login --no-browser",
        f"serve --data {out}/d --port 0",
        f"server migrate --data {out}/d",
        f"server doctor --data {out}/d",
        f"server backup {out}/b --data {out}/d",
        f"server restore {folder} --data {out}/e",
    ]
    return [line.split() for line in lines]


def names_of_rooms() -> list[str]:
    rooms = ("client", "store", "evals", "scoring", "train", "generate", "adapters", "server")
    modules = {f"rollbook.{room}": SOURCES / room / "__init__.py" for room in rooms}
    return [
        f"{module}.{alias.asname}"
        for module, path in modules.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    ]


def test_with_no_extra_installed_every_command_and_name_works_or_says_what_to_install(
    stores: Path, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {
        "libraries": sorted(OPTIONAL),
        "commands": commands(stores, tmp_path),
        "functions": names_of_rooms(),
        "to": str(tmp_path / "ended.json"),
    }
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    environment = {
        **os.environ,
        "ROLLBOOK_API_KEY": "rt_0123456789_" + "a" * 43,
        "ROLLBOOK_BASE_URL": "http://127.0.0.1:9",
        "ROLLBOOK_HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path / "asked.json")],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    ended, names = json.loads((tmp_path / "ended.json").read_text())
    assert len(ended) == len(asked["commands"])
    wrong = {
        line: each
        for line, each in ended.items()
        if each[0] != 0 and not (each[0] == 2 and "pip install 'rollbook[" in each[1])
    }
    assert wrong == {}
    plain = {" ".join(line.split()[:2]) for line, each in ended.items() if each[0] == 0}
    assert plain == NEED_NOTHING
    assert all(
        kind == "ConfigurationError" and "pip install 'rollbook[" in text
        for kind, text in names.values()
    ), names
    assert names
