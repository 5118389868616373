"""What a command says while it compiles: one line, however many functions there are."""

from __future__ import annotations

from typing import Any

import numba
import pytest

from rollbook.cli.progress import progress_bar


def fresh_functions() -> Any:
    """One compiled function that needs another; neither was compiled before."""

    def inner(x: float) -> float:
        return x * 2

    def outer(x: float) -> Any:
        return compiled(x) + 1

    inner.__module__ = outer.__module__ = "rollbook.somewhere"
    compiled: Any = numba.njit(inner)
    return numba.njit(outer)


def test_a_log_file_has_one_line_about_all_functions(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("working", compiles=True) as progress:
        for done in range(3):
            assert fresh_functions()(1.5) == 4.0
            progress(done, 3)
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert "compiling for this machine" in line
    assert len(line) < 80


def test_nothing_is_said_where_nothing_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    ready = fresh_functions()
    ready(1.5)
    with progress_bar("working", compiles=True):
        ready(2.5)
    assert capsys.readouterr().err == ""


def test_a_terminal_counts_the_functions_in_one_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with progress_bar("working", compiles=True):
        fresh_functions()(1.5)
    printed = capsys.readouterr().err
    assert printed.count("compiling for this machine") == 1
    assert "\x1b[2K" in printed, "the bar is erased at the end"
