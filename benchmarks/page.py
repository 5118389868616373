"""docs/benchmarks.md: every claim beside its bar, and below it the figures that it was computed from."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.results import Result
from benchmarks.timing import Claim

_HEAD = """# Benchmarks

`make bench` measures everything on this page and writes it; `make bench ONLY="store_read rollup"` measures some again.
It ends with a status other than 0 when a claim is missed, or not measured because its peer is missing. Peers come from
the extra `bench`. A claim is a ratio to a peer or to the limit that was measured in the same run, or an absolute figure
beside its bar. Compare ratios between machines, not seconds. A benchmark is one file in
[benchmarks/](../benchmarks/); its head says what is measured, and how peers are set up.
"""


def page(results: Sequence[Result], not_run: Sequence[str]) -> str:
    claims = [claim for result in results for claim in result.claims]
    parts = [_HEAD, counted(claims) + "."]
    if not_run:
        parts.append(f"Not run: {', '.join(f'`{name}`' for name in not_run)}.")
    parts.append(_places(results))
    parts.append(_table(results))
    parts += [_section(result) for result in results]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def counted(claims: Sequence[Claim]) -> str:
    unmeasured = sum(claim.value is None for claim in claims)
    met = sum(claim.met for claim in claims)
    return f"{met} claims met, {len(claims) - met - unmeasured} missed, {unmeasured} not measured"


def _places(results: Sequence[Result]) -> str:
    """Where and when; once, if it is the same for all."""
    places = dict.fromkeys((each.machine, each.date, each.commit) for each in results)
    lines = [
        f"- {machine}; {date}, commit {commit}"
        + ("" if len(places) == 1 else f": {_those(results, place)}")
        for place in places
        for machine, date, commit in [place]
    ]
    return "\n".join(["Measured on:", "", *lines])


def _those(results: Sequence[Result], place: tuple[str, str, str]) -> str:
    return ", ".join(
        f"`{each.name}`" for each in results if (each.machine, each.date, each.commit) == place
    )


def _table(results: Sequence[Result]) -> str:
    rows = [
        f"| [{result.name}](#{result.name}) | {_cell(claim.name)} | {_value(claim)} | {_bar(claim)} | {claim.verdict} |"
        for result in results
        for claim in result.claims
    ]
    head = ["| benchmark | claim | measured | bar | |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def _section(result: Result) -> str:
    return "\n".join(
        [f"## {result.name}", "", result.title, "", "```text", result.printed.strip("\n"), "```"]
    )


def _value(claim: Claim) -> str:
    return "" if claim.value is None else f"{claim.value:,.2f} {claim.unit}".rstrip()


def _bar(claim: Claim) -> str:
    return f"{'at most' if claim.at_most else 'at least'} {claim.bar:,g} {claim.unit}".rstrip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
