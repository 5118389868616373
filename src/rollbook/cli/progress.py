"""Progress on standard error: a bar for counted work, messages about compilation, and the hint at `--replace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rollbook.cli.output import replace_hint

Progress = Callable[[int, int], None]
"""Called with the number of finished items and of all items."""


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A progress bar that disappears at the end."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def compilation_shown(console: Any = None) -> Iterator[None]:
    """Names every kernel that is compiled: a first run takes a minute longer, and must not look stuck."""
    from rich.console import Console

    from rollbook.generate.raycast.compiled import report_compilation

    shown = console or Console(stderr=True)
    named: list[str] = []

    def say(name: str) -> None:
        if not named:
            shown.print("first run: compiling kernels, once for this machine", style="dim")
        named.append(name)
        shown.print(f"  {name}", style="dim")

    with report_compilation(say):
        yield


def hint_at_replace(replace: bool) -> AbstractContextManager[None]:
    """Names --replace in the error about an existing target, unless the option was given."""
    return nullcontext() if replace else replace_hint()
