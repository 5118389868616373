"""`rollbook server retention …`: policies that delete old episodes, and legal holds, without starting the server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rollbook.cli.output import AsJson, print_done, print_json, print_limited, say, shown_bytes
from rollbook.cli.serve import Data, DatabaseUrl, settings_of
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from rollbook.server.queries import Scope
    from rollbook.server.settings import Settings

T = TypeVar("T")

app = typer.Typer(
    help="Delete old episodes by policy, and keep episodes by legal hold.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

OrgId = Annotated[str, typer.Argument(help="Id of the organisation.")]
_OPERATOR = "operator"


class Source(StrEnum):
    real = "real"
    sim = "sim"
    replay = "replay"


OlderThan = Annotated[
    int, typer.Option("--older-than-days", min=1, help="Days since an episode was created.")
]
OfSource = Annotated[Source | None, typer.Option(help="Only episodes of this source.")]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", help="Only episodes with this tag; can be given several times."),
]


@app.command()
def add(
    org_id: OrgId,
    older_than_days: OlderThan,
    source: OfSource = None,
    tags: Tags = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the policy would delete; add nothing.")
    ] = False,
    data: Data = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Add a policy. The server deletes the episodes that match it, at its next upkeep and from then on.

    Scenarios, episodes of open eval runs and episodes under legal hold stay.
    """
    from msgspec import to_builtins

    from rollbook.server.episodes.retention import preview

    def work(scope: Scope) -> dict[str, Any]:
        policy = scope.new_retention_policy(older_than_days, source, tags or (), _OPERATOR)
        shown = to_builtins(preview(scope, policy))
        if not dry_run:
            scope.add_retention_policy(policy)
            said = {"older_than_days": older_than_days, "source": source, "tags": policy.tags}
            scope.audit("retention.created", actor=_OPERATOR, subject=policy.id, detail=said)
        return {"policy_id": None if dry_run else policy.id, **shown}

    done = _in_organisation(settings_of(data, database_url=database), org_id, work)
    if as_json:
        print_json(done)
        return
    if not dry_run:
        say(f"policy     {done['policy_id']}")
    say(
        f"due now    {done['episode_count']} episodes, {shown_bytes(done['bytes'])}; "
        f"{done['protected_count']} more match and are protected"
    )
    for each in done["episodes"] if dry_run else ():
        name = each["name"] or ""
        say(f"{each['created_at']}  {each['id']}  {shown_bytes(each['bytes'])}  {name}")


@app.command("list")
def list_(
    org_id: OrgId, data: Data = None, database: DatabaseUrl = None, as_json: AsJson = False
) -> None:
    """List the policies of an organisation, and how much each would delete now."""

    def work(scope: Scope) -> list[dict[str, Any]]:
        rows = []
        for policy in scope.retention_policies():
            episodes, size, protected = scope.count_due(policy)
            about = {"older_than_days": policy.older_than_days, "source": policy.source}
            counts = {"due_episodes": episodes, "due_bytes": size, "protected": protected}
            rows.append({"id": policy.id, **about, "tags": policy.tags, **counts})
        return rows

    found = _in_organisation(settings_of(data, database_url=database), org_id, work)
    print_limited(found, _COLUMNS, 0, as_json)


_COLUMNS = {
    "id": "policy",
    "older_than_days": "days",
    "source": "source",
    "tags": "tags",
    "due_episodes": "due",
    "due_bytes": "bytes",
    "protected": "protected",
}


@app.command()
def remove(
    org_id: OrgId,
    policy_id: Annotated[str, typer.Argument(help="Id of the policy.")],
    data: Data = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove a policy. Episodes stay."""

    def work(scope: Scope) -> bool:
        removed = scope.delete_retention_policy(policy_id)
        if removed:
            scope.audit("retention.deleted", actor=_OPERATOR, subject=policy_id)
        return removed

    settings = settings_of(data, database_url=database)
    if not _in_organisation(settings, org_id, work):
        raise ConfigurationError(message=f"there is no policy {policy_id!r}; check its id")
    print_done({"policy_id": policy_id, "removed": True}, f"removed {policy_id}", as_json)


@app.command()
def hold(
    org_id: OrgId,
    episode_id: Annotated[str, typer.Argument(help="Id of the episode.")],
    reason: Annotated[str, typer.Option(help="Why it must be kept; shown to admins.")],
    data: Data = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Put an episode under legal hold: nobody can delete it until the hold is lifted."""

    def work(scope: Scope) -> bool:
        held = scope.hold_episode(episode_id, reason, _OPERATOR)
        if held is not None:
            detail = {"reason": reason}
            scope.audit("hold.set", actor=_OPERATOR, subject=episode_id, detail=detail)
        return held is not None

    if not _in_organisation(settings_of(data, database_url=database), org_id, work):
        raise ConfigurationError(message=f"there is no episode {episode_id!r}; check its id")
    print_done({"episode_id": episode_id, "held": True}, f"{episode_id} is held", as_json)


@app.command("lift-hold")
def lift_hold(
    org_id: OrgId,
    episode_id: Annotated[str, typer.Argument(help="Id of the episode.")],
    data: Data = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Lift a legal hold."""

    def work(scope: Scope) -> bool:
        lifted = scope.lift_hold(episode_id)
        if lifted:
            scope.audit("hold.lifted", actor=_OPERATOR, subject=episode_id)
        return lifted

    if not _in_organisation(settings_of(data, database_url=database), org_id, work):
        message = f"episode {episode_id!r} is not under legal hold; check its id"
        raise ConfigurationError(message=message)
    print_done({"episode_id": episode_id, "held": False}, f"{episode_id} is free", as_json)


def _in_organisation(settings: Settings, org_id: str, work: Callable[[Scope], T]) -> T:
    from rollbook.server.db.engine import Tenant
    from rollbook.server.db.migrate import migrate
    from rollbook.server.db.open import open_database
    from rollbook.server.queries import Scope as ScopeOf

    def scoped(connection: Connection) -> T:
        scope = ScopeOf(connection, org_id)
        if scope.organisation() is None:
            raise ConfigurationError(message=f"there is no organisation {org_id!r}; check its id")
        return work(scope)

    migrate(settings.database_url)
    with closing(open_database(settings.database_url)) as opened:
        return opened.write_now(Tenant(org_id=org_id), scoped)
