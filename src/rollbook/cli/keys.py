"""`rollbook keys …`: API keys of your organisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli.login import PendingLogin, ProfileName, Scope, call, connection_of
from rollbook.cli.output import AsJson, print_json, print_limited, say
from rollbook.errors import ConfigurationError, ServerError

if TYPE_CHECKING:
    from rollbook.contracts.wire.keys import Ended, KeyCreated, Left

app = typer.Typer(
    help="Create, list and revoke API keys.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def create(
    label: Annotated[
        str | None, typer.Option(help="Where the key is used, such as the name of a robot.")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Same as --scope read.")] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
    scope: Annotated[
        Scope | None,
        typer.Option(
            help="What the key may do. ingest: record episodes, and read those. read: read everything. write: record, "
            "read and evaluate. admin: also change scenarios and webhooks, and delete what others recorded. "
            "Default: ingest."
        ),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the link without opening a browser.")
    ] = False,
) -> None:
    """Create an API key. You approve it in the browser. It is printed once and cannot be shown again."""
    import msgspec

    made = _made(profile, label, _wanted_scope(scope, read_only), no_browser)
    if as_json:
        print_json(msgspec.to_builtins(made))
    else:
        say(made.api_key)
        say("Store the key in a safe place: it is not shown again.", err=True)


def _wanted_scope(scope: Scope | None, read_only: bool) -> Scope:
    if read_only and scope not in (None, Scope.READ):
        raise ConfigurationError(message="--read-only means --scope read; give one of the two")
    return scope or (Scope.READ if read_only else Scope.INGEST)


def _made(profile: str, label: str | None, scope: Scope, no_browser: bool) -> KeyCreated:
    """A device login for another machine: only a person can make a key."""
    from rollbook.contracts.wire.keys import KeyCreated

    with connection_of(profile) as connection:
        waiting = PendingLogin.start(connection, scope=scope, label=label)
        say(waiting.invitation(f"create a key with the scope {scope}"), err=True)
        if not no_browser:
            waiting.open_browser()
        approved = waiting.approved()
    if approved.api_key is None or approved.key is None:
        message = (
            "the server knows no scopes of keys; update it, and revoke the key that it just made"
        )
        raise ServerError(status_code=200, message=message)
    return KeyCreated(approved.api_key, approved.key)


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
    "scope": "scope",
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
    """Revoke a key and what it made. It stops working at once and cannot be restored.

    A key of this machine can revoke itself. To revoke others, log in with --scope admin, or use the page of the server.
    """
    import msgspec

    from rollbook.contracts.wire.keys import KeyRevoked

    with connection_of(profile) as connection:
        path = f"/api/keys/{_id_in(key)}"
        ended = call(connection, "revoke the key", "DELETE", path, KeyRevoked)
    if as_json:
        print_json(msgspec.to_builtins(ended))
        return
    say(f"revoked {ended.key_prefix}")
    if ended.ended is not None:
        _print_counts("also ended", ended.ended)
    if ended.left is not None:
        _print_counts("made with this key, and kept", ended.left)


def _print_counts(heading: str, made: Ended | Left) -> None:
    import msgspec

    facts = msgspec.to_builtins(made).items()
    counts = {name: len(each) if isinstance(each, list) else each for name, each in facts}
    told = [f"{number} {name.replace('_', ' ')}" for name, number in counts.items() if number]
    if told:
        say(f"{heading}: {', '.join(told)}")


def _id_in(text: str) -> str:
    """The id in a key or a prefix. Only the id is sent, because the path of a request is logged."""
    key_id = text.strip().split("_")[1] if "_" in text else text.strip()
    if not (key_id.isascii() and key_id.isalnum()):
        raise ConfigurationError(
            message="this is not the id of a key; `rollbook keys list` prints the ids"
        )
    return key_id
