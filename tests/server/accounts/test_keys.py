"""What an API key looks like, and what is recognised as one."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from rollbook.server.accounts.callers import caller_of
from rollbook.server.accounts.keys import (
    KEY_SCOPES,
    PREFIX_OF_SCOPE,
    hash_of,
    matches,
    new_api_key,
    parse_api_key,
    role_of_scope,
    scope_of_key,
    shown_prefix,
)
from rollbook.server.bootstrap import bootstrap
from rollbook.server.context import ServerContext
from rollbook.server.db.engine import Tenant
from rollbook.server.db.sqlite import SqliteDatabase
from rollbook.server.http.responses import Problem
from tests.server.episodes.server_without_http import Server

_SECRET = "Ab-_" * 10 + "xyz"


@pytest.mark.parametrize("prefix", KEY_SCOPES)
def test_a_new_key_is_its_prefix_a_public_id_and_a_secret(prefix: str) -> None:
    full, key_id, stored = new_api_key(prefix)
    assert re.fullmatch(rf"{prefix}_[0-9A-Za-z]{{10}}_[0-9A-Za-z_-]{{43}}", full)
    assert full.split("_")[1] == key_id
    assert stored == hashlib.sha256(full.encode()).hexdigest()
    assert parse_api_key(full) == (key_id, full)
    assert matches(full, stored)


def test_keys_are_of_the_public_clients_kind_unless_asked_otherwise() -> None:
    assert new_api_key()[0].startswith("rt_")


def test_no_two_keys_are_alike() -> None:
    keys = [new_api_key() for _ in range(500)]
    assert len({full for full, _, _ in keys}) == len({key_id for _, key_id, _ in keys}) == 500


def test_a_prefix_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ValueError, match="rt, rb, ri, rv, ra"):
        new_api_key("sk")


def test_a_secret_may_hold_underscores() -> None:
    assert parse_api_key(f"rt_0123456789_{_SECRET}") == (
        "0123456789",
        f"rt_0123456789_{_SECRET}",
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rt_",
        f"rt_012345678_{_SECRET}",
        f"rt_01234567890_{_SECRET}",
        f"rt_0123456789_{_SECRET[:-1]}",
        f"rt_0123456789_{_SECRET}x",
        f"RT_0123456789_{_SECRET}",
        f"sk_0123456789_{_SECRET}",
        f"rt_01234_6789_{_SECRET}",
        f"rt_0123456789_{_SECRET[:-1]}é",
        f"rt_٠١٢٣٤٥٦٧٨٩_{_SECRET}",
        f" rt_0123456789_{_SECRET}",
        f"rt_0123456789_{_SECRET}\n",
        f"rt-0123456789-{_SECRET}",
        "rt_'; DROP T_" + _SECRET,
    ],
)
def test_what_cannot_be_a_key_is_not_taken_for_one(text: str) -> None:
    assert parse_api_key(text) is None


@given(st.text(max_size=80))
def test_no_text_breaks_the_parser_or_the_comparison(text: str) -> None:
    found = parse_api_key(text)
    assert found is None or found[1] == text
    assert not matches(text, "0" * 64)


def test_one_letter_less_or_another_prefix_does_not_match() -> None:
    full, _, stored = new_api_key("rv")
    assert not matches(full[:-1], stored)
    assert not matches("rt" + full[2:], stored)


def test_nothing_matches_a_key_that_is_not_there() -> None:
    full, _, _ = new_api_key()
    assert matches(full, None) is False


def test_what_a_key_may_do_stands_in_its_first_letters() -> None:
    scopes = {prefix: scope_of_key(prefix) for prefix in ("rt", "rb", "ri", "rv", "ra", "later")}
    assert scopes == {
        "rt": "write",
        "rb": "write",
        "ri": "ingest",
        "rv": "read",
        "ra": "admin",
        "later": "read",
    }


def test_every_scope_has_a_prefix_of_its_own_and_the_role_that_older_clients_know() -> None:
    for scope, prefix in PREFIX_OF_SCOPE.items():
        assert scope_of_key(prefix) == scope
        assert new_api_key(prefix)[0].startswith(f"{prefix}_")
    roles = {scope: role_of_scope(scope) for scope in PREFIX_OF_SCOPE}
    assert roles == {"ingest": "member", "read": "viewer", "write": "member", "admin": "member"}


def test_what_is_shown_of_a_key_is_not_its_secret() -> None:
    full, key_id, _ = new_api_key()
    assert full.startswith(shown_prefix("rt", key_id) + "_")
    assert len(shown_prefix("rt", key_id)) == 13


def test_half_a_surrogate_pair_has_a_hash_too() -> None:
    assert len(hash_of("\ud800")) == 64


def test_a_wrong_secret_is_looked_up_whether_the_key_is_known_or_not(
    sqlite_database: SqliteDatabase, tmp_path: Path
) -> None:
    """So that how long a refusal takes tells nobody which keys are in use."""
    real = bootstrap(sqlite_database, "Acme").api_key
    wrong = real[:15] + ("B" if real[15] == "A" else "A") + real[16:]
    unknown = new_api_key()[0]
    looked_up: list[Tenant] = []

    async def ask(context: ServerContext, key: str) -> int:
        read, before = context.db.read, len(looked_up)

        async def counted(tenant: Tenant, work: Any) -> Any:
            looked_up.append(tenant)
            return await read(tenant, work)

        headers = [(b"authorization", f"Bearer {key}".encode())]
        app = SimpleNamespace(state=SimpleNamespace(context=context))
        scope = {"type": "http", "method": "GET", "path": "/api/keys", "headers": headers}
        with pytest.MonkeyPatch.context() as patch, suppress(Problem):
            patch.setattr(context.db, "read", counted)
            await caller_of(Request({**scope, "app": app, "query_string": b""}), "see_itself")
        return len(looked_up) - before

    async def reads(context: ServerContext) -> list[int]:
        return [await ask(context, key) for key in (real, real, wrong, unknown)]

    assert Server(sqlite_database, tmp_path).run(reads) == [1, 0, 1, 1]
