"""Leases: who does work that one process of all does, and when it is due again. They belong to no tenant."""

from __future__ import annotations

import sqlalchemy as sa

from rollbook.server.db import statements, tables
from rollbook.server.queries.accounts import name_row


def take_lease(
    connection: sa.Connection, name: str, holder: str, *, now_us: int, until_us: int
) -> int | None:
    """None when `holder` has the lease now. Else when to ask again: the work is not due before, or somebody does it."""
    name_row(connection, name)
    table = tables.leases
    taken = {"name": name, "holder": holder, "until_us": until_us}
    if statements.insert_new(connection, table, taken):
        return None
    statement = (
        sa.update(table)
        .where(table.c.name == name, table.c.until_us <= now_us)
        .values(holder=holder, until_us=until_us)
    )
    if connection.execute(statement).rowcount == 1:
        return None
    row = statements.first(connection, table, {"name": name})
    return until_us if row is None else int(row.until_us)


def renew_lease(connection: sa.Connection, name: str, holder: str, *, until_us: int) -> bool:
    """False when another process took it, because this one was late."""
    name_row(connection, name)
    return (
        statements.update(
            connection, tables.leases, {"until_us": until_us}, {"name": name, "holder": holder}
        )
        == 1
    )


def end_lease(connection: sa.Connection, name: str, holder: str, *, due_us: int) -> bool:
    """Gives it back. Nobody does the work again before `due_us`. False when another process has it."""
    name_row(connection, name)
    return (
        statements.update(
            connection,
            tables.leases,
            {"holder": None, "until_us": due_us},
            {"name": name, "holder": holder},
        )
        == 1
    )
