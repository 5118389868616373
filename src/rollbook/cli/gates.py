"""`rollbook gates …`: gates that an organisation locks, so that no author of a run can weaken them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from rollbook.cli.login import ProfileName
from rollbook.cli.output import AsJson, print_done, print_json, print_limited, say
from rollbook.cli.replays.replay_arguments import gate_in
from rollbook.cli.replays.replay_run import client_of

app = typer.Typer(
    help="Lock gates for the whole organisation.", no_args_is_help=True, rich_markup_mode=None
)

GateName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the locked gate.")]


@app.command("list")
def list_(profile: ProfileName = "default", as_json: AsJson = False) -> None:
    """List the locked gates. A run without --gate-name gets the one called default, or the only one."""
    from msgspec import to_builtins

    from rollbook.contracts.wire.gates import LockedGateList
    from rollbook.evals.server_calls import ask

    with client_of(profile) as client:
        found = ask(client, LockedGateList, "list locked gates", "GET", "/api/gates")
    print_limited(to_builtins(found.gates), _COLUMNS, 0, as_json)


_COLUMNS = {
    "name": "name",
    "gate_digest": "gate",
    "locked_at": "locked",
    "locked_by": "by",
}


@app.command()
def show(name: GateName, profile: ProfileName = "default", as_json: AsJson = False) -> None:
    """Print a locked gate: as TOML, to edit and pass to --gate-file, or as JSON."""
    from msgspec import to_builtins

    from rollbook.cli.replays.replay import gate_toml
    from rollbook.contracts.wire.gates import LockedGateAnswer
    from rollbook.evals.server_calls import ask

    with client_of(profile) as client:
        found = ask(client, LockedGateAnswer, "read the locked gate", "GET", _path(name))
    if as_json:
        print_json(to_builtins(found))
        return
    say(gate_toml(found.gate))
    say(f"gate {found.gate_digest}", err=True)


@app.command()
def lock(
    name: GateName,
    gate_file: Annotated[
        Path,
        typer.Option(help="JSON or TOML file with the gate. `rollbook replay gate` prints one."),
    ],
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Lock a gate, or replace the one of that name. Owners, admins and keys with the scope admin may do this.

    \b
    rollbook replay gate --toml > release.toml
    rollbook gates lock default --gate-file release.toml

    From then on no run of the organisation is judged by a weaker gate. Runs that exist keep theirs.
    """
    from msgspec import to_builtins

    from rollbook.contracts.wire.gates import LockedGateAnswer
    from rollbook.evals.server_calls import ask

    gate: dict[str, Any] = {"gate": gate_in(gate_file).as_dict()}
    with client_of(profile) as client:
        locked = ask(client, LockedGateAnswer, "lock the gate", "PUT", _path(name), body=gate)
    print_done(to_builtins(locked), f"locked {locked.name}: gate {locked.gate_digest}", as_json)


@app.command()
def unlock(name: GateName, profile: ProfileName = "default", as_json: AsJson = False) -> None:
    """Unlock a gate. Runs that were created with it keep it."""
    from msgspec import to_builtins

    from rollbook.contracts.wire.gates import GateUnlocked
    from rollbook.evals.server_calls import ask

    with client_of(profile) as client:
        done = ask(client, GateUnlocked, "unlock the gate", "DELETE", _path(name))
    print_done(to_builtins(done), f"unlocked {done.name}", as_json)


def _path(name: str) -> str:
    return f"/api/gates/{quote(name, safe='')}"
