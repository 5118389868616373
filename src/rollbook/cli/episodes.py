"""`rollbook episodes …`: list, show, download and delete episodes, and deliver episodes recorded without a network."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.exit_codes import VIOLATIONS
from rollbook.cli.login import ProfileName
from rollbook.cli.output import AsJson, print_json, print_rows, say, shown_bytes
from rollbook.errors import ConfigurationError, TargetExists

if TYPE_CHECKING:
    from rollbook.client import Client
    from rollbook.client.delivery import Delivery
    from rollbook.contracts.wire.episodes import ArtifactRecord

app = typer.Typer(
    help="List, show, download and delete the episodes of a server.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

EpisodeId = Annotated[str, typer.Argument(help="Id of an episode.")]


class Kind(StrEnum):
    video = "video"
    sensors = "sensors"
    actions = "actions"


def _client(profile: str, **options: Any) -> Client:
    from rollbook.client import Client
    from rollbook.client.credentials import DEFAULT_PROFILE

    return Client(profile=None if profile == DEFAULT_PROFILE else profile, verbose=False, **options)


# ------------------------------------------------------------------------------------- list and show


@app.command("list")
def list_(
    policy_version: Annotated[
        str | None, typer.Option(help="Only episodes of this policy version.")
    ] = None,
    env_version: Annotated[
        str | None, typer.Option(help="Only episodes of this environment version.")
    ] = None,
    git_sha: Annotated[str | None, typer.Option(help="Only episodes of this git commit.")] = None,
    seed: Annotated[int | None, typer.Option(help="Only episodes recorded with this seed.")] = None,
    status: Annotated[
        str | None, typer.Option(help="Only this status: recording, ready, failed or archived.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Only this source: real, sim or replay.")
    ] = None,
    robot: Annotated[str | None, typer.Option(help="Only episodes of this robot.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Only episodes whose name contains this text.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="Only episodes with this tag; may be repeated.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=VALUE",
            help="Only episodes with this metadata, such as task.name=pick; may be repeated.",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only episodes created at this time or later (ISO 8601).")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Only episodes created before this time (ISO 8601).")
    ] = None,
    with_archived: Annotated[
        bool, typer.Option("--with-archived", help="List archived episodes too.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of episodes to list; 0 lists all.")
    ] = 50,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """List the episodes that match every filter, newest first."""
    import msgspec

    with _client(profile) as client:
        found = client.episodes(
            policy_version=policy_version,
            env_version=env_version,
            git_sha=git_sha,
            seed=seed,
            status=status,
            source=source,
            robot=robot,
            name=name,
            tag=tag,
            metadata=_metadata_filters(metadata or []),
            since=since,
            until=until,
            with_archived=with_archived,
            limit=limit or None,
        )
        records = [each.record for each in found]
    if as_json:
        print_json(msgspec.to_builtins(records))
        return
    rows = [
        {**msgspec.structs.asdict(each), "size": shown_bytes(each.bytes_total)} for each in records
    ]
    print_rows(rows, _COLUMNS, essential=2)


_COLUMNS = {
    "id": "id",
    "status": "status",
    "source": "source",
    "policy_version": "policy",
    "robot": "robot",
    "duration_s": "seconds",
    "size": "size",
    "created_at": "created",
    "name": "name",
}


def _metadata_filters(texts: list[str]) -> dict[str, str]:
    filters: dict[str, str] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not (path and equals):
            raise ConfigurationError(message=f"--metadata {text!r}: expected PATH=VALUE")
        filters[path] = value
    return filters


@app.command()
def show(episode_id: EpisodeId, profile: ProfileName = "default", as_json: AsJson = False) -> None:
    """Show everything the server knows about one episode."""
    import msgspec

    with _client(profile) as client:
        found = client.episode(episode_id).record
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    for name, value in msgspec.structs.asdict(found).items():
        if name not in ("artifacts", "metadata") and value not in (None, [], msgspec.UNSET):
            say(f"{name:<15} {value}")
    for artifact in found.artifacts:
        say(f"{artifact.kind:<15} {shown_bytes(artifact.size)}  {artifact.sha256}")
        _echo_content(artifact)
    if found.metadata:
        print_json(found.metadata)


def _echo_content(artifact: ArtifactRecord) -> None:
    indent = " " * 16
    if artifact.readable is False:
        say(f"{indent}not readable: {artifact.detail}")
    elif artifact.playable is False:
        say(f"{indent}browsers cannot play it: {artifact.detail}")
    for array in artifact.arrays:
        shape = " x ".join(map(str, array.shape)) or "one value"
        say(f"{indent}{array.key}  {array.dtype}  {shape}")
    if artifact.readable and artifact.detail:
        say(f"{indent}{artifact.detail}")


# --------------------------------------------------------------------------------------------- fetch


@app.command()
def download(
    episode_id: EpisodeId,
    to: Annotated[
        Path | None,
        typer.Option(help="Folder to write to. Default: a folder named after the episode."),
    ] = None,
    only: Annotated[
        list[Kind] | None,
        typer.Option(help="Only this artifact; may be repeated. Default: all artifacts."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace files that already exist.")
    ] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Download the artifacts of an episode, verify them, and write its record to episode.json."""
    import msgspec

    from rollbook.contracts.episode import FILE_NAMES
    from rollbook.files import atomic_write

    folder = to or Path(_plain(episode_id))
    with _client(profile) as client:
        episode = client.episode(episode_id)
        there = [each.kind for each in episode.artifacts]
        kinds = [kind.value for kind in only] if only else there
        targets = {kind: folder / FILE_NAMES[kind] for kind in kinds}  # type: ignore[index]
        facts = folder / "episode.json"
        if not replace:
            _refuse_existing([*targets.values(), facts])
        folder.mkdir(parents=True, exist_ok=True)
        for kind, target in targets.items():
            episode.download(kind, target)  # type: ignore[arg-type]
        with atomic_write(facts) as file:
            text = json.dumps(msgspec.to_builtins(episode.record), indent=2, ensure_ascii=False)
            file.write(f"{text}\n".encode())
    written = [str(path) for path in (*targets.values(), facts)]
    if as_json:
        print_json({"episode_id": episode_id, "files": written})
    else:
        say("\n".join(written))


def _plain(episode_id: str) -> str:
    """Refuse an id that would lead out of the current folder."""
    if episode_id in ("", ".", "..") or Path(episode_id).name != episode_id:
        raise ConfigurationError(message=f"{episode_id!r} is not the id of an episode")
    return episode_id


def _refuse_existing(paths: list[Path]) -> None:
    for path in paths:
        if path.exists():
            raise TargetExists(path=str(path), detail="--replace replaces it")


# ---------------------------------------------------------------------------------- delete and deliver


@app.command()
def delete(
    episode_ids: Annotated[list[str], typer.Argument(help="Ids of episodes.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Delete episodes and their artifacts. This cannot be undone."""
    if not yes:
        typer.confirm(
            f"delete {len(episode_ids)} episodes? This cannot be undone.", abort=True, err=True
        )
    with _client(profile) as client:
        for episode_id in episode_ids:
            client.delete_episode(episode_id)
            if not as_json:
                say(f"deleted {episode_id}")
    if as_json:
        print_json({"deleted": episode_ids})


@app.command()
def deliver(
    spool: Annotated[Path, typer.Argument(help="Spool folder, as given to Client(spool=…).")],
    retry_refused: Annotated[
        bool, typer.Option("--retry-refused", help="Also retry episodes that the server refused.")
    ] = False,
    any_server: Annotated[
        bool,
        typer.Option(
            "--any-server", help="Also send episodes that were recorded for another server."
        ),
    ] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Send episodes that were recorded without a network, each exactly once."""
    if not spool.is_dir():
        raise ConfigurationError(
            message=f"there is no folder {spool}; give the spool folder of a client"
        )
    with _client(profile, spool=spool) as client:
        report = client.deliver(retry_refused=retry_refused, for_any_server=any_server)
    if as_json:
        print_json(
            {
                "delivered": report.delivered,
                "refused": {name: str(error) for name, error in report.refused.items()},
                "waiting": report.waiting,
                "stopped_by": None if report.stopped_by is None else str(report.stopped_by),
            }
        )
    else:
        _print_delivery(report)
    if report.refused or report.stopped_by is not None:
        raise typer.Exit(VIOLATIONS)


def _print_delivery(report: Delivery) -> None:
    for name, episode_id in report.delivered.items():
        say(f"delivered {name} as {episode_id}")
    for name, error in report.refused.items():
        say(f"refused   {name}: {error}", err=True)
    if report.stopped_by is not None:
        say(f"{len(report.waiting)} still waiting: {report.stopped_by}", err=True)
    elif report.waiting:
        say(f"{len(report.waiting)} are for another server; --any-server sends them here")
    else:
        say(f"{len(report.delivered)} delivered, none waiting")
