"""Tables for people: values are never cut. What does not fit into a terminal is wrapped or left out as a whole."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.cli.plain_text import visible

_GAP = 2
_LEAST_WRAPPED = 20
"""Text is wrapped to this width at most. A longer word continues on the next line."""


@dataclass(frozen=True)
class Column:
    heading: str
    cells: Sequence[str]
    right: bool = False


@dataclass(frozen=True)
class TableText:
    heading: str
    lines: list[str]
    left_out: list[str]
    """Headings of the columns that did not fit."""


def terminal_width() -> int | None:
    """Columns of the terminal. None when the output goes to a file or to another program: nothing limits it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_text(columns: Sequence[Column], width: int | None, *, essential: int = 1) -> TableText:
    """Lay out a table. The first `essential` columns are always shown on one line each, whatever the width."""
    shown = [
        Column(visible(each.heading), [visible(cell) for cell in each.cells], each.right)
        for each in columns
    ]
    widths = _widths(shown, width, essential)
    shown, left_out = shown[: len(widths)], shown[len(widths) :]
    rows = zip(*(each.cells for each in shown), strict=True)
    lines = [line for row in rows for line in _row_lines(row, shown, widths)]
    [heading, *_] = _row_lines([each.heading for each in shown], shown, widths)
    return TableText(heading, lines, [each.heading for each in left_out])


def _widths(columns: Sequence[Column], width: int | None, essential: int) -> list[int]:
    """Widths of the columns that fit. Wide columns are wrapped first, then columns on the right are left out."""
    full = [_widest([each.heading, *each.cells]) for each in columns]
    if width is None:
        return full
    least = [
        each if index < essential or column.right else min(each, _LEAST_WRAPPED)
        for index, (each, column) in enumerate(zip(full, columns, strict=True))
    ]
    count = len(columns)
    while count > essential and _total(least[:count]) > width:
        count -= 1
    widths = full[:count]
    for index in reversed(range(count)):
        widths[index] -= min(max(_total(widths) - width, 0), widths[index] - least[index])
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _widest(texts: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)


def _row_lines(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, wrapped))
    return [
        (" " * _GAP)
        .join(
            _padded(lines[number] if number < len(lines) else "", width, column.right)
            for lines, width, column in zip(wrapped, widths, columns, strict=True)
        )
        .rstrip()
        for number in range(height)
    ]


def _wrapped(text: str, width: int) -> list[str]:
    from rich.cells import cell_len, chop_cells

    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            pieces = chop_cells(word, width) or [""]
            lines = [*lines, *pieces] if lines[-1] else [*lines[:-1], *pieces]
    return lines


def _padded(text: str, width: int, right: bool) -> str:
    from rich.cells import cell_len

    space = " " * (width - cell_len(text))
    return space + text if right else text + space
