"""Tenants for tests of the database: an organisation with an owner, and a way to ask as it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rollbook.server.db.columns import new_id, now_us
from rollbook.server.db.engine import Database, Tenant
from rollbook.server.queries import EpisodeRow, Scope, create_organisation, create_user

T = TypeVar("T")


@dataclass(frozen=True)
class Organisation:
    database: Database
    org_id: str
    owner_id: str

    def write(self, work: Callable[[Scope], T]) -> T:
        return self.database.write_now(
            Tenant(org_id=self.org_id), lambda connection: work(Scope(connection, self.org_id))
        )

    def read(self, work: Callable[[Scope], T]) -> T:
        return self.database.read_now(
            Tenant(org_id=self.org_id), lambda connection: work(Scope(connection, self.org_id))
        )

    def at(self, moment_us: int, work: Callable[[Scope], T]) -> T:
        """As if the clock stood there."""
        return self.database.write_now(
            Tenant(org_id=self.org_id),
            lambda connection: work(Scope(connection, self.org_id, lambda: moment_us)),
        )

    def episode(self, **values: Any) -> EpisodeRow:
        return self.write(lambda scope: scope.create_episode(values))


def new_organisation(database: Database, name: str = "Acme") -> Organisation:
    org_id = new_id()

    def make(connection: Any) -> str:
        create_organisation(connection, org_id, name)
        owner = create_user(connection, f"owner@{org_id}.example")
        Scope(connection, org_id).add_member(owner.id, "owner")
        return owner.id

    owner_id = database.write_now(Tenant(org_id=org_id), make)
    return Organisation(database, org_id, owner_id)


def in_seconds(seconds: float) -> int:
    """That many from now, as the tables keep it."""
    return now_us() + int(seconds * 1_000_000)
