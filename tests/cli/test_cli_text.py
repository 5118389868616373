"""Text from elsewhere cannot break or change what a command prints, and tables cut nothing."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook import cli
from rollbook.cli.output import print_json, print_rows, say
from rollbook.cli.plain_text import visible, visible_lines
from rollbook.cli.table import Column, table_text

REORDERS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
MARKS = "\u061c\u200e\u200f"
ANY_TEXT = st.text(
    st.characters(exclude_categories=()) | st.sampled_from("\x1b\r\n\x9b\u202e\ud800[]/\\…")
)


def harmless(character: str) -> bool:
    kind = unicodedata.category(character)
    moves = unicodedata.bidirectional(character) in REORDERS or character in MARKS
    return kind not in ("Cc", "Cs", "Zl", "Zp") and not moves


@given(ANY_TEXT)
def test_visible_text_has_no_control_character_and_keeps_the_rest(text: str) -> None:
    expected = [each if harmless(each) else visible(each) for each in text]
    assert visible(text) == "".join(expected)
    assert all(map(harmless, visible(text)))
    assert visible_lines(text).split("\n") == [visible(line) for line in text.split("\n")]


def test_markup_and_escape_codes_are_printed_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    wild = "[/foo]\x1b[31m\r[bold]"
    say(f"id {wild}")
    print_rows([{"id": wild, "\x1b[2J": 1}])
    out = capsys.readouterr().out
    assert out.splitlines() == [
        r"id [/foo]\x1b[31m\r[bold]",
        r"id                      \x1b[2J",
        r"[/foo]\x1b[31m\r[bold]        1",
    ]


@given(ANY_TEXT)
def test_json_decodes_to_the_same_text_and_shows_no_control_character(text: str) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print_json({"name": text})
    assert json.loads(out.getvalue()) == {"name": text}
    assert all(map(harmless, out.getvalue().replace("\n", "")))


CELLS = st.text(st.characters(categories=("L", "N", "P")) | st.just(" "), max_size=40)


@given(
    st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=5),
    st.integers(20, 120),
    st.integers(1, 4),
)
def test_a_table_cuts_no_value_whatever_the_width(
    rows: list[tuple[str, str, str, str]], width: int, essential: int
) -> None:
    columns = [
        Column(f"heading{number}", cells) for number, cells in enumerate(zip(*rows, strict=True))
    ]
    whole = table_text(columns, None, essential=essential)
    assert (len(whole.lines), whole.left_out) == (len(rows), [])
    made = table_text(columns, width, essential=essential)
    shown = len(columns) - len(made.left_out)
    assert shown >= essential
    # every character of a shown value is there, and an essential value is in one piece
    values = "".join(cell for row in rows for cell in row[:shown])
    assert Counter("".join(made.lines).replace(" ", "")) == Counter(values.replace(" ", ""))
    for row in rows:
        for cell in row[:essential]:
            assert any(cell.rstrip() in line for line in made.lines)


def test_only_the_module_output_prints() -> None:
    """Every table and every line goes through one rendering function."""
    prints = {"print", "typer.echo", "typer.secho", "typer.style"}
    modules = sorted(Path(cli.__path__[0]).glob("*.py"))
    calls = {
        (path.name, ast.unparse(node.func))
        for path in modules
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }
    assert {name for name, called in calls if called in prints} == {"output.py"}
    assert [path.name for path in modules if "rich.table" in path.read_text()] == []
