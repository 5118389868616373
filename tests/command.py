"""Runs `rollbook` in the process of the tests."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any, NamedTuple

from rollbook.cli.main import main


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def rollbook(
    *arguments: object, out: io.StringIO | None = None, err: io.StringIO | None = None
) -> Ended:
    """What the command prints and how it ends. Give `out` and `err` to read along while it runs."""
    out, err = out or io.StringIO(), err or io.StringIO()
    argv, sys.argv = sys.argv, ["rollbook", *map(str, arguments)]
    code: object = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = argv
    assert isinstance(code, int)
    return Ended(code, out.getvalue(), err.getvalue())
