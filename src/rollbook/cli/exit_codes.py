"""Exit codes of every command. docs/reference/cli.md is made from them."""

from __future__ import annotations

from rollbook.errors import ConfigurationError, RollbookError

OK = 0
"""The command did what was asked; a check found nothing wrong; with `replay run --gate`: ship."""
VIOLATIONS = 1
"""The command failed, or a check found something wrong; with `replay run --gate`: hold."""
USAGE = 2
"""The command line is wrong: an option, a path with nothing at it, a setting, or an extra that is not
installed."""
NOT_COMPLETE = 2
"""Only with `campaign status --require-complete`: not every shard has succeeded."""
INFRASTRUCTURE = 3
"""Only with `replay run --gate`: no decision, because a server, a network or a disk failed."""
INTERRUPTED = 130
"""Ctrl-C: half-written output and locks are removed."""
TERMINATED = 143
"""SIGTERM (129 for SIGHUP): as with Ctrl-C."""


def exit_code_of(error: RollbookError) -> int:
    return USAGE if isinstance(error, ConfigurationError) else VIOLATIONS
