"""`rollbook replay compare`: rank several candidates that were replayed against the same baselines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.login import ProfileName
from rollbook.cli.output import AsJson, print_json, print_rows, say
from rollbook.cli.replays.replay_run import client_of
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.contracts.comparison import ComparedCandidate, Comparison

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Ids of completed eval runs, or files with the output of `rollbook replay run --json`.",
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        help="Outcome to rank by: success, reward_total, collision_count or time_to_goal_s. Default: the first primary "
        "of the gate that every run has measured."
    ),
]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")]


def compare(
    runs: Runs,
    metric: Metric = None,
    as_markdown: AsMarkdown = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Rank candidates that were replayed against the same baselines, and say which of them ship.

    \b
    rollbook replay compare RUN_OF_V4 RUN_OF_V5 RUN_OF_V6

    The best of many candidates looks good by chance. All of them are therefore tested together: the p-values and the
    bounds allow for their number. Candidates that share a letter are not told apart.

    The runs need the same gate. Only baselines that all of them have are compared.
    """
    import msgspec

    from rollbook import evals

    if as_markdown and as_json:
        raise ConfigurationError(message="--markdown and --json do not go together")
    given: list[str | Path] = [Path(each) if _is_file(each) else each for each in runs]
    options: dict[str, Any] = {"metric": metric}
    if all(isinstance(each, Path) for each in given):
        found = evals.compare(given, **options)
    else:
        with client_of(profile) as client:
            found = evals.compare(given, client=client, **options)
    if as_json:
        print_json(msgspec.to_builtins(found))
    elif as_markdown:
        say(markdown(found))
    else:
        _print(found)


def _is_file(text: str) -> bool:
    return text.endswith(".json") or "/" in text or Path(text).is_file()


def _print(found: Comparison) -> None:
    say(_heading(found))
    say("")
    print_rows([_row(found, each) for each in found.candidates], _COLUMNS, essential=6)
    say("")
    for each in found.candidates:
        if each.own == "ship" and each.recommend == "hold":
            say(f"{each.candidate} would ship alone, and holds among {len(found.candidates)}.")
    say(_verdict(found))
    for note in found.notes:
        say(f"note: {note}")


_COLUMNS = {
    "rank": "rank",
    "candidate": "candidate",
    "delta": "Δ",
    "bound": "at least",
    "letters": "group",
    "decision": "decision",
    "p": "p",
    "missing": "missing",
    "crashes": "crashed",
    "run": "run",
}


def _row(found: Comparison, each: ComparedCandidate) -> dict[str, Any]:
    from rollbook.contracts.outcomes import OUTCOMES

    kind = OUTCOMES[found.metric]
    return {
        "rank": each.rank,
        "candidate": each.candidate,
        "delta": kind.change_text(each.delta),
        "bound": kind.change_text(each.bound),
        "letters": each.letters,
        "decision": each.recommend,
        "p": f"{each.p_value:.4f}",
        "missing": each.missing,
        "crashes": each.crashes,
        "run": each.run,
    }


def _heading(found: Comparison) -> str:
    from rollbook.contracts.outcomes import OUTCOMES

    pairs = f"{found.pairs} pairs"
    if found.clusters is not None:
        pairs += (
            f" in {found.clusters.count} clusters by {found.clusters.by}, "
            f"worth about {found.clusters.effective_pairs:.0f}"
        )
    left = f"; {found.left_out} baselines that not every run has are left out"
    return (
        f"{len(found.candidates)} candidates by {OUTCOMES[found.metric].label}, {pairs}, "
        f"{100 * (1 - found.level):g} % sure of all bounds together{left if found.left_out else ''}."
    )


def _verdict(found: Comparison) -> str:
    shipping = [each.candidate for each in found.shipping]
    if not shipping:
        return "None ships."
    return f"Ships: {', '.join(shipping)}."


def markdown(found: Comparison) -> str:
    """A table for a pull request."""
    lines = [
        _heading(found),
        "",
        "| rank | candidate | Δ | at least | p | group | decision | run |",
        "|--:|---|--:|--:|--:|---|---|---|",
    ]
    for each in found.candidates:
        row = _row(found, each)
        named = (_code(each.candidate), row["delta"], row["bound"], row["p"], each.letters)
        lines.append(
            f"| {each.rank} | {' | '.join(named)} | {each.recommend} | {_code(each.run)} |"
        )
    return "\n".join([*lines, "", _verdict(found), *(f"- {each}" for each in found.notes)])


def _code(text: str) -> str:
    """Inline code in a cell of a table."""
    return f"`{' '.join(text.split()).replace('`', '').replace('|', ' ')}`"
