"""`rollbook serve` starts the server; `rollbook server …` maintains it without starting it."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook import __version__
from rollbook.cli.output import AsJson, print_findings, print_json, print_limited, say, shown_bytes
from rollbook.cli.termination import left_to_the_server
from rollbook.errors import ConfigurationError
from rollbook.lazy import needs

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from rollbook.server.backup import Backup
    from rollbook.server.bootstrap import Bootstrapped
    from rollbook.server.queries import OrganisationRow, Scope
    from rollbook.server.settings import Settings

app = typer.Typer(
    help="Maintain a server: organisations, migrations, backups, health checks.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

OPTIONS = (
    "data_dir",
    "secret",
    "host",
    "port",
    "database_url",
    "blobs_url",
    "s3_endpoint",
    "s3_public_endpoint",
    "public_url",
    "workers",
    "metrics_bind",
    "log_level",
    "store_roots",
)
"""Settings with an option of their own, or from the environment. `--set` sets all others."""
_KEEP_ALIVE_S = 75
"""Longer than clients keep an idle connection open, so that the client closes it and not the server."""


class Level(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="ROLLBOOK_DATA",
        help="Data folder of the server; created if it does not exist. Default: ~/.rollbook/server.",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="ROLLBOOK_DATABASE",
        help="Database URL, such as postgresql://…. Default: SQLite in the data folder.",
    ),
]
Blobs = Annotated[
    str | None,
    typer.Option(
        envvar="ROLLBOOK_BLOBS",
        help="Where artifacts are stored: s3://bucket/prefix or file:///folder. Default: in the data folder.",
    ),
]
S3Endpoint = Annotated[
    str | None,
    typer.Option(envvar="ROLLBOOK_S3_ENDPOINT", help="Endpoint URL of an S3-compatible service."),
]
S3PublicEndpoint = Annotated[
    str | None,
    typer.Option(
        envvar="ROLLBOOK_S3_PUBLIC_ENDPOINT",
        help="Endpoint URL under which clients reach S3, if it differs from --s3-endpoint.",
    ),
]
PublicUrl = Annotated[
    str | None,
    typer.Option(
        envvar="ROLLBOOK_PUBLIC_URL",
        help="URL under which clients reach the server, if it is not HOST:PORT; for example behind a proxy.",
    ),
]
StoreRoots = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[ORG=]PLACE",
        help="Folder or s3://bucket/prefix whose rollout stores the organisation with the id ORG may register. "
        "Default for ORG: the first organisation. Repeat the option for more.",
    ),
]


def serve(
    data: Data = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 selects a free port.")
    ] = 8321,
    database: DatabaseUrl = None,
    blobs: Blobs = None,
    s3_endpoint: S3Endpoint = None,
    s3_public_endpoint: S3PublicEndpoint = None,
    public_url: PublicUrl = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 1,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT on which Prometheus metrics are served, separate from the API."
        ),
    ] = None,
    log_level: Annotated[Level, typer.Option(help="Minimum log level.")] = Level.info,
    store_root: StoreRoots = None,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting, such as quota_bytes=1000000000; docs/reference/http-api.md lists them.",
        ),
    ] = None,
) -> None:
    """Start the server. The first start creates an organisation and prints its API key once."""
    settings = settings_of(
        data,
        **_named_values(more or ()),
        host=host,
        port=port,
        database_url=database,
        blobs_url=blobs,
        s3_endpoint=s3_endpoint,
        s3_public_endpoint=s3_public_endpoint,
        public_url=public_url,
        workers=workers,
        metrics_bind=metrics,
        log_level=log_level.value,
        store_roots=store_root,
    )
    from rollbook.server.start_checks import check_settings

    check_settings(settings, warn=lambda text: say(f"warning: {text}", err=True))
    with _listening(settings) as listening:
        settings = replace(settings, port=listening.getsockname()[1])
        made, token = prepare_database(settings)
        listening.listen()  # who reads the address may connect at once: the request waits for the start
        _print_start(settings, made, token)
        _run(settings, listening)


def _named_values(texts: Iterable[str]) -> dict[str, Any]:
    """Parse NAME=VALUE. A value that is not JSON is text."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in OPTIONS:
            message = (
                f"--set {text}: expected NAME=VALUE, for a setting that has no option of its own"
            )
            raise ConfigurationError(message=message)
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def settings_of(data: Path | None, **overrides: Any) -> Settings:
    with needs("the server"):
        import sqlalchemy  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    from rollbook.server.settings import Settings, default_data_dir

    return Settings.load(data or default_data_dir(), **overrides)


def _listening(settings: Settings) -> socket.socket:
    """Bind the port before anything is created, for the same reason."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # TCP is named because asyncio turns off Nagle's algorithm only for sockets of that protocol
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((settings.host, settings.port))
        bound.set_inheritable(True)
    except OSError as error:
        bound.close()
        other = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        message = f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another {other}"
        raise ConfigurationError(message=message) from error
    return bound


def prepare_database(settings: Settings) -> tuple[Bootstrapped | None, str | None]:
    """What the first start made; later, the token of a sign-in link, while the owner has no password."""
    from rollbook.server.bootstrap import first_start, owner_link
    from rollbook.server.db.migrate import migrate
    from rollbook.server.db.open import open_database

    migrate(settings.database_url)
    with closing(open_database(settings.database_url)) as database:
        made = first_start(database)
        return made, None if made is not None else owner_link(database)


def _print_start(settings: Settings, made: Bootstrapped | None, token: str | None) -> None:
    say(f"Rollbook {__version__} on {settings.local_url}, data in {settings.data_dir}")
    if settings.public_url is not None:
        say(f"clients reach it at {settings.public_url}")
    if made is not None:
        say("\nThis is the first start. The link and the key are shown only once:")
        say(f"  sign in   {_sign_in_link(settings, made.sign_in_token)}")
        say(f"  API key   {made.api_key}\n")
    elif token is not None:
        say("\nThe owner has set no password yet. This link signs in once:")
        say(f"  sign in   {_sign_in_link(settings, token)}\n")


def _sign_in_link(settings: Settings, token: str) -> str:
    return f"{settings.client_url}/sign-in?token={token}"


def _run(settings: Settings, listening: socket.socket) -> None:
    import uvicorn

    from rollbook.server.http.connections import ConnectionLimits, Door
    from rollbook.server.shutdown import PunctualServer, request_grace_s

    options: dict[str, Any] = {
        "http": Door(ConnectionLimits.of(settings)),
        "lifespan": "on",
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,  # the app does it: for `trusted_proxies` only
        "timeout_keep_alive": _KEEP_ALIVE_S,
        "timeout_graceful_shutdown": request_grace_s(settings.shutdown_grace_s),
    }
    left_to_the_server()
    if settings.workers == 1:
        from rollbook.app import create_app

        config = uvicorn.Config(create_app(settings), **options)
        PunctualServer(config, settings.shutdown_grace_s).run([listening])
    else:
        _run_workers(settings, listening, options)


def _run_workers(settings: Settings, listening: socket.socket, options: dict[str, Any]) -> None:
    """Run worker processes, restart those that die, and add up their metrics."""
    import uvicorn

    from rollbook.app import WORKER_SETTINGS
    from rollbook.server.logs import set_up_logs
    from rollbook.server.metrics import of_all_workers, serve_metrics, share_between_workers
    from rollbook.server.supervisor import Supervisor

    os.environ[WORKER_SETTINGS] = json.dumps(settings.portable())
    config = uvicorn.Config(
        "rollbook.app:worker_app", factory=True, workers=settings.workers, **options
    )
    with ExitStack() as stack:
        address = settings.metrics_address
        if address is not None:
            share_between_workers(settings.data_dir / "metrics")
            stack.callback(serve_metrics(address, of_all_workers()))
        Supervisor(
            config,
            [listening],
            log=set_up_logs(settings.log_level),
            grace_s=settings.shutdown_grace_s,
        ).run()


# -------------------------------------------------------------------------------------- maintenance


@app.command()
def bootstrap(
    org: Annotated[str, typer.Option(help="Name of the organisation.")],
    data: Data = None,
    email: Annotated[
        str | None, typer.Option(help="Email address of the owner. Default: a new user is created.")
    ] = None,
    database: DatabaseUrl = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            envvar="ROLLBOOK_PUBLIC_URL", help="URL under which clients reach the server."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create another organisation with an owner and an API key, without starting the server.

    The key and the sign-in link are shown only once.
    """
    settings = settings_of(data, database_url=database, public_url=public_url)
    from rollbook.server.bootstrap import bootstrap as make
    from rollbook.server.db.migrate import migrate
    from rollbook.server.db.open import open_database

    migrate(settings.database_url)
    with closing(open_database(settings.database_url)) as opened:
        made = make(opened, org, email)
    shown = {
        "org_id": made.org_id,
        "org": org,
        "user": {"id": made.user_id, "email": made.email},
        "api_key": made.api_key,
        "sign_in_link": _sign_in_link(settings, made.sign_in_token),
    }
    if as_json:
        print_json(shown)
    else:
        say(f"organisation  {org} ({made.org_id})\nowner         {made.email}")
        say(f"sign in       {shown['sign_in_link']}\nAPI key       {made.api_key}")


@app.command("reset-password")
def reset_password(
    email: Annotated[str, typer.Argument(help="Email address of the user.")],
    data: Data = None,
    database: DatabaseUrl = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            envvar="ROLLBOOK_PUBLIC_URL", help="URL under which clients reach the server."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove the password of a user, and print a one-time link to sign in and set a new one.

    All sessions of the user end. The server may keep running.
    """
    settings = settings_of(data, database_url=database, public_url=public_url)
    from rollbook.server.accounts.password_reset import RESET_LINK_LASTS_S, reset_password as reset
    from rollbook.server.db.migrate import migrate
    from rollbook.server.db.open import open_database
    from rollbook.server.http.responses import wire_time

    migrate(settings.database_url)
    with closing(open_database(settings.database_url)) as opened:
        done = reset(opened, email)
    link = f"{settings.client_url}/sign-in?token={done.sign_in_token}&next=/password"
    if as_json:
        user = {"id": done.user_id, "email": done.email}
        expires_at = wire_time(done.expires_at_us)
        print_json({"user": user, "sign_in_link": link, "expires_at": expires_at})
    else:
        say(f"The password of {done.email} is removed, and all sessions have ended.")
        say(f"one-time link, valid for {RESET_LINK_LASTS_S // 60} minutes: {link}")


@app.command("rename-organisation")
def rename_organisation(
    org_id: Annotated[str, typer.Argument(help="Id of the organisation.")],
    name: Annotated[str, typer.Argument(help="New name.")],
    data: Data = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give an organisation another name. Its id, keys and data stay the same."""
    settings = settings_of(data, database_url=database)
    row = _change_organisation(settings, org_id, lambda scope: scope.rename_organisation(name))
    if as_json:
        print_json({"org_id": row.id, "org": row.name})
    else:
        say(f"organisation  {row.name} ({row.id})")


@app.command()
def organisations(data: Data = None, database: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """List the organisations, what each stores, and its own limits."""
    settings = settings_of(data, database_url=database)
    from rollbook.server.db.engine import NOBODY, Tenant
    from rollbook.server.db.migrate import migrate
    from rollbook.server.db.open import open_database
    from rollbook.server.queries import Scope as ScopeOf, organisation_ids

    def about(connection: Connection, org_id: str) -> dict[str, Any]:
        scope = ScopeOf(connection, org_id)
        row, usage = scope.organisation(), scope.quota_usage()
        stored = {"episodes": usage.episodes, "bytes": usage.bytes}
        limits = {"quota_episodes": usage.quota_episodes, "quota_bytes": usage.quota_bytes}
        return {"org_id": org_id, "org": None if row is None else row.name, **stored, **limits}

    migrate(settings.database_url)
    with closing(open_database(settings.database_url)) as opened:
        found = [
            opened.read_now(Tenant(org_id=each), partial(about, org_id=each))
            for each in opened.read_now(NOBODY, organisation_ids)
        ]
    columns = {name: name.replace("_", " ") for name in (found[0] if found else ("org_id",))}
    print_limited(found, columns, 0, as_json)


@app.command("set-quota")
def set_quota(
    org_id: Annotated[str, typer.Argument(help="Id of the organisation.")],
    episodes: Annotated[
        int | None,
        typer.Option(help="Maximum number of episodes. Default: the server's own limit."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option("--bytes", help="Maximum number of bytes. Default: the server's own limit."),
    ] = None,
    data: Data = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Limit how many episodes and bytes an organisation may keep.

    Both limits are set: a limit that is not given is removed, and the server's own limit counts.
    """
    settings = settings_of(data, database_url=database)
    row = _change_organisation(
        settings, org_id, lambda scope: scope.set_quota(episodes=episodes, bytes_=size)
    )
    if as_json:
        limits = {"quota_episodes": row.quota_episodes, "quota_bytes": row.quota_bytes}
        print_json({"org_id": row.id, "org": row.name, **limits})
    else:
        of_server = "the server's limit"
        say(f"organisation  {row.name} ({row.id})")
        say(f"episodes      {of_server if episodes is None else episodes}")
        say(f"bytes         {of_server if size is None else shown_bytes(size)}")


def _change_organisation(
    settings: Settings, org_id: str, change: Callable[[Scope], None]
) -> OrganisationRow:
    from rollbook.server.db.engine import Tenant
    from rollbook.server.db.migrate import migrate
    from rollbook.server.db.open import open_database
    from rollbook.server.queries import Scope as ScopeOf

    def work(connection: Connection) -> OrganisationRow | None:
        scope = ScopeOf(connection, org_id)
        if scope.organisation() is not None:
            change(scope)
            scope.audit("organisation.changed", actor="operator", subject=org_id)
        return scope.organisation()

    migrate(settings.database_url)
    with closing(open_database(settings.database_url)) as opened:
        row = opened.write_now(Tenant(org_id=org_id), work)
    if row is None:
        raise ConfigurationError(message=f"there is no organisation {org_id!r}; check its id")
    return row


@app.command()
def migrate(data: Data = None, database: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Migrate the database to the schema of this release. The server also does this when it starts."""
    settings = settings_of(data, database_url=database)
    from rollbook.server.db.migrate import HEAD, migrate as bring_up

    applied = bring_up(settings.database_url)
    if as_json:
        print_json({"applied": applied, "revision": HEAD})
    else:
        say(f"applied {', '.join(applied)}" if applied else f"nothing to do, at {HEAD}")


@app.command()
def doctor(
    data: Data = None,
    database: DatabaseUrl = None,
    blobs: Blobs = None,
    s3_endpoint: S3Endpoint = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Look for every object of the blob store, not for a sample."),
    ] = False,
    store_root: StoreRoots = None,
    as_json: AsJson = False,
) -> None:
    """Check the data folder, the database and the blob store, and say how to repair what is wrong."""
    settings = settings_of(
        data,
        database_url=database,
        blobs_url=blobs,
        s3_endpoint=s3_endpoint,
        store_roots=store_root,
    )
    from rollbook.server.doctor import examine

    print_findings(examine(settings, deep=deep), as_json=as_json)


@app.command()
def backup(
    out: Annotated[Path, typer.Argument(help="Folder to create; it must not exist yet.")],
    data: Data = None,
    database: DatabaseUrl = None,
    blobs: Blobs = None,
    s3_endpoint: S3Endpoint = None,
    objects: Annotated[
        bool, typer.Option("--objects", help="Also copy the objects of S3, not only their list.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the database, the secret, the list of objects and local blobs into one folder.

    The server may keep running. PostgreSQL is copied by pg_dump, with a role that sees all organisations.
    """
    settings = settings_of(data, database_url=database, blobs_url=blobs, s3_endpoint=s3_endpoint)
    from rollbook.server.backup import backup as back_up

    _print_backup(back_up(settings, out, objects=objects), "backed up to", out, as_json)


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="Folder that `rollbook server backup` created.")],
    data: Data = None,
    database: Annotated[
        str | None,
        typer.Option(help="URL of an empty PostgreSQL database, for a backup of PostgreSQL."),
    ] = None,
    blobs: Annotated[
        str | None,
        typer.Option(
            help="Where to put the objects: s3://bucket/prefix. Default: the data folder."
        ),
    ] = None,
    s3_endpoint: S3Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Create a data folder from a backup and verify every byte. The folder must not exist yet."""
    from rollbook.server.backup import restore as bring_back
    from rollbook.server.settings import default_data_dir

    if not source.exists():
        message = (
            f"there is nothing at {source}; name a folder that `rollbook server backup` created"
        )
        raise ConfigurationError(message=message)
    target = data or default_data_dir()
    found = bring_back(
        source, target, database_url=database, blobs_url=blobs, s3_endpoint=s3_endpoint
    )
    _print_backup(found, "restored to", target, as_json)


def _print_backup(made: Backup, done: str, where: Path, as_json: bool) -> None:
    if as_json:
        shown = {"path": str(where), "made_at": made.made_at, "revision": made.revision}
        print_json({**shown, "files": len(made.files), "bytes": made.size, "notes": made.notes})
        return
    say(f"{done} {where}: {len(made.files)} files, {shown_bytes(made.size)}")
    for note in made.notes:
        say(f"note: {note}", err=True)
