"""Progress on standard error: a bar for counted work, a line about compilation, and the hint at `--replace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rollbook.cli.output import replace_hint

Progress = Callable[[int, int], None]
"""Called with the number of finished items and of all items."""


_COMPILING = "first run of this command: compiling for this machine; later runs skip this"


@contextmanager
def progress_bar(what: str, *, compiles: bool = False) -> Iterator[Progress]:
    """A progress bar on a terminal, which disappears at the end. `compiles`: the work may compile functions."""
    with live_bar() as bar:
        task = bar.add_task(what, total=None)
        with compilation_shown(bar, task, what) if compiles else nullcontext():
            yield lambda done, total: bar.update(task, completed=done, total=total)


def live_bar(*columns: Any) -> Any:
    """A line on standard error that is redrawn in place. In a log file there is no such line."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    return Bar(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def compilation_shown(bar: Any, task: Any, what: str) -> Iterator[None]:
    """Says once that functions are compiled, because a first run takes a minute longer and must not look stuck.

    On a terminal the bar counts them, in the place of `what`.
    """
    from rollbook.generate.raycast.compiled import report_compilation

    count = 0

    def report(compiling: bool) -> None:
        nonlocal count
        if compiling and not count:
            bar.console.print(_COMPILING, style="dim", highlight=False)
        count += compiling
        bar.update(task, description=f"compiling {count}" if compiling else what)

    with report_compilation(report):
        yield


def hint_at_replace(replace: bool) -> AbstractContextManager[None]:
    """Names --replace in the error about an existing target, unless the option was given."""
    return nullcontext() if replace else replace_hint()
