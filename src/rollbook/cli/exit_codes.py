"""Exit codes of every command. docs/command-line.md has the same table."""

from __future__ import annotations

from rollbook.errors import ConfigurationError, RollbookError

OK = 0
"""The command did what was asked; a check found nothing wrong."""
VIOLATIONS = 1
"""The command failed, a check found something wrong, or a gate holds the candidate."""
USAGE = 2
"""The command line is wrong: an option, a path that does not exist, a setting, or a missing extra."""
INFRASTRUCTURE = 3
"""Only with `replay run --gate`: no decision, because a server, a network or a disk failed."""
INTERRUPTED = 130
"""Ctrl-C."""
TERMINATED = 143
"""SIGTERM."""


def exit_code_of(error: RollbookError) -> int:
    return USAGE if isinstance(error, ConfigurationError) else VIOLATIONS
