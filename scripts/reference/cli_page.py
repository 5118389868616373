"""docs/reference/cli.md: every command with its options, and what exit codes and output mean."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from rollbook.cli import exit_codes
from rollbook.cli.main import app
from scripts.reference.fields import constants_of
from scripts.reference.markdown import table

_HEAD = """# The command line

This page is made from the code by `make reference`; a test compares the two. `rollbook -h` lists the commands, and
`rollbook COMMAND -h` describes one. `rollbook --install-completion` sets up completion in your shell.

## Exit codes

{codes}

`rollbook serve` handles signals itself and ends by the signal that it received.

## For scripts

- `--json` prints one JSON document to standard output and nothing else there. Progress, hints and errors go to standard
  error; an error is then one line of JSON with `code`, `error` and the ids involved. Only `serve` and `login` have no
  `--json`.
- Where `--limit` leaves rows out, `--json` says so in one line of JSON on standard error:
  `{{"rows": 20, "total": 424, …}}`.
- `contracts check --quiet` prints only what failed or was not checked.
- [troubleshooting](../troubleshooting.md) says what to do about each `code`.

## For people

- Ids, names and messages are printed as text: `[markup]` is not read, and control characters are shown as `\\x1b` or
  `\\n`.
- A table never cuts a value. In a terminal that is too narrow, long text is wrapped, then columns on the right are left
  out, and a note names them. Ids, status and decision always stay. Output to a file or a pipe has no limit of width.
- Where the encoding of a terminal lacks a character, a plain one is printed: `...`, `->`, `#`. JSON uses its own
  escapes.
- A library that is not installed is named with the command that installs it, such as `pip install 'rollbook[store]'`.
- A misspelt metric, column or table is an error that names those that look like it.

## Environment

{environment}
"""
_ENVIRONMENT = (
    (
        "ROLLBOOK_HOME",
        "Folder of credentials, caches, journals and a server's data. Default: `~/.rollbook`.",
    ),
    (
        "ROLLBOOK_API_KEY, ROLLBOOK_BASE_URL",
        "The key and the server; they win over the login profile.",
    ),
    ("ROLLBOOK_QUIET", "`1`: the SDK prints nothing."),
    (
        "SOURCE_DATE_EPOCH",
        "Seconds since 1970 that records use as the time, so that equal inputs give equal digests.",
    ),
    ("NO_COLOR", "No colours."),
)


def cli_page() -> str:
    codes = table(
        ("code", "name", "meaning"),
        ((str(value), f"`{name}`", about) for name, value, about in constants_of(exit_codes)),
    )
    environment = table(
        ("variable", "meaning"),
        (
            (", ".join(f"`{each}`" for each in names.split(", ")), about)
            for names, about in _ENVIRONMENT
        ),
    )
    root: Any = typer.main.get_command(app)
    parts = [_HEAD.format(codes=codes, environment=environment), *_index(root)]
    for name, command in root.commands.items():
        parts += _described(command, f"rollbook {name}", level=2)
    return "\n".join(parts).rstrip() + "\n"


def _index(root: Any) -> Iterator[str]:
    yield "## Commands\n"
    rows = (
        (f"[`{name}`](#rollbook-{name})", command.get_short_help_str(200))
        for name, command in root.commands.items()
    )
    yield table(("command", "what it does"), rows) + "\n"


def _described(command: Any, name: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n"
    yield _help(command.help or "")
    if hasattr(command, "commands"):
        for each, inner in command.commands.items():
            if not inner.hidden:
                yield from _described(inner, f"{name} {each}", level + 1)
        return
    context = typer.Context(command, info_name=name)
    yield f"```text\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```\n"
    records = [each.get_help_record(context) for each in command.get_params(context)]
    rows = [
        (f"`{shown}`", about) for shown, about in filter(None, records) if "--help" not in shown
    ]
    if rows:
        yield table(("name", "meaning"), rows) + "\n"


def _help(text: str) -> str:
    """Paragraphs are joined; those after \\b are kept as they are, as a block."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            parts.append(f"```text\n{paragraph[1:].strip(chr(10))}\n```\n")
        else:
            parts.append(" ".join(paragraph.split()) + "\n")
    return "\n".join(parts)
