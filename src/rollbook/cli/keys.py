"""`rollbook keys …`: API keys of the organisation that the key in use belongs to."""

from __future__ import annotations

from typing import Annotated

import typer

from rollbook.cli.login import AsJson, ProfileName, call, connection_of
from rollbook.cli.output import print_json, print_limited
from rollbook.errors import ConfigurationError

app = typer.Typer(
    help="Make, list and revoke API keys.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def create(
    label: Annotated[
        str | None, typer.Option(help="Where it is used, so that it can be told from others.")
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="A key that reads and changes nothing.")
    ] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown once."""
    import msgspec

    from rollbook.contracts.wire.keys import KeyCreated

    body = {"label": label, "role": "viewer" if read_only else "member"}
    with connection_of(profile) as connection:
        made = call(connection, "make a key", "POST", "/api/keys", KeyCreated, body)
    if as_json:
        print_json(msgspec.to_builtins(made))
    else:
        typer.echo(made.api_key)
        typer.echo("Keep it somewhere safe: it is not shown again.", err=True)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=0, help="Keys to show; 0 for all.")] = 50,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Keys of the organisation, the newest first. Revoked ones stay listed."""
    import msgspec

    from rollbook.contracts.wire.keys import KeyList

    with connection_of(profile) as connection:
        found = call(connection, "list keys", "GET", "/api/keys", KeyList)
    print_limited([msgspec.structs.asdict(each) for each in found.keys], _COLUMNS, limit, as_json)


_COLUMNS = {
    "key_prefix": "key",
    "role": "role",
    "created_at": "created",
    "last_used_at": "last used",
    "revoked_at": "revoked",
    "label": "label",
}


@app.command()
def revoke(
    key: Annotated[
        str, typer.Argument(help="Its id, as listed; with or without what stands before it.")
    ],
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """End a key, at once and for good."""
    import msgspec

    from rollbook.contracts.wire.keys import KeyRevoked

    with connection_of(profile) as connection:
        path = f"/api/keys/{_id_in(key)}"
        ended = call(connection, "revoke the key", "DELETE", path, KeyRevoked)
    if as_json:
        print_json(msgspec.structs.asdict(ended))
    else:
        typer.echo(f"revoked {ended.key_prefix}")


def _id_in(text: str) -> str:
    """Of a whole key only the id is sent: a secret has no place in the path of a request."""
    key_id = text.strip().split("_")[1] if "_" in text else text.strip()
    if not (key_id.isascii() and key_id.isalnum()):
        raise ConfigurationError(message="that is no key; `rollbook keys list` shows their ids")
    return key_id
