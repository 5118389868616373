"""How commands speak: results on standard output, `--json` for scripts, problems on standard error."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from rollbook.errors import RollbookError, TargetExists

if TYPE_CHECKING:
    from rollbook.contracts.findings import Finding

OK, VIOLATIONS, USAGE = 0, 1, 2
_PIPED_WIDTH = 400
"""Of a table that goes to a file or another program: nothing in it is cut to fit a screen that is not there."""


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """One line each, then the verdict; the exit code is 0 only if all passed."""
    failed = sum(not finding.passed for finding in findings)
    if as_json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print_json({"passed": not failed, "checked": len(rows), "failed": failed, "findings": rows})
    else:
        for finding in findings:
            mark = (
                typer.style("pass", fg="green") if finding.passed else typer.style("FAIL", fg="red")
            )
            code = f" [{finding.code}]" if finding.code else ""
            typer.echo(f"{mark}  {finding.subject}{code}: {finding.detail}")
        verdict = "all green" if not failed else f"{failed} of {len(findings)} failed"
        typer.echo(f"{len(findings)} checked, {verdict}")
    raise typer.Exit(VIOLATIONS if failed else OK)


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str] | None = None,
    *,
    total: int | None = None,
) -> None:
    """Rows as a table: these columns under these headings, or all. Says how many of `total` are not shown."""
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
        # sentences stand last, and go on in the next line rather than be cut
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
    """For commands that write a file and have `--replace`."""
    try:
        yield
    except TargetExists as error:
        raise TargetExists(path=error.path, detail="--replace replaces it") from error


def most(limit: int) -> int | None:
    """`--limit 0` is for all."""
    return limit or None


def print_limited(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    limit: int,
    as_json: bool,
    total: int | None = None,
) -> None:
    """All columns for scripts; for people those that fit on a line."""
    shown = rows[: most(limit)]
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
    """On standard error; in JSON when the caller asked for it, so that scripts can read the code and the ids."""
    if "--json" in sys.argv:
        print(json.dumps(error.as_dict(), ensure_ascii=False, default=str), file=sys.stderr)
    else:
        typer.echo(f"{typer.style('error', fg='red')} [{error.code}]: {error}", err=True)
