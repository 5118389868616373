"""`rollbook episodes …`: find, look at, fetch and delete episodes, and deliver those that waited for a network."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.login import AsJson, ProfileName
from rollbook.cli.output import VIOLATIONS, print_json, print_rows, shown_bytes
from rollbook.errors import ConfigurationError, TargetExists

if TYPE_CHECKING:
    from rollbook.client import Client
    from rollbook.client.delivery import Delivery

app = typer.Typer(
    help="Find, fetch and delete episodes of a server.", no_args_is_help=True, rich_markup_mode=None
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
    policy_version: Annotated[str | None, typer.Option(help="Of the policy that ran.")] = None,
    env_version: Annotated[str | None, typer.Option(help="Of the environment.")] = None,
    git_sha: Annotated[str | None, typer.Option(help="Of the code.")] = None,
    seed: Annotated[int | None, typer.Option(help="It was started with.")] = None,
    status: Annotated[str | None, typer.Option(help="recording, ready, failed, archived.")] = None,
    source: Annotated[str | None, typer.Option(help="real, sim or replay.")] = None,
    robot: Annotated[str | None, typer.Option(help="It ran on.")] = None,
    name: Annotated[str | None, typer.Option(help="A part of the name.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Has this tag; may be repeated.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(help="PATH=VALUE, such as task.name=pick; may be repeated.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Created then or later, ISO 8601.")] = None,
    until: Annotated[str | None, typer.Option(help="Created before then, ISO 8601.")] = None,
    with_archived: Annotated[
        bool, typer.Option("--with-archived", help="Archived ones too.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="Episodes to show; 0 for all.")] = 50,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Episodes that are all of this, the newest first."""
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
            metadata=_paths(metadata or ()),
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
    print_rows(rows, _COLUMNS)


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


def _paths(terms: list[str] | tuple[()]) -> dict[str, str]:
    pairs = [term.partition("=") for term in terms]
    for term, (path, equals, _) in zip(terms, pairs, strict=True):
        if not (path and equals):
            raise ConfigurationError(message=f"--metadata {term!r}: expected PATH=VALUE")
    return {path: value for path, _, value in pairs}


@app.command()
def show(episode_id: EpisodeId, profile: ProfileName = "default", as_json: AsJson = False) -> None:
    """Everything that is known about one episode."""
    import msgspec

    with _client(profile) as client:
        found = client.episode(episode_id).record
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    for name, value in msgspec.structs.asdict(found).items():
        if name not in ("artifacts", "metadata") and value not in (None, []):
            typer.echo(f"{name:<15} {value}")
    for artifact in found.artifacts:
        typer.echo(f"{artifact.kind:<15} {shown_bytes(artifact.size)}  {artifact.sha256}")
    if found.metadata:
        print_json(found.metadata)


# --------------------------------------------------------------------------------------------- fetch


@app.command()
def download(
    episode_id: EpisodeId,
    to: Annotated[
        Path | None,
        typer.Option(help="Folder to write to; one named for the episode if not given."),
    ] = None,
    only: Annotated[
        list[Kind] | None, typer.Option(help="This artifact; may be repeated. All if not given.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace files that are there.")
    ] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Fetch the artifacts of an episode, verified, and what is known about it as episode.json."""
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
            file.write(_pretty(msgspec.to_builtins(episode.record)))
    written = [str(path) for path in (*targets.values(), facts)]
    if as_json:
        print_json({"episode_id": episode_id, "files": written})
    else:
        typer.echo("\n".join(written))


def _plain(episode_id: str) -> str:
    """It becomes the name of a folder."""
    if episode_id in ("", ".", "..") or Path(episode_id).name != episode_id:
        raise ConfigurationError(message=f"{episode_id!r} is no id of an episode")
    return episode_id


def _refuse_existing(paths: list[Path]) -> None:
    for path in paths:
        if path.exists():
            raise TargetExists(path=str(path), detail="--replace replaces it")


def _pretty(value: object) -> bytes:
    import json

    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


# ---------------------------------------------------------------------------------- delete and deliver


@app.command()
def delete(
    episode_ids: Annotated[list[str], typer.Argument(help="Ids of episodes.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Delete episodes and their artifacts, for good."""
    if not yes:
        typer.confirm(f"delete {len(episode_ids)} episodes for good?", abort=True, err=True)
    with _client(profile) as client:
        for episode_id in episode_ids:
            client.delete_episode(episode_id)
            if not as_json:
                typer.echo(f"deleted {episode_id}")
    if as_json:
        print_json({"deleted": episode_ids})


@app.command()
def deliver(
    spool: Annotated[Path, typer.Argument(help="The folder that was given as Client(spool=…).")],
    retry_refused: Annotated[
        bool, typer.Option("--retry-refused", help="Those that the server would not take, again.")
    ] = False,
    any_server: Annotated[
        bool, typer.Option("--any-server", help="Also those that were recorded for another server.")
    ] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Send the episodes that were recorded without network, each exactly once."""
    if not spool.is_dir():
        raise ConfigurationError(message=f"there is no folder {spool}; name the spool of a client")
    with _client(profile, spool=spool) as client:
        report = client.deliver(retry_refused=retry_refused, for_any_server=any_server)
    if as_json:
        print_json(_as_facts(report))
    else:
        _print_delivery(report)
    if report.refused or report.stopped_by is not None:
        raise typer.Exit(VIOLATIONS)


def _as_facts(report: Delivery) -> dict[str, Any]:
    return {
        "delivered": report.delivered,
        "refused": {name: str(error) for name, error in report.refused.items()},
        "waiting": report.waiting,
        "stopped_by": None if report.stopped_by is None else str(report.stopped_by),
    }


def _print_delivery(report: Delivery) -> None:
    for name, episode_id in report.delivered.items():
        typer.echo(f"delivered {name} as {episode_id}")
    for name, error in report.refused.items():
        typer.echo(f"refused   {name}: {error}", err=True)
    if report.stopped_by is not None:
        typer.echo(f"{len(report.waiting)} keep waiting: {report.stopped_by}", err=True)
    elif report.waiting:
        typer.echo(f"{len(report.waiting)} are for another server; --any-server sends them here")
    else:
        typer.echo(f"{len(report.delivered)} delivered, none waiting")
