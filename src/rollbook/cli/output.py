"""Printing for all commands: results on standard output, `--json` for scripts, errors on standard error."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.errors import RollbookError, TargetExists

if TYPE_CHECKING:
    from rollbook.contracts.findings import Finding

OK, VIOLATIONS, USAGE = 0, 1, 2
_PIPED_WIDTH = 400
"""Width of a table that goes to a file or to another program: no column is cut."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_findings(findings: Sequence[Finding], *, as_json: bool, complete: bool = False) -> None:
    """Print one line per finding, then the verdict. The exit code is 0 only if all passed.

    With `complete`, rollouts that could not be checked also make the exit code 1.
    """
    failed = sum(not finding.passed for finding in findings)
    unchecked = sum(finding.unchecked for finding in findings)
    passed = not failed and not (complete and unchecked)
    if as_json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        counts = {"checked": len(rows), "failed": failed, "unchecked": unchecked}
        print_json({"passed": passed, **counts, "findings": rows})
    else:
        for finding in findings:
            code = f" [{finding.code}]" if finding.code else ""
            typer.echo(f"{_mark(finding)}  {finding.subject}{code}: {finding.detail}")
        verdict = f"{failed} of {len(findings)} failed"
        if not failed:
            verdict = "none failed" if unchecked else "all green"
        typer.echo(f"{len(findings)} checked, {verdict}{_not_checked(unchecked)}")
    raise typer.Exit(OK if passed else VIOLATIONS)


def _mark(finding: Finding) -> str:
    if not finding.passed:
        return typer.style("FAIL", fg="red")
    if finding.unchecked:
        return typer.style("part", fg="yellow")
    return typer.style("pass", fg="green")


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
) -> None:
    """Print rows as a table: `columns` under their headings, or all; then how many of `total` are not shown."""
    from rich.console import Console
    from rich.table import Table

    if not rows:
        typer.echo("no rows")
        return
    headings = columns or {name: name for name in rows[0]}
    shown = Table(box=None, header_style="bold", pad_edge=False)
    *_, last = headings
    for key, heading in headings.items():
        numbers = all(isinstance(row[key], int | float | None) for row in rows)
        # the last column may hold sentences: it wraps, the others do not
        shown.add_column(heading, justify="right" if numbers else "left", no_wrap=key != last)
    for row in rows:
        shown.add_row(*(_cell(row[key]) for key in headings))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    console.print(shown)
    if total is not None and total > len(rows):
        typer.echo(f"… {total - len(rows):,} more; --limit 0 shows all")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def replace_hint() -> Iterator[None]:
    """Name `--replace` when the target of a command exists."""
    try:
        yield
    except TargetExists as error:
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
    if as_json:
        print_json(shown)
    else:
        print_rows(shown, columns, total=len(rows) if total is None else total)


def shown_bytes(size: int | None) -> str:
    if size is None:
        return "-"
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size} B"


def print_error(error: RollbookError) -> None:
    """Print to standard error; as JSON with `--json`, so that scripts can read the code and the ids."""
    if "--json" in sys.argv:
        print(json.dumps(error.as_dict(), ensure_ascii=False, default=str), file=sys.stderr)
    else:
        typer.echo(f"{typer.style('error', fg='red')} [{error.code}]: {error}", err=True)
