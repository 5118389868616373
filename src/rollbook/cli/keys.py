"""`rollbook keys …`: API keys of your organisation."""

from __future__ import annotations

from typing import Annotated

import typer

from rollbook.cli.login import ProfileName, call, connection_of
from rollbook.cli.output import AsJson, print_json, print_limited
from rollbook.errors import ConfigurationError

app = typer.Typer(
    help="Create, list and revoke API keys.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def create(
    label: Annotated[
        str | None, typer.Option(help="Where the key is used, such as the name of a robot.")
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="The key may read, but not write.")
    ] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Create an API key. The key is printed once and cannot be shown again."""
    import msgspec

    from rollbook.contracts.wire.keys import KeyCreated

    body = {"label": label, "role": "viewer" if read_only else "member"}
    with connection_of(profile) as connection:
        made = call(connection, "make a key", "POST", "/api/keys", KeyCreated, body)
    if as_json:
        print_json(msgspec.to_builtins(made))
    else:
        typer.echo(made.api_key)
        typer.echo("Store the key in a safe place: it is not shown again.", err=True)


@app.command("list")
def list_(
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of keys to list; 0 lists all.")
    ] = 50,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """List the keys of the organisation, newest first. Revoked keys stay listed."""
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
        str, typer.Argument(help="Id or prefix of the key, as `rollbook keys list` prints it.")
    ],
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Revoke a key. It stops working at once and cannot be restored."""
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
    """The id in a key or a prefix. Only the id is sent, because the path of a request is logged."""
    key_id = text.strip().split("_")[1] if "_" in text else text.strip()
    if not (key_id.isascii() and key_id.isalnum()):
        raise ConfigurationError(
            message="this is not the id of a key; `rollbook keys list` prints the ids"
        )
    return key_id
