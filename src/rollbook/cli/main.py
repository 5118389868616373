"""`rollbook`: the command line."""

from __future__ import annotations

import copy
import sys
from functools import cache
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from rollbook import __version__
from rollbook.cli import (
    contracts,
    episodes,
    gates,
    generate,
    keys,
    lineage,
    login,
    retention,
    serve,
    source,
    store,
    store_bridges,
    verify,
)
from rollbook.cli.campaigns import campaign
from rollbook.cli.demo.demo import demo
from rollbook.cli.exit_codes import exit_code_of
from rollbook.cli.output import print_error, say
from rollbook.cli.plain_text import make_output_safe
from rollbook.cli.recordings import exporting, importing
from rollbook.cli.replays import replay
from rollbook.cli.termination import ended_by_signals
from rollbook.cli.training import training
from rollbook.errors import RollbookError
from rollbook.lazy import missing_extra

START, RECORD, STORE, GENERATE, TRAIN = "Start", "Record", "Store", "Generate", "Train"
REPLAY, OPERATE = "Replay", "Operate"


class GroupedCommands(TyperGroup):
    """Lists commands under the headings of their `rich_help_panel`, without rich: help has to be quick."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        longest = max(map(len, self.commands))
        room = formatter.width - 6 - longest
        for name, command in self.commands.items():
            panel = panels.setdefault(getattr(command, "rich_help_panel", ""), [])
            panel.append((name.ljust(longest), command.get_short_help_str(room)))
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl(rows)


app = typer.Typer(
    cls=GroupedCommands,
    name="rollbook",
    help="""The book of record for policy rollouts: record, prove, train, replay, decide.

    \b
    You are new here:
      rollbook demo                  the whole loop in two minutes

    \b
    You record a robot or a simulator:
      rollbook serve                 start a server, get an API key
      rollbook login                 keep the key on this machine
      rollbook episodes list         after rollbook.log_episode(...) in Python
      rollbook replay run --help     compare a new policy with the episodes
      rollbook import --help         bring recordings of other tools

    \b
    You generate rollouts and train on them:
      rollbook source make flats     make furnished flats, or import scans
      rollbook generate run --help   rollouts in them, into a store
      rollbook store audit --help    look at a store as a page
      rollbook train run --help      train a policy on a store

    \b
    You have rollouts and batches of an RL trainer:
      rollbook contracts check rollouts.jsonl batch.json
      rollbook contracts convert rollouts.jsonl rollouts.table
      rollbook contracts lineage rollouts.jsonl batch.json
    """,
    epilog="`rollbook COMMAND --help` describes a command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},  # commands inherit it
)
app.command(rich_help_panel=START)(demo)
app.command(rich_help_panel=RECORD)(serve.serve)
app.command(rich_help_panel=RECORD)(login.login)
app.command(rich_help_panel=RECORD)(login.whoami)
app.command(rich_help_panel=RECORD)(login.logout)
app.add_typer(episodes.app, name="episodes", rich_help_panel=RECORD)
app.add_typer(importing.app, name="import", rich_help_panel=RECORD)
app.add_typer(exporting.app, name="export", rich_help_panel=RECORD)
app.add_typer(store.app, name="store", rich_help_panel=STORE)
app.add_typer(contracts.app, name="contracts", rich_help_panel=STORE)
app.add_typer(source.app, name="source", rich_help_panel=GENERATE)
app.add_typer(generate.app, name="generate", rich_help_panel=GENERATE)
app.add_typer(campaign.app, name="campaign", rich_help_panel=GENERATE)
app.add_typer(training.app, name="train", rich_help_panel=TRAIN)
app.add_typer(replay.app, name="replay", rich_help_panel=REPLAY)
app.add_typer(verify.app, name="verify", rich_help_panel=REPLAY)
app.add_typer(gates.app, name="gates", rich_help_panel=REPLAY)
store.app.command("to-artifacts")(store_bridges.to_artifacts)
app.add_typer(lineage.app, name="lineage", rich_help_panel=REPLAY)
store.app.command("push")(store_bridges.push)
serve.app.add_typer(retention.app, name="retention")
app.add_typer(serve.app, name="server", rich_help_panel=OPERATE)
app.add_typer(keys.app, name="keys", rich_help_panel=OPERATE)


def _version(asked: bool) -> None:
    if asked:
        say(f"rollbook {__version__}")
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
    make_output_safe()
    with ended_by_signals():
        _run()


@cache
def _command(group: str | None) -> Any:
    """The whole command line, or one group of it: building all groups takes longer than most commands do."""
    if group is None:
        return typer.main.get_command(app)
    chosen = copy.copy(app)
    chosen.registered_groups = [each for each in app.registered_groups if each.name == group]
    chosen.registered_commands = []
    return typer.main.get_command(chosen)


def _run() -> None:
    groups = {each.name for each in app.registered_groups}
    try:
        _command(next((each for each in sys.argv[1:2] if each in groups), None))()
    except RollbookError as error:
        _fail(error)
    except ImportError as error:
        told = missing_extra(error, "this command")
        if not isinstance(told, RollbookError):
            raise
        _fail(told)


def _fail(error: RollbookError) -> NoReturn:
    print_error(error)
    sys.exit(exit_code_of(error))
