"""One calm line per stage of the demo: its name, what it did, and how long that took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rollbook.cli.output import say
from rollbook.cli.progress import Progress, compilation_shown, live_bar

_NAME_WIDTH = 9


class Stage:
    """A stage while it runs. `progress` moves its bar; `text` is what its line will say."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.text = ""
        self.reused = False


class StageLines:
    def __init__(self, *, err: bool) -> None:
        """With `err` the lines go to standard error, because standard output belongs to `--json`."""
        self._err = err
        self.seconds: dict[str, float] = {}
        """How long each stage took."""
        self.reused: list[str] = []

    @contextmanager
    def stage(self, name: str, doing: str, *, compiles: bool = False) -> Iterator[Stage]:
        """On a terminal a bar says what is being `doing` until the line is printed."""
        began = time.monotonic()
        with live_bar() as bar:
            task = bar.add_task(f"{name}: {doing}", total=None)
            stage = Stage(lambda done, total: bar.update(task, completed=done, total=total))
            what = compilation_shown(bar, task, f"{name}: {doing}") if compiles else nullcontext()
            with what:
                yield stage
        self.seconds[name] = time.monotonic() - began
        if stage.reused:
            self.reused.append(name)
        text = f"reused: {stage.text}" if stage.reused else stage.text
        self._print(name, text, self.seconds[name])

    def _print(self, name: str, text: str, seconds: float) -> None:
        say(f"[{seconds:3.0f} s] {name:{_NAME_WIDTH}} {text}", err=self._err)
