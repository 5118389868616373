"""In a notebook: the small card that an object shows of itself, and a bar below the cell while a long call works.

Cards are HTML with inline styles and no script, so they also look right in a notebook that is not trusted and on a web
page. They set no colours of their own: they follow the light or dark theme around them. All texts are escaped.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

Progress = Callable[[int, int], None]
"""Called with the number of finished items and of all items."""

_SHOWN_AFTER_S = 0.5
_REDRAWN_AFTER_S = 0.1

_CARD = (
    "border:1px solid rgba(128,128,128,.35);border-radius:6px;padding:8px 12px;max-width:880px;"
    "overflow-x:auto;font-size:13px;line-height:1.5"
)
_CELL = "padding:1px 14px 1px 0;border:0;background:none;vertical-align:top"
_PALE = "opacity:.65"


# ------------------------------------------------------------------------------------------- cards


def card(title: str, facts: Iterable[tuple[str, object]], *parts: str) -> str:
    """A title, facts by name (None is left out), and below them finished HTML such as a table or a picture."""
    known = [(name, value) for name, value in facts if value is not None]
    rows = "".join(
        f'<tr style="background:none"><td style="{_CELL};text-align:left;{_PALE}">{escape(name)}</td>'
        f'<td style="{_CELL};text-align:left">{escape(words(value))}</td></tr>'
        for name, value in known
    )
    listed = f'<table style="border:0;margin:4px 0;font-size:13px">{rows}</table>' if rows else ""
    return f'<div style="{_CARD}"><b>{escape(title)}</b>{listed}{"".join(parts)}</div>'


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table; empty without rows. Numbers are at the right of their column."""
    listed = [list(row) for row in rows]
    if not listed:
        return ""
    numeric = [
        all(isinstance(row[place], int | float) for row in listed) for place in range(len(heads))
    ]
    sides = ["right" if each else "left" for each in numeric]
    head = "".join(
        f'<th style="{_CELL};text-align:{side};font-weight:600;{_PALE}">{escape(name)}</th>'
        for name, side in zip(heads, sides, strict=True)
    )
    body = "".join(f'<tr style="background:none">{_cells(row, sides)}</tr>' for row in listed)
    said = f'<div style="{_PALE}">{escape(caption)}</div>' if caption else ""
    return (
        f'<table style="border:0;margin:6px 0;font-size:13px"><thead><tr style="background:none">{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>{said}"
    )


def _cells(row: Sequence[object], sides: Sequence[str]) -> str:
    return "".join(
        f'<td style="{_CELL};text-align:{side}">{escape(words(value))}</td>'
        for value, side in zip(row, sides, strict=True)
    )


def words(value: object) -> str:
    """A value for people: counts with separators, other numbers with three digits, a dash for what is not known."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


# --------------------------------------------------------------------------------------------- bar


def in_notebook() -> bool:
    """Whether the caller is the main thread of a notebook's kernel: what it displays appears below the cell."""
    if "ipykernel" not in sys.modules or multiprocessing.parent_process() is not None:
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def shown_progress(what: str, given: Progress | None = None) -> Iterator[Progress]:
    """`given` if the caller gave it. Otherwise a bar below the cell of a notebook, and nothing anywhere else.

    The bar appears when the work takes longer than half a second. Its last line stays.
    """
    if given is not None or not in_notebook():
        yield given or show_nothing
        return
    bar = _Bar(what)
    try:
        yield bar.show
    except BaseException:
        bar.end("stopped at")
        raise
    bar.end("ended at")


def show_nothing(done: int, total: int) -> None:
    """Outside of a notebook a caller who wants to see progress passes a function."""


class _Bar:
    def __init__(self, what: str) -> None:
        self._what = what
        self._began = self._drawn = time.monotonic()
        self._done, self._total = 0, 0
        self._handle: Any = None

    def show(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        now = time.monotonic()
        if self._handle is None:
            if now - self._began >= _SHOWN_AFTER_S:
                self._draw(now, "")
        elif now - self._drawn >= _REDRAWN_AFTER_S:
            self._draw(now, "")

    def end(self, note: str) -> None:
        """The last line stays below the cell: how much was done, and how long it took. `note` says why not all was."""
        if self._handle is not None:
            self._draw(time.monotonic(), note if self._done < self._total else "")

    def _draw(self, now: float, note: str) -> None:
        from IPython.display import display

        shown = bar_html(self._what, self._done, self._total, now - self._began, note)
        plain = f"{self._what}: {self._done:,} of {self._total:,}"
        data = {"text/html": shown, "text/plain": plain}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
        self._drawn = now


def bar_html(what: str, done: int, total: int, seconds: float, note: str = "") -> str:
    share = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
    left = f", about {seconds / done * (total - done):.0f} s left" if 0 < done < total else ""
    said = f"{note} {done:,} of {total:,}, {seconds:.0f} s{left if not note else ''}".strip()
    return (
        f'<div style="max-width:560px;font-size:13px">{escape(what)}: {escape(said)}'
        '<div style="height:6px;border-radius:3px;background:rgba(128,128,128,.25)">'
        f'<div style="height:6px;border-radius:3px;width:{100 * share:.1f}%;background:#3d74c6"></div></div></div>'
    )
