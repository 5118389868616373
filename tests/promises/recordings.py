"""Recordings: what users rely on, as it was written down, and a readable account of what differs from it."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "golden" / "promises"
_WIDTH = 180
_ADVICE = (
    "To change a promise on purpose: `python -m tests.promises.record`, then read the diff of"
    " tests/golden/promises line by line."
)


def load_text(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


def load_json(name: str) -> Any:
    return json.loads(load_text(name))


def json_text(value: Any) -> str:
    """In the order given, with whatever fits into a line on one line."""
    return _lines(value, "") + "\n"


def _lines(value: Any, indent: str) -> str:
    short = json.dumps(value, ensure_ascii=False)
    if len(short) + len(indent) <= _WIDTH or not isinstance(value, dict | list) or not value:
        return short
    deeper = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_lines(each, deeper)}" for key, each in value.items()]
        opening, closing = "{", "}"
    else:
        parts = [_lines(each, deeper) for each in value]
        opening, closing = "[", "]"
    joined = f",\n{deeper}".join(parts)
    return f"{opening}\n{deeper}{joined}\n{indent}{closing}"


def save(name: str, text: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / name).write_text(text, "utf-8")


def assert_same(name: str, recorded: str, found: str) -> None:
    """Both character for character. What differs is shown broken at commas, a few lines around each place."""
    if recorded == found:
        return
    shown = difflib.unified_diff(
        _broken(recorded), _broken(found), f"recorded {name}", f"found {name}", "", "", 2, ""
    )
    raise AssertionError("\n".join([f"{name} is not as recorded.", *shown, _ADVICE]))


def assert_kept(name: str, problems: list[str]) -> None:
    """For promises that may grow: `problems` are what went or changed."""
    if problems:
        raise AssertionError("\n".join([f"{name} is not as recorded.", *problems, _ADVICE]))


def _broken(text: str) -> list[str]:
    return re.sub(r'(,)(?=["{\[])', r"\1\n    ", text).splitlines()
