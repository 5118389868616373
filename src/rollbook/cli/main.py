"""`rollbook`: the command a person types."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rollbook import __version__
from rollbook.cli import (
    contracts,
    episodes,
    generate,
    keys,
    login,
    replay,
    serve,
    source,
    store,
    verify,
)
from rollbook.cli.output import USAGE, VIOLATIONS, print_error
from rollbook.errors import ConfigurationError, RollbookError

app = typer.Typer(
    name="rollbook",
    help="The book of record for policy rollouts: record, prove, train, replay, decide.",
    epilog="Start with `rollbook contracts check`: it runs the whole contract loop in a second.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(contracts.app, name="contracts")
app.command()(serve.serve)
app.add_typer(serve.app, name="server")
app.command()(login.login)
app.command()(login.logout)
app.command()(login.whoami)
app.add_typer(episodes.app, name="episodes")
app.add_typer(keys.app, name="keys")
app.add_typer(source.app, name="source")
app.add_typer(generate.app, name="generate")
app.add_typer(store.app, name="store")
app.add_typer(replay.app, name="replay")
app.add_typer(verify.app, name="verify")


def _version(asked: bool) -> None:
    if asked:
        print(f"rollbook {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    try:
        app()
    except RollbookError as error:
        print_error(error)
        sys.exit(USAGE if isinstance(error, ConfigurationError) else VIOLATIONS)
