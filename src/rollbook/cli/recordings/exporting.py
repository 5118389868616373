"""`rollbook export KIND`: episodes become datasets of other tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.adapters.formats import EXPORTS, Format
from rollbook.cli.login import ProfileName
from rollbook.cli.options import with_options
from rollbook.cli.output import AsJson, print_json, say, shown_bytes
from rollbook.cli.progress import progress_bar
from rollbook.cli.recordings.format_commands import FormatCommands, made_with, options_class
from rollbook.cli.store_paths import folder_here
from rollbook.errors import ConfigurationError, TargetExists

if TYPE_CHECKING:
    from rollbook.adapters.exports.exported_episode import ExportedEpisode
    from rollbook.adapters.exports.exporter import Exporter, Loss

_SHOWN_LOSSES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportChoice:
    """Which episodes are exported, and to where. The same for all formats."""

    out: Annotated[
        Path, typer.Option(metavar="PATH", help="The file or folder to write. It must not exist.")
    ]
    episodes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID|FOLDER",
            help="Id of an episode on the server, or a folder of `rollbook import --out`. May be repeated.",
        ),
    ] = None
    query: Annotated[
        str | None,
        typer.Option(
            metavar="FILTERS",
            help="Episodes of the server, by the filters of `rollbook episodes list`: 'policy_version=v4 tag=night'.",
        ),
    ] = None
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many episodes of the query.")
    ] = None
    exact: Annotated[
        bool, typer.Option("--exact", help="Refuse an export that would change or lose anything.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be changed or lost; write nothing.")
    ] = False
    profile: ProfileName = "default"
    as_json: AsJson = False


def _export_command(kind: str, each: Format) -> Callable[..., None]:
    exporter = each.made_by()

    @with_options(options_class(exporter, ExportChoice))
    def command(options: Any) -> None:
        _run(made_with(exporter, options), options)

    command.__doc__ = f"""Export episodes as {each.about}.

    \b
    rollbook export {kind} --episodes FOLDER --out PATH --dry-run
    rollbook export {kind} --query 'policy_version=v4 status=ready' --out PATH

    What the format cannot hold is listed before anything is written. The export names every episode, the SHA-256 of
    its files and the file that it was imported from.
    """
    return command


class ExportCommands(FormatCommands):
    formats = EXPORTS

    def command_of(self, kind: str, each: Format) -> Callable[..., None]:
        return _export_command(kind, each)


app = typer.Typer(
    cls=ExportCommands,
    help="""Export episodes as datasets of other tools.

    \b
    rollbook export lerobot --episodes episodes --out pusht --dry-run
    rollbook export lerobot --query 'policy_version=v4' --out pusht
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    """One command for each format."""


def _run(exporter: Exporter, choice: ExportChoice) -> None:
    from rollbook.adapters.exports.chosen_episodes import ChosenEpisodes, filters_of
    from rollbook.adapters.exports.exporter import facts_without_place

    if not choice.episodes and choice.query is None:
        raise ConfigurationError(message="say which episodes: --episodes ID or FOLDER, or --query")
    folder_here(choice.out, "--out")
    if choice.out.exists() and not choice.dry_run:
        detail = "choose another place for --out, or remove it"
        raise TargetExists(path=str(choice.out), detail=detail)
    filters = None if choice.query is None else filters_of(choice.query)
    with ChosenEpisodes(choice.profile, near=choice.out) as chosen:
        with progress_bar("fetching episodes") as progress:
            episodes = chosen.find(
                choice.episodes or (), filters, limit=choice.limit, on_episode=progress
            )
        losses = [*facts_without_place(episodes), *exporter.losses(episodes)]
        if losses and choice.exact:
            _refuse(losses)
        if not choice.as_json:
            _print_losses(losses)
        if choice.dry_run:
            _print_plan(exporter, episodes, losses, choice)
            return
        with progress_bar("episodes") as progress:
            summary = exporter.write(episodes, choice.out, progress)
    if choice.as_json:
        shown = {
            "format": summary.format,
            "path": str(summary.path),
            "episodes": summary.episodes,
            "rows": summary.rows,
            "files": summary.files,
            "size_bytes": summary.size,
        }
        print_json({**shown, "losses": _plain(losses)})
        return
    say(
        f"{summary.path}: {summary.episodes:,} episodes, {summary.rows:,} rows, "
        f"{summary.files:,} files, {shown_bytes(summary.size)}"
    )


def _refuse(losses: Sequence[Loss]) -> None:
    first = losses[0]
    more = f" and {len(losses) - 1:,} more" if len(losses) > 1 else ""
    message = f"the export would not be exact: {first.episode}: {first.what}: {first.reason}{more}"
    raise ConfigurationError(message=f"{message}; without --exact it is written nevertheless")


def _print_losses(losses: Sequence[Loss]) -> None:
    """On standard error, so that they are seen where the output is a file."""
    grouped: dict[tuple[str, str], int] = {}
    for each in losses:
        key = (each.what, each.reason)
        grouped[key] = grouped.get(key, 0) + 1
    for (what, reason), count in list(grouped.items())[:_SHOWN_LOSSES]:
        where = f" (in {count:,} episodes)" if count > 1 else ""
        say(f"changed: {what}: {reason}{where}", err=True)
    if len(grouped) > _SHOWN_LOSSES:
        say(f"… {len(grouped) - _SHOWN_LOSSES:,} more; --json prints all", err=True)


def _print_plan(
    exporter: Exporter,
    episodes: Sequence[ExportedEpisode],
    losses: Sequence[Loss],
    choice: ExportChoice,
) -> None:
    if choice.as_json:
        names = [each.name for each in episodes]
        print_json({"format": exporter.format, "episodes": names, "losses": _plain(losses)})
        return
    exact = (
        "nothing would be changed" if not losses else f"{len(losses):,} changes are listed above"
    )
    say(f"{len(episodes):,} episodes would be written to {choice.out}; {exact} (--dry-run)")


def _plain(losses: Sequence[Loss]) -> list[dict[str, str]]:
    return [{"episode": each.episode, "what": each.what, "reason": each.reason} for each in losses]
