"""`rollbook import KIND PATH`: recordings of other tools become episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.adapters.formats import IMPORTS, Format
from rollbook.cli.exit_codes import VIOLATIONS
from rollbook.cli.login import ProfileName
from rollbook.cli.options import with_options
from rollbook.cli.output import AsJson, print_json, print_rows, say
from rollbook.cli.progress import progress_bar
from rollbook.cli.recordings.format_commands import FormatCommands, made_with, options_class
from rollbook.cli.store_paths import folder_here
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.adapters.importing import ImportedEpisode
    from rollbook.adapters.recording import EpisodeInRecording, Importer, Recording

RecordingPath = Annotated[Path, typer.Argument(help="The file or folder to import.")]
_SHOWN_EPISODES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPlace:
    """Where the episodes go, and what is said about them. The same for all formats."""

    to_server: Annotated[
        bool, typer.Option("--to-server", help="Log the episodes on the server.")
    ] = False
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the episodes here, each into a folder."),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be imported; change nothing.")
    ] = False
    episode: Annotated[
        list[int] | None,
        typer.Option(help="Only the episode with this number. May be repeated."),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(help="Name of the episodes; {episode_index} is replaced by theirs."),
    ] = None
    policy_version: Annotated[
        str | None, typer.Option(help="The policy that acted in the recording.")
    ] = None
    env_version: Annotated[str | None, typer.Option(help="Version of the environment.")] = None
    robot: Annotated[str | None, typer.Option(help="The robot that was recorded.")] = None
    source: Annotated[
        str | None, typer.Option(help="Where it was recorded: real, sim or replay.")
    ] = None
    tag: Annotated[list[str] | None, typer.Option(help="Tag every episode. May be repeated.")] = (
        None
    )
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first episode that fails.")
    ] = False
    profile: ProfileName = "default"
    as_json: AsJson = False

    def about(self) -> Any:
        given = {
            "name": self.name,
            "policy_version": self.policy_version,
            "env_version": self.env_version,
            "robot": self.robot,
            "source": self.source,
            "tags": self.tag,
        }
        return {name: value for name, value in given.items() if value is not None}


def _import_command(kind: str, each: Format) -> Callable[..., None]:
    importer = each.made_by()

    @with_options(options_class(importer, ImportPlace))
    def command(path: RecordingPath, options: Any) -> None:
        _run(made_with(importer, options), path, options)

    command.__doc__ = f"""Import {each.about}.

    \b
    rollbook import {kind} PATH --dry-run
    rollbook import {kind} PATH --out episodes
    rollbook import {kind} PATH --to-server

    What was read is compared with what the file declares. Every episode names the file that it came from by digest,
    so that a second import of the same file changes nothing, and an import that was stopped is continued.
    """
    return command


class ImportCommands(FormatCommands):
    formats = IMPORTS

    def command_of(self, kind: str, each: Format) -> Callable[..., None]:
        return _import_command(kind, each)


app = typer.Typer(
    cls=ImportCommands,
    help="""Import recordings of other tools as episodes.

    \b
    rollbook import --detect PATH             say what a file or folder is
    rollbook import ros2 bag --dry-run        say what would be imported
    rollbook import ros2 bag --out episodes   import into folders
    rollbook import ros2 bag --to-server      import to the server
    """,
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def detect(
    context: typer.Context,
    path: Annotated[
        Path | None,
        typer.Option("--detect", metavar="PATH", help="Say which format a file or folder has."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    if context.invoked_subcommand is not None:
        if path is not None:
            raise ConfigurationError(message="--detect stands alone, without a format")
        return
    if path is None:
        say(context.get_help())
        return
    from rollbook.adapters.formats import detect as detect_format

    _check_path(path)
    found = detect_format(path)
    if as_json:
        formats = [{"format": each.format, "reason": each.reason} for each in found]
        print_json({"path": str(path), "formats": formats})
    else:
        for each in found:
            say(f"{path}: {each.format} ({each.reason})")
        if not found:
            say(f"{path}: no known format; known are {', '.join(IMPORTS)}")
    raise typer.Exit(0 if found else VIOLATIONS)


def _check_path(path: Path) -> None:
    """A path with nothing at it is wrong usage, not a damaged recording. So is a pipe or a device."""
    if not (path.is_file() or path.is_dir()):
        found = f"{path} is a pipe or a device" if path.exists() else f"there is nothing at {path}"
        raise ConfigurationError(message=f"{found}; name the file or folder of a recording")
    from rollbook.adapters.storable_text import check_names

    check_names(str(path))


# ---------------------------------------------------------------------------------------- one import


def _run(importer: Importer, path: Path, place: ImportPlace) -> None:
    _check_path(path)
    if place.dry_run:
        _print_plan(importer, importer.scan(path), place)
        return
    if place.to_server == (place.out is not None):
        message = "say where the episodes go: either --to-server or --out FOLDER (or --dry-run)"
        raise ConfigurationError(message=message)
    if place.out is not None:
        from rollbook.adapters.importing import ImportFolder

        folder_here(place.out, "--out")
        _import(importer, path, ImportFolder(place.out, place.about()), str(place.out), place)
        return
    from rollbook.adapters.importing import ImportServer
    from rollbook.cli.replays.replay_run import client_of

    with client_of(place.profile) as client:
        target = ImportServer(client, place.about())
        _import(importer, path, target, client.base_url, place)


def _import(importer: Importer, path: Path, target: Any, where: str, place: ImportPlace) -> None:
    from rollbook.adapters.importing import import_recording

    with progress_bar("episodes") as progress:
        done = import_recording(
            importer,
            path,
            target,
            episodes=place.episode,
            on_imported=lambda count, total, _: progress(count, total),
            stop_on_error=place.fail_fast,
        )
    counts = {
        "imported": sum(each.outcome == "imported" for each in done),
        "there_already": sum(each.outcome == "there already" for each in done),
        "failed": sum(each.outcome == "failed" for each in done),
    }
    if place.as_json:
        rows = [_shown(each) for each in done]
        shown = {"format": importer.format, "path": str(path), "target": where}
        print_json({**shown, **counts, "episodes": rows})
    else:
        _print_result(path, where, done, counts)
    if counts["failed"]:
        raise typer.Exit(VIOLATIONS)


def _shown(each: ImportedEpisode) -> dict[str, Any]:
    metadata = each.metadata or {}
    known = ("declared", "read", "skipped", "losses", "damage")
    return {
        "index": each.index,
        "key": each.key,
        "outcome": each.outcome,
        "place": each.place,
        "source_file": None if each.source is None else each.source.to_json(),
        **{name: metadata[name] for name in known if name in metadata},
        "error": None if each.error is None else str(each.error),
    }


def _print_result(
    path: Path, where: str, done: Sequence[ImportedEpisode], counts: Mapping[str, int]
) -> None:
    for note in dict.fromkeys(note for each in done for note in _notes(each)):
        say(note)
    for each in done:
        if each.error is not None:
            say(f"  {each.key}: {each.error}", mark="failed", colour="red", err=True)
    already = counts["there_already"]
    parts = [f"{counts['imported']:,} of {len(done):,} episodes imported to {where}"]
    parts += [f"{already:,} were there already"] if already else []
    parts += [f"{counts['failed']:,} failed"] if counts["failed"] else []
    say(f"{path}: {'; '.join(parts)}")


def _notes(each: ImportedEpisode) -> list[str]:
    """What a person should know about the episode: what is missing in it, and what was changed. Metadata of an episode
    folder may come from anybody, and mean something else under these names."""
    skipped, losses, damage = (
        (each.metadata or {}).get(name) for name in ("skipped", "losses", "damage")
    )
    notes = []
    for skip in skipped if isinstance(skipped, list) else ():
        if isinstance(skip, Mapping):
            notes.append(f"left out: {skip.get('name')}: {skip.get('reason')}")
    for loss in losses if isinstance(losses, list) else ():
        notes.append(f"changed: {loss}")
    if isinstance(damage, Mapping):
        notes.append(f"damaged: {each.key}: {damage.get('detail')}; imported up to there")
    return notes


# ------------------------------------------------------------------------------------------ dry run


def _print_plan(importer: Importer, recording: Recording, place: ImportPlace) -> None:
    from rollbook.adapters.importing import chosen_episodes

    episodes = chosen_episodes(recording, place.episode)
    if place.as_json:
        print_json(_plan(importer, recording, episodes))
        return
    rows = [each.rows for each in episodes if each.rows is not None]
    counted = f", {sum(rows):,} rows" if rows else ""
    say(f"{recording.name} ({recording.format}): {len(episodes):,} episodes{counted}")
    streams = [
        {"stream": each.name, "goes to": each.slot, "type": each.type, "rows": each.rows}
        for each in recording.streams
    ]
    if streams:
        print_rows(streams)
    for skip in recording.skipped:
        say(f"left out: {skip.name}: {skip.reason}")
    for loss in recording.losses:
        say(f"changed: {loss}")
    shown = episodes[:_SHOWN_EPISODES]
    columns = [
        {"episode": each.index, "name": each.key, "rows": each.rows, "seconds": each.duration_s}
        for each in shown
    ]
    if columns:
        print_rows(columns, total=None)
    if len(episodes) > len(shown):
        say(f"… {len(episodes) - len(shown):,} more; --json prints all")
    say("nothing was imported (--dry-run)")


def _plan(
    importer: Importer, recording: Recording, episodes: Sequence[EpisodeInRecording]
) -> dict[str, Any]:
    return {
        "format": recording.format,
        "path": str(recording.path),
        "name": recording.name,
        "options": importer.options(),
        "about": dict(recording.about),
        "streams": [
            {"name": each.name, "slot": each.slot, "type": each.type, "rows": each.rows}
            for each in recording.streams
        ],
        "skipped": [{"name": each.name, "reason": each.reason} for each in recording.skipped],
        "losses": list(recording.losses),
        "episodes": [
            {
                "index": each.index,
                "key": each.key,
                "rows": each.rows,
                "duration_s": each.duration_s,
            }
            for each in episodes
        ],
    }
