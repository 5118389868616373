"""docs/reference/python.md: the public names of every room, and what each says about itself."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import rollbook
from scripts.reference.markdown import table

_ROOMS = (
    "rollbook",
    "rollbook.contracts",
    "rollbook.rollouts",
    "rollbook.store",
    "rollbook.generate",
    "rollbook.train",
    "rollbook.learned",
    "rollbook.improve",
    "rollbook.client",
    "rollbook.adapters",
    "rollbook.evals",
    "rollbook.scoring",
    "rollbook.report",
    "rollbook.lineage",
)
"""Rooms whose names people import; the other rooms belong to the server and to the command line."""
_HEAD = """# Python

This page is made from the code by `make reference`; a test compares the two. These are the names that programs may rely
on: import them from their room, `from rollbook.contracts import RolloutTable`. Names that are not listed may change at
any time. `import rollbook` loads no room; a name loads its library when it is first used, and a missing extra is a
`ConfigurationError` with the `pip install` line. Errors are in `rollbook.errors`:
[troubleshooting](../troubleshooting.md) lists them. `help(name)` prints the whole text.
"""


def python_page() -> str:
    return "\n".join(
        [_HEAD, *(_room(importlib.import_module(name)) for name in _ROOMS if _is_there(name))]
    )


def _is_there(name: str) -> bool:
    folder = Path(rollbook.__file__).parent.joinpath(*name.split(".")[1:])
    room = (
        importlib.import_module(name)
        if folder.is_dir() or folder.with_suffix(".py").exists()
        else None
    )
    return bool(getattr(room, "__all__", ()))


def _room(room: ModuleType) -> str:
    about = inspect.cleandoc(room.__doc__ or "").partition("\n\n")[0]
    rows = table(("name", "what it is"), _names(room))
    return f"## {room.__name__}\n\n{' '.join(about.split())}\n\n{rows}\n"


def _names(room: ModuleType) -> Iterator[tuple[str, str]]:
    for name in sorted(room.__all__, key=str.lower):
        if not name.startswith("__"):
            yield f"`{name}`", _about(getattr(room, name))


def _about(value: Any) -> str:
    if not (inspect.isclass(value) or callable(value) or inspect.ismodule(value)):
        return f"a {type(value).__name__}"
    if getattr(value, "__module__", "").partition(".")[0] in (
        "builtins",
        "typing",
        "types",
        "collections",
    ):
        return "a type for annotations"
    own = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    text = " ".join(inspect.cleandoc(own or "").partition("\n\n")[0].split())
    is_signature = inspect.isclass(value) and text.startswith(f"{value.__name__}(")
    return "" if is_signature else text
