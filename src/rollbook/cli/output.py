"""How commands speak: results on standard output, `--json` for scripts, problems on standard error."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from rollbook.errors import RollbookError

if TYPE_CHECKING:
    from rollbook.contracts.check import Finding

OK, VIOLATIONS, USAGE = 0, 1, 2


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


def print_error(error: RollbookError) -> None:
    """On standard error; in JSON when the caller asked for it, so that scripts can read the code and the ids."""
    if "--json" in sys.argv:
        print(json.dumps(error.as_dict(), ensure_ascii=False, default=str), file=sys.stderr)
    else:
        typer.echo(f"{typer.style('error', fg='red')} [{error.code}]: {error}", err=True)
