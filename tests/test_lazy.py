"""Public names are loaded when they are first used, by one loader for every room."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import rollbook
from rollbook.errors import ConfigurationError
from rollbook.lazy import lazy_names

SOURCES = Path(rollbook.__file__).parent
LAZY = sorted(
    ".".join(("rollbook", *path.relative_to(SOURCES).with_suffix("").parts)).removesuffix(
        ".__init__"
    )
    for path in SOURCES.rglob("*.py")
    if "= lazy_names(" in path.read_text() and path.name != "lazy.py"
)


def imports_for_type_checkers(module: str) -> dict[str, tuple[str, str]]:
    """Public name -> (module, name there), as the `if TYPE_CHECKING:` block of the module says."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    tree = ast.parse(Path(found.origin).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.asname or "": (statement.module or "", alias.name)
        for block in blocks
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def test_the_front_door_is_lazy() -> None:
    assert {"rollbook", "rollbook.contracts", "rollbook.evals", "rollbook.rollouts"} <= set(LAZY)


@pytest.mark.parametrize("module", LAZY)
def test_type_checkers_and_the_loader_find_the_same_things(module: str) -> None:
    room = importlib.import_module(module)
    seen = imports_for_type_checkers(module)
    assert sorted(seen) == [name for name in dir(room) if name != "__version__"]
    for name, (home, original) in seen.items():
        value = getattr(room, name)
        assert value is getattr(importlib.import_module(home), original)
        assert vars(room)[name] is value


def test_dir_lists_the_public_names_and_nothing_else() -> None:
    assert dir(rollbook) == sorted(vars(rollbook)["__all__"])
    assert {"init", "log_episode", "evals", "__version__"} <= set(dir(rollbook))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'rollbook' has no attribute 'log_epsiode'"):
        getattr(rollbook, "log_epsiode")  # noqa: B009
    with pytest.raises(ImportError):
        exec("from rollbook.contracts import TrainerBatches")


def test_a_missing_library_is_a_configuration_error_with_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "needs_a_library.py").write_text("import no_such_library\nValue = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    homes = {"needs_a_library": ("Value",)}
    load, _, _ = lazy_names("rollbook.client", homes, extra="client")
    with pytest.raises(ConfigurationError) as caught:
        load("Value")
    assert str(caught.value) == (
        "rollbook.client.Value needs no_such_library, which is not installed: pip install 'rollbook[client]'"
    )
    load, _, _ = lazy_names("rollbook.client", homes)
    with pytest.raises(ModuleNotFoundError):
        load("Value")


@pytest.mark.parametrize("module", LAZY)
def test_importing_a_lazy_room_loads_no_heavy_library(module: str) -> None:
    heavy = {"zarr", "torch", "httpx", "scipy", "numba", "starlette", "sqlalchemy"}
    program = f"import sys, {module}; print(*sorted(set(sys.modules) & {heavy!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_a_server_starts_without_libraries_that_only_some_pages_need() -> None:
    heavy = {"scipy.special", "zarr", "pyarrow", "pandas", "numba", "PIL", "av", "boto3", "h5py"}
    program = f"import sys, rollbook.app; print(*sorted(set(sys.modules) & {heavy!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
