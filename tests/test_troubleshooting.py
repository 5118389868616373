"""docs/troubleshooting.md has a remedy for every code that a user can meet, and for no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from rollbook.errors import RollbookError

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


def told() -> list[str]:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    return [code for row in rows for code in re.findall(r"`(\w+)`", row)]


def codes_of_errors(error: type[RollbookError] = RollbookError) -> Iterator[str]:
    yield error.code
    for each in error.__subclasses__():
        if each.__module__ == "rollbook.errors":
            yield from codes_of_errors(each)


def codes_of_answers() -> Iterator[str]:
    """What the source gives as the code of a Problem, and the codes of the framework's own answers."""
    for path in (ROOT / "src" / "rollbook").rglob("*.py"):
        text = path.read_text()
        if "Problem(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Problem":
                code = node.args[1] if len(node.args) > 1 else None
                if isinstance(code, ast.Constant):
                    yield str(code.value)
    yield from ("method_not_allowed", "refused", "gate_blocked")


def test_every_code_has_one_remedy() -> None:
    listed = told()
    known = {*codes_of_errors(), *codes_of_answers()}
    assert sorted(known - set(listed)) == [], "add a row for these"
    assert sorted(set(listed) - known) == [], "no error has these codes"
    assert sorted(code for code in set(listed) if listed.count(code) > 1) == []
