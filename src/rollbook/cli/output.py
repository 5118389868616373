"""Printing for all commands: results on standard output, `--json` for scripts, everything else on standard error.

Ids, names and messages come from elsewhere, so nothing here reads markup, and control characters are made visible.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.exit_codes import OK, VIOLATIONS
from rollbook.cli.plain_text import visible, visible_in_json, visible_lines
from rollbook.errors import RollbookError, TargetExists

if TYPE_CHECKING:
    from rollbook.contracts.findings import Finding

_LARGE = 1000
"""From here on a number is shown with six digits instead of four, so that counts of rewards stay readable."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def say(text: str, *, mark: str = "", colour: str | None = None, err: bool = False) -> None:
    """Print text of one or more lines. `mark` is a word before it, in colour on a terminal."""
    coloured = typer.style(visible(mark), fg=colour) if mark else ""
    _write(coloured + visible_lines(text), err=err)


def _write(text: str, *, err: bool = False) -> None:
    # the stream is named because typer would print UTF-8 to a terminal that asks for ASCII
    typer.echo(text, file=sys.stderr if err else sys.stdout)


def print_json(value: object) -> None:
    """Print to standard output. Where its encoding lacks a character, JSON's own escape is printed."""
    _write(_json_text(value, sys.stdout, indent=2))


def _json_text(value: object, stream: Any, **options: Any) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    ascii_only = not encoding.lower().replace("_", "-").startswith("utf")
    return visible_in_json(json.dumps(value, ensure_ascii=ascii_only, **options))


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Print a name and a value on each line."""
    widest = max(map(len, pairs))
    for name, value in pairs.items():
        say(f"{name:{widest}}  {value}")


def print_done(shown: Mapping[str, object], text: str, as_json: bool) -> None:
    """Print what a command did: `shown` as JSON for scripts, or `text` for people."""
    if as_json:
        print_json(shown)
    else:
        say(text)


def print_findings(
    findings: Sequence[Finding], *, as_json: bool, complete: bool = False, quiet: bool = False
) -> None:
    """Print one line per finding, then the verdict. The exit code is 0 only if all passed.

    With `complete`, rollouts that could not be checked also make the exit code 1. With `quiet`, findings that passed
    whole are not printed, and nothing at all if there are no others.
    """
    failed = sum(not finding.passed for finding in findings)
    unchecked = sum(finding.unchecked for finding in findings)
    passed = not failed and not (complete and unchecked)
    shown = [each for each in findings if not (quiet and each.passed and not each.unchecked)]
    if as_json:
        rows = [dataclasses.asdict(finding) for finding in shown]
        counts = {"checked": len(findings), "failed": failed, "unchecked": unchecked}
        print_json({"passed": passed, **counts, "findings": rows})
    else:
        for finding in shown:
            mark, colour = _mark(finding)
            code = f" [{finding.code}]" if finding.code else ""
            say(f"  {finding.subject}{code}: {finding.detail}", mark=mark, colour=colour)
        verdict = f"{failed} of {len(findings)} failed"
        if not failed:
            verdict = "none failed" if unchecked else "all green"
        if shown or not quiet:
            say(f"{len(findings)} checked, {verdict}{_not_checked(unchecked)}")
    raise typer.Exit(OK if passed else VIOLATIONS)


def _mark(finding: Finding) -> tuple[str, str]:
    if not finding.passed:
        return "FAIL", "red"
    return ("part", "yellow") if finding.unchecked else ("pass", "green")


def _not_checked(count: int) -> str:
    if not count:
        return ""
    which = "1 rollout was" if count == 1 else f"{count} rollouts were"
    return f"; {which} NOT checked: give their files too"


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str] | None = None,
    *,
    total: int | None = None,
    essential: int = 1,
) -> None:
    """Print rows as a table: `columns` under their headings, or all; then how many of `total` are not shown.

    The first `essential` columns are shown whatever the width of the terminal.
    """
    from rollbook.cli.table import Column, table_text, terminal_width

    if not rows:
        say("no rows")
        return
    headings = columns or {name: name for name in rows[0]}
    shown = [
        Column(
            heading,
            [_cell(row[key]) for row in rows],
            right=all(isinstance(row[key], int | float | None) for row in rows),
        )
        for key, heading in headings.items()
    ]
    width = terminal_width()
    laid_out = table_text(shown, width, essential=essential)
    _write(typer.style(laid_out.heading, bold=True))
    for line in laid_out.lines:
        _write(line)
    if laid_out.left_out:
        names = ", ".join(filter(None, laid_out.left_out))
        note = f"not shown, the terminal is too narrow: {names}; --json prints all"
        say(textwrap.fill(note, width or len(note)), err=True)
    if total is not None and total > len(rows):
        say(f"… {total - len(rows):,} more; --limit 0 shows all")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) >= _LARGE else f"{value:.4g}"
    return str(value)


@contextmanager
def replace_hint() -> Iterator[None]:
    """Name `--replace` when the target of a command exists, unless even that would not replace it."""
    try:
        yield
    except TargetExists as error:
        if error.detail.endswith(("so it stays", "publish to a place of its own")):
            raise
        raise TargetExists(path=error.path, detail="--replace replaces it") from error


def limit_or_none(limit: int) -> int | None:
    """The value of `--limit` for functions that take None for "all"; 0 means all."""
    return limit or None


def print_limited(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    limit: int,
    as_json: bool,
    total: int | None = None,
) -> None:
    """Print all columns as JSON, or `columns` as a table. A limit of 0 prints all rows."""
    shown = rows[: limit_or_none(limit)]
    of = len(rows) if total is None else total
    if not as_json:
        print_rows(shown, columns, total=of)
        return
    print_json(shown)
    if of > len(shown):
        print_note({"rows": len(shown), "total": of, "note": "--limit 0 prints all"})


def print_note(note: Mapping[str, object]) -> None:
    """With `--json`: print one line of JSON to standard error, beside the result on standard output."""
    _write(_json_text(note, sys.stderr), err=True)


def shown_bytes(size: int | None) -> str:
    if size is None:
        return "-"
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size} B"


def shown_duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def print_error(error: RollbookError) -> None:
    """Print to standard error; as JSON with `--json`, so that scripts can read the code and the ids."""
    if "--json" in sys.argv:
        _write(_json_text(error.as_dict(), sys.stderr, default=str), err=True)
    else:
        say(f" [{error.code}]: {error}", mark="error", colour="red", err=True)
