"""What the tables are made of: column types, columns that many tables have, ids and times.

Times are microseconds since 1970 in UTC, so that both databases order them alike; ids are text.
"""

from __future__ import annotations

import os
import time
from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class WholeNumber(sa.TypeDecorator[int]):
    """An integer of any size, stored as its digits: SQLite would turn one beyond 64 bits into a float."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else str(int(value))

    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> int | None:
        return None if value is None else int(value)


Json = sa.JSON(none_as_null=True)
"""Not jsonb, which rewrites numbers (1e22 becomes an integer): values are read as they were logged."""


def now_us() -> int:
    return time.time_ns() // 1000


def new_id() -> str:
    """A version 7 UUID: new ids sort after old ones, so rows written together are close in an index."""
    microseconds = now_us()
    milliseconds, rest = divmod(microseconds, 1000)
    random = int.from_bytes(os.urandom(8), "big") >> 2
    number = milliseconds << 80 | 7 << 76 | rest * 4096 // 1000 << 64 | 0b10 << 62 | random
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def org() -> sa.Column[str]:
    return sa.Column(
        "org_id", sa.Text, sa.ForeignKey("organisations.id", ondelete="CASCADE"), nullable=False
    )


def org_of_parent() -> sa.Column[str]:
    """For a table whose reference to another row of the tenant already leads to the organisation."""
    return text("org_id", required=True)


def user() -> sa.Column[str]:
    return sa.Column(
        "user_id", sa.Text, sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False
    )


def text(name: str, *, required: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=not required)


def time_column(name: str, *, required: bool = True) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=not required)


def count(name: str) -> sa.Column[int]:
    """A number of things, of which there are none at first. A migration adds it to rows that exist."""
    return sa.Column(name, sa.Integer, nullable=False, server_default="0")


def flag(name: str) -> sa.Column[bool]:
    """Something that is not so at first. A migration adds it to rows that exist."""
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())


def within_tenant(parent: str, column: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["org_id", column], [f"{parent}.org_id", f"{parent}.id"], ondelete="CASCADE"
    )
